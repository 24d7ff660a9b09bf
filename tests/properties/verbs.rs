//! What each step of a claim does to the reference, and what it must answer.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    reference::{Blame, Claim, Lease, Paste, Reference, Status, Taken, When},
    stage::size_bytes,
    steps::{Answer, Step, Sweep},
};

/// A batch is a tenth the size for each attempt.
fn share(size: u32, attempts: i16) -> usize {
    let size = (0..attempts).fold(size, |size, _| size / 10);
    usize::try_from(size).unwrap_or(usize::MAX).max(1)
}

pub fn runs_alone(size: u32, attempts: i16) -> bool {
    attempts > 0 && share(size, attempts) == 1
}

/// A row that failed by itself harms nobody beside it.
pub fn class(paste: &Paste) -> i16 {
    if matches!(paste.blame, Blame::Nobody | Blame::Worker) { paste.attempts } else { 0 }
}

impl Reference {
    /// Does the step, and says what it must answer. Where the product is free (the number of a
    /// claim, which of several rows is pending_owner), its own answer is taken if it is an allowed one.
    pub fn follow(&mut self, step: &Step, said: &Answer) -> Answer {
        match step {
            Step::Claim { worker, size, busy, after } => {
                let id = match said {
                    Answer::Claimed(Some((id, _))) => *id,
                    _ => 0,
                };
                Answer::Claimed(self.claim(*worker, *size, *busy, *after, id))
            }
            Step::Decrement(id) => self.decrement(*id, said),
            Step::DeleteObjects(id) => self.delete_objects(*id),
            Step::Finish(id) => self.finish(*id),
            Step::Release(id) => Answer::Released(match self.claims[id].is_open() {
                true => self.reset(*id, false),
                false => Sweep::default(),
            }),
            Step::ExpireLease(id) => {
                let claim = self.claim_mut(*id);
                claim.lease.expired = claim.is_open();
                Answer::Done
            }
            Step::Sweep => Answer::Swept(self.sweep()),
            Step::EndBackoff(due) => {
                for (code, at) in due {
                    self.paste_mut(code).retry = When::Past(*at);
                }
                Answer::Done
            }
            Step::Put { code, body, key, expires } => self.put(code, *body, key, *expires),
            Step::Extend { code, expires, plainly } => self.extend(code, *expires, *plainly),
            Step::ExpireNow(code) => self.expire_now(code),
            Step::Refuse(text) => {
                self.refusing.clone_from(text);
                Answer::Done
            }
            Step::Remove { code, found } => self.remove(code, *found),
            Step::PutBack { code, found } => self.put_back(code, *found),
            Step::EndByHand { claim, finished } => self.end_by_hand(*claim, *finished),
            Step::ForgetClaims => self.forget_claims(),
            Step::Holding(body, step) => {
                self.held = Some(*body);
                let answer = self.follow(step, said);
                self.held = None;
                answer
            }
            Step::OwnerRelents => {
                self.owner = None;
                Answer::Done
            }
        }
    }

    pub fn claim_mut(&mut self, id: i64) -> &mut Claim {
        self.claims.get_mut(&id).expect("a claim of the story")
    }

    pub fn paste_mut(&mut self, code: &str) -> &mut Paste {
        self.pastes.get_mut(code).expect("a paste of the story")
    }

