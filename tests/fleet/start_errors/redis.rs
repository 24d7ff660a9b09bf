//! Redis is optional: without it a run drains anyway, and warns that it has no lock.

use super::world;
use crate::support::{process::Ended, servers::Redis, *};

/// Asserts a complete drain that logs a warning about the lock.
async fn assert_drains_with_a_warning(world: &World, redis_url: &str) -> Ended {
    let run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let ended = run.env("REDIS_URL", redis_url).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let summary = ended.json();
    assert_eq!(
        (&summary["rows_deleted"], &summary["stopped_because"]),
        (&1.into(), &"drained".into())
    );
    assert!(summary["claims_without_lock"].as_u64() > Some(0), "{summary}");
    let warned = |line: &str| line.contains("WARN") && line.contains("without the Redis lock");
    assert!(ended.stderr().lines().any(warned), "{}", ended.stderr());
    world.assert_drained().await;
    ended
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_a_run_drains_anyway_and_warns() {
    assert_drains_with_a_warning(&world().await, "redis://127.0.0.1:1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_wrong_redis_password_a_run_drains_anyway_and_does_not_print_it() {
    let redis = Redis::start_with(&["--requirepass", "right"]).await;
    let url = format!("redis://:hunter2@127.0.0.1:{}", redis.port());
    let ended = assert_drains_with_a_warning(&world().await, &url).await;
    assert!(!ended.stderr().contains("hunter2"), "{}", ended.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_never_answers_does_not_keep_a_run_from_draining() {
    let unanswering = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("redis://{}", unanswering.local_addr().expect("address"));
    assert_drains_with_a_warning(&world().await, &url).await;
}
