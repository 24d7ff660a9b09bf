//! Stories: a random graph of pastes and bodies, and what then happens to it, in which order.
//!
//! Actions name claims and pastes by small numbers that are taken modulo what is there, so that
//! every story can be played and a shorter one can be tried.

use std::fmt;

use proptest::{collection::vec, prelude::*};

/// Bodies that pastes of the graph share.
pub const BODIES: u8 = 5;
/// Workers that claim; the last one buries its pastes as tombstones.
pub const WORKERS: usize = 3;
/// Short codes that are put; the first ones are taken by the graph.
const CODES: u8 = 24;

/// One random story.
#[derive(Clone)]
pub struct Story {
    pub graph: Vec<Planted>,
    /// What is wrong with the counts from the start, by body. Empty: nothing.
    pub drift: Vec<Drift>,
    /// Keeps some pastes from being deleted.
    pub owner: Option<Owner>,
    pub scenes: Vec<Vec<Action>>,
}

/// What the trigger of the tables' owner does when some pastes (see `Reference::owner_keeps`) are
/// deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// An ordinary exception.
    Raises,
    /// As a constraint would.
    Violates,
    /// Nothing happens, and nobody is told.
    Swallows,
}

/// A paste that is there when the story begins.
#[derive(Debug, Clone, Copy)]
pub struct Planted {
    pub body: u8,
    pub kind: Kind,
}

/// What a planted paste has gone through already.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Expired,
    ExpiresLater,
    NeverExpires,
    /// Its worker fell silent so often; it is due again.
    CameBack(i16),
    /// The same, and it still waits.
    BacksOff(i16),
    /// Its reference is released, its object could not be deleted.
    Owes(i16),
    Tombstone,
    /// In progress without a claim: something else marked it.
    Stray,
    /// In progress without a claim: it waits for its content row.
    Deferred,
}

/// How a body's count differs from the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drift {
    Off(i32),
    NoRow,
}

/// When a paste that is put expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    Past,
    Future,
    Never,
}

/// What somebody does.
#[derive(Debug, Clone)]
pub enum Action {
    Claim {
        worker: usize,
        size: u32,
        /// Other claims are open in this process.
        busy: bool,
        /// Nothing due before this worker's last claim.
        marked: bool,
    },
    /// The next step of the claim in the usual order; a zombie goes on as if nothing had happened.
    Next(usize),
    Release(usize),
    DeleteObjects(usize),
    /// Before the release, too: the fence must refuse it.
    Finish(usize),
    GiveBack(usize),
    /// Its worker does not beat any more.
    Silence(usize),
    /// The watchdog looks.
    Sweep,
    /// Both, at once.
    Lapse(usize),
    EndBackoff,
    Put {
        code: u8,
        body: u8,
        until: Until,
    },
    /// Of a paste that is there, or not (any more).
    Extend {
        paste: usize,
        until: Until,
        /// By a statement of the writer's own, which leaves the retry columns alone.
        plainly: bool,
    },
    ExpireNow(usize),
    /// From now on S3 refuses these keys.
    Refuse(Keys),
    /// Something else deletes a row.
    Remove(usize),
    /// Somebody ends a claim by hand.
    EndByHand {
        claim: usize,
        finished: bool,
    },
    /// The claims are truncated.
    ForgetClaims,
    /// While another transaction holds a body: a claim is given back, or a sweep looks.
    GiveBackHeld(usize, u8),
    SweepHeld(u8),
    /// The same sweep, after a worker fell silent.
    LapseHeld(usize, u8),
}

/// Which keys S3 refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    None,
    OfBody(u8),
    All,
}

impl fmt::Debug for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, planted) in self.graph.iter().enumerate() {
            writeln!(f, "  p{n} holds body {}: {:?}", planted.body, planted.kind)?;
        }
        for (body, drift) in self.drift.iter().enumerate().filter(|(_, d)| **d != Drift::Off(0)) {
            writeln!(f, "  the count of body {body} is wrong: {drift:?}")?;
        }
        if let Some(owner) = self.owner {
            writeln!(f, "  the owner keeps p3, p7, p11, …: {owner:?}")?;
        }
        for (n, scene) in self.scenes.iter().enumerate() {
            writeln!(f, "  {}. {scene:?}", n + 1)?;
        }
        Ok(())
    }
}

fn planted() -> impl Strategy<Value = Planted> {
    let kind = prop_oneof![
        8 => Just(Kind::Expired),
        2 => Just(Kind::ExpiresLater),
        2 => Just(Kind::NeverExpires),
        2 => (1..4_i16).prop_map(Kind::CameBack),
        1 => (1..4_i16).prop_map(Kind::BacksOff),
        1 => (1..4_i16).prop_map(Kind::Owes),
        1 => Just(Kind::Tombstone),
        1 => Just(Kind::Stray),
        1 => Just(Kind::Deferred),
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
        2 => which.clone().prop_map(Action::Release),
        2 => which.clone().prop_map(Action::DeleteObjects),
        2 => which.clone().prop_map(Action::Finish),
        2 => which.clone().prop_map(Action::GiveBack),
        3 => which.clone().prop_map(Action::Silence),
        3 => Just(Action::Sweep),
        4 => which.clone().prop_map(Action::Lapse),
        5 => (0..CODES, 0..BODIES, until())
            .prop_map(|(code, body, until)| Action::Put { code, body, until }),
        3 => extend(),
        2 => which.clone().prop_map(Action::ExpireNow),
        3 => which.prop_map(Action::Remove),
    ]
}

/// What only makes sense between other things.
fn turn() -> impl Strategy<Value = Action> {
    let keys = prop_oneof![
        1 => Just(Keys::None),
        2 => (0..BODIES).prop_map(Keys::OfBody),
        1 => Just(Keys::All),
    ];
    let by_hand = (0..8_usize, any::<bool>())
        .prop_map(|(claim, finished)| Action::EndByHand { claim, finished });
    prop_oneof![
        4 => Just(Action::EndBackoff),
        4 => keys.prop_map(Action::Refuse),
        3 => by_hand,
        1 => Just(Action::ForgetClaims),
    ]
}

/// What another transaction may be in the way of.
fn held() -> impl Strategy<Value = Action> {
    prop_oneof![
        2 => (0..8_usize, 0..BODIES).prop_map(|(which, body)| Action::GiveBackHeld(which, body)),
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
    let scene = prop_oneof![10 => step(), 3 => turn(), 1 => held()].prop_map(|action| vec![action]);
    (vec(planted(), 1..16), owner(), vec(scene, 1..30)).prop_map(|(graph, owner, scenes)| Story {
        graph,
        drift: Vec::new(),
        owner,
        scenes,
    })
}

/// The same from counts that are wrong.
pub fn drifted_stories() -> impl Strategy<Value = Story> {
    (stories(), vec(drift(), usize::from(BODIES)))
        .prop_map(|(story, drift)| Story { drift, ..story })
}

/// Two or three things at the same time, again and again.
pub fn crowded_stories() -> impl Strategy<Value = Story> {
    let scene = prop_oneof![
        5 => vec(step(), 2..4),
        2 => step().prop_map(|action| vec![action]),
        1 => turn().prop_map(|action| vec![action]),
    ];
    (vec(planted(), 1..16), owner(), vec(scene, 1..16)).prop_map(|(graph, owner, scenes)| Story {
        graph,
        drift: Vec::new(),
        owner,
        scenes,
    })
}
