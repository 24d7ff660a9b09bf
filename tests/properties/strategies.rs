//! Proptest strategies: which scenarios are generated, and how often each action occurs in them.

use proptest::{collection::vec, option, prelude::*};

use crate::scenario::{
    Action, CODES, CONTENT_ROWS, Drift, InitialPaste, Keys, Kind, OwnerTrigger, Scenario, Until,
    WORKERS,
};

/// Generates an initial paste. `stranded` is the weight of rows in progress without a claim row.
fn initial_paste(stranded: u32) -> impl Strategy<Value = InitialPaste> {
    let kind = prop_oneof![
        8 => Just(Kind::Expired),
        2 => Just(Kind::ExpiresLater),
        2 => Just(Kind::NeverExpires),
        2 => (1..4_i16).prop_map(Kind::WasReset),
        1 => (1..4_i16).prop_map(Kind::BacksOff),
        1 => (1..4_i16).prop_map(Kind::PendingDelete),
        1 => Just(Kind::Tombstone),
        stranded => Just(Kind::MarkedByOther),
        stranded => Just(Kind::Deferred),
        stranded => (1..4_i64).prop_map(Kind::UnknownClaim),
    ];
    (0..CONTENT_ROWS, kind).prop_map(|(content_id, kind)| InitialPaste { content_id, kind })
}

fn until() -> impl Strategy<Value = Until> {
    prop_oneof![2 => Just(Until::Past), 1 => Just(Until::Future), 1 => Just(Until::Never)]
}

fn later() -> impl Strategy<Value = Until> {
    prop_oneof![Just(Until::Future), Just(Until::Never)]
}

fn claim() -> impl Strategy<Value = Action> {
    let size = prop_oneof![3 => 1..5_u32, 2 => 5..21_u32];
    (0..WORKERS, size, prop::bool::weighted(0.2), prop::bool::weighted(0.4))
        .prop_map(|(worker, size, busy, marked)| Action::Claim { worker, size, busy, marked })
}

fn extend() -> impl Strategy<Value = Action> {
    (0..8_usize, later(), prop::bool::weighted(0.3))
        .prop_map(|(paste, until, plain_update)| Action::Extend { paste, until, plain_update })
}

/// Generates an action that can run concurrently with any other.
fn step() -> impl Strategy<Value = Action> {
    let which = 0..8_usize;
    prop_oneof![
        10 => claim(),
        20 => which.clone().prop_map(Action::Next),
        2 => which.clone().prop_map(Action::Decrement),
        2 => which.clone().prop_map(Action::DeleteObjects),
        2 => which.clone().prop_map(Action::Finish),
        2 => which.clone().prop_map(Action::Release),
        3 => which.clone().prop_map(Action::ExpireLease),
        3 => Just(Action::Sweep),
        4 => which.clone().prop_map(Action::ExpireAndSweep),
        5 => (0..CODES, 0..CONTENT_ROWS, until())
            .prop_map(|(code, content_id, until)| Action::Put { code, content_id, until }),
        3 => extend(),
        2 => which.clone().prop_map(Action::ExpireNow),
        3 => which.clone().prop_map(Action::DeleteRow),
        3 => which.prop_map(Action::ResetByHand),
    ]
}

fn keys() -> impl Strategy<Value = Keys> {
    prop_oneof![
        1 => Just(Keys::None),
        2 => (0..CONTENT_ROWS).prop_map(Keys::OfContent),
        1 => Just(Keys::All),
    ]
}

/// Generates a whole batch, while its rows are changed by hand and S3 refuses keys.
fn batch() -> impl Strategy<Value = Vec<Action>> {
    let which = || 0..8_usize;
    let by_hand = || {
        option::of(prop_oneof![
            which().prop_map(Action::DeleteRow),
            which().prop_map(Action::ResetByHand)
        ])
    };
    let refuse = option::of(keys().prop_map(Action::Refuse));
    let by_hand = [by_hand(), by_hand(), by_hand(), by_hand()];
    (claim(), refuse, by_hand).prop_map(|(claim, refuse, [one, two, three, four])| {
        let steps = [
            [Some(claim), refuse, one, Some(Action::Decrement(0)), two],
            [Some(Action::DeleteObjects(0)), three, four, Some(Action::Finish(0)), None],
        ];
        steps.into_iter().flatten().flatten().collect()
    })
}

/// Generates an action that must run alone.
fn exclusive() -> impl Strategy<Value = Action> {
    let by_hand = (0..8_usize, any::<bool>())
        .prop_map(|(claim, finished)| Action::EndByHand { claim, finished });
    prop_oneof![
        4 => Just(Action::EndBackoff),
        4 => keys().prop_map(Action::Refuse),
        3 => by_hand,
        1 => Just(Action::TruncateClaims),
    ]
}

/// Generates an action that runs while another transaction locks a content row.
fn while_locked() -> impl Strategy<Value = Action> {
    prop_oneof![
        2 => (0..8_usize, 0..CONTENT_ROWS)
            .prop_map(|(which, content_id)| Action::ReleaseWhileLocked(which, content_id)),
        1 => (0..CONTENT_ROWS).prop_map(Action::SweepWhileLocked),
        2 => (0..8_usize, 0..CONTENT_ROWS)
            .prop_map(|(which, content_id)| Action::ExpireAndSweepWhileLocked(which, content_id)),
    ]
}

fn owner() -> impl Strategy<Value = Option<OwnerTrigger>> {
    prop_oneof![
        3 => Just(None),
        1 => Just(Some(OwnerTrigger::Raises)),
        1 => Just(Some(OwnerTrigger::Violates)),
        1 => Just(Some(OwnerTrigger::Swallows)),
    ]
}

fn drift() -> impl Strategy<Value = Drift> {
    prop_oneof![3 => Just(Drift::Off(0)), 4 => (-3..3).prop_map(Drift::Off), 1 => Just(Drift::NoRow)]
}

/// Generates serial scenarios that start from correct counts.
pub(crate) fn scenarios() -> impl Strategy<Value = Scenario> {
    one_by_one(1)
}

fn one_by_one(stranded: u32) -> impl Strategy<Value = Scenario> {
    let one = prop_oneof![10 => step(), 3 => exclusive(), 1 => while_locked()]
        .prop_map(|action| vec![action]);
    let group = prop_oneof![9 => one, 1 => batch()];
    (vec(initial_paste(stranded), 1..16), owner(), vec(group, 1..22)).prop_map(
        |(initial, owner, groups)| {
            let rounds = groups.into_iter().flatten().map(|action| vec![action]).collect();
            Scenario { initial, drift: Vec::new(), owner, rounds }
        },
    )
}

/// Generates serial scenarios that start from wrong counts.
pub(crate) fn scenarios_with_drift() -> impl Strategy<Value = Scenario> {
    // A wrong count matters most to rows in progress without a claim, so these are frequent here.
    (one_by_one(3), vec(drift(), usize::from(CONTENT_ROWS)))
        .prop_map(|(scenario, drift)| Scenario { drift, ..scenario })
}

/// Generates scenarios in which most rounds run two or three actions concurrently.
pub(crate) fn concurrent_scenarios() -> impl Strategy<Value = Scenario> {
    let round = prop_oneof![
        5 => vec(step(), 2..4),
        2 => step().prop_map(|action| vec![action]),
        1 => exclusive().prop_map(|action| vec![action]),
    ];
    (vec(initial_paste(1), 1..16), owner(), vec(round, 1..16))
        .prop_map(|(initial, owner, rounds)| Scenario { initial, drift: Vec::new(), owner, rounds })
}
