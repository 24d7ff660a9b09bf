//! The report: what the soak did, and which violations it found.

use std::{
    collections::BTreeMap, fmt::Write as _, fs, path::Path, sync::atomic::Ordering::Relaxed,
};

use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::{
    environment::Environment,
    faults::Done,
    fleet::{Fleet, Ledger},
    journal::Journals,
    plan::Plan,
    reader::Checks,
    support::{connect, invariants::Findings},
};

/// Log messages of the workers that are counted.
const COUNTED_MESSAGES: [(&str, &str); 5] = [
    ("fences that fired", "stopped by its fence"),
    ("leases lost", "was reset; its pastes belong"),
    ("claims dropped without a recent heartbeat", "no heartbeat for watchdog.stuck_after"),
    ("steps retried after a lost answer", "retrying:"),
    ("unconfirmed claims released", "no batch of this worker has it"),
];
/// Log messages that are violations.
pub const FORBIDDEN_MESSAGES: [&str; 2] = ["panicked", "drift:"];
/// Only a lock or a trigger of the table owner can keep a row from taking over its pending key.
const FORBIDDEN_WITHOUT_OWNER: &str = "keeps the pending delete";

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

/// Everything that goes into a report.
pub struct Results<'a> {
    pub seed: u64,
    pub minutes: f64,
    pub plan: &'a Plan,
    pub env: &'a Environment,
    pub fleet: &'a Fleet,
    pub done: &'a Done,
    pub checks: &'a Checks,
    pub journals: &'a Journals,
    pub dead_letters: i64,
    pub findings: &'a Findings,
}

/// Counts by name, in the order in which they are printed.
pub type Stats = Vec<(String, u64)>;

/// The report.
pub struct Report {
    seed: u64,
    minutes: f64,
    plan: String,
    faults: Stats,
    processes: Stats,
    stats: Stats,
    pub violations: Vec<String>,
}

/// Reads the counts from the tables, for the report and the progress line.
pub async fn table_stats(db: &Client) -> Option<Stats> {
    let rows = db.query(TABLE_STATS, &[]).await.ok()?;
    Some(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).cast_unsigned())).collect())
}

impl Report {
    pub async fn new(results: &Results<'_>) -> Self {
        let db = connect(&results.env.store.database_url).await;
        let mut stats = table_stats(&db).await.expect("stats");
        let logs = logs(&results.env.output_dir);
        for (name, message) in COUNTED_MESSAGES {
            stats.push((name.into(), logs.matches(message).count() as u64));
        }
        stats
            .extend(results.journals.counts.iter().map(|(name, count)| (name.to_string(), *count)));
        stats.extend(other_stats(results).await);
        let done = results.done.lock().expect("done").clone();
        let faults = results.plan.kinds.iter();
        let faults = faults.map(|kind| (format!("{kind:?}"), done.get(kind).copied().unwrap_or(0)));
        let mut report = Self {
            seed: results.seed,
            minutes: results.minutes,
            plan: results.plan.digest(),
            faults: faults.collect(),
            processes: processes(&results.fleet.ledger),
            stats,
            violations: results.findings.violations.clone(),
        };
        report.violations.extend(forbidden(&logs, &results.fleet.ledger));
        if !results.env.has_owner && logs.contains(FORBIDDEN_WITHOUT_OWNER) {
            report.violations.push(format!("forbidden log message: {FORBIDDEN_WITHOUT_OWNER}"));
        }
        let missing = report.missing_activity(results.minutes);
        report.violations.extend(missing);
        report
    }

    fn stat(&self, name: &str) -> u64 {
        let all = self.stats.iter().chain(&self.faults);
        all.filter(|(stat, _)| stat == name).map(|(_, count)| *count).sum()
    }

    /// Lists what happened too rarely: a soak in which nothing happens proves nothing.
    fn missing_activity(&self, minutes: f64) -> Vec<String> {
        let per_minute = |count: f64| (count * minutes) as u64;
        let mut wanted = vec![
            ("rows deleted", per_minute(200.0)),
            ("batches finished", per_minute(10.0)),
            ("content stored again", per_minute(10.0)),
            ("live pastes read and compared", per_minute(50.0)),
            ("deletions checked against content", per_minute(50.0)),
            ("audits of all tables", per_minute(20.0)),
            ("of these without expiry", 1),
            ("fences that fired", 1),
            ("claims reset", 1),
            ("objects deleted late", 1),
            ("objects deleted again", 1),
            ("requests or answers lost in transit", 1),
        ];
        let kinds: Vec<String> = self.faults.iter().map(|(kind, _)| kind.clone()).collect();
        wanted.extend(kinds.iter().map(|kind| (&**kind, 1)));
        let short = wanted.into_iter().filter(|(name, least)| self.stat(name) < *least);
        short
            .map(|(name, least)| {
                format!(
                    "too little activity: {name}: {}, expected at least {least}",
                    self.stat(name)
                )
            })
            .collect()
    }

