//! A run's summary for people.

use super::summary::{StoppedBecause, Summary};
use crate::format::{bytes, table, thousands};

/// A few lines that answer: how much, how fast, why did it stop, what is left.
pub fn show(summary: &Summary) -> String {
    let seconds = summary.elapsed_ms as f64 / 1000.0;
    let mut text = format!(
        "{} pastes deleted, {} objects, {} in {} batches, {seconds:.1} s, {} pastes/s\n{}",
        thousands(summary.rows_deleted),
        thousands(summary.objects_deleted),
        bytes(summary.bytes_freed),
        thousands(summary.batches),
        thousands(summary.rows_per_second.round() as u64),
        why(summary),
    );
    for (count, what) in [
        (summary.rows_failed, "pastes could not be deleted in this run"),
        (summary.claims_reset_at_start, "claims of silent workers were reset at start"),
        (summary.claims_released, "claims were released"),
        (summary.claims_lost, "claims were reset by a watchdog while this worker held them"),
        (summary.drift_repaired, "counts were wrong and are repaired"),
        (summary.claims_without_lock, "claims went without the Redis lock"),
        (summary.evictions_failed, "batches could not be evicted from the cache"),
    ] {
        if count > 0 {
            text += &format!("\n  {} {what}", thousands(count));
        }
    }
    for (what, ms) in &summary.waited_ms {
        text += &format!("\n  waited {:.1} s for {what}", *ms as f64 / 1000.0);
    }
    if let Some(left) = &summary.left {
        for (count, what) in [
            (left.due, "are due"),
            (left.backing_off, "back off after a failure"),
            (left.dead_letters, "are dead letters and wait for a person"),
            (left.unclaimable, "cannot be claimed: `cleanupctl doctor` says why"),
            (left.claimed_by_others, "are claimed by other workers"),
        ] {
            if count > 0 {
                text += &format!("\n  left: {} {what}", thousands(count));
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
        StoppedBecause::Drained => "nothing is due any more",
        StoppedBecause::Limit => "--limit was reached",
        StoppedBecause::Deadline => "the deadline was reached",
        StoppedBecause::Signal => "a signal asked for it",
        StoppedBecause::Paused => "the fleet is paused",
        StoppedBecause::DeadWorker => "the rest is held by a worker without a heartbeat",
        StoppedBecause::Brake => "the brake says no",
        StoppedBecause::Failed => "it failed",
    };
    let detail = summary.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    format!("stopped because {because}{detail}")
}
