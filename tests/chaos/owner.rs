//! The owner of the tables: its own tables that reference pastes, triggers that refuse some
//! deletes, forgotten transactions, renames, bulk loads, rewrites of whole tables.

use std::{io::Cursor, time::Duration};

use futures_util::SinkExt;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::{
    environment::Environment,
    plan::Kind,
    support::{connect, try_connect},
};

/// Counts the expired pastes that the owner does not refuse to delete.
pub(crate) const DELETABLE: &str = "SELECT count(*) FROM pastes
    WHERE expires_at <= now() AND deletion_status <> 'DELETED' AND NOT owner_refuses(short_code)";
/// Dead letters that neither the owner, nor S3, nor the death of their workers can have caused.
pub(crate) const UNEXPLAINED: &str = "SELECT short_code, last_error FROM pastes
    WHERE retry_at = 'infinity' AND NOT owner_refuses(short_code)
      AND (starts_with(last_error, 'S3 ') OR starts_with(last_error, 'worker lease expired')) IS NOT TRUE";
pub(crate) const REQUEUE_DELETABLE: &str = "UPDATE pastes SET retry_at = NULL, attempts = 0
    WHERE retry_at = 'infinity' AND deletion_status = 'NOT_EXPIRED' AND NOT owner_refuses(short_code)";
/// Statements that take locks; a transaction runs one of them.
const LOCKS: [&str; 3] = [
    "SELECT FROM content ORDER BY random() LIMIT 1 FOR UPDATE",
    "SELECT FROM pastes WHERE expires_at IS NOT NULL ORDER BY random() LIMIT 3 FOR UPDATE",
    "INSERT INTO comments SELECT short_code FROM pastes ORDER BY random() LIMIT 1",
];
/// Renames only pastes with an expiry time: the checker knows the others by their codes.
const RENAME: &str = "UPDATE pastes SET short_code = short_code || '~'
    WHERE short_code IN (SELECT short_code FROM pastes
                         WHERE deletion_status = 'NOT_EXPIRED' AND expires_at IS NOT NULL
                         ORDER BY random() LIMIT 5 FOR UPDATE SKIP LOCKED)";
const LOAD: &str = "COPY pastes (short_code, expires_at) FROM STDIN";
const REWRITES: [&str; 4] =
    ["VACUUM FULL pastes", "VACUUM FULL content", "REINDEX TABLE pastes", "REINDEX TABLE content"];
const TIMEOUT: Duration = Duration::from_secs(120);
const PREPARED: &str = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()";

/// Creates the owner's tables and triggers, before the fleet starts.
pub(crate) async fn create_tables(database_url: &str) {
    connect(database_url).await.batch_execute(include_str!("owner.sql")).await.expect("owner.sql");
}

/// Drops everything that refuses deletes.
pub(crate) async fn stop_refusing(env: &Environment) {
    let db = connect(&env.store.database_url).await;
    let stop_refusing = "DROP TRIGGER owner_refuses ON pastes; DELETE FROM invoices";
    db.batch_execute(stop_refusing).await.expect("relent");
}

/// Rolls back all prepared transactions that are left after the faults.
pub(crate) async fn end_transactions(env: &Environment) {
    let db = connect(&env.store.database_url).await;
    for row in db.query(PREPARED, &[]).await.expect("prepared transactions") {
        let end = format!("ROLLBACK PREPARED '{}'", row.get::<_, &str>(0));
        db.batch_execute(&end).await.expect("roll back");
    }
}

/// Opens a session with timeouts, so that it does not wait for a lock until the end of the soak.
async fn session(env: &Environment) -> Option<Client> {
    let db = try_connect(&env.store.database_url).await?;
    db.batch_execute("SET lock_timeout = '3s'; SET statement_timeout = '20s'").await.ok()?;
    Some(db)
}

/// Carries out one of the owner's faults. Retries it, since other faults can interfere.
pub(crate) async fn apply(
    env: &Environment,
    kind: Kind,
    rng: &mut fastrand::Rng,
    lasts: Duration,
) -> bool {
    let give_up = Instant::now() + TIMEOUT;
    loop {
        let done = match kind {
            Kind::OwnerLocks => hold_transaction(env, rng, lasts).await,
            Kind::OwnerPrepares => hold_prepared_transaction(env, rng, lasts).await,
            Kind::OwnerRenames => rename(env).await,
            Kind::OwnerLoads => load(env, rng).await,
            Kind::OwnerRewrites => rewrite(env, rng).await,
            other => unreachable!("{other:?} is not a fault of the owner"),
        };
        if done || Instant::now() >= give_up {
            return done;
        }
        sleep(Duration::from_millis(300)).await;
    }
}

async fn hold_transaction(env: &Environment, rng: &mut fastrand::Rng, lasts: Duration) -> bool {
    let Some(db) = session(env).await else {
        return false;
    };
    let lock = LOCKS[rng.usize(..LOCKS.len())];
    let locked = db.batch_execute(&format!("BEGIN; {lock}")).await.is_ok();
    if locked {
        // Sometimes longer than the fleet waits for a lock.
        sleep(lasts * 3).await;
    }
    locked
}

async fn hold_prepared_transaction(
    env: &Environment,
    rng: &mut fastrand::Rng,
    lasts: Duration,
) -> bool {
    let Some(db) = session(env).await else {
        return false;
    };
    let (lock, gid) = (LOCKS[rng.usize(..LOCKS.len())], format!("owner-{}", rng.u64(..)));
    let locked = db.batch_execute(&format!("BEGIN; {lock}; PREPARE TRANSACTION '{gid}'")).await;
    drop(db);
    if locked.is_ok() {
        sleep(lasts * 3).await;
    }
    // It survives server crashes, so it must be rolled back explicitly.
    while let Some(db) = session(env).await {
        if db.batch_execute(&format!("ROLLBACK PREPARED '{gid}'")).await.is_ok() || locked.is_err()
        {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    locked.is_ok()
}

async fn rename(env: &Environment) -> bool {
    match session(env).await {
        Some(db) => db.execute(RENAME, &[]).await.is_ok_and(|renamed| renamed > 0),
        None => false,
    }
}

/// Loads expired pastes without content.
async fn load(env: &Environment, rng: &mut fastrand::Rng) -> bool {
    let (number, rows) = (rng.u64(..), rng.u32(50..200));
    let lines = (0..rows).map(|row| format!("loaded-{number}-{row}\t2020-01-01 00:00:00+00\n"));
    let lines: String = lines.collect();
    let Some(db) = session(env).await else {
        return false;
    };
    let Ok(sink) = db.copy_in::<_, Cursor<String>>(LOAD).await else {
        return false;
    };
    let mut sink = std::pin::pin!(sink);
    sink.send(Cursor::new(lines)).await.is_ok() && sink.finish().await.is_ok()
}

async fn rewrite(env: &Environment, rng: &mut fastrand::Rng) -> bool {
    let rewrite = REWRITES[rng.usize(..REWRITES.len())];
    match session(env).await {
        Some(db) => db.batch_execute(rewrite).await.is_ok(),
        None => false,
    }
}
