//! A test world with a bucket in memory, and helpers to run audits and read their reports.

use std::{collections::BTreeSet, ops::Deref, time::Duration};

use paste_cleanup::objects::Objects;
use serde_json::Value;
use tokio_postgres::Client;

use crate::support::{memory_s3::MemoryS3, process::Ended, *};

/// Repairs a bucket in which most objects are orphans: for tests that are not about the brake.
pub(crate) const REPAIR_MOST: [&str; 4] = ["--repair", "--override-brake", "--grace", "0s"];
pub(crate) const OLD: Duration = Duration::from_secs(3 * 24 * 3600);

pub(crate) struct Stage {
    pub world: World,
    pub store: MemoryS3,
}

impl Deref for Stage {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self::of(World::new().await).await
    }

    pub(crate) async fn of(world: World) -> Self {
        let stage = Self::never_used(world).await;
        stage.erase_one().await;
        stage
    }

    /// A stage whose database has never erased a paste.
    pub(crate) async fn never_used(mut world: World) -> Self {
        let store = MemoryS3::start().await;
        world.settings.s3.endpoint = Some(store.url.clone());
        world.s3 = Objects::new(&world.settings).await.expect("client").client().clone();
        world.bind().await;
        Self { world, store }
    }

    /// Inserts this many live pastes, each with its own content, older than the grace period.
    pub(crate) async fn fill(&self, pastes: usize) {
        let fill = format!(
            "INSERT INTO content (content_hash, s3_key, size_bytes, ref_count, created_at)
             SELECT sha256(('b' || n)::bytea), encode(sha256(('b' || n)::bytea), 'hex') || '/x', 10, 1,
                    now() - interval '3 days'
             FROM generate_series(1, {pastes}) n;
             INSERT INTO pastes (short_code, content_hash)
             SELECT 'p' || n, sha256(('b' || n)::bytea) FROM generate_series(1, {pastes}) n;
             ANALYZE content; ANALYZE pastes"
        );
        self.run_sql(&fill).await;
        for row in self.db.query("SELECT s3_key FROM content", &[]).await.expect("keys") {
            self.store.put(row.get(0), 10, OLD);
        }
    }

    /// Runs an audit that must exit with this code, and returns its report.
    pub(crate) async fn audited(&self, code: i32, args: &[&str]) -> Value {
        report_of(&self.audit(args).output().await, code)
    }

    pub(crate) async fn assert_nothing_wrong(&self) {
        let report = self.audited(0, &["--grace", "0s"]).await;
        assert_eq!(found(&report), 0, "{report:#}");
    }

    pub(crate) async fn sentinels(&self) -> i64 {
        let sql =
            "SELECT count(*) FROM content WHERE content_hash = 'audit:'::bytea || s3_key::bytea";
        self.count(sql).await
    }

    /// Executes `sql` on the connection as soon as the audit waits for a lock, which it does for a second
    /// only.
    pub(crate) async fn when_the_audit_waits(&self, connection: &Client, sql: &str) {
        self.when_it_waits("cleanupctl audit", 1, connection, sql).await;
    }
}

pub(crate) fn report_of(ended: &Ended, code: i32) -> Value {
    let report = ended.json();
    assert_eq!(ended.code(), code, "{report:#}\n{}", ended.stderr());
    report
}

const KINDS: [&str; 7] = [
    "orphans",
    "missing_objects",
    "wrong_counts",
    "unreferenced_content",
    "missing_content_rows",
    "pending_deletions",
    "ambiguous",
];

/// Returns the number of findings.
pub(crate) fn found(report: &Value) -> u64 {
    KINDS.iter().map(|kind| report[kind].as_u64().expect("a number")).sum()
}

/// Returns the keys (or the hashes, without a key) of the findings of a kind.
pub(crate) fn names(report: &Value, kind: &str) -> BTreeSet<String> {
    let findings = report["findings"].as_array().expect("findings").iter();
    let findings = findings.filter(|finding| finding["kind"] == kind);
    let name = |finding: &Value| {
        let name = finding["key"].as_str().or(finding["content_hash"].as_str());
        name.expect("a name").to_string()
    };
    findings.map(name).collect()
}
