//! Proves that every run comes to rest: every step, fault or not, lowers a number, the rank. This
//! is checked at every transition, so no run goes on forever and none loops.

use super::{
    budget::Budget,
    protocol::Action,
    state::{Claim, Memory, PASTES, Phase, Row, State, Step, Worker, Writer},
};

/// More than the work that any fault can undo.
const FAULT: u32 = 1000;
/// The rank of an expired row, and what a claim takes off it until the row is reset.
const EXPIRED: u32 = 60;
const CLAIMED: u32 = 30;
const LIVE: u32 = EXPIRED + 1;
/// More than the rows of a claim gain when all are reset.
const ALL_RESET: u32 = (CLAIMED + 1) * PASTES as u32 + 10;
/// More than a row gains when it is deferred until its content row is unlocked.
const DEFERRED: u32 = CLAIMED + 2;
/// More than the rows and the claim of a batch gain when its commit lands.
const LANDS: u32 = 2 * ALL_RESET;

/// Panics if a step did not lower the rank.
pub(crate) fn assert_progress(last: &State, next: &State, action: Action) {
    assert!(rank(next) < rank(last), "{action:?} made no progress: {last:?} to {next:?}");
}

/// Returns an upper bound of the steps that are left.
fn rank(state: &State) -> u32 {
    let rows: u32 = state.pastes.iter().flatten().map(|row| rank_of_row(state, row)).sum();
    let workers: u32 = state.workers.iter().map(rank_of_worker).sum();
    let claims: u32 = state.claims.iter().flatten().map(rank_of_claim).sum();
    FAULT * faults(&state.budget)
        + rows
        + workers
        + claims
        + rank_of_writer(state.writer)
        + state.backend.map_or(0, |_| LANDS)
        + u32::from(state.lock_is_abandoned())
        + u32::from(state.locked_content.is_some())
        + state.in_flight.0.count_ones()
}

fn faults(budget: &Budget) -> u32 {
    let Budget {
        crashes, lease_expiries, lost_answers, slow_commits, lost_locks, releases, ..
    } = budget;
    let Budget { late_deletes, repeated_deletes, refusals, row_errors, puts, extensions, .. } =
        budget;
    let Budget { content_locks, stranded_rows, .. } = budget;
    [crashes, lease_expiries, lost_answers, lost_locks, releases, late_deletes]
        .into_iter()
        .chain([slow_commits, repeated_deletes, refusals, row_errors, puts, extensions])
        .chain([content_locks, stranded_rows])
        .map(|left| u32::from(*left))
        .sum()
}

fn rank_of_row(state: &State, row: &Row) -> u32 {
    let rank = match (row.expired, row.in_progress) {
        (false, _) => LIVE,
        (true, true) if state.is_stranded(row) => EXPIRED + 1,
        (true, true) => EXPIRED - CLAIMED,
        (true, false) => EXPIRED,
    };
    // While another transaction locks a content row, each row that references it can be deferred
    // once.
    let waits = row.in_progress && row.claim.is_none();
    if state.locked_content.is_some() && !waits { rank + DEFERRED } else { rank }
}

fn rank_of_worker(worker: &Worker) -> u32 {
    match worker {
        Worker::Idle => 5,
        Worker::RowsLocked(_) => 4,
        Worker::ClaimUnconfirmed => ALL_RESET,
        Worker::InBatch(memory) => {
            rank_of_phase(memory) + (CLAIMED + 1) * memory.bad.0.count_ones()
        }
    }
}

fn rank_of_phase(memory: &Memory) -> u32 {
    use super::state::Doubt::{NoAnswer, NotFenced};
    let pending = u32::try_from(memory.pending.iter().flatten().count()).expect("few pastes");
    match memory.phase {
        Phase::Decrement { .. } => 20,
        Phase::Delete => 12 + pending - memory.bad.0.count_ones(),
        Phase::Finish => 11,
        Phase::ReadBack(_, NoAnswer) => 21,
        // Already done, by a commit that was in flight.
        Phase::ReadBack(Step::Decrement, NotFenced) => 17,
        Phase::ReadBack(Step::Finish, NotFenced) => 10,
    }
}

fn rank_of_claim(claim: &Claim) -> u32 {
    let abandoned = claim.end.is_none() && claim.worker.is_none();
    if abandoned { ALL_RESET } else { 0 }
}

fn rank_of_writer(writer: Writer) -> u32 {
    match writer {
        Writer::Idle => 0,
        Writer::Dropping(_) => 1,
        Writer::Uploaded { .. } => LIVE + 2,
        Writer::InDoubt(_) => LIVE + 3,
    }
}
