//! Resolves actions to steps: the numbers of a scenario become claims and pastes.

use crate::{
    reference::{Paste, Status, When},
    run::Run,
    scenario::{Action, Keys, Until},
    step::Step,
};

/// Later puts get earlier expiry times: due times need not grow with time.
const LATEST_PUT: i64 = 5000;

impl Run<'_> {
    /// Returns the step for this action, or `None` if there is nothing to apply it to.
    pub(crate) async fn resolve(
        &mut self,
        action: &Action,
        second: i64,
        alone: bool,
    ) -> Option<Step> {
        let step = match action {
            Action::Claim { worker, size, busy, marked } => {
                let after = self.last_claim_of(*worker).filter(|_| *marked);
                Step::Claim { worker: *worker, size: *size, busy: *busy, after }
            }
            Action::Next(which) => self.next_step(*which)?,
            Action::Decrement(which) => Step::Decrement(self.claim(*which)?),
            Action::DeleteObjects(which) => {
                let id = self.claim(*which)?;
                self.reference.claims[&id].unreferenced_keys.as_ref()?;
                Step::DeleteObjects(id)
            }
            Action::Finish(which) => self.finish(*which, alone)?,
            Action::Release(which) => Step::Release(self.claim(*which)?),
            Action::ExpireLease(which) => Step::ExpireLease(self.claim(*which)?),
            Action::Sweep => Step::Sweep,
            Action::ExpireAndSweep(which) => {
                self.expire_lease(self.claim(*which)?).await;
                Step::Sweep
            }
            Action::EndBackoff => {
                let waiting = self.waiting(second);
                (!waiting.is_empty()).then_some(Step::EndBackoff(waiting))?
            }
            Action::Put { code, content_id, until } => Step::Put {
                code: format!("p{code}"),
                content_id: *content_id,
                key: self.reference.fresh_key(*content_id),
                expires: when(*until, LATEST_PUT - second),
            },
            Action::Extend { paste, until, plain_update } => Step::Extend {
                code: self.paste(*paste),
                expires: when(*until, second),
                plain_update: *plain_update,
            },
            Action::ExpireNow(paste) => Step::ExpireNow(self.paste(*paste)),
            Action::Refuse(keys) => self.refuse(*keys)?,
            Action::DeleteRow(which) => self.delete_row(*which)?,
            Action::ResetByHand(which) => self.reset_by_hand(*which)?,
            Action::EndByHand { claim, finished } => self.end_by_hand(*claim, *finished)?,
            Action::TruncateClaims => self.can_truncate_claims().then_some(Step::TruncateClaims)?,
            Action::ReleaseWhileLocked(which, content_id) => {
                self.while_locked(*content_id, Step::Release(self.claim(*which)?))
            }
            Action::SweepWhileLocked(content_id) => self.while_locked(*content_id, Step::Sweep),
            Action::ExpireAndSweepWhileLocked(which, content_id) => {
                self.expire_lease(self.claim(*which)?).await;
                self.while_locked(*content_id, Step::Sweep)
            }
        };
        Some(step)
    }

    fn last_claim_of(&self, worker: usize) -> Option<i64> {
        let own = |id: &&i64| self.reference.claims[*id].lease.worker == worker;
        self.claims.iter().rev().find(own).copied()
    }

    /// A finish after the deletes, or one before the decrement.
    fn finish(&self, which: usize, alone: bool) -> Option<Step> {
        let id = self.claim(which)?;
        let claim = &self.reference.claims[&id];
        // A finish before the decrement is refused only if no concurrent step decrements the claim.
        let early = claim.unreferenced_keys.is_none() && (alone || claim.lease.reset);
        (early || claim.refused.is_some()).then_some(Step::Finish(id))
    }

    fn refuse(&self, keys: Keys) -> Option<Step> {
        let text = match keys {
            Keys::None => None,
            Keys::OfContent(content_id) => Some(format!("b{content_id}/")),
            Keys::All => Some("/".into()),
        };
        (self.reference.refusing != text).then_some(Step::Refuse(text))
    }

    fn claim(&self, which: usize) -> Option<i64> {
        let claims = self.claims.len();
        (claims > 0).then(|| self.claims[claims - 1 - which % claims])
    }

    /// Returns the next step of a claim that is not finished.
    fn next_step(&self, which: usize) -> Option<Step> {
        let unfinished = |id: &&i64| !self.reference.claims[*id].lease.finished;
        let unfinished: Vec<i64> = self.claims.iter().filter(unfinished).copied().collect();
        let id = *unfinished.get(which % unfinished.len().max(1))?;
        let claim = &self.reference.claims[&id];
        Some(match (&claim.unreferenced_keys, &claim.refused) {
            (None, _) => Step::Decrement(id),
            (Some(_), None) => Step::DeleteObjects(id),
            (Some(_), Some(_)) => Step::Finish(id),
        })
    }

    /// Returns a paste, those that can still be changed first, or a short code that does not exist.
    fn paste(&self, which: usize) -> String {
        let (changeable, others): (Vec<_>, Vec<_>) =
            self.reference.pastes.iter().partition(|(_, paste)| paste.can_be_changed());
        let named = changeable.into_iter().chain(others).nth(which);
        named.map_or_else(|| "missing".into(), |(code, _)| code.clone())
    }

    /// Runs the step while this content row is locked, if it exists.
    fn while_locked(&self, content_id: u8, step: Step) -> Step {
        match self.reference.content.contains_key(&content_id) {
            true => Step::WhileLocked(content_id, Box::new(step)),
            false => step,
        }
    }

    /// A row to delete outside the fleet. Where counts must stay right, only a row without a
    /// reference and without a pending delete: deleting any other breaks the writer's contract.
    fn delete_row(&self, which: usize) -> Option<Step> {
        let has_no_reference = |paste: &Paste| match paste.status {
            Status::InProgress(Some(id)) => self.reference.claims[&id].lease.decremented,
            Status::InProgress(None) | Status::UnknownClaim(_) => false,
            Status::NotExpired | Status::Deleted => paste.content_id.is_none(),
        };
        let harmless = |paste: &Paste| paste.pending_s3_key.is_none() && has_no_reference(paste);
        let (claimed, others): (Vec<_>, Vec<_>) = (self.reference.pastes.iter())
            .filter(|(_, paste)| !self.right_counts || harmless(paste))
            .partition(|(_, paste)| matches!(paste.status, Status::InProgress(Some(_))));
        let pool = if claimed.is_empty() { others } else { claimed };
        let (code, paste) = pool.get(which % pool.len().max(1))?;
        Some(Step::DeleteRow { code: (*code).clone(), found: paste.status })
    }

    /// A row in progress, to be reset by hand.
    fn reset_by_hand(&self, which: usize) -> Option<Step> {
        let in_progress =
            |paste: &Paste| matches!(paste.status, Status::InProgress(_) | Status::UnknownClaim(_));
        let rows = self.reference.pastes.iter().filter(|(_, paste)| in_progress(paste));
        let rows: Vec<_> = rows.collect();
        let (code, paste) = rows.get(which % rows.len().max(1))?;
        Some(Step::ResetByHand { code: (*code).clone(), found: paste.status })
    }

    /// A claim that is not decremented can only be marked as reset: if it were marked as finished,
    /// its worker would wait forever for the decrement.
    fn end_by_hand(&self, which: usize, finished: bool) -> Option<Step> {
        let id = self.claim(which)?;
        let finished = finished && self.reference.claims[&id].lease.decremented;
        Some(Step::EndByHand { claim: id, finished })
    }

    /// Where counts must stay right and no object may be lost, no claim may hold information that
    /// its rows lack.
    fn can_truncate_claims(&self) -> bool {
        let is_decremented = |paste: &Paste| match paste.status {
            Status::InProgress(Some(id)) => self.reference.claims[&id].lease.decremented,
            _ => false,
        };
        let has_pending = self.reference.claims.values().any(|claim| {
            claim.lease.pending_owners.keys().any(|k| self.reference.objects.contains(k))
        });
        !self.right_counts || !has_pending && !self.reference.pastes.values().any(is_decremented)
    }

    /// Returns all rows that back off, with the times at which they become due.
    pub(crate) fn waiting(&self, second: i64) -> Vec<(String, i64)> {
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
