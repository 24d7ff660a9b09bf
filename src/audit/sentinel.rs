//! The sentinel: a content row that nobody references and that keeps a key for good.
//!
//! An object that no row knows may belong to a writer who has uploaded it and not committed yet,
//! however old it looks. Inserting a row with its key resolves it, for keys are unique in content:
//!
//! - The writer's row is there, uncommitted: the insert waits. It commits: nothing is inserted, the
//!   object is a live body, and stays. It rolls back: the sentinel is in.
//! - The writer has not come that far: the sentinel is in, and the writer's insert fails with a
//!   unique violation (23505) whenever it comes. The contract says: upload again under a fresh key.
//!
//! Only after the sentinel's commit the object is deleted. Whoever ends in between leaves an object
//! that only a sentinel knows, and the next audit finds it; so does it find an upload that arrives
//! late. Between the look at the tables and the sentinel a body can be stored *and* decremented again:
//! deleting what is unreferenced would do no harm, but would be called an orphan, so tables and bucket are
//! asked once more, under the sentinel's protection.

use std::collections::{HashMap, HashSet};

use tokio_postgres::{Client, Error, error::SqlState};

use super::error::{ALONE, RepairError, TOGETHER, repair_error};

pub(super) const SENTINEL: &str = sql!("audit/sentinel");
pub(super) const SENTINELS: &str = sql!("audit/sentinels");

/// What became of the keys. What is in none of these is a body by now.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// A sentinel keeps them: their objects may go.
    pub keys: HashSet<String>,
    /// In the hands of a writer at this moment.
    pub held: HashSet<String>,
    /// Postgres takes no row with such a key, and says why.
    pub refused: HashMap<String, String>,
}

pub(super) async fn keep(db: &mut Client, keys: &[String]) -> Result<Kept, Error> {
    match try_keep(db, keys, TOGETHER).await {
        Ok(keys) => return Ok(Kept { keys, ..Kept::default() }),
        Err(error) if repair_error(&error).is_some() => {}
        Err(error) => return Err(error),
    }
    let mut kept = Kept::default();
    for key in keys {
        match keep_one(db, key).await {
            Ok(keys) => kept.keys.extend(keys),
            Err(error) => match repair_error(&error) {
                Some(RepairError::Held) => drop(kept.held.insert(key.clone())),
                Some(RepairError::Refused(reason)) => {
                    drop(kept.refused.insert(key.clone(), reason))
                }
                None => return Err(error),
            },
        }
    }
    Ok(kept)
}

/// Another audit may insert the same sentinel at this moment: its hash is unique, too, and only a
/// key that is there already is passed by. Then it is there when asked again.
async fn keep_one(db: &mut Client, key: &String) -> Result<HashSet<String>, Error> {
    let key = std::slice::from_ref(key);
    match try_keep(db, key, ALONE).await {
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            try_keep(db, key, ALONE).await
        }
        kept => kept,
    }
}

async fn try_keep(db: &mut Client, keys: &[String], wait: &str) -> Result<HashSet<String>, Error> {
    let transaction = db.transaction().await?;
    transaction.batch_execute(wait).await?;
    transaction.execute(SENTINEL, &[&keys]).await?;
    // Also those of earlier audits.
    let rows = transaction.query(SENTINELS, &[&keys]).await?;
    transaction.commit().await?;
    Ok(rows.iter().map(|row| row.get("s3_key")).collect())
}
