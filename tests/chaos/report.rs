//! What the soak did, and what it found.

use std::{
    collections::BTreeMap, fmt::Write as _, fs, path::Path, sync::atomic::Ordering::Relaxed,
};

use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::{
    faults::Done,
    fleet::{Fleet, Ledger},
    journal::Beliefs,
    plan::Plan,
    reader::Looked,
    stage::Stage,
    support::{connect, invariants::Findings},
};

/// Sentences in the workers' logs that tell of something worth counting.
const SENTENCES: [(&str, &str); 5] = [
    ("fences that fired", "held back by the fence"),
    ("claims lost, for whatever reason", "was reset; its pastes belong"),
    ("claims dropped for want of a heartbeat", "no heartbeat for stuck_after"),
    ("steps tried again after an answer was lost", "trying again"),
    ("claims found whose answer was lost", "its answer was lost: releasing it"),
];
/// Sentences that must not be there.
pub const FORBIDDEN: [&str; 2] = ["panicked", "drift:"];
/// Only an owner's lock or trigger can keep a row from taking over the key of its object.
const FORBIDDEN_WITHOUT_OWNER: &str = "keeps the key";

const FIGURES: &str = "
    SELECT 'batches finished', count(*)::bigint FROM deletion_claims WHERE finished_at IS NOT NULL
    UNION ALL SELECT 'rows deleted', coalesce(sum(rows_deleted), 0)::bigint FROM deletion_claims
    UNION ALL SELECT 'objects deleted', coalesce(sum(objects_deleted), 0)::bigint FROM deletion_claims
    UNION ALL SELECT 'bodies re-created', count(*) - count(DISTINCT content_hash) FROM chaos_incarnations
    UNION ALL SELECT 'claims reset', count(*) FROM deletion_claims
        WHERE reset_reason = 'worker lease expired'
    UNION ALL SELECT 'reset after decrement', count(*) FROM deletion_claims
        WHERE reset_reason = 'worker lease expired' AND decremented_at IS NOT NULL
    UNION ALL SELECT 'claims released', count(*) FROM deletion_claims
        WHERE reset_reason <> 'worker lease expired'";

/// Everything that a report is made from.
pub struct Told<'a> {
    pub seed: u64,
    pub minutes: f64,
    pub plan: &'a Plan,
    pub stage: &'a Stage,
    pub fleet: &'a Fleet,
    pub done: &'a Done,
    pub looked: &'a Looked,
    pub beliefs: &'a Beliefs,
    pub dead_letters: i64,
    pub findings: &'a Findings,
}

/// Figures by name, in the order in which they are shown.
pub type Figures = Vec<(String, u64)>;

/// The report.
pub struct Report {
    seed: u64,
    minutes: f64,
    plan: String,
    faults: Figures,
    processes: Figures,
    figures: Figures,
    pub violations: Vec<String>,
}

/// Figures that Postgres keeps; also for the progress line.
pub async fn figures_of_tables(db: &Client) -> Option<Figures> {
    let rows = db.query(FIGURES, &[]).await.ok()?;
    Some(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).cast_unsigned())).collect())
}

impl Report {
    pub async fn new(told: &Told<'_>) -> Self {
        let db = connect(&told.stage.store.database_url).await;
        let mut figures = figures_of_tables(&db).await.expect("figures");
        let logs = logs(&told.stage.kept);
        for (name, sentence) in SENTENCES {
            figures.push((name.into(), logs.matches(sentence).count() as u64));
        }
        figures.extend(told.beliefs.counts.iter().map(|(name, count)| (name.to_string(), *count)));
        figures.extend(other_figures(told).await);
        let done = told.done.lock().expect("done").clone();
        let faults = told.plan.kinds.iter();
        let faults = faults.map(|kind| (format!("{kind:?}"), done.get(kind).copied().unwrap_or(0)));
        let mut report = Self {
            seed: told.seed,
            minutes: told.minutes,
            plan: told.plan.digest(),
            faults: faults.collect(),
            processes: processes(&told.fleet.ledger),
            figures,
            violations: told.findings.violations.clone(),
        };
        report.violations.extend(forbidden(&logs, &told.fleet.ledger));
        if !told.stage.has_owner && logs.contains(FORBIDDEN_WITHOUT_OWNER) {
            report.violations.push(format!("the log says: {FORBIDDEN_WITHOUT_OWNER}"));
        }
        let idle = report.idleness(told.minutes);
        report.violations.extend(idle);
        report
    }

    fn figure(&self, name: &str) -> u64 {
        let all = self.figures.iter().chain(&self.faults);
        all.filter(|(figure, _)| figure == name).map(|(_, count)| *count).sum()
    }

