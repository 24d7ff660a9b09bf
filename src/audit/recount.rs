//! Recounts the references of content rows under their locks.
//!
//! The rows are locked first and counted in a later statement, by the query with which a decrement
//! recounts. Every transaction that changes the number of references takes that lock: a put before it
//! inserts, a decrement before it subtracts, and a paste in progress that is reset
//! (`pastes_verify_content`) before it keeps its hash. A decrement that has stamped its claim and is
//! waiting for our lock has not committed: its pastes are counted here, and it subtracts them later.

use std::collections::{HashMap, HashSet};

use tokio_postgres::{Error, Transaction};

use super::{Finding, Kind};
use crate::format::thousands;

const LOCK: &str = sql!("audit/lock_content");
const COUNT_REFERENCES: &str = sql!("content/count_references");
const RECOUNT: &str = sql!("content/recount");
const FOREIGN_KEYS: &str = sql!("audit/foreign_keys");

/// Content rows that are locked together: their writers wait as long as the count takes.
pub(super) const LOCKED_AT_ONCE: usize = 100;

/// A content row whose count is wrong, or that no paste references.
#[derive(Debug, Clone)]
pub(super) struct Content {
    pub hash: Vec<u8>,
    pub key: String,
    pub ref_count: i64,
    pub bytes: u64,
    /// Younger than the grace period.
    pub is_fresh: bool,
    /// Pastes that reference it, by the recount.
    pub references: i64,
}

/// Locks these content rows and returns those that are wrong. They stay locked until the transaction
/// ends. `lock_timeout`: the `SET LOCAL` for the wait for each row.
pub(super) async fn count_locked(
    transaction: &Transaction<'_>,
    hashes: &[Vec<u8>],
    grace_s: f64,
    lock_timeout: &str,
) -> Result<Vec<Content>, Error> {
    transaction.batch_execute(lock_timeout).await?;
    let locked = transaction.query(LOCK, &[&hashes, &grace_s]).await?;
    let hashes: Vec<&[u8]> = locked.iter().map(|row| row.get("content_hash")).collect();
    let counted = transaction.query(COUNT_REFERENCES, &[&hashes]).await?;
    let references: HashMap<&[u8], i64> =
        counted.iter().map(|row| (row.get("content_hash"), row.get("refs"))).collect();
    let content = locked.iter().map(|row| {
        let hash: &[u8] = row.get("content_hash");
        Content {
            hash: hash.to_vec(),
            key: row.get("s3_key"),
            ref_count: row.get("ref_count"),
            bytes: u64::try_from(row.get::<_, i64>("size_bytes")).unwrap_or_default(),
            is_fresh: row.get("is_fresh"),
            references: references.get(hash).copied().unwrap_or_default(),
        }
    });
    let is_wrong = |row: &Content| row.references == 0 || row.references != row.ref_count;
    Ok(content.filter(is_wrong).collect())
}

/// Sets each `ref_count` to the recounted number. Returns those that have it now, and those of which a
/// trigger swallows or undoes the UPDATE.
pub(super) async fn correct(
    transaction: &Transaction<'_>,
    content: Vec<Content>,
) -> Result<(Vec<Content>, Vec<Content>), Error> {
    if content.is_empty() {
        return Ok(Default::default());
    }
    let hashes: Vec<&[u8]> = content.iter().map(|row| &*row.hash).collect();
    let references: Vec<i64> = content.iter().map(|row| row.references).collect();
    let rows = transaction.query(RECOUNT, &[&hashes, &references]).await?;
    let changed = rows.iter().filter(|row| row.get::<_, Option<bool>>("is_changed") == Some(true));
    let changed: HashSet<&[u8]> = changed.map(|row| row.get("content_hash")).collect();
    Ok(content.into_iter().partition(|row| changed.contains(&*row.hash)))
}

/// Returns why no content row may be deleted, if a foreign key references the table.
pub(super) async fn foreign_key_block(
    transaction: &Transaction<'_>,
) -> Result<Option<String>, Error> {
    let tables: Option<String> = transaction.query_one(FOREIGN_KEYS, &[]).await?.get("tables");
    Ok(tables.map(|tables| {
        format!(
            "a foreign key of {tables} references content, so deleting this row could delete rows \
             there, too: delete it by hand, or drop the foreign key"
        )
    }))
}

pub(super) fn wrong_count(content: &Content, remedy: &str) -> Finding {
    let references = match content.references {
        1 => "1 paste references it".to_string(),
        pastes => format!("{} pastes reference it", thousands(pastes)),
    };
    let what = format!("ref_count is {}, but {references}", content.ref_count);
    Finding::new(Kind::WrongCount, what, remedy).key(&content.key).content_hash(&content.hash)
}

pub(super) fn unreferenced_content(content: &Content, remedy: &str) -> Finding {
    let what = match content.ref_count {
        0 => "ref_count is 0, and no paste references it".to_string(),
        count => format!("ref_count is {count}, but no paste references it"),
    };
    let finding = Finding::new(Kind::UnreferencedContent, what, remedy);
    finding.key(&content.key).content_hash(&content.hash)
}
