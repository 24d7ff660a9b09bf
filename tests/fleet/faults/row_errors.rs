//! Errors of Postgres: those that one row causes cost that row alone, all others no row.

use std::sync::Arc;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_deleted_is_failed_with_nothing_leaked_or_counted_twice() {
    let world = World::new().await;
    for n in 0..20 {
        world.put(&format!("p{n}"), &format!("b{}", n % 10), Ago(60.0)).await;
    }
    world.put("live", "b3", Never).await;
    // A table of the owner still references one of them.
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
            "CREATE TABLE previews (hash bytea REFERENCES content (content_hash)
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
    let other = connect(&world.database_url).await;
    // A long deadlock_timeout, so that Postgres cancels the worker's statement and not this one.
    let lock = "SELECT FROM content ORDER BY content_hash";
    let last = format!("SET deadlock_timeout = '60s'; BEGIN; {lock} DESC LIMIT 1 FOR UPDATE");
    other.batch_execute(&last).await.expect("last");
    let decrementing = {
        let (worker, claim) = (Arc::clone(&worker), claim.clone());
        tokio::spawn(async move { worker.decrement(&claim).await })
    };
    // Closes the circle within a second: the worker's session looks for a deadlock only once.
    let circle = format!("{lock} LIMIT 1 FOR UPDATE; COMMIT");
    world.when_a_worker_waits(&other, &circle).await;
    let decremented = decrementing.await.expect("join").expect("decremented after all");
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    assert_eq!(world.count("SELECT sum(attempts) FROM pastes").await, 0);
    let deadlocks = "SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = current_database()";
    world.until("Postgres saw a deadlock", deadlocks).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_claimed_is_reported_and_delays_no_other_row() {
    let world = World::new().await;
    for n in 0..30 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0 + f64::from(n))).await;
    }
    // A constraint of the owner that old rows violate: any UPDATE of such a row fails.
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
