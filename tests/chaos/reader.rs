//! Readers that fetch live pastes and compare their bytes, and an auditor that repeatedly checks
//! all tables in one snapshot.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_sdk_s3::error::ProvideErrorMetadata;
use sha2::{Digest, Sha256};
use tokio::time::sleep;
use tokio_postgres::{Client, Row};

use crate::{environment::Environment, support::try_connect};

/// Some live pastes. Not by now(), which is older than the snapshot if the statement waited for a lock.
const LIVE: &str = "
    SELECT p.short_code, p.content_hash, c.s3_key
    FROM pastes p LEFT JOIN content c USING (content_hash)
    WHERE (p.expires_at IS NULL OR p.expires_at > clock_timestamp())
      AND hashtext(p.short_code || $1) % 16 = 0
    LIMIT 20";
/// Zero rows: the paste is not live any more, or has other content.
const STILL: &str = "
    SELECT FROM pastes p JOIN content c USING (content_hash)
    WHERE p.short_code = $1 AND p.content_hash = $2 AND c.s3_key = $3
      AND (p.expires_at IS NULL OR p.expires_at > clock_timestamp())";
const AUDIT: &str = include_str!("audit.sql");
/// How often to fetch an object again before it counts as lost.
const FETCHES: usize = 20;
/// On a busy machine SeaweedFS may not find an object for this long after its start.
const STEADY_AFTER: Duration = Duration::from_secs(30);

/// Counts the checks.
#[derive(Default)]
pub(crate) struct Checks {
    pub reads: AtomicU64,
    pub audits: AtomicU64,
}

/// What S3 has under a key.
#[derive(PartialEq)]
enum Found {
    Body(Vec<u8>),
    Missing,
    /// S3 is unavailable, so nothing is known about the object.
    NoAnswer,
}

/// Reads until the task is dropped.
pub(crate) async fn read(env: Arc<Environment>, checks: Arc<Checks>, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    loop {
        let Some(db) = try_connect(&env.store.database_url).await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        while let Ok(rows) = db.query(LIVE, &[&rng.u32(..).to_string()]).await {
            for row in rows {
                let compared = read_one(&env, &db, &row).await;
                checks.reads.fetch_add(u64::from(compared), Relaxed);
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Reads and compares one paste. Returns false if nothing was compared: S3 was unavailable, or the paste
/// had expired.
async fn read_one(env: &Environment, db: &Client, row: &Row) -> bool {
    let (code, hash, key): (&str, Option<Vec<u8>>, Option<&str>) =
        (row.get(0), row.get(1), row.get(2));
    let (Some(hash), Some(key)) = (hash, key) else {
        env.record_violation(format!("live paste {code} has no content"));
        return true;
    };
    let right = |found: &Found| match found {
        Found::Body(body) => Sha256::digest(body).to_vec() == hash,
        Found::Missing => false,
        Found::NoAnswer => true,
    };
    let first = fetch(env, key).await;
    if right(&first) {
        return first != Found::NoAnswer;
    }
    // A lost object stays lost, also after its paste has expired. So it is enough that the paste was live
    // once after S3 did not have the object: its row was read before and after, and keys are not reused.
    let (mut again, mut was_live) = (first, false);
    for _ in 0..FETCHES {
        let is_steady;
        (again, is_steady) = fetch_with_age(env, key).await;
        if right(&again) {
            return again != Found::NoAnswer;
        }
        let is_live = match db.query_opt(STILL, &[&code, &hash, &key]).await {
            Ok(row) => row.is_some(),
            Err(_) => return false,
        };
        if !is_live && !was_live {
            return false;
        }
        was_live |= is_live && is_steady;
        sleep(Duration::from_secs(1)).await;
    }
    let what = if again == Found::Missing { "is missing" } else { "has other bytes" };
    env.record_violation(format!("the object {key} of live paste {code} {what}"));
    true
}

/// Fetches an object, but not while SeaweedFS restarts. Returns also whether its last start was long ago.
async fn fetch_with_age(env: &Environment, key: &str) -> (Found, bool) {
    let seaweedfs = env.seaweedfs.lock().await;
    (fetch(env, key).await, seaweedfs.started.elapsed() >= STEADY_AFTER)
}

async fn fetch(env: &Environment, key: &str) -> Found {
    let store = &env.store;
    match store.s3.get_object().bucket(&store.bucket).key(key).send().await {
        Ok(answer) => match answer.body.collect().await {
            Ok(body) => Found::Body(body.into_bytes().to_vec()),
            Err(_) => Found::NoAnswer,
        },
        Err(error) if error.code() == Some("NoSuchKey") => Found::Missing,
        Err(_) => Found::NoAnswer,
    }
}

/// Checks all tables twice a second until the task is dropped.
pub(crate) async fn audit(env: Arc<Environment>, checks: Arc<Checks>) {
    loop {
        let Some(db) = try_connect(&env.store.database_url).await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        while let Ok(rows) = db.query(AUDIT, &[]).await {
            rows.iter().for_each(|row| env.record_violation(row.get(0)));
            checks.audits.fetch_add(1, Relaxed);
            sleep(Duration::from_millis(500)).await;
        }
    }
}
