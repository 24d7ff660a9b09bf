//! Applies the steps to the reference and returns the expected answers: claim, decrement and delete
//! objects here, the others in the files beside this one.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    reference::{Claim, ClaimedPaste, LastError, Lease, Paste, Reference, Status},
    servers::size_bytes,
    step::{Answer, Step},
};

/// Returns the batch size after failed attempts: a tenth for each.
fn share(size: u32, attempts: i16) -> usize {
    let size = (0..attempts).fold(size, |size, _| size / 10);
    usize::try_from(size).unwrap_or(usize::MAX).max(1)
}

pub(crate) fn runs_alone(size: u32, attempts: i16) -> bool {
    attempts > 0 && share(size, attempts) == 1
}

/// Returns the attempts that count for the batch size. A row error does not endanger other rows.
pub(crate) fn class(paste: &Paste) -> i16 {
    if matches!(paste.last_error, LastError::None | LastError::Worker) { paste.attempts } else { 0 }
}

impl Reference {
    /// Applies the step and returns the expected answer. Where the product is free to choose (the
    /// id of a claim, which of several rows owns a pending key), the actual answer is used if it is
    /// allowed.
    pub(crate) fn apply(&mut self, step: &Step, actual: &Answer) -> Answer {
        match step {
            Step::Claim { worker, size, busy, after } => {
                let id = actual.claim_id().unwrap_or_default();
                Answer::Claimed(self.claim(*worker, *size, *busy, *after, id))
            }
            Step::Decrement(id) => self.decrement(*id, actual),
            Step::DeleteObjects(id) => self.delete_objects(*id),
            Step::Finish(id) => self.finish(*id),
            Step::Release(id) => self.release(*id),
            Step::ExpireLease(id) => self.expire_lease(*id),
            Step::Sweep => Answer::Swept(self.sweep()),
            Step::EndBackoff(due) => self.end_backoff(due),
            Step::Put { code, content_id, key, expires } => {
                self.put(code, *content_id, key, *expires)
            }
            Step::Extend { code, expires, plain_update } => {
                self.extend(code, *expires, *plain_update)
            }
            Step::ExpireNow(code) => self.expire_now(code),
            Step::Refuse(text) => {
                self.refusing.clone_from(text);
                Answer::Done
            }
            Step::DeleteRow { code, found } => self.delete_row(code, *found),
            Step::ResetByHand { code, found } => self.reset_by_hand(code, *found),
            Step::EndByHand { claim, finished } => self.end_by_hand(*claim, *finished),
            Step::TruncateClaims => self.truncate_claims(),
            Step::WhileLocked(content_id, step) => {
                self.locked_content = Some(*content_id);
                let answer = self.apply(step, actual);
                self.locked_content = None;
                answer
            }
            Step::DropOwnerTrigger => {
                self.owner = None;
                Answer::Done
            }
        }
    }

    pub(crate) fn claim_mut(&mut self, id: i64) -> &mut Claim {
        self.claims.get_mut(&id).expect("a claim of the scenario")
    }

    pub(crate) fn paste_mut(&mut self, code: &str) -> &mut Paste {
        self.pastes.get_mut(code).expect("a paste of the scenario")
    }

    /// Claims the first due rows: those with as many failed attempts as the very first, up to their
    /// batch size.
    fn claim(
        &mut self,
        worker: usize,
        size: u32,
        busy: bool,
        after: Option<i64>,
        id: i64,
    ) -> Option<(i64, BTreeMap<String, ClaimedPaste>)> {
        let mark = after.map_or(i64::MIN, |claim| self.claims[&claim].last_due);
        let due = self.queue().into_iter().filter(|(due, _)| *due >= mark);
        let due: Vec<_> = due.take(usize::try_from(size).expect("a size")).collect();
        let first = class(&self.pastes[&due.first()?.1]);
        if busy && runs_alone(size, first) {
            return None;
        }
        let batch = due.iter().filter(|(_, code)| class(&self.pastes[code]) == first);
        let batch: Vec<(i64, String)> = batch.take(share(size, first)).cloned().collect();
        let stored = self.content.values().map(|content| content.key.clone()).collect();
        let mut claim = Claim { last_due: batch.last()?.0, stored, ..Claim::default() };
        for (_, code) in &batch {
            let paste = self.paste_mut(code);
            paste.status = Status::InProgress(Some(id));
            let claimed = ClaimedPaste {
                content_id: paste.content_id,
                pending_s3_key: paste.pending_s3_key.clone(),
                attempts: paste.attempts,
            };
            claim.claimed.insert(code.clone(), claimed);
        }
        claim.lease = Lease { worker, rows_claimed: batch.len(), ..Lease::default() };
        let claimed = claim.claimed.clone();
        self.claims.insert(id, claim);
        Some((id, claimed))
    }

