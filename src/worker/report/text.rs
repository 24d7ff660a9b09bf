//! A run's summary for people.

use super::{
    left::Left,
    summary::{StoppedBecause, Summary},
};
use crate::format::{bytes, counted, table, thousands};

/// Answers in a few lines: how much, how fast, why did it stop, what is left.
pub fn show(summary: &Summary) -> String {
    let seconds = summary.elapsed_ms as f64 / 1000.0;
    let mut text = format!(
        "deleted {} and {} ({}) in {seconds:.1} s ({}, {} pastes/s)\n{}; ended {}",
        counted(summary.rows_deleted, "paste"),
        counted(summary.objects_deleted, "object"),
        bytes(summary.bytes_freed),
        counted(summary.batches, "batch"),
        thousands(summary.rows_per_second.round() as u64),
        why(summary),
        summary.ended_at,
    );
    for (number, noun, what) in [
        (summary.rows_failed, "paste", "not deleted because of an error"),
        (summary.rows_deleted_by_others, "claimed paste", "deleted by another program"),
        (summary.claims_reset_at_start, "claim", "of dead workers reset at the start"),
        (summary.claims_released, "claim", "released without being finished"),
        (summary.leases_lost, "lease", "lost: reset, or without a heartbeat for too long"),
        (summary.drift_repaired, "wrong ref_count", "repaired"),
        (summary.claims_without_lock, "claim", "tried without the Redis lock"),
        (summary.evictions_failed, "batch", "not evicted from the cache"),
    ] {
        if number > 0 {
            text += &format!("\n  {} {what}", counted(number, noun));
        }
    }
    for (name, ms) in &summary.waited_ms {
        let seconds = *ms as f64 / 1000.0;
        text += &format!("\n  waited {seconds:.1} s for {} ({name})", waited_for(name));
    }
    text += &summary.left.as_ref().map(show_left).unwrap_or_default();
    let rows = summary.phases.named().map(|(name, phase)| {
        let share = format!("{:.0} %", phase.share * 100.0);
        vec![name.to_string(), thousands(phase.count), thousands(phase.ms), share]
    });
    format!("{text}\n{}", table(&["phase", "count", "ms", "share"], rows))
}

fn show_left(left: &Left) -> String {
    let mut text = String::new();
    let is_capped = left.is_capped();
    for (number, what) in [
        (left.due, if is_capped { "or more due" } else { "due" }),
        (left.backing_off, "backing off after a failure"),
        (left.dead_letters, "failed permanently: see `cleanupctl dead-letters`"),
        (left.unclaimable, "unclaimable: see `cleanupctl doctor`"),
        (left.claimed_by_others, "claimed by other workers"),
        (left.stranded, "in progress without an open claim: see `cleanupctl status`"),
    ] {
        if number > 0 {
            text += &format!("\n  left: {} {what}", counted(number, "paste"));
        }
    }
    text
}

/// Returns what a run waited for, by the name of the wait in JSON and metrics.
fn waited_for(name: &str) -> &str {
    match name {
        "backing_off" => "pastes that back off",
        "dependency_unavailable" => "unavailable dependencies",
        "flag_file" => "the removal of the flag file",
        "lock" => "the Redis lock",
        "locked_rows" => "locked rows",
        "max_rate" => "the maximum rate",
        "replica_lag" => "standbys that lag",
        "s3_pace" => "the pace of S3 requests",
        other => other,
    }
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
