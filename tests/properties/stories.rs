//! Which stories are told, and how often what happens in them.

use proptest::{collection::vec, option, prelude::*};

use super::story::{
    Action, BODIES, CODES, Drift, Keys, Kind, Owner, Planted, Story, Until, WORKERS,
};

/// `stranded`: how often something is in progress without a claim that anybody remembers.
fn planted(stranded: u32) -> impl Strategy<Value = Planted> {
    let kind = prop_oneof![
        8 => Just(Kind::Expired),
        2 => Just(Kind::ExpiresLater),
        2 => Just(Kind::NeverExpires),
        2 => (1..4_i16).prop_map(Kind::CameBack),
        1 => (1..4_i16).prop_map(Kind::BacksOff),
        1 => (1..4_i16).prop_map(Kind::Owes),
        1 => Just(Kind::Tombstone),
        stranded => Just(Kind::Stray),
        stranded => Just(Kind::Deferred),
        stranded => (1..4_i64).prop_map(Kind::Forgotten),
    ];
    (0..BODIES, kind).prop_map(|(body, kind)| Planted { body, kind })
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
        .prop_map(|(paste, until, plainly)| Action::Extend { paste, until, plainly })
}

/// What may happen at the same time as anything else.
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
        4 => which.clone().prop_map(Action::Lapse),
        5 => (0..CODES, 0..BODIES, until())
            .prop_map(|(code, body, until)| Action::Put { code, body, until }),
        3 => extend(),
        2 => which.clone().prop_map(Action::ExpireNow),
        3 => which.clone().prop_map(Action::Remove),
        3 => which.prop_map(Action::PutBack),
    ]
}

fn keys() -> impl Strategy<Value = Keys> {
    prop_oneof![
        1 => Just(Keys::None),
        2 => (0..BODIES).prop_map(Keys::OfBody),
        1 => Just(Keys::All),
    ]
}

/// A claim that is carried out, while others meddle with its rows and its objects.
fn batch() -> impl Strategy<Value = Vec<Action>> {
    let which = || 0..8_usize;
    let meddle = || {
        option::of(prop_oneof![which().prop_map(Action::Remove), which().prop_map(Action::PutBack)])
    };
    let refuse = option::of(keys().prop_map(Action::Refuse));
    let meddling = [meddle(), meddle(), meddle(), meddle()];
    (claim(), refuse, meddling).prop_map(|(claim, refuse, [one, two, three, four])| {
        let steps = [
            [Some(claim), refuse, one, Some(Action::Decrement(0)), two],
            [Some(Action::DeleteObjects(0)), three, four, Some(Action::Finish(0)), None],
        ];
        steps.into_iter().flatten().flatten().collect()
    })
}

/// What only makes sense between other things.
fn turn() -> impl Strategy<Value = Action> {
    let by_hand = (0..8_usize, any::<bool>())
        .prop_map(|(claim, finished)| Action::EndByHand { claim, finished });
    prop_oneof![
        4 => Just(Action::EndBackoff),
        4 => keys().prop_map(Action::Refuse),
        3 => by_hand,
        1 => Just(Action::ForgetClaims),
    ]
}

/// What another transaction may be in the way of.
fn held() -> impl Strategy<Value = Action> {
    prop_oneof![
        2 => (0..8_usize, 0..BODIES).prop_map(|(which, body)| Action::ReleaseHeld(which, body)),
        1 => (0..BODIES).prop_map(Action::SweepHeld),
        2 => (0..8_usize, 0..BODIES).prop_map(|(which, body)| Action::LapseHeld(which, body)),
    ]
}

fn owner() -> impl Strategy<Value = Option<Owner>> {
    prop_oneof![
        3 => Just(None),
        1 => Just(Some(Owner::Raises)),
        1 => Just(Some(Owner::Violates)),
        1 => Just(Some(Owner::Swallows)),
    ]
}

fn drift() -> impl Strategy<Value = Drift> {
    prop_oneof![3 => Just(Drift::Off(0)), 4 => (-3..3).prop_map(Drift::Off), 1 => Just(Drift::NoRow)]
}

/// One thing after the other, from right counts.
pub fn stories() -> impl Strategy<Value = Story> {
    one_by_one(1)
}

fn one_by_one(stranded: u32) -> impl Strategy<Value = Story> {
    let one = prop_oneof![10 => step(), 3 => turn(), 1 => held()].prop_map(|action| vec![action]);
    let chapter = prop_oneof![9 => one, 1 => batch()];
    (vec(planted(stranded), 1..16), owner(), vec(chapter, 1..22)).prop_map(
        |(graph, owner, chapters)| {
            let scenes = chapters.into_iter().flatten().map(|action| vec![action]).collect();
            Story { graph, drift: Vec::new(), owner, scenes }
        },
    )
}

/// The same from counts that are wrong.
pub fn drifted_stories() -> impl Strategy<Value = Story> {
    // A count that is wrong matters most to those whom nobody asks.
    (one_by_one(3), vec(drift(), usize::from(BODIES)))
        .prop_map(|(story, drift)| Story { drift, ..story })
}

/// Two or three things at the same time, again and again.
pub fn crowded_stories() -> impl Strategy<Value = Story> {
    let scene = prop_oneof![
        5 => vec(step(), 2..4),
        2 => step().prop_map(|action| vec![action]),
        1 => turn().prop_map(|action| vec![action]),
    ];
    (vec(planted(1), 1..16), owner(), vec(scene, 1..16)).prop_map(|(graph, owner, scenes)| Story {
        graph,
        drift: Vec::new(),
        owner,
        scenes,
    })
}
