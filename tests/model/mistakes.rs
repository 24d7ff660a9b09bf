//! The classic mistakes, one at a time: the model must find what each of them breaks.

use stateright::{Checker, Model};

use super::{
    properties::{AT_REST, COUNT, KEPT, KNOWN, READABLE},
    protocol::{Action, Action::*, Commit::Heard, Protocol},
    settings::{EXPIRED, LIVE, NOTHING, night},
    state::{Content, Left, PASTES, Row, Set},
};

/// No counterexample takes more steps.
const LONGEST: usize = 20;

/// A mistake that the protocol could have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// The decrement does not ask whether the claim was reset.
    NoFenceInDecrement,
    /// Nor does the finish, which goes by the short codes that it remembers.
    NoFenceInFinish,
    /// The S3 key is made from the body, so that a body that is stored again has its old key.
    ReusedKey,
    /// A reset does not go by `decremented_at`: the rows keep a reference that was already decremented.
    NoMarker,
    /// A lost answer is taken for a rollback, and the decrement does not check its own marker.
    Guesses,
    /// The cross-check counts the rows of decremented batches.
    CountsDecremented,
    /// A row that is reset does not look whether its body is still there.
    ComesBackBlindly,
    /// The cross-check overlooks rows in progress under no claim, which wait for their content.
    OverlooksDeferred,
    /// A row that its claim left in progress is put back with a reference that was already decremented.
    LeftoversKeepReferences,
    /// A claim that is over does not keep the key of a row that it had to leave in progress.
    ForgetsKeptKeys,
    /// There is no cross-check.
    NoCrossCheck,
    /// The cross-check is part of the statement that waits for the locks.
    OldSnapshot,
    /// The claim does not lock its rows: the Redis lock will do.
    TrustsTheLock,
    /// Objects are deleted before the decrement is committed.
    ObjectsFirst,
    /// A reset does not hand on the keys that the claim unreferenced.
    NoPendingOwners,
    /// The reset goes by a look at the claim from before it was locked.
    OldLookAtClaim,
    /// Nobody resets the claims of crashed workers.
    NoWatchdog,
    /// The owner may extend a paste that is being deleted.
    ExtendsAnything,
    /// The read-back does not wait for a commit under way, and the decrement goes by it: its fence
    /// does not ask for the marker again.
    ReadsBackWithoutLock,
    /// The look for claims whose answer was lost does not wait for a claim under way.
    ReleasesUnconfirmedWithoutTurn,
    /// A fence that matches nothing is taken for a lost claim, without a look.
    ZeroRowsMeanLost,
    /// The writer drops its upload after an unknown outcome.
    DropsUnsure,
    /// The writer repeats a put whose outcome is unknown under the same key.
    PutsAgainUnderOldKey,
}

/// A shortest way to a state that breaks the property.
fn counterexample(protocol: &Protocol, property: &'static str) -> Vec<Action> {
    let within = |depth| {
        let checker = protocol.clone().checker().target_max_depth(depth).spawn_bfs().join();
        checker.discovery(property)
    };
    let found = (2..=LONGEST).find_map(within);
    found.expect("the model must catch this mistake").into_actions()
}

/// The mistake breaks the property, and the way there tells this story: it has these steps in this
/// order, among others. A step is named by the words that it consists of.
fn assert_broken(protocol: Protocol, property: &'static str, story: &[&str]) {
    let steps = counterexample(&protocol, property);
    let steps: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
    let is = |step: &str, words: &str| {
        words.split(' ').all(|word| step.split(['(', ',', ' ', ')']).any(|part| part == word))
    };
    let mut rest = steps.iter();
    let told = story.iter().all(|words| rest.any(|step| is(step, words)));
    assert!(told, "{story:?} is not the story of {steps:?}");
}

/// One paste.
const ONE: [Option<Row>; PASTES] = [EXPIRED, None, None];
/// Three pastes of one body: enough that the cross-check does not put a wrong count right at once.
const THREE: [Option<Row>; PASTES] = [EXPIRED, LIVE, LIVE];

#[test]
fn without_the_fence_a_zombies_decrement_decrements_references_that_are_in_use() {
    let left = Left { lease_expiries: 1, ..NOTHING };
    let protocol = night(THREE, left, &[]).with(Mistake::NoFenceInDecrement);
    assert_broken(protocol, COUNT, &["Claim", "Reset", "Decrement"]);
}

#[test]
fn without_the_fence_a_zombie_finishes_for_others_and_a_paste_stored_since_is_erased() {
    let left = Left { lease_expiries: 1, ..NOTHING };
    let protocol = night(ONE, left, &[(0, 0)]).with(Mistake::NoFenceInFinish);
    assert_broken(protocol, COUNT, &["Decrement", "Reset", "Claim", "Finish", "Put", "Finish"]);
}

