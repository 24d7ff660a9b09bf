//! The sentinel: a content row that no paste references and that reserves a key permanently.
//!
//! An object that no row knows may belong to a writer that has uploaded it and not committed yet,
//! however old it is. Inserting a row with its key decides that, because keys are unique in content:
//!
//! - The writer's row is inserted and not committed: our insert waits. If the writer commits, nothing
//!   is inserted, and the object stays, because it has a content row. If it rolls back, the sentinel
//!   is inserted.
//! - The writer has not inserted yet: the sentinel is inserted, and the writer's insert will fail with
//!   a unique violation (23505). By the contract it then uploads again under a new key.
//!
//! The object is deleted only after the sentinel is committed. An audit that dies in between leaves an
//! object that only a sentinel knows, and the next audit finds it. It also finds an upload that
//! arrives later. Between the query and the sentinel an object can be stored *and* decremented again:
//! deleting it would do no harm, but it would be reported as an orphan. So tables and bucket are
//! checked once more when the sentinel protects the key.

use std::collections::{HashMap, HashSet};

use tokio_postgres::{Client, Error, error::SqlState};

use super::error::{LOCK_TIMEOUT_MANY, LOCK_TIMEOUT_ONE, RepairError, repair_error};

pub(super) const SENTINEL: &str = sql!("audit/sentinel");
pub(super) const SENTINELS: &str = sql!("audit/sentinels");

/// What became of some keys. A key in no field has a content row by now.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    /// Reserved by a sentinel: their objects may be deleted.
    pub keys: HashSet<String>,
    /// Inserted by a writer that has not committed yet.
    pub locked: HashSet<String>,
    /// Postgres refuses a row with this key, for this reason.
    pub refused: HashMap<String, String>,
}

/// Reserves keys with sentinels: all at once, or one by one if one of them fails.
pub(super) async fn reserve(db: &mut Client, keys: &[String]) -> Result<Reserved, Error> {
    match try_reserve(db, keys, LOCK_TIMEOUT_MANY).await {
        Ok(keys) => return Ok(Reserved { keys, ..Reserved::default() }),
        Err(error) if repair_error(&error).is_some() => {}
        Err(error) => return Err(error),
    }
    let mut reserved = Reserved::default();
    for key in keys {
        match reserve_one(db, key).await {
            Ok(keys) => reserved.keys.extend(keys),
            Err(error) => match repair_error(&error) {
                Some(RepairError::Locked) => drop(reserved.locked.insert(key.clone())),
                Some(RepairError::Refused(reason)) => {
                    drop(reserved.refused.insert(key.clone(), reason));
                }
                None => return Err(error),
            },
        }
    }
    Ok(reserved)
}

/// Reserves one key. Another audit may insert the same sentinel at the same moment. That is a conflict
/// on the hash, which `ON CONFLICT (s3_key)` does not cover; a second attempt finds the sentinel.
async fn reserve_one(db: &mut Client, key: &String) -> Result<HashSet<String>, Error> {
    let key = std::slice::from_ref(key);
    match try_reserve(db, key, LOCK_TIMEOUT_ONE).await {
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            try_reserve(db, key, LOCK_TIMEOUT_ONE).await
        }
        reserved => reserved,
    }
}

async fn try_reserve(
    db: &mut Client,
    keys: &[String],
    lock_timeout: &str,
) -> Result<HashSet<String>, Error> {
    let transaction = db.transaction().await?;
    transaction.batch_execute(lock_timeout).await?;
    transaction.execute(SENTINEL, &[&keys]).await?;
    // Includes the sentinels of earlier audits.
    let rows = transaction.query(SENTINELS, &[&keys]).await?;
    transaction.commit().await?;
    Ok(rows.iter().map(|row| row.get("s3_key")).collect())
}
