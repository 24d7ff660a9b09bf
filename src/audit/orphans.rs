//! Objects whose key no content row has: are they orphans?
//!
//! The tables are queried first, in one statement and so in one snapshot (see `audit/unknown.sql`), and
//! the bucket is checked last. An object that a worker has decremented, deleted and finished since it
//! was listed is in no table, but it is also gone from the bucket. An object that is in the bucket
//! after a query found no row for it has no pending delete: it is an orphan.

use std::collections::{HashMap, HashSet};

use tokio_postgres::{Client, Error};

use super::{
    Audit, AuditError, Finding, Kind, sentinel,
    spellings::{Spelling, ambiguous_object, spellings, take_ambiguous},
};
use crate::{
    format::bytes,
    objects::{Deleted, Listed},
};

const UNKNOWN: &str = sql!("audit/unknown");

const REPAIR: &str = "`cleanupctl audit --repair` deletes it";
/// Postgres has no text with a NUL in it.
const NUL: &str = "delete it by hand: no sentinel row can reserve a key with a NUL byte";

impl Audit {
    /// Checks listed objects whose key no content row has, and reports or queues the orphans.
    /// `store_time_s`: the store's time when it listed them.
    pub(super) async fn confirm_orphans(
        &mut self,
        listed: Vec<Listed>,
        store_time_s: i64,
    ) -> Result<(), AuditError> {
        let grace_s = i64::try_from(self.options.grace.as_secs()).unwrap_or(i64::MAX);
        let unknown = unknown(&self.db, &listed).await?;
        let (fresh, old): (Vec<Listed>, Vec<Listed>) = listed
            .into_iter()
            .filter(|object| unknown.contains(&object.key))
            .partition(|object| is_fresh(object, store_time_s, grace_s));
        let keys: Vec<String> = old.into_iter().map(|object| object.key).collect();
        let mut orphans: Vec<Listed> = self.find_objects(&keys).await?.into_values().collect();
        orphans.sort_by(|one, other| one.key.cmp(&other.key));
        let other_spellings =
            spellings(&self.db, orphans.iter().map(|orphan| &*orphan.key)).await?;
        self.report.fresh_objects += fresh.len() as u64;
        for orphan in orphans {
            match other_spellings.get(&orphan.key) {
                Some(other) => self.note(ambiguous_object(&orphan, other)),
                None => self.note_or_queue(orphan),
            }
        }
        Ok(())
    }

    fn note_or_queue(&mut self, orphan: Listed) {
        if !self.options.repair {
            self.note_orphan(&orphan, Some(REPAIR));
        } else if orphan.key.contains('\0') {
            self.note_orphan(&orphan, Some(NUL));
        } else {
            self.queue.add_orphan(orphan);
        }
    }

    /// Checks the orphans again, because the walks may have taken hours, reserves their keys with
    /// sentinels, then deletes the objects. Those that have a content row by now are left alone.
    pub(super) async fn delete_orphans(
        &mut self,
        mut orphans: Vec<Listed>,
    ) -> Result<(), AuditError> {
        let mut ambiguous = self.retain_orphans(&mut orphans).await?;
        let keys: Vec<String> = orphans.iter().map(|orphan| orphan.key.clone()).collect();
        let reserved = sentinel::reserve(&mut self.db, &keys).await?;
        let refused: Vec<Listed> =
            orphans.extract_if(.., |orphan| reserved.refused.contains_key(&orphan.key)).collect();
        orphans.retain(|orphan| reserved.keys.contains(&orphan.key));
        // An object may have been stored and decremented between the check and the sentinel: then a
        // worker is going to delete it, or has. With the sentinel no writer can store it again, so
        // the result of this check stays true.
        ambiguous.extend(self.retain_orphans(&mut orphans).await?);
        let keys: Vec<String> = orphans.iter().map(|orphan| orphan.key.clone()).collect();
        let left = self.delete_objects(&keys).await?;
        self.report.fresh_objects += reserved.locked.len() as u64;
        for (orphan, other) in &ambiguous {
            self.note(ambiguous_object(orphan, other));
        }
        for orphan in &refused {
            self.note_orphan(orphan, Some(&reserved.refused[&orphan.key]));
        }
        for orphan in &orphans {
            self.note_orphan(orphan, left.get(&orphan.key).map(String::as_str));
        }
        Ok(())
    }

    /// Keeps those that no row knows and that are still in the bucket. An object that was written
    /// again since it was listed counts as fresh. Returns those whose key may be another spelling of
    /// a content row's key.
    async fn retain_orphans(
        &mut self,
        orphans: &mut Vec<Listed>,
    ) -> Result<Vec<(Listed, Spelling)>, AuditError> {
        let unknown = unknown(&self.db, orphans).await?;
        orphans.retain(|orphan| unknown.contains(&orphan.key));
        let other_spellings =
            spellings(&self.db, orphans.iter().map(|orphan| &*orphan.key)).await?;
        let ambiguous = take_ambiguous(orphans, &other_spellings, |orphan| &orphan.key);
        let keys: Vec<String> = orphans.iter().map(|orphan| orphan.key.clone()).collect();
        let now = self.find_objects(&keys).await?;
        orphans.retain(|orphan| now.contains_key(&orphan.key));
        let existing = orphans.len();
        orphans.retain(|orphan| now[&orphan.key].modified_s == orphan.modified_s);
        self.report.fresh_objects += (existing - orphans.len()) as u64;
        Ok(ambiguous)
    }

    /// `remedy`: what to do about an object that is still there.
    pub(super) fn note_orphan(&mut self, orphan: &Listed, remedy: Option<&str>) {
        self.report.orphan_bytes += orphan.bytes;
        let what = format!("no row references this object ({})", bytes(orphan.bytes));
        let finding = Finding::new(Kind::Orphan, what, remedy.unwrap_or_default()).key(&orphan.key);
        if remedy.is_none() {
            self.report.bytes_deleted += orphan.bytes;
        }
        self.note(if remedy.is_none() { finding.repaired() } else { finding });
    }

    /// Deletes objects whose keys are reserved by sentinels. Returns those that are left, and why.
    /// After an error any of them may be left; the next audit finds those.
    pub(super) async fn delete_objects(
        &mut self,
        keys: &[String],
    ) -> Result<HashMap<String, String>, AuditError> {
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let Deleted { refused, stuck } = self.objects.delete(keys, || {}).await?;
        let left = refused.into_iter().chain(stuck);
        let left: HashMap<String, String> = left
            .map(|(key, reason)| {
                (key, format!("S3 did not delete it ({reason}): fix that, then audit again"))
            })
            .collect();
        self.report.objects_deleted += (keys.len() - left.len()) as u64;
        Ok(left)
    }
}

fn is_fresh(object: &Listed, store_time_s: i64, grace_s: i64) -> bool {
    // Without a time, it may be young.
    object.modified_s.is_none_or(|modified| store_time_s.saturating_sub(modified) < grace_s)
}

/// Returns the keys that no row has, or only a sentinel.
async fn unknown(db: &Client, listed: &[Listed]) -> Result<HashSet<String>, Error> {
    let (with_nul, keys): (Vec<&str>, Vec<&str>) =
        listed.iter().map(|object| &*object.key).partition(|key| key.contains('\0'));
    let mut unknown: HashSet<String> = with_nul.into_iter().map(String::from).collect();
    if !keys.is_empty() {
        let rows = db.query(UNKNOWN, &[&keys]).await?;
        unknown.extend(rows.iter().map(|row| row.get::<_, String>("s3_key")));
    }
    Ok(unknown)
}