    fn decrement(&mut self, id: i64, actual: &Answer) -> Answer {
        let claim = self.claim_mut(id);
        if claim.lease.reset {
            return Answer::LeaseLost;
        }
        let mut drift = 0;
        if !claim.lease.decremented {
            claim.lease.decremented = true;
            claim.lease.expired = false;
            drift = self.subtract_references(id, actual);
        }
        let claim = self.claim_mut(id);
        claim.unreferenced_keys = Some(claim.lease.pending_owners.clone());
        Answer::Decremented {
            unreferenced: claim.lease.pending_owners.clone(),
            bytes: claim.bytes,
            drift,
        }
    }

    /// Subtracts the batch's references and removes unreferenced content. Returns the number of
    /// wrong counts.
    fn subtract_references(&mut self, id: i64, actual: &Answer) -> usize {
        let claimed = self.claims[&id].claimed.clone();
        let ours = Status::InProgress(Some(id));
        let is_ours = |code: &String| self.pastes.get(code).is_some_and(|row| row.status == ours);
        // A row that was reset or deleted by hand is counted as the tables have it.
        let changed = claimed.iter().filter(|(code, _)| !is_ours(code));
        let changed: BTreeSet<u8> = changed.filter_map(|(_, claimed)| claimed.content_id).collect();
        let mine: BTreeSet<String> = claimed.keys().filter(|code| is_ours(code)).cloned().collect();
        let content_ids: BTreeSet<u8> =
            claimed.values().filter_map(|claimed| claimed.content_id).collect();
        let mut drift = 0;
        for content_id in content_ids {
            let of_content =
                claimed.iter().filter(|(_, claimed)| claimed.content_id == Some(content_id));
            let codes: BTreeSet<&String> = of_content.map(|(code, _)| code).collect();
            let references = codes.iter().filter(|code| mine.contains(**code)).count();
            let references = i32::try_from(references).expect("a small batch");
            let key = self.content.get(&content_id).map(|content| &content.key);
            let is_newer = key.is_some_and(|key| !self.claims[&id].stored.contains(key));
            let is_newer = is_newer || changed.contains(&content_id);
            let is_doubtful = is_newer || self.is_needed(content_id);
            let others = if is_doubtful { self.reference_count(content_id) } else { 0 };
            let Some(content) = self.content.get_mut(&content_id) else {
                drift += 1;
                continue;
            };
            if content.ref_count > references && !is_newer {
                content.ref_count -= references;
                continue;
            }
            drift += usize::from(content.ref_count - references != others);
            content.ref_count = others;
            if others == 0 {
                let key = self.content.remove(&content_id).expect("just seen").key;
                let pending_owner = allowed_pending_owner(actual, &key, &codes);
                let claim = self.claim_mut(id);
                claim.bytes += size_bytes(content_id);
                claim.lease.pending_owners.insert(key, pending_owner);
            }
        }
        drift
    }

    /// Deletes the objects of unreferenced content and earlier pending deletes, except what S3
    /// refuses.
    fn delete_objects(&mut self, id: i64) -> Answer {
        let claim = &self.claims[&id];
        let pending = (claim.claimed.iter())
            .filter_map(|(code, claimed)| Some((claimed.pending_s3_key.clone()?, code.clone())));
        let unreferenced: BTreeMap<String, String> = claim
            .unreferenced_keys
            .clone()
            .expect("decremented")
            .into_iter()
            .chain(pending)
            .collect();
        let refuses = |key: &String| self.refusing.as_ref().is_some_and(|text| key.contains(text));
        let (refused, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            unreferenced.into_iter().partition(|(key, _)| refuses(key));
        self.objects.retain(|key| !gone.contains_key(key));
        self.claim_mut(id).refused = Some(refused);
        Answer::Deleted(gone.len())
    }
}

/// Any row of the batch that referenced the content may own the pending delete of its key.
fn allowed_pending_owner(actual: &Answer, key: &str, allowed: &BTreeSet<&String>) -> String {
    let Answer::Decremented { unreferenced, .. } = actual else {
        return "no decrement".into();
    };
    let pending_owner =
        unreferenced.get(key).filter(|pending_owner| allowed.contains(pending_owner));
    pending_owner.cloned().unwrap_or_else(|| format!("one of {allowed:?}"))
}
