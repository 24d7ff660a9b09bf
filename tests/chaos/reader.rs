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

/// Some pastes that will still be live when they have been read.
const LIVE: &str = "
    SELECT p.short_code, p.content_hash, c.s3_key
    FROM pastes p LEFT JOIN content c USING (content_hash)
    WHERE (p.expires_at IS NULL OR p.expires_at > now() + interval '5 seconds')
      AND hashtext(p.short_code || $1) % 16 = 0
    LIMIT 20";
const STILL: &str = "
    SELECT FROM pastes p JOIN content c USING (content_hash)
    WHERE p.short_code = $1 AND p.content_hash = $2 AND c.s3_key = $3
      AND (p.expires_at IS NULL OR p.expires_at > now())";
const AUDIT: &str = include_str!("audit.sql");
/// How often to fetch an object again before it counts as lost.
const FETCHES: usize = 20;

/// Counts the checks.
#[derive(Default)]
pub struct Checks {
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
pub async fn read(env: Arc<Environment>, checks: Arc<Checks>, seed: u64) {
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

/// Reads and compares one paste. Returns false if S3 was unavailable and nothing was compared.
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
    // SeaweedFS may not find an object right after its start on a busy machine. A lost object stays
    // lost.
    let mut again = first;
    for _ in 0..FETCHES {
        sleep(Duration::from_secs(1)).await;
        again = fetch(env, key).await;
        if right(&again) {
            return again != Found::NoAnswer;
        }
    }
    if let Ok(Some(_)) = db.query_opt(STILL, &[&code, &hash, &key]).await {
        let what = if again == Found::Missing { "is missing" } else { "has other bytes" };
        env.record_violation(format!("the object {key} of live paste {code} {what}"));
    }
    true
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
pub async fn audit(env: Arc<Environment>, checks: Arc<Checks>) {
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
