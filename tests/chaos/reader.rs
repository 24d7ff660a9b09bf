//! Readers that fetch live pastes and compare their bytes, and an auditor that looks at all tables
//! at once, again and again.

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

use crate::{stage::Stage, support::try_connect};

/// Some pastes that will still live when they have been read.
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
/// Before an object counts as lost.
const FETCHES: usize = 20;

/// What was looked at.
#[derive(Default)]
pub struct Looked {
    pub reads: AtomicU64,
    pub audits: AtomicU64,
}

/// What S3 has under a key.
#[derive(PartialEq)]
enum Found {
    Body(Vec<u8>),
    Missing,
    /// S3 is away: that says nothing about the object.
    NoAnswer,
}

/// Reads until the task is dropped.
pub async fn read(stage: Arc<Stage>, looked: Arc<Looked>, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    loop {
        let Some(db) = try_connect(&stage.store.database_url).await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        while let Ok(rows) = db.query(LIVE, &[&rng.u32(..).to_string()]).await {
            for row in rows {
                let compared = read_one(&stage, &db, &row).await;
                looked.reads.fetch_add(u64::from(compared), Relaxed);
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// False: S3 was away, so nothing was compared.
async fn read_one(stage: &Stage, db: &Client, row: &Row) -> bool {
    let (code, hash, key): (&str, Option<Vec<u8>>, Option<&str>) =
        (row.get(0), row.get(1), row.get(2));
    let (Some(hash), Some(key)) = (hash, key) else {
        stage.accuse(format!("live paste {code} has no body"));
        return true;
    };
    let right = |found: &Found| match found {
        Found::Body(body) => Sha256::digest(body).to_vec() == hash,
        Found::Missing => false,
        Found::NoAnswer => true,
    };
    let first = fetch(stage, key).await;
    if right(&first) {
        return first != Found::NoAnswer;
    }
    // A store that has just started on a busy machine may not have found it yet. What is really gone
    // stays gone.
    let mut again = first;
    for _ in 0..FETCHES {
        sleep(Duration::from_secs(1)).await;
        again = fetch(stage, key).await;
        if right(&again) {
            return again != Found::NoAnswer;
        }
    }
    if let Ok(Some(_)) = db.query_opt(STILL, &[&code, &hash, &key]).await {
        let what = if again == Found::Missing { "is missing" } else { "has other bytes" };
        stage.accuse(format!("the object {key} of live paste {code} {what}"));
    }
    true
}

async fn fetch(stage: &Stage, key: &str) -> Found {
    let store = &stage.store;
    match store.s3.get_object().bucket(&store.bucket).key(key).send().await {
        Ok(answer) => match answer.body.collect().await {
            Ok(body) => Found::Body(body.into_bytes().to_vec()),
            Err(_) => Found::NoAnswer,
        },
        Err(error) if error.code() == Some("NoSuchKey") => Found::Missing,
        Err(_) => Found::NoAnswer,
    }
}

/// Looks at everything twice a second until the task is dropped.
pub async fn audit(stage: Arc<Stage>, looked: Arc<Looked>) {
    loop {
        let Some(db) = try_connect(&stage.store.database_url).await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        while let Ok(rows) = db.query(AUDIT, &[]).await {
            rows.iter().for_each(|row| stage.accuse(row.get(0)));
            looked.audits.fetch_add(1, Relaxed);
            sleep(Duration::from_millis(500)).await;
        }
    }
}
