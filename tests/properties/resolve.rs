//! What an action means here and now: the numbers of a story become claims and pastes.

use super::{
    play::Play,
    reference::{Paste, Status, When},
    steps::Step,
    story::{Action, Keys, Until},
};

/// What is put later has expired earlier: nothing says that due times only grow.
const LATEST_PUT: i64 = 5000;

impl Play<'_> {
    /// The step that the action is. `None`: there is nothing to do it to.
    pub async fn resolve(&mut self, action: &Action, second: i64, alone: bool) -> Option<Step> {
        let step = match action {
            Action::Claim { worker, size, busy, marked } => {
                let after = self.last_claim_of(*worker).filter(|_| *marked);
                Step::Claim { worker: *worker, size: *size, busy: *busy, after }
            }
            Action::Next(which) => self.next_step(*which)?,
            Action::Decrement(which) => Step::Decrement(self.claim(*which)?),
            Action::DeleteObjects(which) => {
                let id = self.claim(*which)?;
                self.reference.claims[&id].in_hand.as_ref()?;
                Step::DeleteObjects(id)
            }
            Action::Finish(which) => self.finish(*which, alone)?,
            Action::Release(which) => Step::Release(self.claim(*which)?),
            Action::ExpireLease(which) => Step::ExpireLease(self.claim(*which)?),
            Action::Sweep => Step::Sweep,
            Action::Lapse(which) => {
                self.expire_lease(self.claim(*which)?).await;
                Step::Sweep
            }
            Action::EndBackoff => {
                let waiting = self.waiting(second);
                (!waiting.is_empty()).then_some(Step::EndBackoff(waiting))?
            }
            Action::Put { code, body, until } => Step::Put {
                code: format!("p{code}"),
                body: *body,
                key: self.reference.fresh_key(*body),
                expires: when(*until, LATEST_PUT - second),
            },
            Action::Extend { paste, until, plainly } => Step::Extend {
                code: self.paste(*paste),
                expires: when(*until, second),
                plainly: *plainly,
            },
            Action::ExpireNow(paste) => Step::ExpireNow(self.paste(*paste)),
            Action::Refuse(keys) => self.refuse(*keys)?,
            Action::Remove(which) => self.remove(*which)?,
            Action::PutBack(which) => self.put_back(*which)?,
            Action::EndByHand { claim, finished } => self.end_by_hand(*claim, *finished)?,
            Action::ForgetClaims => self.can_forget_claims().then_some(Step::ForgetClaims)?,
            Action::ReleaseHeld(which, body) => {
                self.held(*body, Step::Release(self.claim(*which)?))
            }
            Action::SweepHeld(body) => self.held(*body, Step::Sweep),
            Action::LapseHeld(which, body) => {
                self.expire_lease(self.claim(*which)?).await;
                self.held(*body, Step::Sweep)
            }
        };
        Some(step)
    }

    fn last_claim_of(&self, worker: usize) -> Option<i64> {
        let own = |id: &&i64| self.reference.claims[*id].lease.worker == worker;
        self.claims.iter().rev().find(own).copied()
    }

    /// A finish that is due, or one that comes before the decrement.
    fn finish(&self, which: usize, alone: bool) -> Option<Step> {
        let id = self.claim(which)?;
        let claim = &self.reference.claims[&id];
        // Too early is refused only as long as nobody else decrements the claim.
        let early = claim.in_hand.is_none() && (alone || claim.lease.reset);
        (early || claim.refused.is_some()).then_some(Step::Finish(id))
    }

    fn refuse(&self, keys: Keys) -> Option<Step> {
        let text = match keys {
            Keys::None => None,
            Keys::OfBody(body) => Some(format!("b{body}/")),
            Keys::All => Some("/".into()),
        };
        (self.reference.refusing != text).then_some(Step::Refuse(text))
    }

    fn claim(&self, which: usize) -> Option<i64> {
        let claims = self.claims.len();
        (claims > 0).then(|| self.claims[claims - 1 - which % claims])
    }

    /// The next step of a claim that is not finished.
    fn next_step(&self, which: usize) -> Option<Step> {
        let unfinished = |id: &&i64| !self.reference.claims[*id].lease.finished;
        let unfinished: Vec<i64> = self.claims.iter().filter(unfinished).copied().collect();
        let id = *unfinished.get(which % unfinished.len().max(1))?;
        let claim = &self.reference.claims[&id];
        Some(match (&claim.in_hand, &claim.refused) {
            (None, _) => Step::Decrement(id),
            (Some(_), None) => Step::DeleteObjects(id),
            (Some(_), Some(_)) => Step::Finish(id),
        })
    }

    /// A paste, those that can still be changed first; or none.
    fn paste(&self, which: usize) -> String {
        let (whole, others): (Vec<_>, Vec<_>) =
            self.reference.pastes.iter().partition(|(_, paste)| paste.can_be_changed());
        let named = whole.into_iter().chain(others).nth(which);
        named.map_or_else(|| "nowhere".into(), |(code, _)| code.clone())
    }

    /// While somebody holds this body, if there is anything to hold.
    fn held(&self, body: u8, step: Step) -> Step {
        match self.reference.content.contains_key(&body) {
            true => Step::Holding(body, Box::new(step)),
            false => step,
        }
    }

    /// A row that something else deletes. Where counts must stay right, one that holds nothing and
    /// owes nothing: for the others whoever deletes them is to blame.
    fn remove(&self, which: usize) -> Option<Step> {
        let holds_nothing = |paste: &Paste| match paste.status {
            Status::InProgress(Some(id)) => self.reference.claims[&id].lease.decremented,
            Status::InProgress(None) | Status::Stale(_) => false,
            Status::NotExpired | Status::Deleted => paste.body.is_none(),
        };
        let harmless = |paste: &Paste| paste.pending_s3_key.is_none() && holds_nothing(paste);
        let (claimed, others): (Vec<_>, Vec<_>) = (self.reference.pastes.iter())
            .filter(|(_, paste)| !self.right_counts || harmless(paste))
            .partition(|(_, paste)| matches!(paste.status, Status::InProgress(Some(_))));
        let pool = if claimed.is_empty() { others } else { claimed };
        let (code, paste) = pool.get(which % pool.len().max(1))?;
        Some(Step::Remove { code: (*code).clone(), found: paste.status })
    }

    /// A row in progress.
    fn put_back(&self, which: usize) -> Option<Step> {
        let is_going =
            |paste: &Paste| matches!(paste.status, Status::InProgress(_) | Status::Stale(_));
        let rows = self.reference.pastes.iter().filter(|(_, paste)| is_going(paste));
        let rows: Vec<_> = rows.collect();
        let (code, paste) = rows.get(which % rows.len().max(1))?;
        Some(Step::PutBack { code: (*code).clone(), found: paste.status })
    }

    /// A claim that is not decremented can only be marked as reset: its worker would wait for ever for
    /// the decrement of a finished one.
    fn end_by_hand(&self, which: usize, finished: bool) -> Option<Step> {
        let id = self.claim(which)?;
        let finished = finished && self.reference.claims[&id].lease.decremented;
        Some(Step::EndByHand { claim: id, finished })
    }

    /// Where counts must stay right and nothing may be lost, no claim may know more than its rows.
    fn can_forget_claims(&self) -> bool {
        let tells = |paste: &Paste| match paste.status {
            Status::InProgress(Some(id)) => self.reference.claims[&id].lease.decremented,
            _ => false,
        };
        let owes = self.reference.claims.values().any(|claim| {
            claim.lease.pending_owners.keys().any(|k| self.reference.objects.contains(k))
        });
        !self.right_counts || !owes && !self.reference.pastes.values().any(tells)
    }

    /// Everything that backs off, with the times at which it becomes due now.
    pub fn waiting(&self, second: i64) -> Vec<(String, i64)> {
        let waits = |paste: &Paste| {
            let waits = [Status::NotExpired, Status::InProgress(None)].contains(&paste.status);
            waits && matches!(paste.retry, When::Later(_))
        };
        let waiting = self.reference.pastes.iter().filter(|(_, paste)| waits(paste));
        waiting.map(|(code, _)| code.clone()).zip(second..).collect()
    }
}

fn when(until: Until, second: i64) -> When {
    match until {
        Until::Past => When::Past(second),
        Until::Future => When::Later(0),
        Until::Never => When::Unset,
    }
}
