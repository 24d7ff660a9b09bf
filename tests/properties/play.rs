//! Playing a story: every scene on the real servers and in the reference, which must agree on every
//! answer and, after every scene, on every row and every object.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use paste_cleanup::worker::report::StoppedBecause;

use super::{
    observe::differences,
    plant::plant,
    reference::{Reference, State, When},
    stage::{Stage, text},
    steps::{Answer, Step, Sweep},
    story::Story,
    support::{drain, invariants::Expected},
};

/// Where the story's clock stands for puts and ended backoffs: after all planted times.
const FIRST_SCENE: i64 = 1000;
const SECONDS_PER_SCENE: i64 = 50;

/// The shortest backoff: what happens at the same time must not take longer, or rows come due again
/// in the middle of it.
const SHORTEST_BACKOFF: Duration = Duration::from_secs(1);

/// A story on its way.
pub struct Play<'a> {
    stage: &'a Stage,
    pub reference: Reference,
    /// Claims in the order in which they were made.
    pub claims: Vec<i64>,
    pub right_counts: bool,
    /// What happened so far, to be read when it goes wrong.
    transcript: Vec<String>,
}

/// Why a story ended early.
#[derive(Debug)]
pub enum Ended {
    Wrong(String),
    /// The machine was too busy to tell.
    TooSlow,
}

impl From<String> for Ended {
    fn from(wrong: String) -> Self {
        Self::Wrong(wrong)
    }
}

/// Plays the story to its end. The error says what happened and what was wrong with it.
pub async fn play(stage: &mut Stage, story: &Story) -> Result<(), String> {
    let reference = plant(story);
    stage.set(&reference).await;
    let right_counts = story.drift.is_empty();
    let mut play =
        Play { stage, reference, claims: Vec::new(), right_counts, transcript: Vec::new() };
    match play.all_scenes(story).await {
        Ok(()) | Err(Ended::TooSlow) => Ok(()),
        Err(Ended::Wrong(wrong)) => Err(format!("{}\n  → {wrong}", play.transcript.join("\n"))),
    }
}

impl Play<'_> {
    async fn all_scenes(&mut self, story: &Story) -> Result<(), Ended> {
        self.compare(vec![self.reference.clone()], true).await?;
        for (n, scene) in story.scenes.iter().enumerate() {
            let second = FIRST_SCENE + n as i64 * SECONDS_PER_SCENE;
            let alone = scene.len() == 1;
            let mut steps = Vec::new();
            for (action, second) in scene.iter().zip(second..) {
                steps.extend(self.resolve(action, second, alone).await);
            }
            if !steps.is_empty() {
                self.scene(&steps).await?;
            }
        }
        match self.right_counts {
            true => self.drain().await,
            false => self.drain_step_by_step().await,
        }
    }

    /// One step, or several at the same time: then what comes of it must be what comes of them in
    /// some order.
    async fn scene(&mut self, steps: &[Step]) -> Result<(), Ended> {
        let (moment, started) = (self.stage.moment().await, Instant::now());
        let answers =
            join_all(steps.iter().enumerate().map(|(slot, step)| self.stage.perform(step, slot)))
                .await;
        let told: Vec<(&Step, &Answer)> = steps.iter().zip(&answers).collect();
        self.note(&told);
        if told.len() > 1 && started.elapsed() >= SHORTEST_BACKOFF && !answers.iter().any(broke) {
            return Err(Ended::TooSlow);
        }
        self.reference.chosen = self.stage.pending_rows().await;
        let possible = self.explanations(&told)?;
        if steps.iter().any(|step| matches!(step, Step::ForgetClaims)) {
            self.claims.clear();
        }
        let pauses = self.stage.park_backoffs(moment).await;
        self.compare(possible, steps.iter().any(Step::touches_objects)).await?;
        Ok(self.check_pauses(&pauses)?)
    }

    fn note(&mut self, told: &[(&Step, &Answer)]) {
        if told.len() > 1 {
            self.transcript.push("  all at once:".into());
        }
        let lines = told.iter().map(|(step, answer)| format!("  {step:?}: {answer:?}"));
        self.transcript.extend(lines);
        let mut made: Vec<i64> = told.iter().filter_map(|(_, answer)| claimed(answer)).collect();
        made.sort_unstable();
        self.claims.extend(made);
    }

    /// The references that give the same answers, for some order of the steps.
    fn explanations(&self, told: &[(&Step, &Answer)]) -> Result<Vec<Reference>, String> {
        let (mut possible, mut wrong) = (Vec::new(), String::new());
        for locked in lockable(told) {
            let before = Reference { locked, ..self.reference.clone() };
            for order in orders(told.len()) {
                match follow(&before, told, &order) {
                    Ok(reference) => possible.push(reference),
                    Err(error) => wrong = error,
                }
            }
        }
        if possible.is_empty() { Err(wrong) } else { Ok(possible) }
    }

    /// Goes on with the first reference that agrees with what is really there.
    async fn compare(&mut self, possible: Vec<Reference>, look: bool) -> Result<(), String> {
        // Listing the bucket takes longer than all the rest.
        let objects = (!look).then(|| self.reference.objects.clone());
        let found = self.stage.observe(objects).await;
        let expected: Vec<State> = possible.iter().map(Reference::state).collect();
        let Some(agreed) = expected.iter().position(|state| *state == found) else {
            return Err(differences(&expected[0], &found).join("\n    "));
        };
        self.reference = possible.into_iter().nth(agreed).expect("just found");
        let mut wrong = self.stage.world.seen.lock().expect("seen").clone();
        if self.right_counts {
            wrong.extend(self.reference.broken_promises());
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ")) }
    }

    fn check_pauses(
        &self,
        pauses: &BTreeMap<String, std::ops::RangeInclusive<f64>>,
    ) -> Result<(), String> {
        for (code, range) in pauses {
            let expected = self.reference.pastes[code].retry;
            let When::Later(seconds) = expected else {
                return Err(format!("{code} backs off for {range:?} s, not {expected:?}"));
            };
            if !range.contains(&(seconds as f64)) {
                return Err(format!("{code} backs off for {range:?} s, not {seconds}"));
            }
        }
        Ok(())
    }

    pub async fn expire_lease(&mut self, id: i64) {
        let expire = Step::ExpireLease(id);
        let answer = self.stage.perform(&expire, 0).await;
        self.reference.follow(&expire, &answer);
        self.transcript.push(format!("  the worker of claim {id} is expired"));
    }

    /// Nobody works any more, S3 and owners refuse nothing, backoffs end, and a watchdog has looked.
    async fn wind_up(&mut self) -> Result<(), Ended> {
        self.scene(&[Step::Refuse(None)]).await?;
        self.scene(&[Step::OwnerRelents]).await?;
        for id in self.claims.clone() {
            self.expire_lease(id).await;
        }
        // Rows that wait for their content are among those that back off.
        self.scene(&[Step::EndBackoff(self.waiting(8000))]).await?;
        self.scene(&[Step::Sweep]).await?;
        self.scene(&[Step::EndBackoff(self.waiting(9000))]).await
    }

    /// A person looked at the dead letters: a run must leave exactly what lives.
    async fn drain(&mut self) -> Result<(), Ended> {
        self.wind_up().await?;
        self.transcript.push("  a run drains what is left".into());
        let world = &self.stage.world;
        world.run_sql("UPDATE pastes SET retry_at = now() WHERE retry_at IS NOT NULL").await;
        let summary = drain(&self.stage.drainer).await;
        if summary.stopped_because != StoppedBecause::Drained {
            return Err(format!("the run ended with {summary:?}").into());
        }
        let found = State { claims: BTreeMap::new(), ..self.stage.observe(None).await };
        let end = self.reference.drained();
        let mut wrong = differences(&end.state(), &found);
        let alive = end.alive().into_iter().map(|(code, body)| (code, text(body))).collect();
        let in_doubt = self.reference.kept_keys();
        let expected = Expected { alive, in_doubt, ..Expected::default() };
        wrong.extend(self.stage.world.store().check(&expected).await.violations);
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ").into()) }
    }

    /// With wrong counts, what is left depends on the batches: each of them is followed.
    async fn drain_step_by_step(&mut self) -> Result<(), Ended> {
        self.wind_up().await?;
        while !self.reference.queue().is_empty() {
            self.scene(&[Step::Claim { worker: 0, size: 20, busy: false, after: None }]).await?;
            let id = *self.claims.last().expect("just claimed");
            for step in [Step::Decrement(id), Step::DeleteObjects(id), Step::Finish(id)] {
                self.scene(&[step]).await?;
            }
        }
        Ok(())
    }
}

