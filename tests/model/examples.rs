//! The examples: states that must occur in a check, since otherwise the properties could hold
//! merely for lack of faults.

use stateright::Property;

use super::{
    properties::Condition,
    protocol::Protocol,
    state::{Claim, Doubt, End, Memory, Phase, Row, State, Step, WORKERS, Worker},
};

pub(crate) const TWO_CLAIMERS: &str = "two workers claim at once";
pub(crate) const FENCED_OFF: &str = "a zombie's finish matches no claim";
pub(crate) const LOST_CLAIM: &str = "a claim is committed, its answer is lost";
pub(crate) const LOST_DECREMENT: &str = "a decrement is committed, its answer is lost";
pub(crate) const LOST_FINISH: &str = "a finish is committed, its answer is lost";
pub(crate) const LOST_FAIL_ROWS: &str = "a decrement failed a row, its answer is lost";
pub(crate) const SLOW_CLAIM: &str = "a worker reads back a claim that is still being committed";
pub(crate) const SLOW_DECREMENT: &str =
    "a worker reads back a decrement that is still being committed";
pub(crate) const SLOW_FINISH: &str = "a worker reads back a finish that is still being committed";
pub(crate) const DONE_ALREADY: &str = "a decrement matches no claim because it is already done";
pub(crate) const ABANDONED: &str = "a commit is in flight, its worker is dead";
pub(crate) const LATE: &str = "a delete is still in flight, its object is gone";
pub(crate) const STORED_AGAIN: &str =
    "content is stored again, its old object is still being deleted";
pub(crate) const PENDING_RETRIED: &str = "a row with a pending object delete is claimed again";
pub(crate) const DEFERRED: &str = "a row is deferred, its content row is locked";
pub(crate) const STRANDED_BY_FINISH: &str = "a finish has stranded a row";
pub(crate) const STRANDED_BY_RESET: &str = "a reset of a decremented claim has stranded a row";
pub(crate) const EXTENDED: &str = "a paste was extended in time";

fn sometimes(name: &'static str, condition: Condition) -> Property<Protocol> {
    Property::sometimes(name, condition)
}

/// Returns all examples. A setting names those that its faults make possible.
pub(crate) fn all() -> Vec<Property<Protocol>> {
    [of_claims(), of_rows_and_objects()].into_iter().flatten().collect()
}

/// Claims that overlap, are fenced off, or whose commit is unanswered or still in flight.
fn of_claims() -> Vec<Property<Protocol>> {
    vec![
        sometimes(TWO_CLAIMERS, |_, state| {
            state.workers.iter().all(|worker| matches!(worker, Worker::RowsLocked(_)))
        }),
        sometimes(FENCED_OFF, |_, state| {
            let claim = in_doubt(state, Step::Finish, Doubt::NotFenced);
            claim.is_some_and(|claim| claim.end == Some(End::Reset))
        }),
        sometimes(LOST_CLAIM, |_, state| {
            let unknown = |claim: &Claim| {
                claim.end.is_none()
                    && claim.worker.is_some_and(|worker| {
                        state.workers[usize::from(worker)] == Worker::ClaimUnconfirmed
                    })
            };
            state.claims.iter().flatten().any(unknown)
        }),
        sometimes(LOST_DECREMENT, |_, state| {
            in_doubt(state, Step::Decrement, Doubt::NoAnswer).is_some_and(|claim| claim.decremented)
        }),
        sometimes(LOST_FINISH, |_, state| {
            let claim = in_doubt(state, Step::Finish, Doubt::NoAnswer);
            claim.is_some_and(|claim| claim.end == Some(End::Finished))
        }),
        sometimes(SLOW_CLAIM, |_, state| {
            let unconfirmed = |worker| state.workers[worker] == Worker::ClaimUnconfirmed;
            (0..WORKERS).any(|worker| unconfirmed(worker) && state.turn_is_taken(worker))
        }),
        sometimes(SLOW_DECREMENT, |_, state| in_doubt_while_locked(state, Step::Decrement)),
        sometimes(SLOW_FINISH, |_, state| in_doubt_while_locked(state, Step::Finish)),
        sometimes(DONE_ALREADY, |_, state| {
            let claim = in_doubt(state, Step::Decrement, Doubt::NotFenced);
            claim.is_some_and(|claim| claim.end.is_none() && claim.decremented)
        }),
        sometimes(ABANDONED, |_, state| {
            state.backend.is_some_and(|backend| backend.worker.is_none())
        }),
        sometimes(LOST_FAIL_ROWS, |_, state| {
            state.workers.iter().any(|worker| {
                matches!(worker, Worker::InBatch(memory) if has_unknown_failed_row(state, memory))
            })
        }),
    ]
}

