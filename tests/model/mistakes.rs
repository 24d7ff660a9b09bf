//! Classic mistakes, one at a time: the model must find what each of them breaks.

use stateright::{Checker, Model};

use super::{
    budget::Budget,
    properties::{AT_REST, CONTENT_EXISTS, COUNTS, NO_ORPHANS, READABLE},
    protocol::{Action, Action::*, Commit::Answered, Protocol},
    settings::{EXPIRED, LIVE, NOTHING, setting},
    state::{Content, PASTES, Row, Set},
};

/// No counterexample takes more steps.
const LONGEST: usize = 20;

/// A mistake that the protocol could have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The decrement does not check whether the claim was reset.
    NoFenceInDecrement,
    /// The finish does not check it either, and deletes the short codes that it remembers.
    NoFenceInFinish,
    /// The S3 key is derived from the content, so content that is stored again gets its old key.
    ReusedKey,
    /// A reset ignores `decremented_at`: the rows keep a reference that was already decremented.
    NoMarker,
    /// A lost answer is treated as a rollback, and the decrement does not check its own marker.
    AssumesRollback,
    /// The cross-check counts the rows of decremented batches.
    CountsDecremented,
    /// A reset row keeps its reference without a check that its content still exists.
    ResetsWithoutContentCheck,
    /// The cross-check ignores deferred rows, which are in progress under no claim.
    IgnoresDeferredRows,
    /// A stranded row is reset with a reference that its claim already decremented.
    StrandedRowsKeepReferences,
    /// An ended claim does not keep the key of a row that it left in progress.
    DropsKeysOfStrandedRows,
    /// There is no cross-check.
    NoCrossCheck,
    /// The cross-check is part of the statement that waits for the locks.
    StaleSnapshot,
    /// The claim does not lock its rows and relies on the Redis lock.
    TrustsRedisLock,
    /// Objects are deleted before the decrement is committed.
    ObjectsFirst,
    /// A reset does not pass the pending keys of its claim to rows.
    ResetDropsPendingKeys,
    /// The reset relies on a read of the claim from before the claim was locked.
    StaleClaimRead,
    /// The claims of crashed workers are never reset.
    NoWatchdog,
    /// A user can extend a paste that is being deleted.
    ExtendsAnything,
    /// The read-back does not wait for a commit in flight, and the decrement relies on it: its
    /// fence does not check the marker again.
    ReadsBackWithoutLock,
    /// The search for unconfirmed claims does not wait for a claim in flight.
    ReleasesUnconfirmedWithoutWaiting,
    /// A fence that matches no row is treated as a lost lease, without a read-back.
    ZeroRowsMeanLost,
    /// The writer deletes its upload after an unknown outcome.
    DropsUploadInDoubt,
    /// The writer repeats a put whose outcome is unknown under the same key.
    RepeatsPutUnderOldKey,
}

/// Finds a shortest run to a state that breaks the property.
fn counterexample(protocol: &Protocol, property: &'static str) -> Vec<Action> {
    let within = |depth| {
        let checker = protocol.clone().checker().target_max_depth(depth).spawn_bfs().join();
        checker.discovery(property)
    };
    let found = (2..=LONGEST).find_map(within);
    found.expect("the model must catch this mistake").into_actions()
}

/// Asserts that the mistake breaks the property in a run with these steps in this order, among
/// others. A step is given by words of its Debug name.
fn assert_broken(protocol: Protocol, property: &'static str, expected: &[&str]) {
    let steps = counterexample(&protocol, property);
    let steps: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
    let matches = |step: &str, words: &str| {
        words.split(' ').all(|word| step.split(['(', ',', ' ', ')']).any(|part| part == word))
    };
    let mut rest = steps.iter();
    let found = expected.iter().all(|words| rest.any(|step| matches(step, words)));
    assert!(found, "steps {expected:?} do not occur in this order in {steps:?}");
}

/// One paste.
const ONE: [Option<Row>; PASTES] = [EXPIRED, None, None];
/// Three pastes of the same content: enough that the cross-check does not repair a wrong count at
/// once.
const THREE: [Option<Row>; PASTES] = [EXPIRED, LIVE, LIVE];

#[test]
fn without_the_fence_a_zombies_decrement_subtracts_references_that_are_in_use() {
    let budget = Budget { lease_expiries: 1, ..NOTHING };
    let protocol = setting(THREE, budget, &[]).with(Mistake::NoFenceInDecrement);
    assert_broken(protocol, COUNTS, &["Claim", "Reset", "Decrement"]);
}

#[test]
fn without_the_fence_a_zombie_finishes_the_next_claim_and_a_newly_stored_paste_is_erased() {
    let budget = Budget { lease_expiries: 1, ..NOTHING };
    let protocol = setting(ONE, budget, &[(0, 0)]).with(Mistake::NoFenceInFinish);
    assert_broken(protocol, COUNTS, &["Decrement", "Reset", "Claim", "Finish", "Put", "Finish"]);
}

