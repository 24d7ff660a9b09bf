//! The third walk: merges the bucket's listing with the keys of the content rows, both in byte order.
//!
//! A key that only one side has is a suspect, and so is an object under a sentinel's key. The common
//! order only saves checks: a store that lists in another order yields more suspects, and each of
//! them is still checked.

use super::{
    Audit, AuditError,
    content_keys::{ContentKey, ContentKeys},
};
use crate::objects::{KEYS_PER_CALL, Listed, Start};

const NOW: &str = sql!("audit/now");

/// The positions in both sides of the merge.
pub(super) struct BucketWalk {
    keys: ContentKeys,
    next: Start,
    last_key: String,
}

/// The keys of a page that are still to be checked.
#[derive(Default)]
struct Suspects {
    unknown: Vec<Listed>,
    missing: Vec<String>,
}

impl BucketWalk {
    /// Starts after this key on both sides.
    pub(super) async fn start(audit: &Audit, after: String) -> Result<Self, AuditError> {
        let per_range = audit.options.rows_per_range;
        let prefix = audit.objects.prefix();
        let keys = ContentKeys::start(&audit.db, prefix, after.clone(), per_range).await?;
        Ok(Self { keys, next: Start::After(after.clone()), last_key: after })
    }
}

impl Audit {
    /// Checks one page of the listing and the content rows up to its last key. Returns that key, or
    /// `None` after the last page and all rows after it.
    pub(super) async fn objects_page(
        &mut self,
        walk: &mut BucketWalk,
    ) -> Result<Option<String>, AuditError> {
        let page = self.objects.list(&walk.next, KEYS_PER_CALL).await?;
        let (objects, bytes) =
            (page.objects.len(), page.objects.iter().map(|o| o.bytes).sum::<u64>());
        // An empty page need not be the last one.
        let last = page.objects.iter().rfind(|object| !object.is_undecodable);
        walk.last_key = last.map_or(walk.last_key.clone(), |last| last.key.clone());
        let (mut suspects, mut unchecked) = (Suspects::default(), 0);
        for object in page.objects {
            if object.is_undecodable {
                unchecked += 1;
                continue;
            }
            self.pass_keys_before(Some(&object.key), &mut walk.keys, &mut suspects).await?;
            match walk.keys.peek(&mut self.db).await? {
                Some(content) if content.key == object.key => {
                    let is_sentinel = content.is_sentinel;
                    walk.keys.take();
                    if is_sentinel {
                        suspects.unknown.push(object);
                    }
                }
                _ => suspects.unknown.push(object),
            }
        }
        if page.next.is_none() {
            self.pass_keys_before(None, &mut walk.keys, &mut suspects).await?;
        }
        self.confirm_missing(suspects.missing).await?;
        let store_time_s = self.time_of(page.store_time_s).await?;
        self.confirm_orphans(suspects.unknown, store_time_s).await?;
        self.report.objects += objects as u64;
        self.report.bytes += bytes;
        self.report.unchecked_objects += unchecked;
        Ok(page.next.map(|next| {
            walk.next = next;
            walk.last_key.clone()
        }))
    }

    /// Returns the store's time, the clock of `LastModified`. For a store that sends no `Date`, the
    /// time of Postgres; never this machine's.
    pub(super) async fn time_of(&self, store_time_s: Option<i64>) -> Result<i64, AuditError> {
        match store_time_s {
            Some(time) => Ok(time),
            None => Ok(self.db.query_one(NOW, &[]).await?.get("now_s")),
        }
    }

    /// Passes the content keys before this listed key: their objects were not listed. In a bucket that
    /// was emptied there are many of them, so they are checked in chunks.
    async fn pass_keys_before(
        &mut self,
        key: Option<&str>,
        keys: &mut ContentKeys,
        suspects: &mut Suspects,
    ) -> Result<(), AuditError> {
        while let Some(next) = keys.peek(&mut self.db).await? {
            if key.is_some_and(|key| &*next.key >= key) {
                return Ok(());
            }
            if let Some(ContentKey { key, is_sentinel: false }) = keys.take() {
                suspects.missing.push(key);
            }
            if suspects.missing.len() >= KEYS_PER_CALL {
                self.confirm_missing(std::mem::take(&mut suspects.missing)).await?;
            }
        }
        Ok(())
    }
}
