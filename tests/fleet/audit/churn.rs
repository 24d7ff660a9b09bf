//! Repairs one after the other, while writers write and workers erase, die and are reset: an audit
//! reports nothing that is right, and no live paste loses its body.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::Value;
use tokio_postgres::{Client, Error, Row, error::SqlState};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    audit::stage::{found, names, report_of},
    support::{
        invariants::{Expected, Store},
        process::Signal,
        *,
    },
};

const WRITERS: u64 = 3;
const AUDITS: usize = 30;
/// Few enough that counts reach zero, and the same bodies are stored again, all the time.
const BODIES: u32 = 30;
const PUT: &str = "SELECT s3_key, drop_upload FROM paste_put($1, $2, $3, 4,
                   now() + $4::float8 * interval '1 second')";

/// What the writers know.
#[derive(Default)]
struct Known {
    /// Pastes that have not expired, and their bodies.
    alive: BTreeMap<String, String>,
    /// Keys under which a body was really stored.
    stored: BTreeSet<String>,
    /// Puts that had to upload again.
    repeated: usize,
}

struct Writer {
    name: u64,
    rng: fastrand::Rng,
    db: Client,
    store: Store,
    known: Arc<Mutex<Known>>,
}

impl Writer {
    async fn write(mut self, stop: CancellationToken) {
        for n in 0.. {
            if stop.is_cancelled() {
                return;
            }
            let code = format!("w{}-{n}", self.name);
            match self.rng.u32(..10) {
                ..4 => self.put(&code, -1.0).await,
                4..8 => self.put(&code, 3600.0).await,
                8 => self.expire_one().await,
                _ => self.extend_one().await,
            }
        }
    }

    /// Follows the contract: upload, store, drop an upload that is not used; upload again after a
    /// unique violation.
    async fn put(&mut self, code: &str, expires: f64) {
        let body = format!("body {}", self.rng.u32(..BODIES));
        loop {
            let key = format!("{}/{}", hex(&hash(&body)), Uuid::new_v4().simple());
            let bucket = self.store.bucket.clone();
            let upload = self.store.s3.put_object().bucket(&bucket).key(&key);
            upload.body(body.clone().into_bytes().into()).send().await.expect("upload");
            self.sleep_sometimes().await;
            let row = match self.store_row(code, &body, &key, expires).await {
                Ok(row) => row,
                Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                    self.known.lock().expect("known").repeated += 1;
                    continue;
                }
                Err(error) => panic!("put: {error:?}"),
            };
            if row.get("drop_upload") {
                let drop = self.store.s3.delete_object().bucket(&bucket).key(&key);
                drop.send().await.expect("drop");
            }
            let mut known = self.known.lock().expect("known");
            known.stored.insert(row.get("s3_key"));
            if expires > 0.0 {
                known.alive.insert(code.into(), body);
            }
            return;
        }
    }

    /// Sleeps, sometimes, between the upload and the transaction, and before the commit.
    async fn sleep_sometimes(&mut self) {
        if self.rng.u32(..8) == 0 {
            tokio::time::sleep(Duration::from_millis(self.rng.u64(50..400))).await;
        }
    }

    async fn store_row(
        &mut self,
        code: &str,
        body: &str,
        key: &str,
        expires: f64,
    ) -> Result<Row, Error> {
        self.db.batch_execute("BEGIN").await?;
        let stored = self.db.query_one(PUT, &[&code, &hash(body), &key, &expires]).await;
        self.sleep_sometimes().await;
        self.db.batch_execute("COMMIT").await?;
        stored
    }

    async fn expire_one(&mut self) {
        let Some(code) = self.forget_one() else { return };
        self.db.query_one("SELECT paste_expire_now($1)", &[&code]).await.expect("expire");
    }

    async fn extend_one(&mut self) {
        let known = self.known.lock().expect("known").alive.keys().next().cloned();
        if let Some(code) = known {
            let extend = "SELECT paste_extend($1, now() + interval '1 day')";
            self.db.query_one(extend, &[&code]).await.expect("extend");
        }
    }

    /// Removes one of its own pastes from the known ones.
    fn forget_one(&mut self) -> Option<String> {
        let mut known = self.known.lock().expect("known");
        let own = format!("w{}-", self.name);
        let code = known.alive.keys().find(|code| code.starts_with(&own))?.clone();
        known.alive.remove(&code);
        Some(code)
    }
}

