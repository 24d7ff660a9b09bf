//! The state of a paste, and what happens to it next.

use std::time::Duration;

use tokio_postgres::Row;

use crate::{config::Settings, fleet::Fleet};

/// The state of a paste in DELETION_IN_PROGRESS, and what happens next.
fn in_progress(row: &Row, settings: &Settings, fleet: &Fleet) -> (&'static str, String) {
    let seconds = |name: &str| row.get::<_, Option<f64>>(name).unwrap_or_default().max(0.0);
    let stuck_after_s = settings.watchdog.stuck_after.as_secs_f64();
    let reset = |age_s: f64| fleet.reset_in(stuck_after_s - age_s, settings);
    let waits = row.get::<_, Option<bool>>("waits_for_content") == Some(true);
    match row.get("claim_is_open") {
        true => (
            "being deleted",
            format!(
                "its worker finishes it. If the worker is dead: {}",
                reset(seconds("heartbeat_s_ago"))
            ),
        ),
        false if waits => (
            "waiting for its content row, which another transaction has locked",
            fleet.reset_in(seconds("retry_in_s"), settings),
        ),
        false => ("stranded: in progress without an open claim", reset(seconds("in_progress_s"))),
    }
}

/// The state of the paste, and what happens next.
pub(super) fn state(row: &Row, settings: &Settings, fleet: &Fleet) -> (&'static str, String) {
    let status: &str = row.get("deletion_status");
    let overdue_s: Option<f64> = row.get("overdue_s");
    let seconds = |name: &str| row.get::<_, Option<f64>>(name).unwrap_or_default().max(0.0);
    let run = match &fleet.paused {
        Some(reason) => format!("no run deletes it while the fleet is paused: {reason}"),
        None => "the next run deletes it".to_string(),
    };
    if status == "DELETED" {
        return ("tombstone", "the watchdog deletes it after retention.tombstones".into());
    }
    if status == "DELETION_IN_PROGRESS" {
        return in_progress(row, settings, fleet);
    }
    match overdue_s {
        None | Some(f64::NEG_INFINITY) => ("alive", "nothing: it never expires".into()),
        Some(overdue) if overdue < 0.0 => {
            ("alive", format!("it expires in {}, then a run deletes it", duration(-overdue)))
        }
        Some(_) if row.get::<_, Option<bool>>("is_dead_letter") == Some(true) => (
            "dead letter",
            "nothing, until an operator fixes the cause and runs `cleanupctl requeue`".into(),
        ),
        Some(_) if row.get::<_, Option<String>>("unclaimable").is_some() => (
            "unclaimable",
            "Postgres refuses the claim's UPDATE (see the last error); fix that, then run \
             `cleanupctl requeue`"
                .into(),
        ),
        Some(_) if seconds("retry_in_s") > settings.worker.longest_backoff().as_secs_f64() => (
            "backing off",
            "its retry_at is too far in the future (Postgres' clock was ahead), and is corrected by \
             the next sweep; to do it now: `cleanup-watchdog --once`"
                .into(),
        ),
        Some(_) if seconds("retry_in_s") > 0.0 => {
            ("backing off", format!("it is due again in {}; {run}", duration(seconds("retry_in_s"))))
        }
        Some(f64::INFINITY) => ("due", format!("it expired at -infinity; {run}")),
        Some(overdue) => ("due", format!("overdue by {}; {run}", duration(overdue))),
    }
}

/// Rounded up: a paste that is due in 0.3 s is not due yet.
pub(super) fn duration(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.ceil()).unwrap_or_default();
    humantime::format_duration(whole).to_string()
}
