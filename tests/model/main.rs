//! A model check of the deletion protocol: workers, watchdog, writer, S3 and the Redis lock, with
//! everything that may go wrong between any two steps. All runs within the given bounds are tried.
//!
//! What is left out, and why nothing is missed by it:
//! - time: any pause is possible and any claim may be reset, so leases, backoffs and heartbeats
//!   could only forbid some of these runs;
//! - `attempts`, the low-water mark and the order of claims: any batch of due rows may be claimed;
//! - several batches in one process: they share nothing but the UUID, so they are workers;
//! - dead letters: S3 and Postgres refuse a row only so often, then nobody has to help;
//! - eviction and tombstones: no property speaks of the cache, and a tombstone holds nothing;
//! - a put that is still under way when its answer is lost: the writer takes no look, and whoever
//!   meets its rows waits, the next try too, so it may as well be decided at once;
//! - the loss of acknowledged commits and of uploads: the protocol does not promise to survive it.

mod backend;
mod decrement;
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

/// All promises hold in all states, and all examples were found. The number of states is pinned:
/// it changes only with the protocol or the model, and then somebody should look.
fn assert_kept(protocol: Protocol, states: usize) {
    let checker = protocol.checker().symmetry_fn(symmetry::representative).spawn_dfs().join();
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), states);
}

#[test]
fn no_live_body_is_lost_no_count_is_wrong_and_nothing_stays_behind() {
    assert_kept(settings::late_deletes(), 328_544);
}

#[test]
fn a_lock_that_vanishes_and_an_owner_who_extends_at_the_last_moment_do_no_harm() {
    assert_kept(settings::vanishing_lock(), 156_716);
}

#[test]
fn a_lost_answer_is_resolved_by_reading_the_claim_back() {
    assert_kept(settings::lost_answers(), 185_014);
}

#[test]
fn a_commit_that_is_still_under_way_is_waited_for_not_guessed() {
    assert_kept(settings::slow_commits(), 93_264);
}

#[test]
fn rows_are_not_failed_twice_while_the_first_attempt_is_running_or_unanswered() {
    assert_kept(settings::slow_failed_rows(), 40_385);
}

#[test]
fn crashes_and_puts_in_between_leave_nothing_behind() {
    assert_kept(settings::crashes(), 207_733);
}

#[test]
fn refused_keys_and_bad_rows_are_failed_and_finished_later() {
    assert_kept(settings::refusals(), 351_944);
}

#[test]
fn a_row_whose_content_others_hold_waits_outside_of_any_claim_with_its_reference() {
    assert_kept(settings::held_content(), 240_480);
    assert_kept(settings::drift_deferred(), 4_478);
}

#[test]
fn a_row_that_nobody_can_touch_never_holds_again_what_its_claim_has_decremented() {
    assert_kept(settings::leftovers(), 201_458);
    assert_kept(settings::kept_keys(), 10_003);
}

#[test]
fn a_count_that_is_too_low_costs_no_live_paste_its_body() {
    assert_kept(settings::drift(), 86_458);
    assert_kept(settings::drift_in_progress(), 2_718);
}
