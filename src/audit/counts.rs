//! The first walk: does each `ref_count` say how many rows hold the body?
//!
//! Counted without locks first, a page at a time; what disagrees is counted again under the content
//! row's lock ([`super::bodies`]), and corrected in the same transaction. A body that nobody holds is
//! removed when all walks have ended ([`super::unreferenced`]).

use std::collections::HashMap;

use tokio_postgres::Row;

use super::{
    Audit, AuditError, Finding, Kind,
    bodies::{
        Body, LOCKED_AT_ONCE, barred, correct, count_locked, unreferenced_content, wrong_count,
    },
    error::{ALONE, RepairError, TOGETHER, repair_error},
    spellings::{Spelling, ambiguous_body, spellings},
};

const COUNTS: &str = sql!("audit/counts");
const IN_PROGRESS: &str = sql!("audit/counts_in_progress");
const PENDING: &str = sql!("audit/pending_deletions");

const PAGE: i64 = 1000;
const CORRECT: &str = "`cleanupctl audit --repair` corrects it";
const REMOVE: &str = "`cleanupctl audit --repair` removes row and object";
const OUTSIDE: &str = "its key is not under s3.prefix: remove it by hand";

/// What counting under the locks has shown.
#[derive(Default)]
struct Counted {
    fresh: u64,
    miscounted: Vec<Body>,
    unreferenced: Vec<Body>,
    /// Of those, the ones whose key other content may spell in another way.
    spelled: HashMap<String, Spelling>,
    /// Why bodies that nobody holds must stay.
    barred: Option<String>,
}

impl Audit {
    /// One page of content rows. Returns the last hash; `None`: there are no more.
    pub(super) async fn counts_page(
        &mut self,
        after: &[u8],
    ) -> Result<Option<Vec<u8>>, AuditError> {
        let rows = self.db.query(COUNTS, &[&after, &PAGE, &self.objects.prefix()]).await?;
        let Some(last) = rows.last() else {
            return Ok(None);
        };
        let owed = self.owed(&rows).await?;
        let suspects = self.suspects(&rows).await?;
        self.judge_counts(&suspects).await?;
        owed.into_iter().for_each(|finding| self.note(finding));
        let is = |name: &'static str| rows.iter().filter(move |row| row.get(name)).count() as u64;
        self.report.sentinels += is("is_sentinel");
        self.report.content_rows += rows.len() as u64 - is("is_sentinel");
        self.report.outside_prefix += is("is_outside");
        Ok(Some(last.get("content_hash")))
    }

    /// Bodies whose key is also among those that the fleet is going to delete.
    pub(super) async fn owed(&self, rows: &[Row]) -> Result<Vec<Finding>, AuditError> {
        let keys: Vec<&str> = rows.iter().map(|row| row.get("s3_key")).collect();
        let owed = self.db.query(PENDING, &[&keys]).await?;
        let finding = |row: &Row| {
            let what = "a claim or a paste owes the deletion of this body's object";
            let remedy = "`cleanupctl pause`, store the body under a fresh key, then `resume`: the \
                          next worker deletes this one";
            let finding = Finding::new(Kind::PendingDeletion, what, remedy);
            finding.key(row.get("s3_key")).content_hash(row.get("content_hash"))
        };
        Ok(owed.iter().map(finding).collect())
    }

    /// Bodies whose count disagrees with what two quick looks say.
    pub(super) async fn suspects(&self, rows: &[Row]) -> Result<Vec<Vec<u8>>, AuditError> {
        let bodies = rows.iter().filter(|row| !row.get::<_, bool>("is_sentinel"));
        let hashes: Vec<&[u8]> = bodies.clone().map(|row| row.get("content_hash")).collect();
        let going = self.db.query(IN_PROGRESS, &[&hashes]).await?;
        let going: HashMap<&[u8], i64> =
            going.iter().map(|row| (row.get("content_hash"), row.get("refs"))).collect();
        let suspects = bodies.filter(|row| {
            let hash: &[u8] = row.get("content_hash");
            let holders = row.get::<_, i64>("refs") + going.get(hash).copied().unwrap_or(0);
            holders == 0 || holders != row.get::<_, i64>("ref_count")
        });
        Ok(suspects.map(|row| row.get("content_hash")).collect())
    }

