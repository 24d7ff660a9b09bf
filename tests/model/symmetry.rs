//! Symmetry reduction: which of the two workers takes a step, and which number a claim has, makes
//! no difference. Of the states that differ only in that, one is explored.

use super::state::{CLAIMS, State, Worker};

/// Returns the state with its workers sorted, and its claims numbered in the order of the workers
/// that remember them, then of the rows.
pub(crate) fn representative(state: &State) -> State {
    let mut state = *state;
    if fingerprint(&state, 0) > fingerprint(&state, 1) {
        swap_workers(&mut state);
    }
    renumber(&state)
}

/// Describes a worker without its own number or its claim's: what it remembers, whether it has the
/// Redis lock or a commit in flight, and how far each paste and each claim of its own has come.
fn fingerprint(state: &State, worker: u8) -> impl Ord + use<> {
    let mut remembers = state.workers[usize::from(worker)];
    let mut current = None;
    if let Worker::InBatch(memory) = &mut remembers {
        current = Some(std::mem::take(&mut memory.claim));
    }
    let own = |slot: u8| current == Some(slot) || state.claim(slot).worker == Some(worker);
    let progress = |slot: u8| (current == Some(slot), state.claim(slot).decremented);
    let rows = state.pastes.map(|row| row?.claim.filter(|slot| own(*slot)).map(progress));
    let end = current.map(|slot| (state.claim(slot).end, state.claim(slot).decremented));
    let slow = state.backend.is_some_and(|backend| backend.worker == Some(worker));
    (remembers, state.lock == Some(worker), slow, end, rows)
}

fn swap_workers(state: &mut State) {
    state.workers.swap(0, 1);
    let other = |worker: Option<u8>| worker.map(|worker| 1 - worker);
    state.lock = other(state.lock);
    if let Some(backend) = &mut state.backend {
        backend.worker = other(backend.worker);
    }
    for claim in state.claims.iter_mut().flatten() {
        claim.worker = other(claim.worker);
    }
}

fn renumber(state: &State) -> State {
    let mut next = State { claims: [None; CLAIMS], ..*state };
    let mut numbers = [None; CLAIMS];
    let mut free = 0..;
    let mut number = |old: u8| {
        let known = &mut numbers[usize::from(old)];
        if known.is_none() {
            *known = free.next();
        }
        known.expect("it has a number now")
    };
    for worker in &mut next.workers {
        if let Worker::InBatch(memory) = worker {
            memory.claim = number(memory.claim);
        }
    }
    if let Some(claim) = next.backend.as_mut().and_then(|backend| backend.work.claim_mut()) {
        *claim = number(*claim);
    }
    for row in next.pastes.iter_mut().flatten() {
        row.claim = row.claim.map(&mut number);
    }
    for old in 0..CLAIMS {
        if let Some(claim) = state.claims[old] {
            next.claims[usize::from(number(old as u8))] = Some(claim);
        }
    }
    next
}