/// Late deletes, content that is stored again, and rows that wait, are stranded or are extended.
fn of_rows_and_objects() -> Vec<Property<Protocol>> {
    vec![
        sometimes(LATE, |_, state| state.in_flight.0 & !state.bucket.0 != 0),
        sometimes(STORED_AGAIN, |_, state| {
            let again = state.content[0].is_some_and(|content| content.s3_key != 0);
            again && state.bucket.has(0) && state.in_flight.has(0)
        }),
        sometimes(PENDING_RETRIED, |_, state| {
            let pending = |row: &Row| row.in_progress && row.pending_s3_key.is_some();
            state.pastes.iter().flatten().any(pending)
        }),
        sometimes(DEFERRED, |_, state| {
            let waits = |row: &Row| row.in_progress && row.claim.is_none();
            let waits = |row: &Row| {
                waits(row) && row.content_hash.is_some() && row.content_hash == state.locked_content
            };
            state.pastes.iter().flatten().any(waits)
        }),
        sometimes(STRANDED_BY_FINISH, |_, state| is_stranded_by(state, End::Finished)),
        sometimes(STRANDED_BY_RESET, |_, state| is_stranded_by(state, End::Reset)),
        sometimes(EXTENDED, |protocol, state| {
            let before = protocol.start.pastes.iter().map(|row| row.is_some_and(|row| row.expired));
            before
                .zip(&state.pastes)
                .any(|(expired, row)| expired && row.is_some_and(|row| !row.expired))
        }),
    ]
}

/// Returns the claim of a worker that must read back this step for this reason.
fn in_doubt(state: &State, step: Step, doubt: Doubt) -> Option<&Claim> {
    state.workers.iter().find_map(|worker| match worker {
        Worker::InBatch(memory) if memory.phase == Phase::ReadBack(step, doubt) => {
            Some(state.claim(memory.claim))
        }
        _ => None,
    })
}

/// A row is in progress under a decremented claim that has ended in this way.
fn is_stranded_by(state: &State, end: End) -> bool {
    let by = |slot: u8| state.claim(slot).decremented && state.claim(slot).end == Some(end);
    state.pastes.iter().flatten().any(|row| row.claim.is_some_and(by))
}

/// The decrement failed a row that the worker still believes to be in its batch.
fn has_unknown_failed_row(state: &State, memory: &Memory) -> bool {
    let failed = |paste: usize| state.pastes[paste].is_some_and(|row| !row.in_progress);
    memory.phase == Phase::ReadBack(Step::Decrement, Doubt::NoAnswer)
        && state.claim(memory.claim).end.is_none()
        && memory.pastes.iter().any(failed)
}

/// A worker must read back its claim, and the claim row is still locked.
fn in_doubt_while_locked(state: &State, step: Step) -> bool {
    let read_back = Phase::ReadBack(step, Doubt::NoAnswer);
    state.workers.iter().any(|worker| {
        matches!(worker, Worker::InBatch(memory)
            if memory.phase == read_back && state.claim_is_locked(memory.claim))
    })
}