    /// A soak in which nothing happened proves nothing.
    fn idleness(&self, minutes: f64) -> Vec<String> {
        let per_minute = |count: f64| (count * minutes) as u64;
        let mut wanted = vec![
            ("rows deleted", per_minute(200.0)),
            ("batches finished", per_minute(10.0)),
            ("bodies re-created", per_minute(10.0)),
            ("live bodies read", per_minute(50.0)),
            ("objects watched on deletion", per_minute(50.0)),
            ("audits of all tables", per_minute(20.0)),
            ("of these promised to a writer", 1),
            ("fences that fired", 1),
            ("claims reset", 1),
            ("objects deleted late", 1),
            ("objects deleted again", 1),
            ("requests or answers lost on their way", 1),
        ];
        let kinds: Vec<String> = self.faults.iter().map(|(kind, _)| kind.clone()).collect();
        wanted.extend(kinds.iter().map(|kind| (&**kind, 1)));
        let short = wanted.into_iter().filter(|(name, least)| self.figure(name) < *least);
        short
            .map(|(name, least)| format!("idle: {name}: {}, less than {least}", self.figure(name)))
            .collect()
    }

    /// For eyes.
    pub fn show(&self) -> String {
        let (seed, minutes, plan) = (self.seed, self.minutes, &self.plan);
        let faults: u64 = self.faults.iter().map(|(_, count)| count).sum();
        let mut text = format!("seed {seed}, {minutes} minutes, plan {plan}, {faults} faults\n");
        for (title, figures) in
            [("faults", &self.faults), ("processes", &self.processes), ("figures", &self.figures)]
        {
            let rows = figures
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

    /// For machines.
    pub fn json(&self) -> Value {
        let map = |figures: &Figures| figures.iter().cloned().collect::<BTreeMap<_, _>>();
        json!({
            "seed": self.seed,
            "minutes": self.minutes,
            "plan": self.plan,
            "faults": map(&self.faults),
            "processes": map(&self.processes),
            "figures": map(&self.figures),
            "violations": self.violations,
        })
    }
}

/// What is neither in tables nor in logs.
async fn other_figures(told: &Told<'_>) -> Figures {
    let s3 = &told.stage.faulty.stats;
    let orphans = told.findings.objects.saturating_sub(told.findings.bodies);
    let fired = told.stage.proxies.lock().await.fleet.fired() as u64;
    [
        ("requests or answers lost on their way", fired),
        ("objects watched on deletion", s3.watched.load(Relaxed)),
        ("objects deleted late", s3.late.load(Relaxed)),
        ("objects deleted again", s3.repeated.load(Relaxed)),
        ("dead letters requeued", told.dead_letters.cast_unsigned()),
        ("live bodies read", told.looked.reads.load(Relaxed)),
        ("audits of all tables", told.looked.audits.load(Relaxed)),
        ("pastes alive at the end", told.findings.pastes as u64),
        ("of these promised to a writer", told.beliefs.alive.len() as u64),
        ("bodies compared at the end", told.findings.read as u64),
        ("uploads in doubt", told.beliefs.in_doubt.len() as u64),
        ("of these in the bucket", orphans as u64),
    ]
    .map(|(name, count)| (name.to_string(), count))
    .to_vec()
}

fn processes(ledger: &Ledger) -> Figures {
    let starts = ledger.starts.lock().expect("starts").clone().into_iter();
    let starts = starts.map(|(role, count)| (format!("{role:?} started"), count));
    let ends = ledger.ends.lock().expect("ends").clone().into_iter();
    let ends = ends.map(|((role, way), count)| (format!("{role:?} ended: {way}"), count));
    starts.chain(ends).collect()
}

/// All that the fleet said.
fn logs(kept: &Path) -> String {
    let files = fs::read_dir(kept).expect("logs").flatten().map(|file| file.path());
    let of_the_fleet = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.ends_with(".log") && name.starts_with('w')
    };
    files.filter(of_the_fleet).map(|path| fs::read_to_string(path).unwrap_or_default()).collect()
}

/// A count that was wrong even for a moment, or a panic.
fn forbidden(logs: &str, ledger: &Ledger) -> Vec<String> {
    let bad = |line: &&str| FORBIDDEN.iter().any(|sentence| line.contains(sentence));
    let mut found: Vec<String> =
        logs.lines().filter(bad).map(|line| format!("the log says: {line}")).collect();
    for summary in ledger.summaries.lock().expect("summaries").iter() {
        if summary["drift_repaired"] != 0 {
            found.push(format!("a worker repaired drift: {summary}"));
        }
    }
    found
}
