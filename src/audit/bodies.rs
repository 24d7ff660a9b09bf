//! Bodies under their locks: who really holds them?
//!
//! Locked first, then counted in a later statement, by the query with which a decrement recounts.
//! Whoever changes the number of holders needs that lock, too: a put takes it before it inserts, a
//! decrement before it subtracts, and a row that comes back from deletion (`pastes_verify_content`) while it
//! keeps its hash. A decrement that has stamped its claim and waits for us is not committed: its rows
//! are counted, and it subtracts them afterwards.

use std::collections::HashMap;

use tokio_postgres::{Error, Transaction};

use super::{Finding, Kind};

const LOCK: &str = sql!("audit/lock_content");
const COUNT_HOLDERS: &str = sql!("content/count_references");
const RECOUNT: &str = sql!("content/recount");
const FOREIGN_KEYS: &str = sql!("audit/foreign_keys");

/// So many bodies are locked together: writers of these wait as long as the count takes.
pub(super) const LOCKED_AT_ONCE: usize = 100;

/// A body whose count is wrong.
#[derive(Debug, Clone)]
pub(super) struct Body {
    pub hash: Vec<u8>,
    pub key: String,
    pub ref_count: i64,
    pub bytes: u64,
    pub is_fresh: bool,
    pub holders: i64,
}

/// The bodies among these whose count is wrong. They stay locked until the transaction ends.
/// `wait`: how long for those that others have locked.
pub(super) async fn count_locked(
    transaction: &Transaction<'_>,
    hashes: &[Vec<u8>],
    grace_s: f64,
    wait: &str,
) -> Result<Vec<Body>, Error> {
    transaction.batch_execute(wait).await?;
    let locked = transaction.query(LOCK, &[&hashes, &grace_s]).await?;
    let hashes: Vec<&[u8]> = locked.iter().map(|row| row.get("content_hash")).collect();
    let counted = transaction.query(COUNT_HOLDERS, &[&hashes]).await?;
    let holders: HashMap<&[u8], i64> =
        counted.iter().map(|row| (row.get("content_hash"), row.get("refs"))).collect();
    let bodies = locked.iter().map(|row| {
        let hash: &[u8] = row.get("content_hash");
        Body {
            hash: hash.to_vec(),
            key: row.get("s3_key"),
            ref_count: row.get("ref_count"),
            bytes: u64::try_from(row.get::<_, i64>("size_bytes")).unwrap_or_default(),
            is_fresh: row.get("is_fresh"),
            holders: holders.get(hash).copied().unwrap_or_default(),
        }
    });
    Ok(bodies.filter(|body| body.holders == 0 || body.holders != body.ref_count).collect())
}

/// Makes each count what was counted.
pub(super) async fn correct(transaction: &Transaction<'_>, bodies: &[Body]) -> Result<(), Error> {
    if bodies.is_empty() {
        return Ok(());
    }
    let hashes: Vec<&[u8]> = bodies.iter().map(|body| &*body.hash).collect();
    let holders: Vec<i64> = bodies.iter().map(|body| body.holders).collect();
    transaction.execute(RECOUNT, &[&hashes, &holders]).await?;
    Ok(())
}

/// What keeps content rows from being removed, if anything does.
pub(super) async fn barred(transaction: &Transaction<'_>) -> Result<Option<String>, Error> {
    let tables: Option<String> = transaction.query_one(FOREIGN_KEYS, &[]).await?.get("tables");
    Ok(tables.map(|tables| {
        format!(
            "a foreign key of {tables} refers to content, so removing the row could take others \
             along: remove it by hand, or drop the foreign key"
        )
    }))
}

pub(super) fn wrong_count(body: &Body, remedy: &str) -> Finding {
    let what = format!("ref_count is {}, but {} pastes hold it", body.ref_count, body.holders);
    Finding::new(Kind::WrongCount, what, remedy).key(&body.key).content_hash(&body.hash)
}

pub(super) fn unreferenced_content(body: &Body, remedy: &str) -> Finding {
    let what = format!("ref_count is {}, but no paste holds it", body.ref_count);
    Finding::new(Kind::UnreferencedContent, what, remedy).key(&body.key).content_hash(&body.hash)
}