    /// Formats the report for people.
    pub fn show(&self) -> String {
        let (seed, minutes, plan) = (self.seed, self.minutes, &self.plan);
        let faults: u64 = self.faults.iter().map(|(_, count)| count).sum();
        let mut text = format!("seed {seed}, {minutes} minutes, plan {plan}, {faults} faults\n");
        for (title, stats) in
            [("faults", &self.faults), ("processes", &self.processes), ("stats", &self.stats)]
        {
            let rows = stats
                .iter()
                .map(|(name, count)| vec![name.clone(), paste_cleanup::format::thousands(*count)]);
            let _ = writeln!(text, "{}", paste_cleanup::format::table(&[title, "count"], rows));
        }
        let _ = writeln!(text, "violations: {}", self.violations.len());
        for violation in self.violations.iter().take(40) {
            let _ = writeln!(text, "  {violation}");
        }
        text
    }

    /// Formats the report as JSON.
    pub fn json(&self) -> Value {
        let map = |stats: &Stats| stats.iter().cloned().collect::<BTreeMap<_, _>>();
        json!({
            "seed": self.seed,
            "minutes": self.minutes,
            "plan": self.plan,
            "faults": map(&self.faults),
            "processes": map(&self.processes),
            "stats": map(&self.stats),
            "violations": self.violations,
        })
    }
}

/// Collects the counts that are neither in tables nor in logs.
async fn other_stats(results: &Results<'_>) -> Stats {
    let s3 = &results.env.faulty.stats;
    let orphans = results.findings.objects.saturating_sub(results.findings.content_rows);
    let fired = results.env.proxies.lock().await.fleet.fired() as u64;
    [
        ("requests or answers lost in transit", fired),
        ("deletions checked against content", s3.watched.load(Relaxed)),
        ("objects deleted late", s3.late.load(Relaxed)),
        ("objects deleted again", s3.repeated.load(Relaxed)),
        ("dead letters requeued", results.dead_letters.cast_unsigned()),
        ("live pastes read and compared", results.checks.reads.load(Relaxed)),
        ("audits of all tables", results.checks.audits.load(Relaxed)),
        ("live pastes at the end", results.findings.pastes as u64),
        ("of these without expiry", results.journals.alive.len() as u64),
        ("objects compared at the end", results.findings.read as u64),
        ("uploads in doubt", results.journals.in_doubt.len() as u64),
        ("of these in the bucket", orphans as u64),
    ]
    .map(|(name, count)| (name.to_string(), count))
    .to_vec()
}

fn processes(ledger: &Ledger) -> Stats {
    let starts = ledger.starts.lock().expect("starts").clone().into_iter();
    let starts = starts.map(|(role, count)| (format!("{role:?} started"), count));
    let ends = ledger.ends.lock().expect("ends").clone().into_iter();
    let ends = ends.map(|((role, way), count)| (format!("{role:?} ended: {way}"), count));
    starts.chain(ends).collect()
}

/// Reads the logs of the fleet.
fn logs(output_dir: &Path) -> String {
    let files = fs::read_dir(output_dir).expect("logs").flatten().map(|file| file.path());
    let of_the_fleet = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.ends_with(".log") && name.starts_with('w')
    };
    files.filter(of_the_fleet).map(|path| fs::read_to_string(path).unwrap_or_default()).collect()
}

/// Lists log messages that must not occur: panics, and counts that were wrong even for a moment.
fn forbidden(logs: &str, ledger: &Ledger) -> Vec<String> {
    let bad = |line: &&str| FORBIDDEN_MESSAGES.iter().any(|message| line.contains(message));
    let mut found: Vec<String> =
        logs.lines().filter(bad).map(|line| format!("forbidden log message: {line}")).collect();
    for summary in ledger.summaries.lock().expect("summaries").iter() {
        if summary["drift_repaired"] != 0 {
            found.push(format!("a worker repaired drift: {summary}"));
        }
    }
    found
}