    pub(super) async fn judge_counts(&mut self, hashes: &[Vec<u8>]) -> Result<(), AuditError> {
        for some in hashes.chunks(LOCKED_AT_ONCE) {
            self.judge_some(some).await?;
        }
        Ok(())
    }

    async fn judge_some(&mut self, hashes: &[Vec<u8>]) -> Result<(), AuditError> {
        match self.recount(hashes, TOGETHER, self.options.repair).await {
            Ok(counted) => {
                self.note_counted(counted, None);
                return Ok(());
            }
            Err(error) if repair_error(&error).is_some() => {}
            Err(error) => return Err(error.into()),
        }
        // One of them is held for long, or refused: it should not hide the others.
        for hash in hashes {
            self.judge_one(hash).await?;
        }
        Ok(())
    }

    async fn judge_one(&mut self, hash: &Vec<u8>) -> Result<(), AuditError> {
        let hash = std::slice::from_ref(hash);
        let refusal = match self.recount(hash, ALONE, self.options.repair).await {
            Ok(counted) => {
                self.note_counted(counted, None);
                return Ok(());
            }
            Err(error) => match repair_error(&error) {
                Some(RepairError::Refused(reason)) => reason,
                Some(RepairError::Held) => {
                    self.report.undecided += 1;
                    return Ok(());
                }
                None => return Err(error.into()),
            },
        };
        // It can be counted, but not corrected.
        match self.recount(hash, ALONE, false).await {
            Ok(counted) => self.note_counted(counted, Some(&refusal)),
            Err(error) if repair_error(&error).is_some() => self.report.undecided += 1,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Counts again under the locks, and corrects in the same transaction.
    async fn recount(
        &mut self,
        hashes: &[Vec<u8>],
        wait: &str,
        repair: bool,
    ) -> Result<Counted, tokio_postgres::Error> {
        let grace_s = self.options.grace.as_secs_f64();
        let transaction = self.db.transaction().await?;
        let mut wrong = count_locked(&transaction, hashes, grace_s, wait).await?;
        let fresh = wrong.extract_if(.., |body| body.holders == 0 && body.is_fresh).count();
        let (unreferenced, miscounted): (Vec<Body>, Vec<Body>) =
            wrong.into_iter().partition(|body| body.holders == 0);
        let spelled = spellings(&transaction, unreferenced.iter().map(|body| &*body.key)).await?;
        let barred = if unreferenced.is_empty() { None } else { barred(&transaction).await? };
        if repair {
            correct(&transaction, &miscounted).await?;
        }
        transaction.commit().await?;
        Ok(Counted { fresh: fresh as u64, miscounted, unreferenced, spelled, barred })
    }

    /// `refused`: why Postgres does not take the correction.
    fn note_counted(&mut self, counted: Counted, refused: Option<&str>) {
        let repair = self.options.repair;
        self.report.fresh_rows += counted.fresh;
        for body in &counted.miscounted {
            let finding = wrong_count(body, refused.unwrap_or(CORRECT));
            self.note(if repair && refused.is_none() { finding.repaired() } else { finding });
        }
        for body in counted.unreferenced {
            if let Some(other) = counted.spelled.get(&body.key) {
                self.note(ambiguous_body(&body, other));
            } else if !body.key.starts_with(self.objects.prefix()) {
                self.note(unreferenced_content(&body, OUTSIDE));
            } else if let Some(reason) = &counted.barred {
                self.note(unreferenced_content(&body, reason));
            } else if repair {
                self.pending.add_body(body);
            } else {
                self.note(unreferenced_content(&body, REMOVE));
            }
        }
    }
}
