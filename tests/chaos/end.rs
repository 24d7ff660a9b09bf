//! The end of a soak: no more faults, a clean fleet drains what is left, and everything is checked.

use std::{path::Path, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::{
    journal::Beliefs,
    owner,
    report::FORBIDDEN,
    stage::Stage,
    support::{
        connect,
        invariants::{Expected, Findings},
    },
};

const DRAINS_WITHIN: Duration = Duration::from_secs(45);
/// What a writer gave a time to live ends now, so that there is something to wait for.
const EXPIRE: &str = "SELECT count(*) FROM (SELECT paste_expire_now(short_code) FROM pastes
                      WHERE expires_at > now() AND deletion_status = 'NOT_EXPIRED') AS expired";
const DEAD_LETTERS: &str = "SELECT count(*) FROM pastes WHERE retry_at = 'infinity'";
/// What a person does who has fixed the cause.
const REQUEUE: &str = "UPDATE pastes SET retry_at = NULL, attempts = 0
                       WHERE retry_at = 'infinity' AND deletion_status = 'NOT_EXPIRED'";
const LEFT: &str = "SELECT (SELECT count(*) FROM pastes WHERE expires_at <= now()
                              AND deletion_status <> 'DELETED')
                         + (SELECT count(*) FROM deletion_claims
                            WHERE finished_at IS NULL AND reset_at IS NULL)";
const EVER_KNOWN: &str = "SELECT DISTINCT s3_key FROM chaos_incarnations";

/// As long as the owner refuses some pastes, all others go.
pub async fn erase_the_innocent(stage: &Arc<Stage>) {
    let db = connect(&stage.store.database_url).await;
    owner::end_transactions(stage).await;
    number(&db, EXPIRE).await;
    let give_up = Instant::now() + DRAINS_WITHIN;
    loop {
        // S3 refused their keys long enough.
        db.execute(owner::REQUEUE_INNOCENT, &[]).await.expect("requeue");
        stage.program("cleanup-worker").args(&["run"]).output().await;
        let innocent = number(&db, owner::INNOCENT).await;
        match innocent {
            0 => return,
            left if Instant::now() >= give_up => {
                return stage.accuse(format!("{left} innocent pastes are left beside the refused"));
            }
            _ => sleep(Duration::from_millis(300)).await,
        }
    }
}

/// Lets a clean worker drain everything; returns how many dead letters a person had to requeue.
pub async fn drain(stage: &Arc<Stage>) -> i64 {
    let db = connect(&stage.store.database_url).await;
    number(&db, EXPIRE).await;
    let mut dead_letters = 0;
    let give_up = Instant::now() + DRAINS_WITHIN;
    while number(&db, LEFT).await > 0 {
        dead_letters += number(&db, DEAD_LETTERS).await;
        db.execute(REQUEUE, &[]).await.expect("requeue");
        run_a_clean_worker(stage).await;
        if Instant::now() >= give_up {
            stage.accuse(format!(
                "nothing is wrong any more, and yet {DRAINS_WITHIN:?} are not enough"
            ));
            break;
        }
        // Claims of workers that were killed are not due before their lease has expired.
        sleep(Duration::from_millis(300)).await;
    }
    dead_letters
}

async fn run_a_clean_worker(stage: &Stage) {
    let worker = stage.program("cleanup-worker").args(&["run", "--batch-size", "400"]);
    let ended = worker.output().await;
    let stderr = ended.stderr();
    if ended.code() != 0 || FORBIDDEN.iter().any(|sentence| stderr.contains(sentence)) {
        stage.accuse(format!("a clean worker ended with {}: {stderr}", ended.code()));
    }
}

async fn number(db: &Client, sql: &str) -> i64 {
    db.query_one(sql, &[]).await.expect(sql).get(0)
}

/// All that the writers' journals say.
pub fn beliefs(kept: &Path) -> Beliefs {
    let mut beliefs = Beliefs::default();
    for file in std::fs::read_dir(kept).expect("journals").flatten() {
        if file.path().extension().is_some_and(|extension| extension == "journal") {
            beliefs.read(&file.path());
        }
    }
    beliefs
}

/// Every promise, checked by the one checker. An object that nobody knows is forgiven only if its
/// writer could not know what became of it, and no content row ever knew it.
pub async fn check(stage: &Stage, beliefs: &Beliefs) -> Findings {
    let db = connect(&stage.store.database_url).await;
    let known = db.query(EVER_KNOWN, &[]).await.expect("ever known");
    let mut in_doubt = beliefs.in_doubt.clone();
    for row in known {
        in_doubt.remove(row.get::<_, &str>(0));
    }
    let expected = Expected { alive: beliefs.alive.clone(), in_doubt, ..Expected::default() };
    for row in db.query(include_str!("audit.sql"), &[]).await.expect("audit") {
        stage.accuse(row.get(0));
    }
    stage.store.check(&expected).await
}
