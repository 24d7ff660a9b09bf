//! Redis is down or hangs: a run waits for it if it must, and otherwise tries it rarely.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use super::{assert_gave_up, assert_recovered, run_with_short_timeouts, world};
use crate::support::servers::Redis;

#[tokio::test(flavor = "multi_thread")]
async fn with_when_unavailable_wait_a_long_redis_outage_ends_the_run_with_nothing_claimed() {
    let world = world(5).await;
    let mut redis = Redis::start().await;
    redis.kill().await;
    let ended = run_with_short_timeouts(&world)
        .env("REDIS_URL", &redis.url())
        .env("CLEANUP_LOCK_WHEN_UNAVAILABLE", "wait")
        .env("CLEANUP_LOCK_TTL", "3s")
        .output()
        .await;
    assert_gave_up(&world, &ended, &["Redis is unavailable", "lock.when_unavailable"]).await;
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_hangs_is_tried_now_and_then_instead_of_for_every_claim() {
    let world = world(60).await;
    let hanging = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("redis://{}", hanging.local_addr().expect("address"));
    let tried = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&tried);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = hanging.accept().await {
            counter.fetch_add(1, Relaxed);
            kept.push(stream);
        }
    });
    let started = Instant::now();
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json", "--batch-size", "1"])
        .env("REDIS_URL", &url)
        .env("CLEANUP_CACHE_KEY_PATTERN", "paste:{short_code}")
        .output()
        .await;
    assert_recovered(&world, &ended, 60).await;
    assert!(ended.json()["claims_without_lock"].as_u64() >= Some(60));
    // On a slow machine there is time for more cooldowns.
    let (tried, most) = (tried.load(Relaxed), 30 + started.elapsed().as_secs() as usize * 3 / 10);
    assert!(tried < most, "{tried} of 120 times, at most {most} are expected");
}
