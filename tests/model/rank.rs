//! Why "at rest" is really reached: every step, fault or not, uses something up. A number that can
//! only fall is checked at every transition, so no run goes on for ever and none goes in a circle.

use super::{
    protocol::Action,
    state::{Claim, Left, Memory, PASTES, Phase, Row, State, Step, Worker, Writer},
};

/// More than any fault can release of the work that was done.
const FAULT: u32 = 1000;
/// A row that has expired, and what it loses by being claimed, until it is let go again.
const EXPIRED: u32 = 60;
const CLAIMED: u32 = 30;
const LIVE: u32 = EXPIRED + 1;
/// More than the rows of a claim gain when all are let go.
const ALL_LET_GO: u32 = (CLAIMED + 1) * PASTES as u32 + 10;
/// More than a row gains when it is put aside until others let go of its content.
const WAITS: u32 = CLAIMED + 2;
/// More than the rows of a batch gain when its commit lands, and its claim.
const LANDS: u32 = 2 * ALL_LET_GO;

/// Panics when a step did not use anything up.
pub fn assert_progress(last: &State, next: &State, action: Action) {
    assert!(rank(next) < rank(last), "{action:?} made no progress: {last:?} to {next:?}");
}

/// An upper bound of the steps that are left.
fn rank(state: &State) -> u32 {
    let rows: u32 = state.pastes.iter().flatten().map(|row| rank_of_row(state, row)).sum();
    let workers: u32 = state.workers.iter().map(rank_of_worker).sum();
    let claims: u32 = state.claims.iter().flatten().map(rank_of_claim).sum();
    FAULT * faults(&state.left)
        + rows
        + workers
        + claims
        + rank_of_writer(state.writer)
        + state.backend.map_or(0, |_| LANDS)
        + u32::from(state.lock_is_abandoned())
        + u32::from(state.held.is_some())
        + state.under_way.0.count_ones()
}

fn faults(left: &Left) -> u32 {
    let Left { crashes, lease_expiries, lost_answers, slow_commits, lost_locks, releases, .. } =
        left;
    let Left { late_deletes, repeated_deletes, refusals, row_faults, puts, extensions, .. } = left;
    let Left { holds, leftovers, .. } = left;
    [crashes, lease_expiries, lost_answers, lost_locks, releases, late_deletes]
        .into_iter()
        .chain([slow_commits, repeated_deletes, refusals, row_faults, puts, extensions])
        .chain([holds, leftovers])
        .map(|left| u32::from(*left))
        .sum()
}

fn rank_of_row(state: &State, row: &Row) -> u32 {
    let rank = match (row.expired, row.in_progress) {
        (false, _) => LIVE,
        (true, true) if state.is_stray(row) => EXPIRED + 1,
        (true, true) => EXPIRED - CLAIMED,
        (true, false) => EXPIRED,
    };
    // While others hold a body, each of its rows may have to wait for it, once.
    let waits = row.in_progress && row.claim.is_none();
    if state.held.is_some() && !waits { rank + WAITS } else { rank }
}

fn rank_of_worker(worker: &Worker) -> u32 {
    match worker {
        Worker::Idle => 5,
        Worker::Picking(_) => 4,
        Worker::AskClaims => ALL_LET_GO,
        Worker::Holding(memory) => {
            rank_of_phase(memory) + (CLAIMED + 1) * memory.bad.0.count_ones()
        }
    }
}

fn rank_of_phase(memory: &Memory) -> u32 {
    use super::state::Doubt::{NoAnswer, NotFenced};
    let owed = u32::try_from(memory.owes.iter().flatten().count()).expect("few pastes");
    match memory.phase {
        Phase::Decrement { .. } => 20,
        Phase::Delete => 12 + owed - memory.bad.0.count_ones(),
        Phase::Finish => 11,
        Phase::Ask(_, NoAnswer) => 21,
        // Done already, by a commit that was under way.
        Phase::Ask(Step::Decrement, NotFenced) => 17,
        Phase::Ask(Step::Finish, NotFenced) => 10,
    }
}

fn rank_of_claim(claim: &Claim) -> u32 {
    let abandoned = claim.end.is_none() && claim.worker.is_none();
    if abandoned { ALL_LET_GO } else { 0 }
}

fn rank_of_writer(writer: Writer) -> u32 {
    match writer {
        Writer::Idle => 0,
        Writer::Dropping(_) => 1,
        Writer::Uploaded { .. } => LIVE + 2,
        Writer::Unsure(_) => LIVE + 3,
    }
}