#[test]
fn under_a_reused_key_a_delete_hits_the_object_that_was_stored_again() {
    let protocol = setting(ONE, NOTHING, &[(1, 0)]).with(Mistake::ReusedKey);
    assert_broken(protocol, READABLE, &["Decrement", "Delete"]);
}

#[test]
fn under_a_reused_key_a_late_delete_hits_the_object_long_after_its_claim_is_finished() {
    let budget = Budget { late_deletes: 1, ..NOTHING };
    let protocol = setting(ONE, budget, &[(0, 0)]).with(Mistake::ReusedKey);
    let erased =
        [LockRows(0, Set(1)), Claim(0, Answered), Decrement(0, Answered), DeleteLate(0), Delete(0)];
    let stored = [Finish(0, Answered), Upload, Put(Answered), CarryOut(0)];
    let checker = protocol.checker().spawn_bfs().join();
    checker.assert_discovery(READABLE, [&erased[..], &stored[..]].concat());
}

#[test]
fn without_the_marker_a_reset_row_keeps_a_reference_that_was_decremented() {
    let budget = Budget { lease_expiries: 1, ..NOTHING };
    let protocol = setting(THREE, budget, &[]).with(Mistake::NoMarker);
    assert_broken(protocol, COUNTS, &["Claim", "Decrement", "Reset"]);
}

#[test]
fn a_decrement_repeated_without_the_marker_after_a_lost_answer_subtracts_twice() {
    let budget = Budget { lost_answers: 1, ..NOTHING };
    let protocol = setting(THREE, budget, &[]).with(Mistake::AssumesRollback);
    assert_broken(protocol, COUNTS, &["Claim", "Decrement AnswerLost", "Decrement Answered"]);
}

#[test]
fn a_cross_check_that_counts_decremented_batches_keeps_unreferenced_content() {
    let protocol = setting([EXPIRED, EXPIRED, None], NOTHING, &[]).with(Mistake::CountsDecremented);
    assert_broken(protocol, COUNTS, &["Claim", "Claim", "Decrement", "Decrement"]);
}

#[test]
fn without_the_cross_check_a_ref_count_that_is_too_low_costs_a_live_paste_its_body() {
    let mut protocol = setting([EXPIRED, LIVE, None], NOTHING, &[]).with(Mistake::NoCrossCheck);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    assert_broken(protocol, READABLE, &["Claim", "Decrement"]);
}

#[test]
fn a_paste_that_is_reset_without_a_content_check_can_be_extended_without_a_body() {
    let budget = Budget { lease_expiries: 1, extensions: 1, ..NOTHING };
    let setting = setting([EXPIRED, EXPIRED, None], budget, &[]);
    let mut protocol = setting.with(Mistake::ResetsWithoutContentCheck);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    assert_broken(protocol, READABLE, &["Claim", "Claim", "Decrement", "Reset", "Extend"]);
}

#[test]
fn a_deferred_row_that_the_cross_check_ignores_loses_its_content() {
    let budget = Budget { content_locks: 1, ..NOTHING };
    let setting = setting([EXPIRED, EXPIRED, None], budget, &[]);
    let mut protocol = setting.with(Mistake::IgnoresDeferredRows);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    assert_broken(
        protocol,
        CONTENT_EXISTS,
        &["Claim", "LockContent", "DecrementExcept", "UnlockContent", "Decrement"],
    );
}

#[test]
fn a_row_stranded_by_a_finish_and_reset_with_its_reference_is_counted_wrongly() {
    let budget = Budget { stranded_rows: 1, ..NOTHING };
    let protocol = setting(THREE, budget, &[]).with(Mistake::StrandedRowsKeepReferences);
    assert_broken(protocol, COUNTS, &["Decrement", "FinishStranding", "ResetStranded"]);
}

#[test]
fn a_row_stranded_by_a_reset_and_reset_with_its_reference_is_counted_wrongly() {
    let budget = Budget { stranded_rows: 1, lease_expiries: 1, ..NOTHING };
    let protocol = setting(THREE, budget, &[]).with(Mistake::StrandedRowsKeepReferences);
    assert_broken(protocol, COUNTS, &["Decrement", "ResetStranding", "ResetStranded"]);
}

#[test]
fn a_cross_check_with_a_stale_snapshot_keeps_unreferenced_content() {
    let protocol = setting([EXPIRED, EXPIRED, None], NOTHING, &[]).with(Mistake::StaleSnapshot);
    assert_broken(protocol, COUNTS, &["CountReferencesEarly", "Decrement", "Decrement"]);
}

#[test]
fn with_only_the_redis_lock_two_workers_claim_the_same_row() {
    let budget = Budget { lost_locks: 1, ..NOTHING };
    let protocol = setting(ONE, budget, &[]).with(Mistake::TrustsRedisLock);
    assert_broken(
        protocol,
        COUNTS,
        &["LockRows", "LockVanishes", "LockRows", "Claim", "Claim", "Decrement"],
    );
}

