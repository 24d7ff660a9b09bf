//! Runs a scenario on the real servers and in the reference. They must agree on every answer and,
//! after every round, on every row and every object.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use paste_cleanup::worker::report::StoppedBecause;

use crate::{
    initial::initial_state,
    reference::{Reference, State, When},
    scenario::Scenario,
    servers::observe::differences,
    servers::{Environment, text},
    step::{Answer, Step, Sweep},
    support::{drain, invariants::Expected},
};

/// The scenario's clock at the first round, for puts and ended backoffs: after all initial times.
const FIRST_ROUND: i64 = 1000;
const SECONDS_PER_ROUND: i64 = 50;

/// The shortest backoff. A concurrent round must not take longer, or rows become due again in the
/// middle of it.
const SHORTEST_BACKOFF: Duration = Duration::from_secs(1);

/// A scenario in progress.
pub(crate) struct Run<'a> {
    env: &'a Environment,
    pub reference: Reference,
    /// Claims in the order in which they were made.
    pub claims: Vec<i64>,
    pub right_counts: bool,
    /// The steps so far and their answers, printed when the scenario fails.
    transcript: Vec<String>,
}

/// Why a scenario ended early.
#[derive(Debug)]
pub(crate) enum Ended {
    Failed(String),
    /// The machine was too busy for a verdict.
    TooSlow,
}

impl From<String> for Ended {
    fn from(wrong: String) -> Self {
        Self::Failed(wrong)
    }
}

/// Runs the scenario to its end. The error lists the steps so far and what was wrong.
pub(crate) async fn run(env: &mut Environment, scenario: &Scenario) -> Result<(), String> {
    let reference = initial_state(scenario);
    env.set(&reference).await;
    let right_counts = scenario.drift.is_empty();
    let mut run = Run { env, reference, claims: Vec::new(), right_counts, transcript: Vec::new() };
    match run.all_rounds(scenario).await {
        Ok(()) | Err(Ended::TooSlow) => Ok(()),
        Err(Ended::Failed(wrong)) => Err(format!("{}\n  → {wrong}", run.transcript.join("\n"))),
    }
}

