//! The first walk: is each `ref_count` the number of pastes that reference the content?
//!
//! A page is counted without locks. What disagrees is recounted under the content row's lock
//! ([`super::recount`]) and corrected in the same transaction. Content that no paste references is
//! queued, and deleted when all walks have ended ([`super::unreferenced_content`]).

use std::collections::HashMap;

use tokio_postgres::Row;

use super::{
    Audit, AuditError, Finding, Kind,
    error::{LOCK_TIMEOUT_MANY, LOCK_TIMEOUT_ONE, RepairError, repair_error},
    recount::{
        Content, LOCKED_AT_ONCE, correct, count_locked, foreign_key_block, unreferenced_content,
        wrong_count,
    },
    spellings::{Spelling, ambiguous_content, spellings},
};
use crate::postgres::bisect::SWALLOWED;

const COUNTS: &str = sql!("audit/counts");
const IN_PROGRESS: &str = sql!("audit/counts_in_progress");
const PENDING: &str = sql!("audit/pending_deletions");

const PAGE: i64 = 1000;
const CORRECT: &str = "`cleanupctl audit --repair` corrects it";
const DELETE: &str = "`cleanupctl audit --repair` deletes the row and its object";
const OUTSIDE: &str = "its key is not under s3.prefix: delete it by hand";

/// The result of a recount under the locks.
#[derive(Default)]
struct Recounted {
    fresh: u64,
    wrong_counts: Vec<Content>,
    /// A trigger swallows or undoes the correction.
    swallowed: Vec<Content>,
    unreferenced: Vec<Content>,
    /// Content rows whose key may be another spelling of the key of unreferenced content.
    other_spellings: HashMap<String, Spelling>,
    /// Why unreferenced content must not be deleted.
    blocked: Option<String>,
}

impl Audit {
    /// Checks one page of content rows. Returns its last hash, or `None` after the last page.
    pub(super) async fn counts_page(
        &mut self,
        after: &[u8],
    ) -> Result<Option<Vec<u8>>, AuditError> {
        let rows = self.db.query(COUNTS, &[&after, &PAGE, &self.objects.prefix()]).await?;
        let Some(last) = rows.last() else {
            return Ok(None);
        };
        let pending = self.pending_deletions(&rows).await?;
        let suspects = self.suspects(&rows).await?;
        self.confirm_counts(&suspects).await?;
        pending.into_iter().for_each(|finding| self.note(finding));
        let is = |name: &'static str| rows.iter().filter(move |row| row.get(name)).count() as u64;
        self.report.sentinels += is("is_sentinel");
        self.report.content_rows += rows.len() as u64 - is("is_sentinel");
        self.report.outside_prefix += is("is_outside");
        Ok(Some(last.get("content_hash")))
    }

    /// Finds content whose key is also a pending object delete of a claim or a paste.
    pub(super) async fn pending_deletions(&self, rows: &[Row]) -> Result<Vec<Finding>, AuditError> {
        let keys: Vec<&str> = rows.iter().map(|row| row.get("s3_key")).collect();
        let pending = self.db.query(PENDING, &[&keys]).await?;
        let finding = |row: &Row| {
            let what = "a claim or a paste is going to delete the object of this content";
            let remedy = "run `cleanupctl pause`, copy the object to a new key and set \
                          content.s3_key to that key, then run `cleanupctl resume`: the next \
                          worker deletes this object";
            let finding = Finding::new(Kind::PendingDeletion, what, remedy);
            finding.key(row.get("s3_key")).content_hash(row.get("content_hash"))
        };
        Ok(pending.iter().map(finding).collect())
    }

    /// Finds content whose count disagrees with two counts without locks.
    pub(super) async fn suspects(&self, rows: &[Row]) -> Result<Vec<Vec<u8>>, AuditError> {
        let content = rows.iter().filter(|row| !row.get::<_, bool>("is_sentinel"));
        let hashes: Vec<&[u8]> = content.clone().map(|row| row.get("content_hash")).collect();
        let in_progress = self.db.query(IN_PROGRESS, &[&hashes]).await?;
        let in_progress: HashMap<&[u8], i64> =
            in_progress.iter().map(|row| (row.get("content_hash"), row.get("refs"))).collect();
        let suspects = content.filter(|row| {
            let hash: &[u8] = row.get("content_hash");
            let references =
                row.get::<_, i64>("refs") + in_progress.get(hash).copied().unwrap_or(0);
            references == 0 || references != row.get::<_, i64>("ref_count")
        });
        Ok(suspects.map(|row| row.get("content_hash")).collect())
    }

