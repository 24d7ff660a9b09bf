//! Programs print only their results to stdout, and everything else to stderr: progress, logs, and
//! why they cannot start.

use tokio::io::{AsyncBufReadExt, BufReader};

use super::world;
use crate::support::{proxy::address_of, *};

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_that_takes_long_prints_its_progress() {
    let world = world().await;
    // Its first INSERT waits, without a time limit, until the test lets it continue.
    world
        .run_sql(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
             BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
             CREATE TRIGGER wait BEFORE INSERT ON pastes EXECUTE FUNCTION wait()",
        )
        .await;
    let mut other = connect(&world.database_url).await;
    let lock = other.transaction().await.expect("begin");
    lock.batch_execute("SELECT pg_advisory_xact_lock(1)").await.expect("lock");
    let seed = world.program("cleanupctl").args(&["seed", "--pastes", "1200"]);
    let mut seeding = seed.into_command().spawn().expect("seed");
    let mut lines = BufReader::new(seeding.stderr.take().expect("stderr")).lines();
    let line = lines.next_line().await.expect("a line");
    assert_eq!(line.as_deref(), Some("seeded 0 of 1,200 pastes"));
    lock.rollback().await.expect("rollback");
    let ended = seeding.wait_with_output().await.expect("its end");
    let printed = String::from_utf8(ended.stdout).expect("text");
    assert!(ended.status.success() && printed.starts_with("seeded 1,200 pastes ("), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_run_prints_exactly_one_object_on_stdout() {
    let world = world().await;
    world.put("live", "b", In(60.0)).await;
    let run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let ended = run.env("CLEANUP_LOG_FILTER", "debug").output().await;
    assert_eq!(ended.code(), 0);
    assert_eq!(ended.stdout().trim_end().lines().count(), 1, "{}", ended.stdout());
    let summary = ended.json();
    for (key, value) in
        [("rows_deleted", 1), ("objects_deleted", 1), ("bytes_freed", 1), ("batches", 1)]
    {
        assert_eq!(summary[key], value, "{key}");
    }
    assert!(summary["elapsed_ms"].is_u64());
    assert_eq!(summary["stopped_because"], "drained");
    assert!(!ended.stderr().is_empty(), "logs go to stderr");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_start_prints_nothing_on_stdout() {
    let world = world().await;
    let run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let ended = run.env("DATABASE_URL", "postgres://u@127.0.0.1:1/d").output().await;
    assert_eq!((ended.code(), ended.stdout().as_str()), (1, ""));
    let nowhere = address_of("postgres://u@127.0.0.1:1/d");
    assert!(ended.stderr().contains(&nowhere));
}
