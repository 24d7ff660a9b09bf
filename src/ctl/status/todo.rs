//! Decides what needs an operator, and the command that helps.

use serde::Serialize;

use super::overview::{OpenWorker, Run};
use crate::{
    config::Settings,
    fleet::{Fleet, snapshot::Snapshot, stranded::Stranded},
    format::counted,
    printable::printable,
};

/// A nightly run counts as missed after this.
const A_NIGHT_AND_A_DAY_S: f64 = 26.0 * 3600.0;
/// Workers to name; the remedy is the same for all.
const WORKERS_NAMED: usize = 3;

/// Something that needs an operator.
#[derive(Serialize)]
pub(super) struct Todo {
    pub what: String,
    pub remedy: String,
}

impl Todo {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

impl From<&Stranded> for Todo {
    fn from(stranded: &Stranded) -> Self {
        Self::new(stranded.to_string(), stranded.remedy())
    }
}

/// Everything that needs an operator, the most urgent first.
pub(super) fn todo(
    snapshot: &Snapshot,
    workers: &[OpenWorker],
    runs: &[Run],
    fleet: &Fleet,
    settings: &Settings,
) -> Vec<Todo> {
    let mut todo = Vec::new();
    todo.extend(snapshot.paused.as_ref().map(|reason| {
        Todo::new(format!("the fleet is paused: {}", printable(reason)), "cleanupctl resume")
    }));
    todo.extend(stuck(snapshot));
    todo.extend(without_heartbeat(workers, fleet, settings));
    todo.extend(ahead_of_time(workers));
    todo.extend(no_run(snapshot));
    todo.extend(failed_pastes(snapshot));
    todo.extend(runs.iter().find(|run| !run.is_running()).and_then(failed_run));
    todo
}

fn stuck(snapshot: &Snapshot) -> Option<Todo> {
    let what = || {
        format!(
            "{} without a heartbeat for watchdog.stuck_after, and not reset: no watchdog runs, or a \
             transaction locks the rows",
            counted(snapshot.stuck_claims, "claim")
        )
    };
    let remedy = "start cleanup-watchdog; to reset now: cleanup-watchdog --once; to find the \
                  transaction: cleanupctl doctor --long-transaction 1m";
    (snapshot.stuck_claims > 0).then(|| Todo::new(what(), remedy))
}

/// Workers that are dead, but whose leases have not run out yet.
fn without_heartbeat(workers: &[OpenWorker], fleet: &Fleet, settings: &Settings) -> Vec<Todo> {
    let heartbeats_s = settings.worker.three_heartbeats().as_secs_f64();
    let stuck_s = settings.watchdog.stuck_after.as_secs_f64();
    let dead = |worker: &&OpenWorker| {
        worker.heartbeat_age_s > heartbeats_s && worker.heartbeat_age_s < stuck_s
    };
    let name = |worker: &OpenWorker| {
        let what = format!(
            "worker {} has sent no heartbeat for {:.0} s and has claimed {}; {}",
            worker.worker,
            worker.heartbeat_age_s,
            counted(worker.pastes, "paste"),
            fleet.reset_in(stuck_s - worker.heartbeat_age_s, settings)
        );
        Todo::new(what, format!("if it is dead: cleanupctl reset --worker {}", worker.worker))
    };
    workers.iter().filter(dead).take(WORKERS_NAMED).map(name).collect()
}

fn ahead_of_time(workers: &[OpenWorker]) -> Vec<Todo> {
    let name = |worker: &OpenWorker| {
        let what = format!(
            "the last heartbeat of worker {} is in the future: Postgres' clock was ahead",
            worker.worker
        );
        let remedy = "the watchdog's next sweep corrects it; to do it now: cleanup-watchdog --once";
        Todo::new(what, remedy)
    };
    workers.iter().filter(|worker| worker.in_the_future).take(WORKERS_NAMED).map(name).collect()
}

fn no_run(snapshot: &Snapshot) -> Option<Todo> {
    let idle_s = snapshot.now_s - snapshot.last_start_s.unwrap_or_default();
    let missed = idle_s.min(snapshot.oldest_overdue_s.unwrap_or_default()) > A_NIGHT_AND_A_DAY_S;
    let due = counted(snapshot.backlog, "paste");
    missed.then(|| {
        let what = format!("no run has started for more than a day; backlog: {due}");
        Todo::new(what, "fix the scheduler; to run now: cleanup-worker run")
    })
}

fn failed_pastes(snapshot: &Snapshot) -> Vec<Todo> {
    let mut todo = Vec::new();
    if snapshot.dead_letters > 0 {
        todo.push(Todo::new(
            format!("{} failed permanently", counted(snapshot.dead_letters, "paste")),
            "list them: cleanupctl dead-letters; fix the cause, then: cleanupctl requeue --all",
        ));
    }
    if snapshot.unclaimable > 0 {
        todo.push(Todo::new(
            format!("{} cannot be claimed", counted(snapshot.unclaimable, "paste")),
            "find the cause: cleanupctl doctor; fix it, then: cleanupctl requeue --all",
        ));
    }
    if let Some(findings) = snapshot.audit_findings_left.filter(|findings| *findings > 0) {
        todo.push(Todo::new(
            format!("the last audit left {}", counted(findings, "finding")),
            "list them, and what to do about each: cleanupctl audit",
        ));
    }
    todo
}

fn failed_run(run: &Run) -> Option<Todo> {
    let why = run.error.as_deref().unwrap_or("no reason is recorded");
    match &*run.state {
        "failed" => Some(Todo::new(format!("the last run failed: {why}"), "cleanupctl doctor")),
        "brake" => Some(Todo::new(
            format!("the safety brake stopped the last run: {why}"),
            "count the due pastes: cleanup-worker run --dry-run; see ops/RUNBOOK.md#brake",
        )),
        _ => None,
    }
}
