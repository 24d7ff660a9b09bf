//! Somebody who owns the tables, and has habits: tables that refer to pastes, triggers that refuse some
//! rows, forgotten transactions, renames, bulk loads, rewrites of whole tables.

use std::{io::Cursor, time::Duration};

use futures_util::SinkExt;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::{
    plan::Kind,
    stage::Stage,
    support::{connect, try_connect},
};

/// Expired pastes that nothing of the owner's refuses to delete.
pub const INNOCENT: &str = "SELECT count(*) FROM pastes
    WHERE expires_at <= now() AND deletion_status <> 'DELETED' AND NOT owner_refuses(short_code)";
pub const REQUEUE_INNOCENT: &str = "UPDATE pastes SET retry_at = NULL, attempts = 0
    WHERE retry_at = 'infinity' AND deletion_status = 'NOT_EXPIRED' AND NOT owner_refuses(short_code)";
/// One of these is locked.
const LOCKS: [&str; 3] = [
    "SELECT FROM content ORDER BY random() LIMIT 1 FOR UPDATE",
    "SELECT FROM pastes WHERE expires_at IS NOT NULL ORDER BY random() LIMIT 3 FOR UPDATE",
    "INSERT INTO comments SELECT short_code FROM pastes ORDER BY random() LIMIT 1",
];
/// Not those that are promised to live: their writers know them by their codes.
const RENAME: &str = "UPDATE pastes SET short_code = short_code || '~'
    WHERE short_code IN (SELECT short_code FROM pastes
                         WHERE deletion_status = 'NOT_EXPIRED' AND expires_at IS NOT NULL
                         ORDER BY random() LIMIT 5 FOR UPDATE SKIP LOCKED)";
const LOAD: &str = "COPY pastes (short_code, expires_at) FROM STDIN";
const REWRITES: [&str; 4] =
    ["VACUUM FULL pastes", "VACUUM FULL content", "REINDEX TABLE pastes", "REINDEX TABLE content"];
const TIMEOUT: Duration = Duration::from_secs(20);
const PREPARED: &str = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()";

/// Before the fleet starts.
pub async fn move_in(database_url: &str) {
    connect(database_url).await.batch_execute(include_str!("owner.sql")).await.expect("owner.sql");
}

/// Refuses nothing any more.
pub async fn relent(stage: &Stage) {
    let db = connect(&stage.store.database_url).await;
    let relent = "DROP TRIGGER owner_refuses ON pastes; DELETE FROM invoices";
    db.batch_execute(relent).await.expect("relent");
}

/// Not as a fault: all transactions that were forgotten come to their end.
pub async fn end_transactions(stage: &Stage) {
    let db = connect(&stage.store.database_url).await;
    for row in db.query(PREPARED, &[]).await.expect("prepared transactions") {
        let end = format!("ROLLBACK PREPARED '{}'", row.get::<_, &str>(0));
        db.batch_execute(&end).await.expect("roll back");
    }
}

/// With limits of its own: a lock that cannot be had is not waited for until the end of the soak.
async fn session(stage: &Stage) -> Option<Client> {
    let db = try_connect(&stage.store.database_url).await?;
    db.batch_execute("SET lock_timeout = '3s'; SET statement_timeout = '20s'").await.ok()?;
    Some(db)
}

/// Again and again, if need be: other faults may be in the way of this one.
pub async fn insist(stage: &Stage, kind: Kind, rng: &mut fastrand::Rng, lasts: Duration) -> bool {
    let give_up = Instant::now() + TIMEOUT;
    loop {
        let done = match kind {
            Kind::OwnerLocks => forget_a_transaction(stage, rng, lasts).await,
            Kind::OwnerPrepares => forget_a_prepared_one(stage, rng, lasts).await,
            Kind::OwnerRenames => rename(stage).await,
            Kind::OwnerLoads => load(stage, rng).await,
            Kind::OwnerRewrites => rewrite(stage, rng).await,
            other => unreachable!("{other:?} is no habit of an owner"),
        };
        if done || Instant::now() >= give_up {
            return done;
        }
        sleep(Duration::from_millis(300)).await;
    }
}

async fn forget_a_transaction(stage: &Stage, rng: &mut fastrand::Rng, lasts: Duration) -> bool {
    let Some(db) = session(stage).await else {
        return false;
    };
    let lock = LOCKS[rng.usize(..LOCKS.len())];
    let held = db.batch_execute(&format!("BEGIN; {lock}")).await.is_ok();
    if held {
        // Longer than a lock is waited for, now and then.
        sleep(lasts * 3).await;
    }
    held
}

async fn forget_a_prepared_one(stage: &Stage, rng: &mut fastrand::Rng, lasts: Duration) -> bool {
    let Some(db) = session(stage).await else {
        return false;
    };
    let (lock, gid) = (LOCKS[rng.usize(..LOCKS.len())], format!("owner-{}", rng.u64(..)));
    let held = db.batch_execute(&format!("BEGIN; {lock}; PREPARE TRANSACTION '{gid}'")).await;
    drop(db);
    if held.is_ok() {
        sleep(lasts * 3).await;
    }
    // It is there as long as nobody ends it, whatever happened to the server meanwhile.
    while let Some(db) = session(stage).await {
        if db.batch_execute(&format!("ROLLBACK PREPARED '{gid}'")).await.is_ok() || held.is_err() {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    held.is_ok()
}

async fn rename(stage: &Stage) -> bool {
    match session(stage).await {
        Some(db) => db.execute(RENAME, &[]).await.is_ok_and(|renamed| renamed > 0),
        None => false,
    }
}

/// Pastes without content that have expired already.
async fn load(stage: &Stage, rng: &mut fastrand::Rng) -> bool {
    let (number, rows) = (rng.u64(..), rng.u32(50..200));
    let lines = (0..rows).map(|row| format!("loaded-{number}-{row}\t2020-01-01 00:00:00+00\n"));
    let lines: String = lines.collect();
    let Some(db) = session(stage).await else {
        return false;
    };
    let Ok(sink) = db.copy_in::<_, Cursor<String>>(LOAD).await else {
        return false;
    };
    let mut sink = std::pin::pin!(sink);
    sink.send(Cursor::new(lines)).await.is_ok() && sink.finish().await.is_ok()
}

async fn rewrite(stage: &Stage, rng: &mut fastrand::Rng) -> bool {
    let rewrite = REWRITES[rng.usize(..REWRITES.len())];
    match session(stage).await {
        Some(db) => db.batch_execute(rewrite).await.is_ok(),
        None => false,
    }
}
