//! Whose fault is it? A row's own fault costs that row an attempt; the dependencies' costs nobody.

mod support;

use std::{sync::Arc, time::Duration};

use paste_cleanup::worker::{Worker, report::StoppedBecause};
use support::{
    faulty_s3::{FaultyS3, Mode},
    *,
};

/// A world whose worker talks to an S3 in a mood, and is soon tired of it.
async fn world_with(mood: Mode) -> (World, FaultyS3, Arc<Worker>) {
    let world = World::new().await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let worker = worker_within(&world, &s3, Duration::from_secs(1)).await;
    s3.set_mode(mood);
    (world, s3, worker)
}

async fn worker_within(world: &World, s3: &FaultyS3, deadline: Duration) -> Arc<Worker> {
    let change = |settings: &mut paste_cleanup::config::Settings| {
        settings.s3.endpoint = Some(s3.url.clone());
        settings.s3.deadline = deadline;
    };
    world.worker_with(change).await
}

fn refusing(text: String, code: &'static str) -> Mode {
    Mode::Refusing { text, code }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_s3_refuses_costs_only_its_own_row_an_attempt() {
    let (world, s3, worker) = world_with(Mode::Normal).await;
    for code in ["a", "held", "c"] {
        world.put(code, &format!("body of {code}"), Ago(60.0)).await;
    }
    let key = world
        .text(
            "SELECT s3_key FROM pastes JOIN content USING (content_hash) WHERE short_code = 'held'",
        )
        .await;
    let key = key.expect("key");
    s3.set_mode(refusing(key.clone(), "ObjectLocked"));
    let claim = claim_some(&worker, 10).await;
    carry_out(&worker, &claim).await;
    let failed = "SELECT pending_s3_key FROM pastes WHERE short_code = 'held' AND attempts = 1
                    AND deletion_status = 'NOT_EXPIRED' AND content_hash IS NULL
                    AND claim_id IS NULL AND retry_at > now() - interval '1 minute'
                    AND last_error = 'S3 ObjectLocked: no'";
    assert_eq!(world.text(failed).await, Some(key.clone()));
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 1, "the others are gone");
    world.assert_consistent().await;
    s3.set_mode(Mode::Normal);
    world.end_backoff().await;
    assert_eq!(drain(&worker).await.objects_deleted, 1);
    assert_eq!(world.object(&key).await, None);
    world.assert_drained().await;
}

