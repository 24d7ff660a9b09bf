//! What happened in a soak, and whether it is enough: a soak in which nothing happens proves nothing.

use std::{fmt, sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::{
    end,
    environment::Environment,
    faults::{self, Done},
    fleet::Fleet,
    journal::Journals,
    plan::{Kind, Plan, Planned},
    reader::Checks,
    report::{Stats, logs},
    support::try_connect,
};

/// Log messages of the workers that are counted.
const COUNTED_MESSAGES: [(&str, &str); 5] = [
    ("fences that fired", "its fence matched no row"),
    ("leases lost", "lost the lease of claim"),
    ("claims dropped without a recent heartbeat", "which a watchdog may have reset"),
    ("steps retried after a lost answer", "failed, retrying for up to"),
    ("unconfirmed claims released", "no batch of this worker has it"),
];
const TABLE_STATS: &str = "
    SELECT 'batches finished', count(*)::bigint FROM deletion_claims WHERE finished_at IS NOT NULL
    UNION ALL SELECT 'rows deleted', coalesce(sum(rows_deleted), 0)::bigint FROM deletion_claims
    UNION ALL SELECT 'objects deleted', coalesce(sum(objects_deleted), 0)::bigint FROM deletion_claims
    UNION ALL SELECT 'content stored again', count(*) - count(DISTINCT content_hash) FROM chaos_content
    UNION ALL SELECT 'claims reset', count(*) FROM deletion_claims
        WHERE reset_reason = 'worker lease expired'
    UNION ALL SELECT 'reset after decrement', count(*) FROM deletion_claims
        WHERE reset_reason = 'worker lease expired' AND decremented_at IS NOT NULL
    UNION ALL SELECT 'claims released', count(*) FROM deletion_claims
        WHERE reset_reason <> 'worker lease expired'";
/// Stats that must not be zero, and the faults that increase them.
const CAUSED: [(&str, Kind); 5] = [
    ("fences that fired", Kind::SwallowHeartbeats),
    ("claims reset", Kind::SwallowHeartbeats),
    ("objects deleted late", Kind::LateDeletes),
    ("objects deleted again", Kind::RepeatedDeletes),
    ("requests or answers lost in transit", Kind::LoseCommitAnswers),
];
/// How long a soak may continue after its plan, on a slow machine.
const COMPLETE_WITHIN: Duration = Duration::from_secs(600);
const LASTS: Duration = Duration::from_secs(1);

/// What is counted while a soak runs.
#[derive(Clone, Copy)]
pub(crate) struct Counted<'a> {
    pub env: &'a Environment,
    pub plan: &'a Plan,
    pub done: &'a Done,
    pub checks: &'a Checks,
}

/// Something that happened too rarely.
pub(crate) struct Missing {
    name: String,
    count: u64,
    least: u64,
}

impl fmt::Display for Missing {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, count, least } = self;
        write!(to, "too little activity: {name}: {count}, expected at least {least}")
    }
}

/// Reads the counts from the tables, for the report and the progress line.
pub(crate) async fn table_stats(db: &Client) -> Option<Stats> {
    let rows = db.query(TABLE_STATS, &[]).await.ok()?;
    Some(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).cast_unsigned())).collect())
}

impl Counted<'_> {
    /// Collects the counts from tables, logs, journals, proxies and readers. `None`: Postgres is
    /// unavailable.
    pub(crate) async fn stats(&self, logs: &str, journals: &Journals) -> Option<Stats> {
        let db = try_connect(&self.env.store.database_url).await?;
        let mut stats = table_stats(&db).await?;
        let messages = COUNTED_MESSAGES.iter();
        stats.extend(
            messages.map(|(name, text)| (name.to_string(), logs.matches(text).count() as u64)),
        );
        stats.extend(journals.counts.iter().map(|(name, count)| (name.to_string(), *count)));
        let s3 = &self.env.faulty.stats;
        let others = [
            (
                "requests or answers lost in transit",
                self.env.proxies.lock().await.fleet.fired() as u64,
            ),
            ("deletions checked against content", s3.watched.load(Relaxed)),
            ("objects deleted late", s3.late.load(Relaxed)),
            ("objects deleted again", s3.repeated.load(Relaxed)),
            ("live pastes read and compared", self.checks.reads.load(Relaxed)),
            ("audits of all tables", self.checks.audits.load(Relaxed)),
            ("live pastes without expiry", journals.alive.len() as u64),
        ];
        stats.extend(others.map(|(name, count)| (name.to_string(), count)));
        Some(stats)
    }

    /// Returns how often each kind of fault was carried out.
    pub(crate) fn faults(&self) -> Stats {
        let done = self.done.lock().expect("done").clone();
        let count = |kind| (format!("{kind:?}"), done.get(kind).copied().unwrap_or(0));
        self.plan.kinds.iter().map(count).collect()
    }

    /// Returns what happened too rarely so far. `None`: Postgres is unavailable.
    async fn missing(&self, minutes: f64) -> Option<Vec<Missing>> {
        let output_dir = &self.env.output_dir;
        let stats = self.stats(&logs(output_dir), &end::journals(output_dir)).await?;
        Some(missing(&stats, &self.faults(), minutes))
    }
}

/// Lists what happened too rarely.
pub(crate) fn missing(stats: &Stats, faults: &Stats, minutes: f64) -> Vec<Missing> {
    let per_minute = |count: f64| (count * minutes) as u64;
    let mut wanted = vec![
        ("rows deleted", per_minute(200.0)),
        ("batches finished", per_minute(10.0)),
        ("content stored again", per_minute(10.0)),
        ("live pastes read and compared", per_minute(50.0)),
        ("deletions checked against content", per_minute(50.0)),
        ("audits of all tables", per_minute(20.0)),
        ("live pastes without expiry", 1),
    ];
    wanted.extend(CAUSED.map(|(name, _)| (name, 1)));
    wanted.extend(faults.iter().map(|(kind, _)| (&**kind, 1)));
    let count_of = |name: &str| {
        let all = stats.iter().chain(faults).filter(|(stat, _)| stat == name);
        all.map(|(_, count)| *count).sum::<u64>()
    };
    let counted = wanted.into_iter().map(|(name, least)| Missing {
        name: name.into(),
        count: count_of(name),
        least,
    });
    counted.filter(|missing| missing.count < missing.least).collect()
}

/// Lets the soak continue until enough has happened: on a slow machine a plan takes no longer, but less
/// happens meanwhile. Faults that are missing are repeated.
pub(crate) async fn complete(counted: &Counted<'_>, fleet: &Fleet, minutes: f64) {
    let give_up = Instant::now() + COMPLETE_WITHIN;
    // A soak that has failed need not continue.
    while Instant::now() < give_up && counted.env.violations() == 0 {
        counted.env.faulty.resolved().await;
        let missing = counted.missing(minutes).await;
        if missing.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        for missing in missing.unwrap_or_default() {
            println!("chaos: continues after its plan: {missing}");
            if let Some(planned) = cause(counted.plan, &missing.name) {
                faults::repeat(counted.env, fleet, &planned, counted.done).await;
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Returns a fault that increases this count.
fn cause(plan: &Plan, name: &str) -> Option<Planned> {
    let caused = CAUSED.iter().find(|(caused, _)| *caused == name).map(|(_, kind)| *kind);
    let kind =
        caused.or_else(|| plan.kinds.iter().find(|kind| format!("{kind:?}") == name).copied())?;
    Some(Planned { at: Duration::ZERO, kind, lasts: LASTS, seed: fastrand::u64(..) })
}
