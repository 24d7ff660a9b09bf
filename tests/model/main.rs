//! Model check of the deletion protocol: workers, watchdog, writer, S3 and the Redis lock, with
//! every fault that can occur between two steps. All runs within the bounds of a setting are
//! explored.
//!
//! What the model leaves out, and why this hides no bug:
//! - Time: any pause is possible and any claim may be reset at any moment. Leases, backoffs and
//!   heartbeats would only rule out some of these runs.
//! - `attempts`, the low-water mark and the order of claims: any batch of due rows may be claimed.
//! - Several batches in one process: they share only the worker's UUID, so each is a worker here.
//! - Dead letters: S3 and Postgres refuse a row only a few times, so no operator is needed.
//! - Eviction and tombstones: no property mentions the cache, and a tombstone has no reference.
//! - A put that is still in flight when its answer is lost: the writer does not read it back, and
//!   every transaction that needs its rows waits, the repeated put included. Its outcome can
//!   therefore be decided at once.
//! - The loss of acknowledged commits and uploads: the protocol does not promise to survive it.

mod backend;
mod budget;
mod decrement;
mod examples;
mod finish;
mod mistakes;
mod owner;
mod properties;
mod protocol;
mod rank;
mod settings;
mod state;
mod store;
mod symmetry;
mod watchdog;
mod worker;
mod writer;

use stateright::{Checker, Model};

use protocol::Protocol;

/// Asserts that all properties hold in all states and that every example occurs. The number of
/// states is pinned: it changes only with the protocol or the model, and must then be reviewed.
fn assert_kept(protocol: Protocol, states: usize) {
    let checker = protocol.checker().symmetry_fn(symmetry::representative).spawn_dfs().join();
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), states);
}

#[test]
fn live_pastes_keep_their_bodies_counts_stay_right_and_nothing_expired_remains() {
    assert_kept(settings::late_deletes(), 328_544);
}

#[test]
fn a_lost_redis_lock_and_an_extension_at_the_last_moment_do_no_harm() {
    assert_kept(settings::lost_redis_lock(), 156_716);
}

#[test]
fn a_lost_answer_is_resolved_by_reading_back_the_claim() {
    assert_kept(settings::lost_answers(), 185_014);
}

#[test]
fn the_read_back_waits_for_a_commit_that_is_still_in_flight() {
    assert_kept(settings::slow_commits(), 93_264);
}

#[test]
fn rows_are_not_failed_twice_while_the_first_attempt_is_running_or_unanswered() {
    assert_kept(settings::slow_failed_rows(), 40_385);
}

#[test]
fn crashes_with_concurrent_puts_leave_nothing_behind() {
    assert_kept(settings::crashes(), 207_733);
}

#[test]
fn rows_with_refused_keys_or_row_errors_are_failed_and_finished_later() {
    assert_kept(settings::refusals(), 351_944);
}

#[test]
fn a_row_whose_content_is_locked_by_another_transaction_waits_unclaimed_with_its_reference() {
    assert_kept(settings::locked_content_rows(), 240_480);
    assert_kept(settings::drift_deferred(), 4_478);
}

#[test]
fn a_stranded_row_never_regains_a_reference_that_its_claim_has_decremented() {
    assert_kept(settings::stranded_rows(), 201_458);
    assert_kept(settings::stranded_rows_with_refused_keys(), 10_003);
}

#[test]
fn a_ref_count_that_is_too_low_costs_no_live_paste_its_body() {
    assert_kept(settings::drift(), 86_458);
    assert_kept(settings::drift_in_progress(), 2_718);
}