impl Run<'_> {
    async fn all_rounds(&mut self, scenario: &Scenario) -> Result<(), Ended> {
        self.compare(vec![self.reference.clone()], true).await?;
        for (n, round) in scenario.rounds.iter().enumerate() {
            let second = FIRST_ROUND + n as i64 * SECONDS_PER_ROUND;
            let alone = round.len() == 1;
            let mut steps = Vec::new();
            for (action, second) in round.iter().zip(second..) {
                steps.extend(self.resolve(action, second, alone).await);
            }
            if !steps.is_empty() {
                self.round(&steps).await?;
            }
        }
        match self.right_counts {
            true => self.drain().await,
            false => self.drain_step_by_step().await,
        }
    }

    /// Runs one step, or several concurrently. The result of concurrent steps must be the result of
    /// some serial order.
    async fn round(&mut self, steps: &[Step]) -> Result<(), Ended> {
        let (moment, started) = (self.env.moment().await, Instant::now());
        let answers =
            join_all(steps.iter().enumerate().map(|(slot, step)| self.env.perform(step, slot)))
                .await;
        let results: Vec<(&Step, &Answer)> = steps.iter().zip(&answers).collect();
        self.record(&results);
        if results.len() > 1
            && started.elapsed() >= SHORTEST_BACKOFF
            && !answers.iter().any(is_error)
        {
            return Err(Ended::TooSlow);
        }
        self.reference.actual_owners = self.env.pending_rows().await;
        let possible = self.explanations(&results)?;
        if steps.iter().any(|step| matches!(step, Step::TruncateClaims)) {
            self.claims.clear();
        }
        let backoffs = self.env.postpone_backoffs(moment).await;
        self.compare(possible, steps.iter().any(Step::touches_objects)).await?;
        Ok(self.check_backoffs(&backoffs)?)
    }

    fn record(&mut self, results: &[(&Step, &Answer)]) {
        if results.len() > 1 {
            self.transcript.push("  concurrently:".into());
        }
        let lines = results.iter().map(|(step, answer)| format!("  {step:?}: {answer:?}"));
        self.transcript.extend(lines);
        let mut made: Vec<i64> =
            results.iter().filter_map(|(_, answer)| answer.claim_id()).collect();
        made.sort_unstable();
        self.claims.extend(made);
    }

    /// Returns the references that give the same answers, one for each matching order of the steps.
    fn explanations(&self, results: &[(&Step, &Answer)]) -> Result<Vec<Reference>, String> {
        let (mut possible, mut wrong) = (Vec::new(), String::new());
        for locked_claims in lockable(results) {
            let before = Reference { locked_claims, ..self.reference.clone() };
            for order in orders(results.len()) {
                match follow(&before, results, &order) {
                    Ok(reference) => possible.push(reference),
                    Err(error) => wrong = error,
                }
            }
        }
        if possible.is_empty() { Err(wrong) } else { Ok(possible) }
    }

    /// Continues with the first reference that agrees with the tables and the bucket.
    async fn compare(&mut self, possible: Vec<Reference>, list_bucket: bool) -> Result<(), String> {
        // Listing the bucket takes longer than everything else.
        let objects = (!list_bucket).then(|| self.reference.objects.clone());
        let found = self.env.observe(objects).await;
        let expected: Vec<State> = possible.iter().map(Reference::state).collect();
        let Some(agreed) = expected.iter().position(|state| *state == found) else {
            return Err(differences(&expected[0], &found).join("\n    "));
        };
        self.reference = possible.into_iter().nth(agreed).expect("just found");
        let mut wrong = self.env.world.seen.lock().expect("seen").clone();
        if self.right_counts {
            wrong.extend(self.reference.violations());
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ")) }
    }

    fn check_backoffs(
        &self,
        backoffs: &BTreeMap<String, std::ops::RangeInclusive<f64>>,
    ) -> Result<(), String> {
        for (code, range) in backoffs {
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

    pub(crate) async fn expire_lease(&mut self, id: i64) {
        let expire = Step::ExpireLease(id);
        let answer = self.env.perform(&expire, 0).await;
        self.reference.apply(&expire, &answer);
        self.transcript.push(format!("  the lease of claim {id} expires"));
    }

    /// Ends all faults, expires all leases, ends all backoffs and sweeps once.
    async fn prepare_drain(&mut self) -> Result<(), Ended> {
        self.round(&[Step::Refuse(None)]).await?;
        self.round(&[Step::DropOwnerTrigger]).await?;
        for id in self.claims.clone() {
            self.expire_lease(id).await;
        }
        // Deferred rows are among those that back off.
        self.round(&[Step::EndBackoff(self.waiting(8000))]).await?;
        self.round(&[Step::Sweep]).await?;
        self.round(&[Step::EndBackoff(self.waiting(9000))]).await
    }

    /// With all dead letters requeued, a run must leave exactly what is alive.
    async fn drain(&mut self) -> Result<(), Ended> {
        self.prepare_drain().await?;
        self.transcript.push("  a run drains the rest".into());
        let world = &self.env.world;
        world.run_sql("UPDATE pastes SET retry_at = now() WHERE retry_at IS NOT NULL").await;
        let summary = drain(&self.env.drainer).await;
        if summary.stopped_because != StoppedBecause::Drained {
            return Err(format!("the run ended with {summary:?}").into());
        }
        let found = State { claims: BTreeMap::new(), ..self.env.observe(None).await };
        let end = self.reference.drained();
        let mut wrong = differences(&end.state(), &found);
        let alive =
            end.alive().into_iter().map(|(code, content_id)| (code, text(content_id))).collect();
        let in_doubt = self.reference.keys_kept_by_claims();
        let expected = Expected { alive, in_doubt, ..Expected::default() };
        wrong.extend(self.env.world.store().check(&expected).await.violations);
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ").into()) }
    }

    /// With wrong counts, the result depends on the batches, so each of them is followed.
    async fn drain_step_by_step(&mut self) -> Result<(), Ended> {
        self.prepare_drain().await?;
        while !self.reference.queue().is_empty() {
            self.round(&[Step::Claim { worker: 0, size: 20, busy: false, after: None }]).await?;
            let id = *self.claims.last().expect("just claimed");
            for step in [Step::Decrement(id), Step::DeleteObjects(id), Step::Finish(id)] {
                self.round(&[step]).await?;
            }
        }
        Ok(())
    }
}

fn is_error(answer: &Answer) -> bool {
    matches!(answer, Answer::Error(_))
}

/// Returns the reference after the steps in this order, if it gives the same answers.
fn follow(
    before: &Reference,
    results: &[(&Step, &Answer)],
    order: &[usize],
) -> Result<Reference, String> {
    let mut reference = before.clone();
    // Two concurrent sweeps divide the work at random: only their sum is known.
    let (mut due, mut done) = (Sweep::default(), Sweep::default());
    for (step, actual) in order.iter().map(|n| results[*n]) {
        match (reference.apply(step, actual), actual) {
            (Answer::Swept(expected), Answer::Swept(actual)) => {
                due.add(expected);
                done.add(*actual);
            }
            (expected, actual) if expected == *actual => {}
            (expected, actual) => {
                return Err(format!("{step:?} answered {actual:?}, expected {expected:?}"));
            }
        }
    }
    if due != done {
        return Err(format!("the sweeps did {done:?}, expected {due:?}"));
    }
    Ok(reference)
}

/// Returns the sets of claims that a sweep among these steps can find locked, and so leave to the
/// next sweep: any subset of the claims that the other steps touch.
fn lockable(results: &[(&Step, &Answer)]) -> Vec<BTreeSet<i64>> {
    let touched: BTreeSet<i64> = results.iter().filter_map(|(step, _)| step.claim()).collect();
    let mut some = vec![BTreeSet::new()];
    if results.iter().any(|(step, _)| matches!(step, Step::Sweep)) {
        for id in touched {
            let with = |set: &BTreeSet<i64>| set.iter().copied().chain([id]).collect();
            some.extend(some.iter().map(with).collect::<Vec<_>>());
        }
    }
    some
}

/// Returns all permutations of `things` items.
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
