//! The sentinel: a content row that nobody references and that keeps a key for good.
//!
//! An object that no row knows may belong to a writer who has uploaded it and not committed yet,
//! however old it looks. Inserting a row with its key settles it, for keys are unique in content:
//!
//! - The writer's row is there, uncommitted: the insert waits. It commits: nothing is inserted, the
//!   object is a live body, and stays. It rolls back: the sentinel is in.
//! - The writer has not come that far: the sentinel is in, and the writer's insert fails with a
//!   unique violation (23505) whenever it comes. The contract says: upload again under a fresh key.
//!
//! Only after the sentinel's commit the object is deleted. Whoever ends in between leaves an object
//! that only a sentinel knows, and the next audit finds it; so does it find an upload that arrives
//! late. Between the look at the tables and the sentinel a body can be stored *and* released again:
//! deleting what is doomed would do no harm, but would be called an orphan, so tables and bucket are
//! asked once more, under the sentinel's protection.

use std::collections::HashSet;

use tokio_postgres::{Client, Error};

use super::error::is_held;

const SENTINEL: &str = include_str!("../../sql/queries/audit_sentinel.sql");
const SENTINELS: &str = include_str!("../../sql/queries/audit_sentinels.sql");
/// Less than Postgres' deadlock_timeout: holding some keys and waiting for others, we give up before
/// a writer with several puts in a transaction is chosen as the victim.
const TOGETHER: &str = "SET LOCAL lock_timeout = '200ms'";
/// Alone it holds nothing while it waits.
const ALONE: &str = "SET LOCAL lock_timeout = '1s'";

/// What became of the keys. What is in neither is a body by now.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// A sentinel keeps them: their objects may go.
    pub keys: HashSet<String>,
    /// In the hands of a writer at this moment.
    pub held: HashSet<String>,
}

pub(super) async fn keep(db: &mut Client, keys: &[String]) -> Result<Kept, Error> {
    match try_keep(db, keys, TOGETHER).await {
        Ok(keys) => return Ok(Kept { keys, ..Kept::default() }),
        Err(error) if is_held(&error) => {}
        Err(error) => return Err(error),
    }
    let mut kept = Kept::default();
    for key in keys {
        match try_keep(db, std::slice::from_ref(key), ALONE).await {
            Ok(keys) => kept.keys.extend(keys),
            Err(error) if is_held(&error) => drop(kept.held.insert(key.clone())),
            Err(error) => return Err(error),
        }
    }
    Ok(kept)
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
