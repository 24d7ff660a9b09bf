//! A run's summary for people.

use super::summary::{StoppedBecause, Summary};
use crate::format::{bytes, counted, table, thousands};

/// Answers in a few lines: how much, how fast, why did it stop, what is left.
pub fn show(summary: &Summary) -> String {
    let seconds = summary.elapsed_ms as f64 / 1000.0;
    let mut text = format!(
        "deleted {} and {}, {}, in {} and {seconds:.1} s: {} pastes/s\n{}; ended {}",
        counted(summary.rows_deleted, "paste"),
        counted(summary.objects_deleted, "object"),
        bytes(summary.bytes_freed),
        counted(summary.batches, "batch"),
        thousands(summary.rows_per_second.round() as u64),
        why(summary),
        summary.ended_at,
    );
    for (number, what) in [
        (summary.rows_failed, "pastes that could not be deleted in this run"),
        (summary.rows_deleted_by_others, "claimed pastes that another program deleted"),
        (summary.claims_reset_at_start, "claims of dead workers reset at the start"),
        (summary.claims_released, "claims released before they were finished"),
        (summary.leases_lost, "claims lost: reset by a watchdog while this worker had them"),
        (summary.drift_repaired, "wrong ref_counts repaired"),
        (summary.claims_without_lock, "claims made without the Redis lock"),
        (summary.evictions_failed, "batches not evicted from the cache"),
    ] {
        if number > 0 {
            text += &format!("\n  {} {what}", thousands(number));
        }
    }
    for (what, ms) in &summary.waited_ms {
        text += &format!("\n  waited {:.1} s: {what}", *ms as f64 / 1000.0);
    }
    if let Some(left) = &summary.left {
        for (number, what) in [
            (left.due, "due"),
            (left.backing_off, "backing off after a failure"),
            (left.dead_letters, "dead letters: see `cleanupctl dead-letters`"),
            (left.unclaimable, "unclaimable: see `cleanupctl doctor`"),
            (left.claimed_by_others, "claimed by other workers"),
            (left.stranded, "in progress without an open claim: see `cleanupctl status`"),
        ] {
            if number > 0 {
                text += &format!("\n  left: {} {what}", thousands(number));
            }
        }
    }
    let rows = summary.phases.named().map(|(name, phase)| {
        let share = format!("{:.0} %", phase.share * 100.0);
        vec![name.to_string(), thousands(phase.count), thousands(phase.ms), share]
    });
    format!("{text}\n{}", table(&["phase", "count", "ms", "share"], rows))
}

fn why(summary: &Summary) -> String {
    let because = match summary.stopped_because {
        StoppedBecause::Drained => "drained: nothing is due",
        StoppedBecause::Limit => "stopped: --limit is reached",
        StoppedBecause::Deadline => "stopped: the deadline is reached",
        StoppedBecause::Signal => "stopped by a signal",
        StoppedBecause::Brake => "stopped by the safety brake",
        StoppedBecause::Failed => "failed",
        // Their error is the whole sentence.
        StoppedBecause::Paused | StoppedBecause::DeadWorker | StoppedBecause::Stranded => "stopped",
    };
    let detail = summary.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    format!("{because}{detail}")
}
