//! The third walk: the bucket's listing merged with the keys that content knows, both in the order of
//! their bytes.
//!
//! A key that only one side has is a suspicion, and so is an object under a sentinel's key. That the
//! two sides come in the same order only saves questions: a store that lists in another one makes
//! more suspicions, and each of them is still asked about.

use super::{
    Audit, AuditError,
    rows::{Row, Rows},
};
use crate::objects::{KEYS_PER_CALL, Listed, Start};

const NOW: &str = sql!("audit/now");

/// How far both sides are.
pub(super) struct Walk {
    rows: Rows,
    next: Start,
    last_key: String,
}

/// What a page leaves to ask about.
#[derive(Default)]
struct Suspects {
    unknown: Vec<Listed>,
    missing: Vec<String>,
}

impl Walk {
    pub async fn start(audit: &Audit, after: String) -> Result<Self, AuditError> {
        let per_range = audit.options.rows_per_range;
        let prefix = audit.objects.prefix();
        let rows = Rows::start(&audit.db, prefix, after.clone(), per_range).await?;
        Ok(Self { rows, next: Start::After(after.clone()), last_key: after })
    }
}

impl Audit {
    /// One page of the listing, and the rows up to its last key. Returns that key; `None`: that was
    /// the last page, and all rows after it.
    pub(super) async fn objects_page(
        &mut self,
        walk: &mut Walk,
    ) -> Result<Option<String>, AuditError> {
        let page = self.objects.list(&walk.next, KEYS_PER_CALL).await?;
        let (objects, bytes) =
            (page.objects.len(), page.objects.iter().map(|o| o.bytes).sum::<u64>());
        // A page may be empty and still not the last.
        walk.last_key = page.objects.last().map_or(walk.last_key.clone(), |last| last.key.clone());
        let mut suspects = Suspects::default();
        for object in page.objects {
            self.pass_rows_before(Some(&object.key), &mut walk.rows, &mut suspects).await?;
            match walk.rows.peek(&mut self.db).await? {
                Some(row) if row.key == object.key => {
                    let is_sentinel = row.is_sentinel;
                    walk.rows.take();
                    if is_sentinel {
                        suspects.unknown.push(object);
                    }
                }
                _ => suspects.unknown.push(object),
            }
        }
        if page.next.is_none() {
            self.pass_rows_before(None, &mut walk.rows, &mut suspects).await?;
        }
        self.judge_missing(suspects.missing).await?;
        let store_time_s = self.time_of(page.store_time_s).await?;
        self.judge_unknown(suspects.unknown, store_time_s).await?;
        self.report.objects += objects as u64;
        self.report.bytes += bytes;
        Ok(page.next.map(|next| {
            walk.next = next;
            walk.last_key.clone()
        }))
    }

    /// The store's clock, by which it also tells how old an object is. Postgres' for a store that
    /// sends no `Date`; never ours.
    pub(super) async fn time_of(&self, store_time_s: Option<i64>) -> Result<i64, AuditError> {
        match store_time_s {
            Some(time) => Ok(time),
            None => Ok(self.db.query_one(NOW, &[]).await?.get("now_s")),
        }
    }

    /// Rows whose key the listing has passed by. In a bucket that was emptied there are many before
    /// the next object, so they are judged as soon as they are enough.
    async fn pass_rows_before(
        &mut self,
        key: Option<&str>,
        rows: &mut Rows,
        suspects: &mut Suspects,
    ) -> Result<(), AuditError> {
        while let Some(row) = rows.peek(&mut self.db).await? {
            if key.is_some_and(|key| &*row.key >= key) {
                return Ok(());
            }
            if let Some(Row { key, is_sentinel: false }) = rows.take() {
                suspects.missing.push(key);
            }
            if suspects.missing.len() >= KEYS_PER_CALL {
                self.judge_missing(std::mem::take(&mut suspects.missing)).await?;
            }
        }
        Ok(())
    }
}
