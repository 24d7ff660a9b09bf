//! The report: what the soak did, and which violations it found.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use serde_json::{Value, json};

use crate::{
    activity::{self, Counted},
    fleet::{Fleet, Ledger},
    journal::Journals,
    support::invariants::Findings,
};

/// Log messages that are violations.
pub(crate) const FORBIDDEN_MESSAGES: [&str; 2] = ["panicked", "drift:"];
/// Only a lock or a trigger of the table owner can keep a row from taking over its pending key.
/// Logged by a finish or a reset.
const FORBIDDEN_WITHOUT_OWNER: [&str; 1] = ["keeps the pending object delete"];

/// Everything that goes into a report.
pub(crate) struct Results<'a> {
    pub seed: u64,
    pub minutes: f64,
    pub counted: Counted<'a>,
    pub fleet: &'a Fleet,
    pub journals: &'a Journals,
    pub dead_letters: i64,
    pub findings: &'a Findings,
}

/// Counts by name, in the order in which they are printed.
pub(crate) type Stats = Vec<(String, u64)>;

/// The report.
pub(crate) struct Report {
    seed: u64,
    minutes: f64,
    plan: String,
    faults: Stats,
    processes: Stats,
    stats: Stats,
    pub violations: Vec<String>,
}

impl Report {
    pub(crate) async fn new(results: &Results<'_>) -> Self {
        let env = results.counted.env;
        let logs = logs(&env.output_dir);
        let mut stats = results.counted.stats(&logs, results.journals).await.expect("stats");
        stats.extend(end_stats(results));
        let mut report = Self {
            seed: results.seed,
            minutes: results.minutes,
            plan: results.counted.plan.digest(),
            faults: results.counted.faults(),
            processes: processes(&results.fleet.ledger),
            stats,
            violations: results.findings.violations.clone(),
        };
        report.violations.extend(forbidden(&logs, &results.fleet.ledger));
        if !env.has_owner {
            let unexpected = FORBIDDEN_WITHOUT_OWNER.iter().filter(|text| logs.contains(**text));
            let unexpected = unexpected.map(|text| format!("forbidden log message: {text}"));
            report.violations.extend(unexpected);
        }
        let missing = activity::missing(&report.stats, &report.faults, results.minutes);
        report.violations.extend(missing.iter().map(ToString::to_string));
        report
    }

    /// Formats the report for people.
    pub(crate) fn show(&self) -> String {
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
    pub(crate) fn json(&self) -> Value {
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

/// Collects the counts that are known only at the end.
fn end_stats(results: &Results<'_>) -> Stats {
    let orphans = results.findings.objects.saturating_sub(results.findings.content_rows);
    [
        ("dead letters requeued", results.dead_letters.cast_unsigned()),
        ("live pastes at the end", results.findings.pastes as u64),
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
pub(crate) fn logs(output_dir: &Path) -> String {
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
