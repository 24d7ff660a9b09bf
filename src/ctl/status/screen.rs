//! Formats the status as text.

use std::{collections::VecDeque, time::Duration};

use uuid::Uuid;

use super::overview::{OpenWorker, Overview, Run};
use crate::{
    fleet::snapshot::is_in_the_future,
    format::{table, thousands},
};

/// Number of rates in the trend line.
const TREND_LENGTH: usize = 60;
/// Shown for a time that Postgres' clock recorded while it was ahead.
const IN_THE_FUTURE: &str = "in the future";
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The rates since the screen was opened.
#[derive(Default)]
pub(super) struct Trend {
    rates: VecDeque<f64>,
}

impl Trend {
    pub(super) fn add(&mut self, overview: &Overview) {
        self.rates.push_back(overview.rate);
        if self.rates.len() > TREND_LENGTH {
            self.rates.pop_front();
        }
    }

    fn line(&self) -> String {
        let most = self.rates.iter().copied().fold(1.0, f64::max);
        let level = |rate: &f64| {
            let place = (rate / most * (LEVELS.len() - 1) as f64).round() as usize;
            LEVELS[place.min(LEVELS.len() - 1)]
        };
        self.rates.iter().map(level).collect()
    }
}

pub(super) fn show(overview: &Overview, trend: Option<&Trend>) -> String {
    let mut parts = vec![fleet(overview, trend)];
    if !overview.workers.is_empty() {
        let head = ["worker", "host", "claims", "pastes", "last heartbeat", "waiting for"];
        parts.push(table(&head, overview.workers.iter().map(worker)));
    }
    if !overview.runs.is_empty() {
        let head = ["last runs (UTC)", "host", "took", "pastes", "objects", "failed", "state"];
        parts.push(table(&head, overview.runs.iter().map(run)));
    }
    if !overview.todo.is_empty() {
        let lines =
            overview.todo.iter().map(|todo| format!("  {}\n    → {}", todo.what, todo.remedy));
        parts.push(format!("to do\n{}", lines.collect::<Vec<_>>().join("\n")));
    }
    parts.join("\n")
}

fn fleet(overview: &Overview, trend: Option<&Trend>) -> String {
    let snapshot = &overview.snapshot;
    let about = if snapshot.backlog_estimated { "about " } else { "" };
    let ago = |then: Option<f64>| then.map_or("never".into(), |then| age(snapshot.now_s - then));
    let overdue = match snapshot.expired_at_minus_infinity {
        true => "-infinity".into(),
        false => snapshot.oldest_overdue_s.map_or("nothing overdue".into(), span),
    };
    let watchdog = match overview.watchdog_in_the_future {
        true => IN_THE_FUTURE.into(),
        false => overview.watchdog_s_ago.map_or("never".into(), age),
    };
    let drained = match (snapshot.backlog, overview.drained_in_s) {
        (0, _) => "nothing due".to_string(),
        (_, Some(left)) => span(left),
        (_, None) if snapshot.open_claims == 0 => "no workers running".to_string(),
        (_, None) => "unknown: nothing was deleted in the last minute".to_string(),
    };
    let rate = format!("{} pastes/s", thousands(overview.rate.round() as u64));
    let mut rows = vec![
        ("bucket", overview.bucket.clone().unwrap_or_else(|| "not bound yet".into())),
        ("paused", snapshot.paused.clone().unwrap_or_else(|| "no".into())),
        ("backlog", format!("{about}{}", thousands(snapshot.backlog))),
        ("oldest overdue", overdue),
        ("rate", rate),
        ("time to drain", drained),
        ("in progress", thousands(snapshot.in_progress)),
        ("open claims", thousands(snapshot.open_claims)),
        ("stuck claims", thousands(snapshot.stuck_claims)),
        ("backing off", thousands(snapshot.backing_off)),
        ("dead letters", thousands(snapshot.dead_letters)),
        ("unclaimable", thousands(snapshot.unclaimable)),
        ("deleted, last 24 h", thousands(snapshot.deleted_24h)),
        ("last drained", ago(snapshot.last_success_s)),
        ("last watchdog", watchdog),
        ("last audit", ago(snapshot.audited_s)),
    ];
    if let Some(trend) = trend {
        rows.insert(5, ("recent rates", trend.line()));
    }
    let rows = rows.into_iter().map(|(name, value)| vec![name.to_string(), value]);
    table(&["fleet", ""], rows)
}

fn worker(worker: &OpenWorker) -> Vec<String> {
    vec![
        short(worker.worker),
        worker.host.clone().unwrap_or_default(),
        thousands(worker.claims),
        thousands(worker.pastes),
        match worker.in_the_future {
            true => IN_THE_FUTURE.into(),
            false => format!("{:.1} s ago", worker.heartbeat_age_s),
        },
        worker.waiting_for.clone().unwrap_or_default(),
    ]
}

fn run(run: &Run) -> Vec<String> {
    let state = match (run.is_running(), &run.waiting_for) {
        (true, Some(reason)) => format!("waiting for {reason}"),
        _ => run.state.clone(),
    };
    vec![
        run.started_utc.clone(),
        run.host.clone().unwrap_or_default(),
        span(run.took_s),
        thousands(run.rows_deleted),
        thousands(run.objects_deleted),
        thousands(run.rows_failed),
        state,
    ]
}

/// The first eight digits, which `cleanupctl reset --worker` takes, too.
fn short(worker: Uuid) -> String {
    worker.simple().to_string()[..8].to_string()
}

/// How long ago, or that the time is in the future.
fn age(seconds: f64) -> String {
    match is_in_the_future(seconds) {
        true => IN_THE_FUTURE.into(),
        false => format!("{} ago", span(seconds)),
    }
}

/// A duration in at most two units: 5025.3 → "1h 23m", 12.34 → "12s".
fn span(seconds: f64) -> String {
    let whole = Duration::from_secs(seconds.max(0.0).round() as u64);
    let text = humantime::format_duration(whole).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_two_units_at_most() {
        assert_eq!(span(5025.3), "1h 23m");
        assert_eq!(span(12.34), "12s");
        assert_eq!(span(-1.0), "0s");
    }
}
