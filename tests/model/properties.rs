//! The properties: what must always hold, what must hold at rest, and the examples that must occur
//! in the model, since otherwise the properties could hold merely because nothing happens.

use stateright::Property;

use super::{
    protocol::Protocol,
    state::{
        Claim, Content, Doubt, End, Key, Memory, Phase, Row, State, Step, WORKERS, Worker, Writer,
    },
};

pub const READABLE: &str = "a live paste always has its body";
pub const LIVE_UNMARKED: &str = "no live paste is marked for deletion";
pub const COUNTS: &str = "every ref_count equals the number of references";
pub const NO_ORPHANS: &str = "every object is known to a row, a claim or the writer";
pub const CONTENT_EXISTS: &str = "the content of every unclaimed paste exists";
pub const AT_REST: &str = "at rest, nothing expired is left";

pub const TWO_CLAIMERS: &str = "two workers claim at once";
pub const FENCED_OFF: &str = "a zombie's finish matches no claim";
pub const LOST_CLAIM: &str = "a claim is committed, its answer is lost";
pub const LOST_DECREMENT: &str = "a decrement is committed, its answer is lost";
pub const LOST_FINISH: &str = "a finish is committed, its answer is lost";
pub const LOST_FAIL_ROWS: &str = "a decrement failed a row, its answer is lost";
pub const SLOW_CLAIM: &str = "a worker reads back a claim that is still being committed";
pub const SLOW_DECREMENT: &str = "a worker reads back a decrement that is still being committed";
pub const SLOW_FINISH: &str = "a worker reads back a finish that is still being committed";
pub const DONE_ALREADY: &str = "a decrement matches no claim because it is already done";
pub const ABANDONED: &str = "a commit is in flight, its worker is dead";
pub const LATE: &str = "a delete is still in flight, its object is gone";
pub const STORED_AGAIN: &str = "content is stored again, its old object is still being deleted";
pub const PENDING_RETRIED: &str = "a row with a pending object delete is claimed again";
pub const DEFERRED: &str = "a row is deferred, its content row is locked";
pub const STRANDED_BY_FINISH: &str = "a finish has stranded a row";
pub const STRANDED_BY_RESET: &str = "a reset of a decremented claim has stranded a row";
pub const EXTENDED: &str = "a paste was extended in time";

type Condition = fn(&Protocol, &State) -> bool;

fn always(name: &'static str, condition: Condition) -> Property<Protocol> {
    Property::always(name, condition)
}

fn sometimes(name: &'static str, condition: Condition) -> Property<Protocol> {
    Property::sometimes(name, condition)
}

/// Returns the properties of a setting: the invariants, and the examples that its faults allow.
pub fn all(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let mut all = vec![
        always(READABLE, |_, state| live_pastes_are_readable(state)),
        always(LIVE_UNMARKED, |_, state| {
            state.pastes.iter().flatten().all(|row| row.expired || !row.in_progress)
        }),
        always(CONTENT_EXISTS, |_, state| unclaimed_pastes_have_content(state)),
        always(NO_ORPHANS, |_, state| objects_are_known(state)),
        always(AT_REST, |protocol, state| is_clean(state) || !at_rest(protocol, state)),
    ];
    // A count that is wrong from the start is repaired only when a decrement depends on it.
    if counts_are_right(&protocol.start) {
        all.push(always(COUNTS, |_, state| counts_are_right(state)));
    }
    if protocol.mistake.is_none() {
        all.extend(
            examples().into_iter().filter(|example| protocol.examples.contains(&example.name)),
        );
    }
    all
}

/// A paste that has not expired is readable at every moment.
fn live_pastes_are_readable(state: &State) -> bool {
    let readable = |row: &Row| {
        let content = row.content_hash.and_then(|hash| state.content[usize::from(hash)]);
        content.is_some_and(|content| state.bucket.has(content.s3_key.into()))
    };
    state.pastes.iter().flatten().filter(|row| !row.expired).all(readable)
}

/// Expired or not, due or deferred: as long as a row has a content hash, that content row exists.
fn unclaimed_pastes_have_content(state: &State) -> bool {
    let unclaimed = state.pastes.iter().flatten().filter(|row| row.claim.is_none());
    unclaimed
        .filter_map(|row| row.content_hash)
        .all(|hash| state.content[usize::from(hash)].is_some())
}

fn counts_are_right(state: &State) -> bool {
    (0..).zip(&state.content).all(|(hash, content)| {
        content.map_or(0, |content| content.ref_count) == state.reference_count(hash)
            && content.is_none_or(|content| content.ref_count > 0)
    })
}

/// Every object is either in use, or recorded where its delete will be found.
fn objects_are_known(state: &State) -> bool {
    state.bucket.iter().all(|key| {
        let key = key as Key;
        let in_use = state.content.iter().flatten().any(|content| content.s3_key == key);
        let pending = || state.pastes.iter().flatten().any(|row| row.pending_s3_key == Some(key));
        let recorded =
            || state.claims.iter().flatten().any(|claim| claim.pending_owners.contains(&Some(key)));
        in_use || pending() || recorded() || uploads(state.writer, key)
    })
}

fn uploads(writer: Writer, key: Key) -> bool {
    match writer {
        Writer::Idle => false,
        Writer::Uploaded { key: fresh, before } => fresh == key || before.has(key.into()),
        Writer::InDoubt(keys) | Writer::Dropping(keys) => keys.has(key.into()),
    }
}

/// No step is left that a healthy fleet would take. Every run reaches such a state: see `rank.rs`.
/// Stateright's `eventually` would be shorter, but it judges each state by one path to it only.
fn at_rest(protocol: &Protocol, state: &State) -> bool {
    let mut actions = Vec::new();
    protocol.fair_actions(state, &mut actions);
    actions.is_empty()
}

/// No expired paste, no open claim, and exactly the objects that the content table names.
fn is_clean(state: &State) -> bool {
    let in_use = |content: &Content| 1 << content.s3_key;
    let in_use = state.content.iter().flatten().map(in_use).fold(0, |all, key| all | key);
    state.pastes.iter().flatten().all(|row| !row.expired)
        && state.claims.iter().flatten().all(|claim| claim.end.is_some())
        && state.bucket.0 == in_use
}

/// States that must occur, or the properties could hold merely for lack of faults.
fn examples() -> Vec<Property<Protocol>> {
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
            state.workers.iter().any(
                |worker| matches!(worker, Worker::InBatch(memory) if has_unknown_failed_row(state, memory)),
            )
        }),
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