    /// The first due rows, of those the class of the very first, of those its share.
    fn claim(
        &mut self,
        worker: usize,
        size: u32,
        busy: bool,
        after: Option<i64>,
        id: i64,
    ) -> Option<(i64, BTreeMap<String, Taken>)> {
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
            let taken = Taken {
                body: paste.body,
                pending_s3_key: paste.pending_s3_key.clone(),
                attempts: paste.attempts,
            };
            claim.taken.insert(code.clone(), taken);
        }
        claim.lease = Lease { worker, rows_claimed: batch.len(), ..Lease::default() };
        let taken = claim.taken.clone();
        self.claims.insert(id, claim);
        Some((id, taken))
    }

    fn decrement(&mut self, id: i64, said: &Answer) -> Answer {
        let claim = self.claim_mut(id);
        if claim.lease.reset {
            return Answer::Lost;
        }
        let mut drift = 0;
        if !claim.lease.decremented {
            claim.lease.decremented = true;
            claim.lease.expired = false;
            drift = self.let_go(id, said);
        }
        let claim = self.claim_mut(id);
        claim.in_hand = Some(claim.lease.pending_owners.clone());
        Answer::Decremented {
            unreferenced: claim.lease.pending_owners.clone(),
            bytes: claim.bytes,
            drift,
        }
    }

    /// The batch's references go, and with the last one the body. Says how many counts were wrong.
    fn let_go(&mut self, id: i64, said: &Answer) -> usize {
        let taken = self.claims[&id].taken.clone();
        let ours = Status::InProgress(Some(id));
        let is_ours = |code: &String| self.pastes.get(code).is_some_and(|row| row.status == ours);
        // What something else has put back or deleted holds what the tables say.
        let stranded = taken.iter().filter(|(code, _)| !is_ours(code));
        let stranded: BTreeSet<u8> = stranded.filter_map(|(_, taken)| taken.body).collect();
        let mine: BTreeSet<String> = taken.keys().filter(|code| is_ours(code)).cloned().collect();
        let bodies: BTreeSet<u8> = taken.values().filter_map(|taken| taken.body).collect();
        let mut drift = 0;
        for body in bodies {
            let of_body = taken.iter().filter(|(_, taken)| taken.body == Some(body));
            let codes: BTreeSet<&String> = of_body.map(|(code, _)| code).collect();
            let references = codes.iter().filter(|code| mine.contains(**code)).count();
            let references = i32::try_from(references).expect("a small batch");
            let key = self.content.get(&body).map(|content| &content.key);
            let is_newer = key.is_some_and(|key| !self.claims[&id].stored.contains(key));
            let is_newer = is_newer || stranded.contains(&body);
            let is_doubtful = is_newer || self.is_needed(body);
            let others = if is_doubtful { self.holders(body) } else { 0 };
            let Some(content) = self.content.get_mut(&body) else {
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
                let key = self.content.remove(&body).expect("just seen").key;
                let pending_owner = allowed_pending_owner(said, &key, &codes);
                let claim = self.claim_mut(id);
                claim.bytes += size_bytes(body);
                claim.lease.pending_owners.insert(key, pending_owner);
            }
        }
        drift
    }

    /// What the decrement unreferenced and what the rows owe from earlier, but what S3 refuses.
    fn delete_objects(&mut self, id: i64) -> Answer {
        let claim = &self.claims[&id];
        let owed = (claim.taken.iter())
            .filter_map(|(code, taken)| Some((taken.pending_s3_key.clone()?, code.clone())));
        let unreferenced: BTreeMap<String, String> =
            claim.in_hand.clone().expect("decremented").into_iter().chain(owed).collect();
        let refuses = |key: &String| self.refusing.as_ref().is_some_and(|text| key.contains(text));
        let (refused, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            unreferenced.into_iter().partition(|(key, _)| refuses(key));
        self.objects.retain(|key| !gone.contains_key(key));
        self.claim_mut(id).refused = Some(refused);
        Answer::Deleted(gone.len())
    }
}

/// Any row of the batch that held the body may owe its key.
fn allowed_pending_owner(said: &Answer, key: &str, holders: &BTreeSet<&String>) -> String {
    let Answer::Decremented { unreferenced, .. } = said else {
        return "nobody".into();
    };
    let pending_owner =
        unreferenced.get(key).filter(|pending_owner| holders.contains(pending_owner));
    pending_owner.cloned().unwrap_or_else(|| format!("one of {holders:?}"))
}