#[test]
fn under_a_reused_key_a_delete_hits_the_body_that_was_stored_again() {
    let protocol = night(ONE, NOTHING, &[(1, 0)]).with(Mistake::ReusedKey);
    assert_broken(protocol, READABLE, &["Decrement", "Delete"]);
}

#[test]
fn under_a_reused_key_a_late_delete_hits_the_body_long_after_its_claim_is_finished() {
    let left = Left { late_deletes: 1, ..NOTHING };
    let protocol = night(ONE, left, &[(0, 0)]).with(Mistake::ReusedKey);
    let erased = [Pick(0, Set(1)), Claim(0, Heard), Decrement(0, Heard), DeleteLate(0), Delete(0)];
    let stored = [Finish(0, Heard), Upload, Put(Heard), CarryOut(0)];
    let checker = protocol.checker().spawn_bfs().join();
    checker.assert_discovery(READABLE, [&erased[..], &stored[..]].concat());
}

#[test]
fn without_the_marker_a_reset_row_holds_a_reference_that_was_released() {
    let left = Left { lease_expiries: 1, ..NOTHING };
    let protocol = night(THREE, left, &[]).with(Mistake::NoMarker);
    assert_broken(protocol, COUNT, &["Claim", "Decrement", "Reset"]);
}

#[test]
fn a_decrement_repeated_without_the_marker_after_a_lost_answer_subtracts_twice() {
    let left = Left { lost_answers: 1, ..NOTHING };
    let protocol = night(THREE, left, &[]).with(Mistake::Guesses);
    assert_broken(protocol, COUNT, &["Claim", "Decrement Unheard", "Decrement Heard"]);
}

#[test]
fn a_cross_check_that_counts_decremented_batches_keeps_a_body_that_nobody_holds() {
    let protocol = night([EXPIRED, EXPIRED, None], NOTHING, &[]).with(Mistake::CountsDecremented);
    assert_broken(protocol, COUNT, &["Claim", "Claim", "Decrement", "Decrement"]);
}

#[test]
fn without_the_cross_check_a_count_that_is_too_low_costs_a_live_paste_its_body() {
    let mut protocol = night([EXPIRED, LIVE, None], NOTHING, &[]).with(Mistake::NoCrossCheck);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    assert_broken(protocol, READABLE, &["Claim", "Decrement"]);
}

#[test]
fn a_paste_that_comes_back_without_a_look_for_its_body_is_extended_and_has_none() {
    let left = Left { lease_expiries: 1, extensions: 1, ..NOTHING };
    let night = night([EXPIRED, EXPIRED, None], left, &[]);
    let mut protocol = night.with(Mistake::ComesBackBlindly);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    assert_broken(protocol, READABLE, &["Claim", "Claim", "Decrement", "Reset", "Extend"]);
}

#[test]
fn a_row_that_waits_for_its_content_and_is_overlooked_by_the_cross_check_loses_it() {
    let left = Left { holds: 1, ..NOTHING };
    let night = night([EXPIRED, EXPIRED, None], left, &[]);
    let mut protocol = night.with(Mistake::OverlooksDeferred);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    assert_broken(protocol, KEPT, &["Claim", "Hold", "DecrementAround", "LetGo", "Decrement"]);
}

#[test]
fn a_row_that_a_finish_left_and_a_sweep_puts_back_whole_holds_what_was_decremented() {
    let left = Left { leftovers: 1, ..NOTHING };
    let protocol = night(THREE, left, &[]).with(Mistake::LeftoversKeepReferences);
    assert_broken(protocol, COUNT, &["Decrement", "FinishLeaving", "ResetStranded"]);
}

#[test]
fn a_row_that_a_reset_left_and_a_sweep_puts_back_whole_holds_what_was_decremented() {
    let left = Left { leftovers: 1, lease_expiries: 1, ..NOTHING };
    let protocol = night(THREE, left, &[]).with(Mistake::LeftoversKeepReferences);
    assert_broken(protocol, COUNT, &["Decrement", "ResetLeaving", "ResetStranded"]);
}

#[test]
fn a_cross_check_by_an_old_snapshot_keeps_a_body_that_nobody_holds() {
    let protocol = night([EXPIRED, EXPIRED, None], NOTHING, &[]).with(Mistake::OldSnapshot);
    assert_broken(protocol, COUNT, &["LookForHolders", "Decrement", "Decrement"]);
}

#[test]
fn with_the_redis_lock_alone_two_workers_claim_the_same_row() {
    let left = Left { lost_locks: 1, ..NOTHING };
    let protocol = night(ONE, left, &[]).with(Mistake::TrustsTheLock);
    assert_broken(
        protocol,
        COUNT,
        &["Pick", "LockVanishes", "Pick", "Claim", "Claim", "Decrement"],
    );
}