fn claimed(answer: &Answer) -> Option<i64> {
    match answer {
        Answer::Claimed(Some((id, _))) => Some(*id),
        _ => None,
    }
}

fn broke(answer: &Answer) -> bool {
    matches!(answer, Answer::Broke(_))
}

/// The reference after the steps in this order, if it gives the same answers.
fn follow(
    before: &Reference,
    told: &[(&Step, &Answer)],
    order: &[usize],
) -> Result<Reference, String> {
    let mut reference = before.clone();
    // Two sweeps share the work as it comes: only what they do together is known.
    let (mut due, mut done) = (Sweep::default(), Sweep::default());
    for (step, said) in order.iter().map(|n| told[*n]) {
        match (reference.follow(step, said), said) {
            (Answer::Swept(expected), Answer::Swept(said)) => {
                due.add(expected);
                done.add(*said);
            }
            (expected, said) if expected == *said => {}
            (expected, said) => {
                return Err(format!("{step:?} answered {said:?}, not {expected:?}"));
            }
        }
    }
    if due != done {
        return Err(format!("the sweep found {done:?}, not {due:?}"));
    }
    Ok(reference)
}

/// Which claims a sweep among these steps may find locked: none, or some of those that the others
/// touch. Then it leaves them to the next sweep.
fn lockable(told: &[(&Step, &Answer)]) -> Vec<BTreeSet<i64>> {
    let touched: BTreeSet<i64> = told.iter().filter_map(|(step, _)| step.claim()).collect();
    let mut some = vec![BTreeSet::new()];
    if told.iter().any(|(step, _)| matches!(step, Step::Sweep)) {
        for id in touched {
            let with = |set: &BTreeSet<i64>| set.iter().copied().chain([id]).collect();
            some.extend(some.iter().map(with).collect::<Vec<_>>());
        }
    }
    some
}

/// All orders of so many things.
fn orders(things: usize) -> Vec<Vec<usize>> {
    if things == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(things - 1);
    let insert = |order: &Vec<usize>, at: usize| {
        let mut longer = order.clone();
        longer.insert(at, things - 1);
        longer
    };
    shorter.iter().flat_map(|order| (0..things).map(move |at| insert(order, at))).collect()
}
