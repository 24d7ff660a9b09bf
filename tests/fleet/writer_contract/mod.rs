//! The contract for the paste service: put, extend, expire now, and the trigger that guards them.

mod concurrent;
mod expiry;
mod guard;
mod put;

use crate::support::*;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error, Row, error::SqlState};

const PUT: &str = include_str!("../../../sql/queries/ctl/put_paste.sql");

/// What `paste_put` returned.
#[derive(Debug, PartialEq)]
struct PutResult {
    outcome: String,
    s3_key: Option<String>,
    drop_upload: bool,
}

impl From<&Row> for PutResult {
    fn from(row: &Row) -> Self {
        Self {
            outcome: row.get("outcome"),
            s3_key: row.get("s3_key"),
            drop_upload: row.get("drop_upload"),
        }
    }
}

fn put_result(outcome: &str, s3_key: Option<&str>, drop_upload: bool) -> PutResult {
    PutResult { outcome: outcome.into(), s3_key: s3_key.map(Into::into), drop_upload }
}

/// Puts a paste that lives for another hour; no object is uploaded.
async fn try_put(
    db: &Client,
    code: &str,
    body: &str,
    key: Option<&str>,
) -> Result<PutResult, Error> {
    let row = db.query_one(PUT, &[&code, &hash(body), &key, &10_i64, &3600.0]).await?;
    Ok(PutResult::from(&row))
}

async fn put(db: &Client, code: &str, body: &str, key: Option<&str>) -> PutResult {
    try_put(db, code, body, key).await.expect("paste_put")
}

async fn extend(db: &Client, code: &str) -> bool {
    let extend = "SELECT paste_extend($1, now() + interval '1 day')";
    db.query_one(extend, &[&code]).await.expect("paste_extend").get(0)
}

async fn expire_now(db: &Client, code: &str) -> bool {
    db.query_one("SELECT paste_expire_now($1)", &[&code]).await.expect("expire now").get(0)
}

async fn ref_count(world: &World, body: &str) -> Option<i32> {
    let sql = "SELECT ref_count FROM content WHERE content_hash = $1";
    let row = world.db.query_opt(sql, &[&hash(body)]).await.expect("ref_count");
    row.map(|row| row.get(0))
}

/// Asserts that the statement is refused with this SQLSTATE.
async fn assert_refused(world: &World, state: &SqlState, sql: &str) {
    let refused = world.db.batch_execute(sql).await.expect_err(sql);
    assert_eq!(refused.code(), Some(state), "{sql}: {refused:?}");
}

/// Runs a job on its own connection, and returns once the job waits for a lock.
async fn until_it_waits<T: Send + 'static, F>(
    world: &World,
    job: impl FnOnce(Client) -> F,
) -> JoinHandle<T>
where
    F: Future<Output = T> + Send + 'static,
{
    let db = connect(&world.database_url).await;
    let pid: i32 = db.query_one("SELECT pg_backend_pid()", &[]).await.expect("pid").get(0);
    let job = tokio::spawn(job(db));
    let blocked = format!("SELECT cardinality(pg_blocking_pids({pid})) > 0");
    world.until("the job waits for a lock", &blocked).await;
    job
}