fn worker(world: &World) -> Process {
    let args = ["run", "--format", "json", "--batch-size", "25", "--concurrency", "2"];
    world.program("cleanup-worker").args(&args).env("CLEANUP_BRAKE_MAX_SHARE", "1")
}

/// Runs workers one after the other; every third is killed in the middle of a batch.
async fn erase(world: Arc<World>, stop: CancellationToken) {
    for n in 0.. {
        if stop.is_cancelled() {
            return;
        }
        let running = worker(&world).start();
        if n % 3 == 2 {
            let open = "SELECT count(*) > 0 FROM deletion_claims
                        WHERE finished_at IS NULL AND reset_at IS NULL AND decremented_at IS NOT NULL";
            let seen = async {
                while !world.db.query_one(open, &[]).await.expect("claims").get::<_, bool>(0) {
                    tokio::task::yield_now().await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(2), seen).await;
            running.signal(Signal::KILL);
        }
        running.end().await;
        // A statement of a killed worker may go on, and is a sign of life until its lease expires.
        let gone = "SELECT count(*) = 0 FROM pg_stat_activity
                    WHERE datname = current_database() AND usename = 'suite_worker'";
        world.until("its sessions have ended", gone).await;
        reset_the_dead(&world).await;
    }
}

/// Resets the claims of dead workers, as if their leases had expired two hours ago.
async fn reset_the_dead(world: &World) {
    world.expire_leases(7201.0).await;
    world.sweep().await;
    world.end_backoff().await;
}

/// Runs a repair that must find nothing but uploads that are not stored (yet). Sometimes these are most
/// of the bucket.
async fn assert_audit_is_right(world: &World, grace: &str) -> Value {
    let audit = world
        .audit(&["--repair", "--override-brake", "--grace", grace, "--list", "10000"])
        .output()
        .await;
    let report = report_of(&audit, 0);
    assert_eq!(report["orphans"], found(&report), "nothing else was wrong: {report:#}");
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn audits_beside_writers_and_workers_have_no_false_findings_and_no_live_paste_loses_its_body()
{
    let world = Arc::new(World::new().await);
    world.bind().await;
    let (stop, known) = (CancellationToken::new(), Arc::<Mutex<Known>>::default());
    let mut tasks = tokio::task::JoinSet::new();
    for name in 0..WRITERS {
        let db = connect(&world.database_url).await;
        let (known, store) = (Arc::clone(&known), world.store());
        let writer = Writer { name, rng: fastrand::Rng::with_seed(name), db, store, known };
        tasks.spawn(writer.write(stop.clone()));
    }
    tasks.spawn(erase(Arc::clone(&world), stop.clone()));
    let (mut taken, mut objects) = (BTreeSet::new(), 0);
    for n in 0..AUDITS * 5 {
        // Enough, if an audit met a writer between upload and commit.
        if n >= AUDITS && !taken.is_empty() {
            break;
        }
        // With a grace period nothing is found; without one, uploads whose writers must upload again.
        let grace = if n % 2 == 0 { "1h" } else { "0s" };
        let report = assert_audit_is_right(&world, grace).await;
        assert!(grace == "0s" || found(&report) == 0, "{report:#}");
        taken.extend(names(&report, "orphan"));
        objects += report["objects"].as_u64().expect("a number");
    }
    stop.cancel();
    tasks.join_all().await;
    assert_eq!(worker(&world).output().await.code(), 0, "drained");
    let known = Arc::into_inner(known).expect("all ended").into_inner().expect("known");
    let lost: Vec<&String> = taken.intersection(&known.stored).collect();
    assert!(lost.is_empty(), "objects with a content row were deleted as orphans: {lost:?}");
    assert!(!taken.is_empty() && objects > 0, "an audit met writers between upload and commit");
    assert!(known.stored.len() > 10, "{} bodies were stored", known.stored.len());
    assert_eq!(found(&assert_audit_is_right(&world, "0s").await), 0, "and nothing is left behind");
    let expected = Expected { alive: known.alive, ..Expected::default() };
    world.store().check(&expected).await.assert_clean("after the churn");
}