/// A damaged object, or a part of the store that is away: such a key is neither deleted nor refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_keeps_failing_delays_no_other_row_and_costs_no_attempt() {
    let (world, s3, worker) = world_with(Mode::Normal).await;
    let key = world.put("damaged", "a", Ago(120.0)).await;
    for n in 0..9 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    s3.set_mode(refusing(key.clone(), "InternalError"));
    let summary = drain(&worker).await;
    assert_eq!((summary.rows_deleted, summary.rows_failed), (9, 1));
    assert_eq!(summary.stopped_because, StoppedBecause::Failed, "said, not hidden");
    let waits = "SELECT pending_s3_key FROM pastes WHERE short_code = 'damaged' AND attempts = 0
                 AND deletion_status = 'NOT_EXPIRED' AND content_hash IS NULL AND claim_id IS NULL
                 AND retry_at > now() + interval '10 minutes'
                 AND last_error = 'S3 InternalError: no'";
    assert_eq!(world.text(waits).await, Some(key));
    world.assert_consistent().await;
    s3.set_mode(Mode::Normal);
    world.end_backoff().await;
    assert_eq!(drain(&world.worker().await).await.objects_deleted, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_fails_max_attempts_times_is_a_dead_letter_with_its_last_error() {
    let (world, s3, worker) = world_with(Mode::Normal).await;
    let key = world.put("held", "a", Ago(60.0)).await;
    s3.set_mode(refusing(key.clone(), "ObjectLocked"));
    for _ in 0..5 {
        let claim = claim_some(&worker, 10).await;
        carry_out(&worker, &claim).await;
        world.end_backoff().await;
    }
    let dead = "SELECT count(*) FROM pastes WHERE retry_at = 'infinity' AND attempts = 5
                AND last_error = 'S3 ObjectLocked: no' AND pending_s3_key IS NOT NULL";
    assert_eq!(world.count(dead).await, 1);
    // A later run's: it did not fail there.
    let summary = drain(&worker_within(&world, &s3, Duration::from_secs(1)).await).await;
    assert_eq!(summary.stopped_because, StoppedBecause::Drained);
    assert_eq!(summary.left.expect("left").dead_letters, 1, "named in the summary");
    assert_eq!(world.object(&key).await.as_deref(), Some("a"), "still owed, not forgotten");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_failed_rows_reports_them_and_exits_1() {
    let world = World::new().await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let key = world.put("held", "a", Ago(60.0)).await;
    world.put("fine", "b", Ago(60.0)).await;
    world.run_sql("UPDATE pastes SET attempts = 4 WHERE short_code = 'held'").await;
    s3.set_mode(refusing(key, "ObjectLocked"));
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .output()
        .await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    let summary = ended.json();
    assert_eq!(summary["stopped_because"], "failed");
    assert_eq!((&summary["rows_failed"], &summary["rows_deleted"]), (&1.into(), &1.into()));
    assert!(ended.stderr().contains("1 pastes could not be deleted"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_already_gone_is_a_success() {
    let world = World::new().await;
    let key = world.put("a", "a", Ago(60.0)).await;
    world.s3.delete_object().bucket(&world.bucket).key(&key).send().await.expect("delete");
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_answered_with_no_such_key_is_a_success() {
    let (world, s3, worker) = world_with(Mode::Normal).await;
    let key = world.put("a", "a", Ago(60.0)).await;
    s3.set_mode(refusing(key, "NoSuchKey"));
    assert_eq!(drain(&worker).await.rows_deleted, 1);
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 0);
}

/// While the dependencies fail, claims come back uncounted; once they answer, everything goes.
async fn costs_no_attempt(mood: Mode) {
    let (world, s3, worker) = world_with(Mode::Normal).await;
    for n in 0..5 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    world.put("live", "b1", Never).await;
    s3.set_mode(mood);
    let running = tokio::spawn(async move { drain(&worker).await });
    world
        .until("released", "SELECT count(*) > 0 FROM deletion_claims WHERE reset_at IS NOT NULL")
        .await;
    assert_eq!(world.count("SELECT sum(attempts) FROM pastes").await, 0, "a row paid for it");
    assert_eq!(world.count("SELECT count(*) FROM pastes WHERE retry_at IS NOT NULL").await, 0);
    s3.set_mode(Mode::Normal);
    let summary = running.await.expect("run");
    assert_eq!((summary.stopped_because, summary.rows_failed), (StoppedBecause::Drained, 0));
    assert!(summary.claims_released > 0);
    let dead = "SELECT count(*) FROM pastes WHERE attempts > 0";
    assert_eq!(world.count(dead).await, 0);
    assert_eq!(world.read("live").await.as_deref(), Some("b1"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_outage_never_costs_a_row_an_attempt() {
    costs_no_attempt(Mode::Failing { status: 500, code: "InternalError" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_that_is_throttled_past_the_deadline_never_costs_a_row_an_attempt() {
    costs_no_attempt(Mode::Failing { status: 503, code: "SlowDown" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_credentials_never_cost_a_row_an_attempt() {
    costs_no_attempt(Mode::Failing { status: 403, code: "AccessDenied" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_denied_key_by_key_never_cost_a_row_an_attempt() {
    // The empty text is in every key, the probe's too.
    costs_no_attempt(refusing(String::new(), "AccessDenied")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_in_the_body_of_a_200_never_costs_a_row_an_attempt() {
    costs_no_attempt(Mode::ErrorInBody { code: "SlowDown" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_mentions_no_key_never_costs_a_row_an_attempt() {
    costs_no_attempt(Mode::EmptyAnswer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_object_among_others_that_are_deleted_is_a_row_error() {
    let (world, s3, worker) = world_with(Mode::Normal).await;
    let key = world.put("held", "a", Ago(60.0)).await;
    world.put("fine", "b", Ago(60.0)).await;
    s3.set_mode(refusing(key, "AccessDenied"));
    let claim = claim_some(&worker, 10).await;
    carry_out(&worker, &claim).await;
    let left = "SELECT short_code || attempts FROM pastes";
    assert_eq!(world.text(left).await.as_deref(), Some("held1"));
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_makes_s3_reject_the_whole_call_is_found_and_failed_alone() {
    let (world, s3, _) = world_with(Mode::Normal).await;
    for n in 0..20 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    let key = world.put("culprit", "poison", Ago(60.0)).await;
    // It takes a dozen calls to find it.
    let worker = worker_within(&world, &s3, Duration::from_secs(60)).await;
    s3.set_mode(Mode::RejectingCall { text: key });
    let claim = claim_some(&worker, 100).await;
    carry_out(&worker, &claim).await;
    let left = "SELECT string_agg(short_code || attempts, ',') FROM pastes";
    assert_eq!(world.text(left).await.as_deref(), Some("culprit1"));
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_deleted_is_failed_with_nothing_leaked_or_counted_twice() {
    let world = World::new().await;
    for n in 0..20 {
        world.put(&format!("p{n}"), &format!("b{}", n % 10), Ago(60.0)).await;
    }
    world.put("live", "b3", Never).await;
    // Somebody's comments still point at one of them.
    world
        .run_sql(
            "CREATE TABLE comments (paste text REFERENCES pastes (short_code));
             INSERT INTO comments VALUES ('p7')",
        )
        .await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 100).await;
    carry_out(&worker, &claim).await;
    let failed = "SELECT count(*) FROM pastes WHERE short_code = 'p7' AND attempts = 1
                    AND deletion_status = 'NOT_EXPIRED' AND content_hash IS NULL
                    AND pending_s3_key IS NULL AND last_error LIKE '%23503%'";
    assert_eq!(world.count(failed).await, 1);
    assert_eq!(world.count("SELECT count(*) FROM pastes WHERE expires_at < now()").await, 1);
    world.assert_consistent().await;
    world.run_sql("DROP TABLE comments").await;
    world.end_backoff().await;
    drain(&worker).await;
    assert_eq!(world.read("live").await.as_deref(), Some("b3"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_cannot_be_deleted_keeps_its_rows_and_their_references() {
    let world = World::new().await;
    for n in 0..20 {
        world.put(&format!("p{n}"), &format!("b{}", n % 10), Ago(60.0)).await;
    }
    world
        .run_sql(
            "CREATE TABLE previews (body bytea REFERENCES content (content_hash)
                                    DEFERRABLE INITIALLY DEFERRED);
             INSERT INTO previews VALUES (sha256('b4'))",
        )
        .await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 100).await;
    carry_out(&worker, &claim).await;
    let kept = "SELECT string_agg(short_code, ',' ORDER BY short_code) FROM pastes
                WHERE attempts = 1 AND content_hash = sha256('b4') AND pending_s3_key IS NULL
                  AND claim_id IS NULL AND last_error LIKE '%23503%'";
    assert_eq!(world.text(kept).await.as_deref(), Some("p14,p4"));
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 2);
    assert_eq!(world.count("SELECT ref_count::bigint FROM content").await, 2);
    world.assert_consistent().await;
    world.run_sql("DROP TABLE previews").await;
    world.end_backoff().await;
    drain(&worker).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_never_costs_a_row_an_attempt() {
    let world = World::new().await;
    for n in 0..2 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
        world.put(&format!("live{n}"), &format!("b{n}"), Never).await;
    }
    let worker = world.worker().await;
    let claim = claim_some(&worker, 10).await;
    let mut other = connect(&world.database_url).await;
    // Patient, so that it is the worker that Postgres picks.
    other.batch_execute("SET deadlock_timeout = '60s'").await.expect("set");
    let transaction = other.transaction().await.expect("begin");
    let lock = "SELECT FROM content ORDER BY content_hash";
    transaction.batch_execute(&format!("{lock} DESC LIMIT 1 FOR UPDATE")).await.expect("last");
    let decrementing = {
        let (worker, claim) = (worker.clone(), claim.clone());
        tokio::spawn(async move { worker.decrement(&claim).await })
    };
    world.until_workers_wait(1).await;
    transaction.batch_execute(&format!("{lock} LIMIT 1 FOR UPDATE")).await.expect("circle");
    transaction.commit().await.expect("commit");
    let decremented = decrementing.await.expect("join").expect("decremented after all");
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    assert_eq!(world.count("SELECT sum(attempts) FROM pastes").await, 0);
    let deadlocks = "SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = current_database()";
    world.until("Postgres saw a deadlock", deadlocks).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_write_quorum_never_costs_a_row_an_attempt() {
    // What MinIO answers key by key while too many of its disks are away.
    costs_no_attempt(refusing(String::new(), "SlowDownWrite")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_error_code_costs_no_row_an_attempt_while_the_probe_gets_it_too() {
    costs_no_attempt(refusing(String::new(), "SomethingNew")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_claimed_is_reported_and_delays_no_other_row() {
    let world = World::new().await;
    for n in 0..30 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0 + f64::from(n))).await;
    }
    // The owner's rule that old rows violate: any UPDATE of such a row fails.
    world.run_sql("ALTER TABLE pastes ADD CHECK (short_code NOT IN ('p4', 'p17')) NOT VALID").await;
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json", "--batch-size", "10"])
        .output()
        .await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!(ended.json()["rows_deleted"], 28);
    assert_eq!(ended.json()["rows_failed"], 2);
    for code in ["p4", "p17"] {
        assert!(ended.stderr().contains(&format!("paste \\\"{code}\\\" cannot be claimed")));
    }
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_privilege_ends_the_run_at_once_with_nothing_claimed() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let role = format!("r{}", uuid::Uuid::new_v4().simple());
    world
        .run_sql(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'x';
             GRANT SELECT, UPDATE, DELETE ON pastes TO {role};
             GRANT SELECT ON content, cleanup_migrations, cleanup_unclaimable TO {role};
             GRANT SELECT, UPDATE ON cleanup_fleet TO {role};
             GRANT SELECT, INSERT, UPDATE ON deletion_claims TO {role}"
        ))
        .await;
    let (_, server) = world.database_url.split_once('@').expect("a URL");
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json"])
        .env("DATABASE_URL", &format!("postgres://{role}:x@{server}"))
        .output()
        .await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert!(ended.stderr().contains("permission denied for table content"), "{}", ended.stderr());
    let state =
        "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED' AND attempts = 0";
    assert_eq!(world.count(state).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_checksum_md5_a_delete_carries_content_md5_and_nothing_newer() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let worker = world
        .worker_with(|settings| {
            settings.s3.endpoint = Some(s3.url.clone());
            settings.s3.checksum = paste_cleanup::config::Checksum::Md5;
        })
        .await;
    assert_eq!(drain(&worker).await.rows_deleted, 1);
    let headers = s3.headers.lock().expect("headers").clone();
    assert!(headers.contains_key("content-md5"), "{headers:?}");
    assert!(!headers.keys().any(|name| name.as_str().contains("checksum")), "{headers:?}");
    // A real store takes it, too.
    world.put("b", "b", Ago(60.0)).await;
    let worker = world.worker_with(|s| s.s3.checksum = paste_cleanup::config::Checksum::Md5).await;
    assert_eq!(drain(&worker).await.objects_deleted, 1);
    world.assert_drained().await;
}
