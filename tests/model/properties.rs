//! What must always hold, what must hold at rest, and what must really happen in the model so that
//! the rest is worth something.

use stateright::Property;

use super::{
    protocol::Protocol,
    state::{
        Claim, Content, Doubt, End, Key, Memory, Phase, Row, State, Step, WORKERS, Worker, Writer,
    },
};

pub const READABLE: &str = "a live paste always has its body";
pub const LEFT_ALONE: &str = "nobody deletes a live paste";
pub const COUNT: &str = "every count equals its holders";
pub const KNOWN: &str = "somebody knows every object";
pub const KEPT: &str = "what no claim holds keeps its content";
pub const AT_REST: &str = "at rest, nothing that expired is left";

pub const TWO_CLAIM: &str = "two workers claim at once";
pub const FENCED_OFF: &str = "a zombie's finish is fenced off";
pub const LOST_CLAIM: &str = "a worker does not know of its claim";
pub const LOST_DECREMENT: &str = "a decrement is committed, its answer is lost";
pub const LOST_FINISH: &str = "a finish is committed, its answer is lost";
pub const LOST_FAIL_ROWS: &str = "a decrement failed a row, its answer is lost";
pub const SLOW_CLAIM: &str = "a worker asks for a claim that is still being committed";
pub const SLOW_DECREMENT: &str = "a worker asks for a decrement that is still being committed";
pub const SLOW_FINISH: &str = "a worker asks for a finish that is still being committed";
pub const DONE_ALREADY: &str = "a decrement is fenced off because it is done already";
pub const ABANDONED: &str = "a commit is under way, its worker is dead";
pub const LATE: &str = "a delete is still under way, its object is gone";
pub const BODY_BACK: &str = "a body is back, its old object is still being deleted";
pub const OWING: &str = "a row that owes a key is worked on again";
pub const DEFERRED: &str = "a row waits for its content, which others hold";
pub const LEFT_BY_FINISH: &str = "a finish has left a row in progress";
pub const LEFT_BY_RESET: &str = "a reset has left a row in progress, whose claim was decremented";
pub const EXTENDED: &str = "a paste was extended in time";

type Condition = fn(&Protocol, &State) -> bool;

fn always(name: &'static str, condition: Condition) -> Property<Protocol> {
    Property::always(name, condition)
}

fn sometimes(name: &'static str, condition: Condition) -> Property<Protocol> {
    Property::sometimes(name, condition)
}

/// The properties of a setting: the promises, and the examples that its faults make possible.
pub fn all(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let mut all = vec![
        always(READABLE, |_, state| live_pastes_have_bodies(state)),
        always(LEFT_ALONE, |_, state| {
            state.pastes.iter().flatten().all(|row| row.expired || !row.in_progress)
        }),
        always(KEPT, |_, state| unclaimed_pastes_have_content(state)),
        always(KNOWN, |_, state| objects_are_known(state)),
        always(AT_REST, |protocol, state| is_settled(state) || !at_rest(protocol, state)),
    ];
    // A count that was wrong from the start is only put right when it matters.
    if counts_are_right(&protocol.start) {
        all.push(always(COUNT, |_, state| counts_are_right(state)));
    }
    if protocol.mistake.is_none() {
        all.extend(examples().into_iter().filter(|example| protocol.shows.contains(&example.name)));
    }
    all
}

/// A paste that has not expired can be read, at every moment.
fn live_pastes_have_bodies(state: &State) -> bool {
    let readable = |row: &Row| {
        let content = row.body.and_then(|body| state.content[usize::from(body)]);
        content.is_some_and(|content| state.bucket.has(content.s3_key.into()))
    };
    state.pastes.iter().flatten().filter(|row| !row.expired).all(readable)
}

/// Expired or not, due or waiting for its content: as long as it names a body, that is there.
fn unclaimed_pastes_have_content(state: &State) -> bool {
    let bodies = state.pastes.iter().flatten().filter(|row| row.claim.is_none());
    bodies.filter_map(|row| row.body).all(|body| state.content[usize::from(body)].is_some())
}

fn counts_are_right(state: &State) -> bool {
    (0..).zip(&state.content).all(|(body, content)| {
        content.map_or(0, |content| content.ref_count) == state.holders(body)
            && content.is_none_or(|content| content.ref_count > 0)
    })
}

/// Whoever knows an object either uses it or will delete it.
fn objects_are_known(state: &State) -> bool {
    state.bucket.iter().all(|key| {
        let key = key as Key;
        let in_use = state.content.iter().flatten().any(|content| content.s3_key == key);
        let owed = || state.pastes.iter().flatten().any(|row| row.pending_s3_key == Some(key));
        let recorded =
            || state.claims.iter().flatten().any(|claim| claim.pending_owners.contains(&Some(key)));
        in_use || owed() || recorded() || uploads(state.writer, key)
    })
}

fn uploads(writer: Writer, key: Key) -> bool {
    match writer {
        Writer::Idle => false,
        Writer::Uploaded { key: fresh, before } => fresh == key || before.has(key.into()),
        Writer::Unsure(keys) | Writer::Dropping(keys) => keys.has(key.into()),
    }
}

/// Nothing is left to do for a fleet to which nothing more happens. Every run comes to such a
/// state: see `rank.rs`. `eventually` would say it shorter, but judges by one path to each state.
fn at_rest(protocol: &Protocol, state: &State) -> bool {
    let mut actions = Vec::new();
    protocol.fair_actions(state, &mut actions);
    actions.is_empty()
}