#[test]
fn objects_deleted_before_the_decrement_are_missing_for_a_paste_that_joins() {
    let protocol = setting(ONE, NOTHING, &[(1, 0)]).with(Mistake::ObjectsFirst);
    assert_broken(protocol, READABLE, &["Claim", "Put"]);
}

#[test]
fn a_reset_without_pending_owners_leaves_an_orphan_object() {
    let budget = Budget { lease_expiries: 1, ..NOTHING };
    let protocol = setting(ONE, budget, &[]).with(Mistake::ResetDropsPendingKeys);
    assert_broken(protocol, NO_ORPHANS, &["Claim", "Decrement", "Reset"]);
}

#[test]
fn a_reset_that_strands_a_row_and_drops_its_key_leaves_an_orphan_object() {
    let budget = Budget { stranded_rows: 1, lease_expiries: 1, ..NOTHING };
    let protocol = setting(ONE, budget, &[]).with(Mistake::DropsKeysOfStrandedRows);
    assert_broken(protocol, NO_ORPHANS, &["Claim", "Decrement", "ResetStranding"]);
}

#[test]
fn a_reset_with_a_stale_claim_read_misses_a_decrement() {
    let budget = Budget { lease_expiries: 1, ..NOTHING };
    let protocol = setting(THREE, budget, &[]).with(Mistake::StaleClaimRead);
    assert_broken(protocol, COUNTS, &["Claim", "ReadClaimEarly", "Decrement", "Reset"]);
}

#[test]
fn without_the_watchdog_the_pastes_of_a_crashed_worker_stay_forever() {
    let budget = Budget { crashes: 1, ..NOTHING };
    let protocol = setting(ONE, budget, &[]).with(Mistake::NoWatchdog);
    assert_broken(protocol, AT_REST, &["Claim", "Crash"]);
}

#[test]
fn a_paste_extended_while_it_is_being_deleted_loses_its_body() {
    let budget = Budget { extensions: 1, ..NOTHING };
    let protocol = setting(ONE, budget, &[]).with(Mistake::ExtendsAnything);
    assert_broken(protocol, READABLE, &["Claim", "Decrement"]);
}

#[test]
fn an_upload_deleted_after_an_unknown_outcome_is_missing_for_its_paste() {
    let budget = Budget { lost_answers: 1, ..NOTHING };
    let protocol = setting([None; PASTES], budget, &[(0, 0)]).with(Mistake::DropsUploadInDoubt);
    assert_broken(protocol, READABLE, &["Put AnswerLost", "Drop"]);
}

/// Even if the repeated paste has expired by then: the next put of that content trusts its row.
#[test]
fn a_put_repeated_under_its_old_key_after_the_paste_was_erased_stores_content_without_an_object() {
    let budget = Budget { lost_answers: 1, ..NOTHING };
    let puts = &[(1, 0), (0, 0)];
    let protocol = setting([None; PASTES], budget, puts).with(Mistake::RepeatsPutUnderOldKey);
    let steps = ["Put AnswerLost", "Delete", "Finish", "Put Answered", "Upload", "Put Answered"];
    assert_broken(protocol, READABLE, &steps);
}

/// The mistake needs both halves: a fence that checks the marker waits for the claim row, too, and
/// finds it decremented. `ReadBackTimesOut` is exactly that case, and breaks nothing.
#[test]
fn a_decrement_repeated_after_a_read_back_that_did_not_wait_subtracts_twice() {
    let budget = Budget { slow_commits: 1, ..NOTHING };
    let protocol = setting(THREE, budget, &[]).with(Mistake::ReadsBackWithoutLock);
    assert_broken(
        protocol,
        COUNTS,
        &["Claim", "Decrement InFlight", "ReadBack", "CommitLands", "Decrement"],
    );
}

/// The claim gets no heartbeat, so the watchdog resets it in the end, although its worker is alive.
#[test]
fn a_claim_that_commits_after_a_search_that_did_not_wait_is_left_to_the_watchdog() {
    let budget = Budget { slow_commits: 1, ..NOTHING };
    let protocol = setting(ONE, budget, &[]).with(Mistake::ReleasesUnconfirmedWithoutWaiting);
    assert_broken(protocol, AT_REST, &["Claim InFlight", "ReleaseUnconfirmed", "CommitLands"]);
}

#[test]
fn a_claim_dropped_because_its_decrement_was_already_done_is_left_to_the_watchdog() {
    let budget = Budget { slow_commits: 1, ..NOTHING };
    let protocol = setting(ONE, budget, &[]).with(Mistake::ZeroRowsMeanLost);
    let steps = ["Claim", "Decrement InFlight", "ReadBackTimesOut", "CommitLands", "Decrement"];
    assert_broken(protocol, AT_REST, &steps);
}
