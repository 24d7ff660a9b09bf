//! The end of a soak: without faults, a clean worker drains the rest, and everything is checked.

use std::{path::Path, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::{
    environment::Environment,
    journal::Journals,
    owner,
    report::FORBIDDEN_MESSAGES,
    support::{
        connect,
        invariants::{Expected, Findings},
    },
};

/// Usually seconds; a busy machine may need minutes.
const DRAINS_WITHIN: Duration = Duration::from_secs(300);
/// Expires all pastes that have an expiry time, instead of waiting for it.
const EXPIRE: &str = "SELECT count(*) FROM (SELECT paste_expire_now(short_code) FROM pastes
                      WHERE expires_at > now() AND deletion_status = 'NOT_EXPIRED') AS expired";
const DEAD_LETTERS: &str = "SELECT count(*) FROM pastes WHERE retry_at = 'infinity'";
/// What an operator does after fixing the cause.
const REQUEUE: &str = "UPDATE pastes SET retry_at = NULL, attempts = 0
                       WHERE retry_at = 'infinity' AND deletion_status = 'NOT_EXPIRED'";
const LEFT: &str = "SELECT (SELECT count(*) FROM pastes WHERE expires_at <= now()
                              AND deletion_status <> 'DELETED')
                         + (SELECT count(*) FROM deletion_claims
                            WHERE finished_at IS NULL AND reset_at IS NULL)";
const EVER_STORED: &str = "SELECT DISTINCT s3_key FROM chaos_content";

/// While the owner refuses some pastes, all others must still be deleted.
pub(crate) async fn drain_deletable(env: &Arc<Environment>) {
    let db = connect(&env.store.database_url).await;
    owner::end_transactions(env).await;
    number(&db, EXPIRE).await;
    let give_up = Instant::now() + DRAINS_WITHIN;
    loop {
        // Some became dead letters because S3 refused their keys, or died with their worker.
        for row in db.query(owner::UNEXPLAINED, &[]).await.expect("dead letters") {
            let (code, error): (&str, Option<&str>) = (row.get(0), row.get(1));
            env.record_violation(format!(
                "paste {code:?}, which the owner does not refuse, became a dead letter: {error:?}"
            ));
        }
        db.execute(owner::REQUEUE_DELETABLE, &[]).await.expect("requeue");
        env.program("cleanup-worker").args(&["run"]).output().await;
        let deletable = number(&db, owner::DELETABLE).await;
        match deletable {
            0 => return,
            left if Instant::now() >= give_up => {
                return env.record_violation(format!(
                    "{left} expired pastes that the owner does not refuse are left"
                ));
            }
            _ => sleep(Duration::from_millis(300)).await,
        }
    }
}

/// Drains everything with clean workers. Returns how many dead letters had to be requeued.
pub(crate) async fn drain(env: &Arc<Environment>) -> i64 {
    let db = connect(&env.store.database_url).await;
    number(&db, EXPIRE).await;
    let mut dead_letters = 0;
    let give_up = Instant::now() + DRAINS_WITHIN;
    while number(&db, LEFT).await > 0 {
        dead_letters += number(&db, DEAD_LETTERS).await;
        db.execute(REQUEUE, &[]).await.expect("requeue");
        run_a_clean_worker(env).await;
        if Instant::now() >= give_up {
            env.record_violation(format!(
                "without faults, expired pastes or open claims are left after {DRAINS_WITHIN:?}"
            ));
            break;
        }
        // The claims of killed workers are reset only after their leases have expired.
        sleep(Duration::from_millis(300)).await;
    }
    dead_letters
}

/// A run without faults drains everything. Only a killed worker may still have claims, until its lease
/// expires.
async fn run_a_clean_worker(env: &Environment) {
    let worker = env.program("cleanup-worker");
    let ended = worker.args(&["run", "--batch-size", "400", "--format", "json"]).output().await;
    let stderr = ended.stderr();
    let is_early = ended.code() == 3 && ended.json()["stopped_because"] == "dead_worker";
    let failed = ended.code() != 0 && !is_early;
    if failed || FORBIDDEN_MESSAGES.iter().any(|message| stderr.contains(message)) {
        env.record_violation(format!("a clean worker ended with {}: {stderr}", ended.code()));
    }
}

async fn number(db: &Client, sql: &str) -> i64 {
    db.query_one(sql, &[]).await.expect(sql).get(0)
}

/// Reads all journals of the writers.
pub(crate) fn journals(output_dir: &Path) -> Journals {
    let mut journals = Journals::default();
    for file in std::fs::read_dir(output_dir).expect("journals").flatten() {
        if file.path().extension().is_some_and(|extension| extension == "journal") {
            journals.read(&file.path());
        }
    }
    journals
}

/// Checks every guarantee. An orphan object is allowed only if its writer could not know the
/// outcome of its put, and no content row ever had that key.
pub(crate) async fn check(env: &Environment, journals: &Journals) -> Findings {
    let db = connect(&env.store.database_url).await;
    let stored = db.query(EVER_STORED, &[]).await.expect("ever stored");
    let mut in_doubt = journals.in_doubt.clone();
    for row in stored {
        in_doubt.remove(row.get::<_, &str>(0));
    }
    let expected = Expected { alive: journals.alive.clone(), in_doubt, ..Expected::default() };
    for row in db.query(include_str!("audit.sql"), &[]).await.expect("audit") {
        env.record_violation(row.get(0));
    }
    env.store.check(&expected).await
}