/// No expired paste, no open claim, and the bucket holds what the content table says.
fn is_settled(state: &State) -> bool {
    let in_use = |content: &Content| 1 << content.s3_key;
    let in_use = state.content.iter().flatten().map(in_use).fold(0, |all, key| all | key);
    state.pastes.iter().flatten().all(|row| !row.expired)
        && state.claims.iter().flatten().all(|claim| claim.end.is_some())
        && state.bucket.0 == in_use
}

/// Things that must happen somewhere, or the promises are kept for want of trouble.
fn examples() -> Vec<Property<Protocol>> {
    vec![
        sometimes(TWO_CLAIM, |_, state| {
            state.workers.iter().all(|worker| matches!(worker, Worker::Picking(_)))
        }),
        sometimes(FENCED_OFF, |_, state| {
            let claim = asks(state, Step::Finish, Doubt::NotFenced);
            claim.is_some_and(|claim| claim.end == Some(End::Reset))
        }),
        sometimes(LOST_CLAIM, |_, state| {
            let unknown = |claim: &Claim| {
                claim.end.is_none()
                    && claim.worker.is_some_and(|worker| {
                        state.workers[usize::from(worker)] == Worker::AskClaims
                    })
            };
            state.claims.iter().flatten().any(unknown)
        }),
        sometimes(LOST_DECREMENT, |_, state| {
            asks(state, Step::Decrement, Doubt::NoAnswer).is_some_and(|claim| claim.decremented)
        }),
        sometimes(LOST_FINISH, |_, state| {
            let claim = asks(state, Step::Finish, Doubt::NoAnswer);
            claim.is_some_and(|claim| claim.end == Some(End::Finished))
        }),
        sometimes(SLOW_CLAIM, |_, state| {
            let asks = |worker| state.workers[worker] == Worker::AskClaims;
            (0..WORKERS).any(|worker| asks(worker) && state.turn_is_taken(worker))
        }),
        sometimes(SLOW_DECREMENT, |_, state| asks_too_early(state, Step::Decrement)),
        sometimes(SLOW_FINISH, |_, state| asks_too_early(state, Step::Finish)),
        sometimes(DONE_ALREADY, |_, state| {
            let claim = asks(state, Step::Decrement, Doubt::NotFenced);
            claim.is_some_and(|claim| claim.end.is_none() && claim.decremented)
        }),
        sometimes(ABANDONED, |_, state| {
            state.backend.is_some_and(|backend| backend.worker.is_none())
        }),
        sometimes(LOST_FAIL_ROWS, |_, state| {
            state.workers.iter().any(
                |worker| matches!(worker, Worker::Holding(memory) if misses_a_row(state, memory)),
            )
        }),
        sometimes(LATE, |_, state| state.under_way.0 & !state.bucket.0 != 0),
        sometimes(BODY_BACK, |_, state| {
            let back = state.content[0].is_some_and(|content| content.s3_key != 0);
            back && state.bucket.has(0) && state.under_way.has(0)
        }),
        sometimes(OWING, |_, state| {
            let owes = |row: &Row| row.in_progress && row.pending_s3_key.is_some();
            state.pastes.iter().flatten().any(owes)
        }),
        sometimes(DEFERRED, |_, state| {
            let waits = |row: &Row| row.in_progress && row.claim.is_none();
            let waits = |row: &Row| waits(row) && row.body.is_some() && row.body == state.held;
            state.pastes.iter().flatten().any(waits)
        }),
        sometimes(LEFT_BY_FINISH, |_, state| is_left_by(state, End::Finished)),
        sometimes(LEFT_BY_RESET, |_, state| is_left_by(state, End::Reset)),
        sometimes(EXTENDED, |protocol, state| {
            let before = protocol.start.pastes.iter().map(|row| row.is_some_and(|row| row.expired));
            before
                .zip(&state.pastes)
                .any(|(expired, row)| expired && row.is_some_and(|row| !row.expired))
        }),
    ]
}

/// The claim of a worker that is in this doubt.
fn asks(state: &State, step: Step, doubt: Doubt) -> Option<&Claim> {
    state.workers.iter().find_map(|worker| match worker {
        Worker::Holding(memory) if memory.phase == Phase::Ask(step, doubt) => {
            Some(state.claim(memory.claim))
        }
        _ => None,
    })
}

/// A row is in progress under a claim that was decremented, and has ended in this way.
fn is_left_by(state: &State, end: End) -> bool {
    let by = |slot: u8| state.claim(slot).decremented && state.claim(slot).end == Some(end);
    state.pastes.iter().flatten().any(|row| row.claim.is_some_and(by))
}

/// The decrement went around a row that the worker still takes for its own.
fn misses_a_row(state: &State, memory: &Memory) -> bool {
    let failed = |paste: usize| state.pastes[paste].is_some_and(|row| !row.in_progress);
    memory.phase == Phase::Ask(Step::Decrement, Doubt::NoAnswer)
        && state.claim(memory.claim).end.is_none()
        && memory.pastes.iter().any(failed)
}

/// A worker is in doubt, and the claim row is still locked.
fn asks_too_early(state: &State, step: Step) -> bool {
    let asking = Phase::Ask(step, Doubt::NoAnswer);
    state.workers.iter().any(|worker| {
        matches!(worker, Worker::Holding(memory)
            if memory.phase == asking && state.claim_is_locked(memory.claim))
    })
}