    /// Recounts these content rows under their locks, and reports or repairs what is wrong.
    pub(super) async fn confirm_counts(&mut self, hashes: &[Vec<u8>]) -> Result<(), AuditError> {
        for chunk in hashes.chunks(LOCKED_AT_ONCE) {
            self.confirm_chunk(chunk).await?;
        }
        Ok(())
    }

    async fn confirm_chunk(&mut self, hashes: &[Vec<u8>]) -> Result<(), AuditError> {
        match self.recount(hashes, LOCK_TIMEOUT_MANY, self.options.repair).await {
            Ok(recounted) => {
                self.note_recounted(recounted, None);
                return Ok(());
            }
            Err(error) if repair_error(&error).is_some() => {}
            Err(error) => return Err(error.into()),
        }
        // One of them is locked for long, or refused: it must not hide the others.
        for hash in hashes {
            self.confirm_one(hash).await?;
        }
        Ok(())
    }

    async fn confirm_one(&mut self, hash: &Vec<u8>) -> Result<(), AuditError> {
        let hash = std::slice::from_ref(hash);
        let refusal = match self.recount(hash, LOCK_TIMEOUT_ONE, self.options.repair).await {
            Ok(recounted) => {
                self.note_recounted(recounted, None);
                return Ok(());
            }
            Err(error) => match repair_error(&error) {
                Some(RepairError::Refused(reason)) => reason,
                Some(RepairError::Locked) => {
                    self.report.undecided += 1;
                    return Ok(());
                }
                None => return Err(error.into()),
            },
        };
        // It can be counted, but not corrected.
        match self.recount(hash, LOCK_TIMEOUT_ONE, false).await {
            Ok(recounted) => self.note_recounted(recounted, Some(&refusal)),
            Err(error) if repair_error(&error).is_some() => self.report.undecided += 1,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Recounts under the locks, and corrects in the same transaction.
    async fn recount(
        &mut self,
        hashes: &[Vec<u8>],
        lock_timeout: &str,
        repair: bool,
    ) -> Result<Recounted, tokio_postgres::Error> {
        let grace_s = self.options.grace.as_secs_f64();
        let transaction = self.db.transaction().await?;
        let mut wrong = count_locked(&transaction, hashes, grace_s, lock_timeout).await?;
        let fresh = wrong.extract_if(.., |row| row.references == 0 && row.is_fresh).count() as u64;
        let (unreferenced, wrong_counts): (Vec<Content>, Vec<Content>) =
            wrong.into_iter().partition(|row| row.references == 0);
        let keys = unreferenced.iter().map(|row| &*row.key);
        let other_spellings = spellings(&transaction, keys).await?;
        let blocked = match unreferenced.is_empty() {
            true => None,
            false => foreign_key_block(&transaction).await?,
        };
        let (wrong_counts, swallowed) = match repair {
            true => correct(&transaction, wrong_counts).await?,
            false => (wrong_counts, Vec::new()),
        };
        transaction.commit().await?;
        Ok(Recounted { fresh, wrong_counts, swallowed, unreferenced, other_spellings, blocked })
    }

    /// Reports a recount, or queues what is to be deleted. `refusal`: why Postgres refuses the
    /// correction.
    fn note_recounted(&mut self, recounted: Recounted, refusal: Option<&str>) {
        let repair = self.options.repair;
        self.report.fresh_rows += recounted.fresh;
        for row in &recounted.wrong_counts {
            let finding = wrong_count(row, refusal.unwrap_or(CORRECT));
            self.note(if repair && refusal.is_none() { finding.repaired() } else { finding });
        }
        for row in &recounted.swallowed {
            self.note(wrong_count(row, SWALLOWED));
        }
        for row in recounted.unreferenced {
            if let Some(other) = recounted.other_spellings.get(&row.key) {
                self.note(ambiguous_content(&row, other));
            } else if !row.key.starts_with(self.objects.prefix()) {
                self.note(unreferenced_content(&row, OUTSIDE));
            } else if let Some(reason) = &recounted.blocked {
                self.note(unreferenced_content(&row, reason));
            } else if repair {
                self.queue.add_content(row);
            } else {
                self.note(unreferenced_content(&row, DELETE));
            }
        }
    }
}