#[test]
fn objects_deleted_before_the_decrement_are_missed_by_a_paste_that_joins() {
    let protocol = night(ONE, NOTHING, &[(1, 0)]).with(Mistake::ObjectsFirst);
    assert_broken(protocol, READABLE, &["Claim", "Put"]);
}

#[test]
fn a_reset_without_pending_owners_leaves_an_object_that_nobody_knows() {
    let left = Left { lease_expiries: 1, ..NOTHING };
    let protocol = night(ONE, left, &[]).with(Mistake::NoPendingOwners);
    assert_broken(protocol, KNOWN, &["Claim", "Decrement", "Reset"]);
}

#[test]
fn a_reset_that_leaves_a_row_and_forgets_its_key_leaves_an_object_that_nobody_knows() {
    let left = Left { leftovers: 1, lease_expiries: 1, ..NOTHING };
    let protocol = night(ONE, left, &[]).with(Mistake::ForgetsKeptKeys);
    assert_broken(protocol, KNOWN, &["Claim", "Decrement", "ResetLeaving"]);
}

#[test]
fn a_reset_by_an_old_look_overlooks_a_decrement() {
    let left = Left { lease_expiries: 1, ..NOTHING };
    let protocol = night(THREE, left, &[]).with(Mistake::OldLookAtClaim);
    assert_broken(protocol, COUNT, &["Claim", "LookAtClaim", "Decrement", "Reset"]);
}

#[test]
fn without_the_watchdog_the_pastes_of_a_crashed_worker_stay_for_ever() {
    let left = Left { crashes: 1, ..NOTHING };
    let protocol = night(ONE, left, &[]).with(Mistake::NoWatchdog);
    assert_broken(protocol, AT_REST, &["Claim", "Crash"]);
}

#[test]
fn a_paste_extended_while_it_is_being_deleted_loses_its_body() {
    let left = Left { extensions: 1, ..NOTHING };
    let protocol = night(ONE, left, &[]).with(Mistake::ExtendsAnything);
    assert_broken(protocol, READABLE, &["Claim", "Decrement"]);
}

#[test]
fn an_upload_dropped_after_an_unknown_outcome_is_missed_by_its_paste() {
    let left = Left { lost_answers: 1, ..NOTHING };
    let protocol = night([None; PASTES], left, &[(0, 0)]).with(Mistake::DropsUnsure);
    assert_broken(protocol, READABLE, &["Put Unheard", "Drop"]);
}

/// Even when the repeated paste has expired by then: the next put of that body trusts its row.
#[test]
fn a_put_repeated_under_its_old_key_after_the_paste_was_erased_leaves_a_body_that_is_missing() {
    let left = Left { lost_answers: 1, ..NOTHING };
    let puts = &[(1, 0), (0, 0)];
    let protocol = night([None; PASTES], left, puts).with(Mistake::PutsAgainUnderOldKey);
    let story = ["Put Unheard", "Delete", "Finish", "Put Heard", "Upload", "Put Heard"];
    assert_broken(protocol, READABLE, &story);
}

/// Without the second half nothing breaks: the fence waits for the claim row, too, and finds the
/// marker. `LookInVain` is just that.
#[test]
fn a_decrement_done_again_after_a_look_that_did_not_wait_subtracts_twice() {
    let left = Left { slow_commits: 1, ..NOTHING };
    let protocol = night(THREE, left, &[]).with(Mistake::ReadsBackWithoutLock);
    assert_broken(
        protocol,
        COUNT,
        &["Claim", "Decrement UnderWay", "ReadBack", "Land", "Decrement"],
    );
}

/// Nobody heartbeats for it, so that the watchdog comes for it in the end, but its worker is alive.
#[test]
fn a_claim_that_lands_after_a_look_that_did_not_wait_is_left_to_the_watchdog() {
    let left = Left { slow_commits: 1, ..NOTHING };
    let protocol = night(ONE, left, &[]).with(Mistake::ReleasesUnconfirmedWithoutTurn);
    assert_broken(protocol, AT_REST, &["Claim UnderWay", "ReleaseUnconfirmed", "Land"]);
}

#[test]
fn a_claim_taken_for_lost_because_its_decrement_was_done_already_is_left_to_the_watchdog() {
    let left = Left { slow_commits: 1, ..NOTHING };
    let protocol = night(ONE, left, &[]).with(Mistake::ZeroRowsMeanLost);
    let story = ["Claim", "Decrement UnderWay", "LookInVain", "Land", "Decrement"];
    assert_broken(protocol, AT_REST, &story);
}
