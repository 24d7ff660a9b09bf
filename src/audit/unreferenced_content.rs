//! Deletes content that no paste references, in the order of a decrement: the row first.
//!
//! Under its lock the row is recounted once more and replaced by the sentinel of its key. The object is
//! deleted after the commit. An audit that dies in between leaves an object under a sentinel, which
//! the next walk over the bucket finds. That walk comes after the counts, so an audit that resumes
//! within the counts finds it, too.

use std::collections::HashSet;

use tokio_postgres::{Error, Transaction};

use super::{
    Audit, AuditError,
    error::{LOCK_TIMEOUT_MANY, LOCK_TIMEOUT_ONE, RepairError, repair_error},
    recount::{
        Content, correct, count_locked, foreign_key_block, unreferenced_content, wrong_count,
    },
    sentinel::{SENTINEL, SENTINELS},
    spellings::{Spelling, ambiguous_content, spellings, take_ambiguous},
};
use crate::postgres::bisect::SWALLOWED;

const DELETE_UNREFERENCED: &str = sql!("content/delete_unreferenced");

/// What became of some content rows. Those that have a correct count by now are in no field.
#[derive(Default)]
struct Replaced {
    /// Keys with a sentinel: their objects may be deleted.
    keys: HashSet<String>,
    /// Referenced again, but with a wrong count, which was corrected.
    corrected: Vec<Content>,
    /// The same, but a trigger swallows or undoes the correction.
    uncorrected: Vec<Content>,
    /// Still unreferenced, and not deleted for this reason.
    blocked: Vec<(Content, String)>,
    /// Still unreferenced, and not deleted because other content may have the same object.
    ambiguous: Vec<(Content, Spelling)>,
}

impl Audit {
    /// Deletes content rows and their objects. Leaves alone what is referenced again by now. Returns
    /// false if the rows cannot be deleted together, only one by one.
    pub(super) async fn delete_content(&mut self, content: &[Content]) -> Result<bool, AuditError> {
        let lock_timeout = if content.len() > 1 { LOCK_TIMEOUT_MANY } else { LOCK_TIMEOUT_ONE };
        match self.replace_by_sentinels(content, lock_timeout).await {
            Ok(replaced) => self.delete_replaced(content, replaced).await?,
            Err(error) => match (repair_error(&error), content) {
                (Some(RepairError::Locked), [_]) => self.report.undecided += 1,
                (Some(RepairError::Refused(reason)), [row]) => {
                    self.note(unreferenced_content(row, &reason));
                }
                (Some(_), _) => return Ok(false),
                (None, _) => return Err(error.into()),
            },
        }
        Ok(true)
    }

    async fn replace_by_sentinels(
        &mut self,
        content: &[Content],
        lock_timeout: &str,
    ) -> Result<Replaced, Error> {
        let hashes: Vec<Vec<u8>> = content.iter().map(|row| row.hash.clone()).collect();
        let keys: Vec<&str> = content.iter().map(|row| &*row.key).collect();
        let transaction = self.db.transaction().await?;
        let mut wrong = count_locked(&transaction, &hashes, 0.0, lock_timeout).await?;
        // A row with another key was stored again since the walk: it is not the one that was checked.
        wrong.retain(|row| keys.contains(&&*row.key));
        let (mut unreferenced, corrected): (Vec<Content>, Vec<Content>) =
            wrong.into_iter().partition(|row| row.references == 0);
        let other = spellings(&transaction, keys.iter().copied()).await?;
        let ambiguous = take_ambiguous(&mut unreferenced, &other, |row| &row.key);
        let (corrected, uncorrected) = correct(&transaction, corrected).await?;
        let blocked = foreign_key_block(&transaction).await?;
        if blocked.is_none() {
            replace(&transaction, &unreferenced).await?;
        }
        // Includes the sentinels of an earlier attempt whose answer was lost.
        let rows = transaction.query(SENTINELS, &[&keys]).await?;
        transaction.commit().await?;
        let mut keys: HashSet<String> = rows.iter().map(|row| row.get("s3_key")).collect();
        keys.retain(|key| !other.contains_key(key));
        // Without a sentinel, although no foreign key blocks it: a trigger swallows the DELETE.
        unreferenced.retain(|row| !keys.contains(&row.key));
        let reason = blocked.as_deref().unwrap_or(SWALLOWED);
        let blocked = unreferenced.into_iter().map(|row| (row, reason.into())).collect();
        Ok(Replaced { keys, corrected, uncorrected, blocked, ambiguous })
    }

    /// Deletes the objects whose rows are sentinels now, and reports all rows.
    async fn delete_replaced(
        &mut self,
        content: &[Content],
        replaced: Replaced,
    ) -> Result<(), AuditError> {
        let gone: Vec<&Content> =
            content.iter().filter(|row| replaced.keys.contains(&row.key)).collect();
        let keys: Vec<String> = gone.iter().map(|row| row.key.clone()).collect();
        let mut left = self.delete_objects(&keys).await?;
        for row in gone {
            let finding = match left.remove(&row.key) {
                Some(reason) => unreferenced_content(row, &reason),
                None => {
                    self.report.bytes_deleted += row.bytes;
                    unreferenced_content(row, "").repaired()
                }
            };
            self.note(finding);
        }
        for row in &replaced.corrected {
            self.note(wrong_count(row, "").repaired());
        }
        for row in &replaced.uncorrected {
            self.note(wrong_count(row, SWALLOWED));
        }
        for (row, reason) in &replaced.blocked {
            self.note(unreferenced_content(row, reason));
        }
        for (row, other) in &replaced.ambiguous {
            self.note(ambiguous_content(row, other));
        }
        Ok(())
    }
}

async fn replace(transaction: &Transaction<'_>, content: &[Content]) -> Result<(), Error> {
    let hashes: Vec<&[u8]> = content.iter().map(|row| &*row.hash).collect();
    let keys: Vec<&str> = content.iter().map(|row| &*row.key).collect();
    transaction.execute(DELETE_UNREFERENCED, &[&hashes]).await?;
    transaction.execute(SENTINEL, &[&keys]).await?;
    Ok(())
}
