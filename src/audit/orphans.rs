//! Objects that content did not know: does really nobody know them, and are they still there?
//!
//! The tables are asked first, in one statement and so in one snapshot (see `audit/unknown.sql`), and
//! the bucket last. Listed, then decremented, deleted and finished by a worker: the tables know nothing
//! of it any more, and it is gone when the bucket is asked. Still there after no row knew it: no
//! deletion is under way that could still come.

use std::collections::{HashMap, HashSet};

use tokio_postgres::{Client, Error};

use super::{
    Audit, AuditError, Finding, Kind, sentinel,
    spellings::{Spelling, ambiguous_object, spellings, take_spelled},
};
use crate::objects::{Deleted, Listed};

const UNKNOWN: &str = sql!("audit/unknown");

const REPAIR: &str = "`cleanupctl audit --repair` deletes it";

impl Audit {
    /// `store_time_s`: what the store's clock said when it listed them.
    pub(super) async fn judge_unknown(
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
        let mut orphans: Vec<Listed> = self.look_for(&keys).await?.into_values().collect();
        orphans.sort_by(|one, other| one.key.cmp(&other.key));
        let spelled = spellings(&self.db, orphans.iter().map(|orphan| &*orphan.key)).await?;
        self.report.fresh_objects += fresh.len() as u64;
        for orphan in orphans {
            match spelled.get(&orphan.key) {
                Some(other) => self.note(ambiguous_object(&orphan, other)),
                None => self.note_or_collect(orphan),
            }
        }
        Ok(())
    }

    fn note_or_collect(&mut self, orphan: Listed) {
        if !self.options.repair {
            self.note_orphan(&orphan, Err(REPAIR.into()));
        } else if orphan.key.contains('\0') {
            // Postgres has no text with a NUL in it, so no sentinel can keep that key.
            self.note_orphan(&orphan, Err("delete it by hand: no row can have that key".into()));
        } else {
            self.pending.add_orphan(orphan);
        }
    }

    /// Asks again, for the walks may have taken hours; keeps their keys, then deletes the objects.
    /// Those that turn out to be bodies are left alone.
    pub(super) async fn delete_orphans(
        &mut self,
        mut orphans: Vec<Listed>,
    ) -> Result<(), AuditError> {
        let mut ambiguous = self.retain_orphans(&mut orphans).await?;
        let keys: Vec<String> = orphans.iter().map(|orphan| orphan.key.clone()).collect();
        let kept = sentinel::keep(&mut self.db, &keys).await?;
        let refused: Vec<Listed> =
            orphans.extract_if(.., |orphan| kept.refused.contains_key(&orphan.key)).collect();
        orphans.retain(|orphan| kept.keys.contains(&orphan.key));
        // Stored and decremented again while we looked: the fleet owes it by now, or has deleted it.
        // From the sentinel on, nobody can store it any more: what is asked now stays so.
        ambiguous.extend(self.retain_orphans(&mut orphans).await?);
        let keys: Vec<String> = orphans.iter().map(|orphan| orphan.key.clone()).collect();
        let mut left = self.erase(&keys).await?;
        self.report.fresh_objects += kept.held.len() as u64;
        for (orphan, other) in &ambiguous {
            self.note(ambiguous_object(orphan, other));
        }
        for orphan in &refused {
            self.note_orphan(orphan, Err(kept.refused[&orphan.key].clone()));
        }
        for orphan in &orphans {
            self.note_orphan(orphan, left.remove(&orphan.key).map_or(Ok(()), Err));
        }
        Ok(())
    }

    /// Those that no row knows and that are still there. What was written anew since it was listed is
    /// fresh. Returns those whose key some content row may spell in another way by now.
    async fn retain_orphans(
        &mut self,
        orphans: &mut Vec<Listed>,
    ) -> Result<Vec<(Listed, Spelling)>, AuditError> {
        let unknown = unknown(&self.db, orphans).await?;
        orphans.retain(|orphan| unknown.contains(&orphan.key));
        let spelled = spellings(&self.db, orphans.iter().map(|orphan| &*orphan.key)).await?;
        let ambiguous = take_spelled(orphans, &spelled, |orphan| &orphan.key);
        let keys: Vec<String> = orphans.iter().map(|orphan| orphan.key.clone()).collect();
        let now = self.look_for(&keys).await?;
        orphans.retain(|orphan| now.contains_key(&orphan.key));
        let there = orphans.len();
        orphans.retain(|orphan| now[&orphan.key].modified_s == orphan.modified_s);
        self.report.fresh_objects += (there - orphans.len()) as u64;
        Ok(ambiguous)
    }

    pub(super) fn note_orphan(&mut self, orphan: &Listed, outcome: Result<(), String>) {
        self.report.orphan_bytes += orphan.bytes;
        let what = format!("no row knows this object of {} bytes", orphan.bytes);
        let remedy = outcome.as_ref().err().cloned().unwrap_or_default();
        let finding = Finding::new(Kind::Orphan, what, remedy).key(&orphan.key);
        if outcome.is_ok() {
            self.report.bytes_deleted += orphan.bytes;
        }
        self.note(if outcome.is_ok() { finding.repaired() } else { finding });
    }

    /// Deletes objects whose keys sentinels keep. Returns those that are left, and why. Who is told
    /// of an error knows nothing about any of them; the next audit finds what is left.
    pub(super) async fn erase(
        &mut self,
        keys: &[String],
    ) -> Result<HashMap<String, String>, AuditError> {
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let Deleted { refused, stuck } = self.objects.delete(keys, || {}).await?;
        let left = refused.into_iter().chain(stuck);
        let left: HashMap<String, String> =
            left.map(|(key, reason)| (key, format!("{reason}; then audit again"))).collect();
        self.report.objects_deleted += (keys.len() - left.len()) as u64;
        Ok(left)
    }
}

fn is_fresh(object: &Listed, store_time_s: i64, grace_s: i64) -> bool {
    // Without a time it may be as young as it likes.
    object.modified_s.is_none_or(|modified| store_time_s.saturating_sub(modified) < grace_s)
}

/// The keys of these that no row knows, or a sentinel alone.
async fn unknown(db: &Client, listed: &[Listed]) -> Result<HashSet<String>, Error> {
    let (odd, keys): (Vec<&str>, Vec<&str>) =
        listed.iter().map(|object| &*object.key).partition(|key| key.contains('\0'));
    let mut unknown: HashSet<String> = odd.into_iter().map(String::from).collect();
    if !keys.is_empty() {
        let rows = db.query(UNKNOWN, &[&keys]).await?;
        unknown.extend(rows.iter().map(|row| row.get::<_, String>("s3_key")));
    }
    Ok(unknown)
}
