//! The properties: what must always hold, and what must hold at rest.

use stateright::Property;

use super::{
    examples,
    protocol::Protocol,
    state::{Content, Key, Row, State, Writer},
};

pub(crate) const READABLE: &str = "a live paste always has its body";
pub(crate) const LIVE_UNMARKED: &str = "no live paste is marked for deletion";
pub(crate) const COUNTS: &str = "every ref_count equals the number of references";
pub(crate) const NO_ORPHANS: &str = "every object is known to a row, a claim or the writer";
pub(crate) const CONTENT_EXISTS: &str = "the content of every unclaimed paste exists";
pub(crate) const AT_REST: &str = "at rest, nothing expired is left";

pub(crate) type Condition = fn(&Protocol, &State) -> bool;

fn always(name: &'static str, condition: Condition) -> Property<Protocol> {
    Property::always(name, condition)
}

/// Returns the properties of a setting: the invariants, and the examples that its faults allow.
pub(crate) fn all(protocol: &Protocol) -> Vec<Property<Protocol>> {
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
            examples::all().into_iter().filter(|example| protocol.examples.contains(&example.name)),
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
