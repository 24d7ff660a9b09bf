//! Runs with a Redis: they name a lock that they wait for, stay correct when it expires or Redis
//! dies, and evict only the cache keys of deleted pastes.

use paste_cleanup::worker::report::StoppedBecause;

use super::command;
use crate::support::{servers::Redis, *};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_for_a_taken_lock_names_it() {
    let world = World::new().await;
    let redis = Redis::start().await;
    world.put("a", "a", Ago(60.0)).await;
    let database = world.text("SELECT current_database()").await.expect("a name");
    let key = format!("paste-cleanup:claim:{database}");
    command(&redis, &["SET", &key, "an old program's"]).await;
    let worker = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json"])
        .env("REDIS_URL", &redis.url())
        .env("CLEANUP_WORKER_HEARTBEAT_INTERVAL", "1s")
        .start();
    let named = format!(
        "SELECT EXISTS (SELECT FROM cleanup_runs
                        WHERE waiting_for LIKE '%Redis lock%' AND waiting_for LIKE '%{key}%')"
    );
    world.until("the record of the run names the lock", &named).await;
    command(&redis, &["GETDEL", &key]).await;
    let ended = worker.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert!(ended.json()["waited_ms"]["lock"].is_u64(), "{}", ended.stdout());
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_stay_correct_when_the_lock_expires_under_its_holder() {
    let world = World::new().await;
    let redis = Redis::start().await;
    world.put_many(200, 50).await;
    let url = redis.url();
    let workers = [
        world.worker_with(|s| s.redis.url = Some(url.clone().into())).await,
        world.worker_with(|s| s.redis.url = Some(url.clone().into())).await,
    ];
    // The lock is removed from its holders all the time.
    let flushing = tokio::spawn(async move {
        loop {
            command(&redis, &["FLUSHALL"]).await;
        }
    });
    let claim_all = async |worker| {
        let mut rows = 0;
        while let Some(claim) = claim(worker, 10).await {
            rows += claim.pastes.len();
        }
        rows
    };
    let (one, two) = tokio::join!(claim_all(&workers[0]), claim_all(&workers[1]));
    flushing.abort();
    let rest = claim_all(&workers[0]).await;
    assert_eq!(one + two + rest, 200);
    let sum = "SELECT sum(rows_claimed)::bigint FROM deletion_claims";
    assert_eq!(world.count(sum).await, 200, "a row was claimed twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_continues_when_redis_dies_in_the_middle() {
    let world = World::new().await;
    let mut redis = Redis::start().await;
    for n in 0..30 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    let url = redis.url();
    let worker = world
        .worker_with(|settings| {
            settings.redis.url = Some(url.into());
            settings.worker.batch_size = 5;
            settings.cache.key_pattern = "paste:{short_code}".into();
        })
        .await;
    let first = claim_some(&worker, 5).await;
    redis.kill().await;
    carry_out(&worker, &first).await;
    let summary = drain(&worker).await;
    assert_eq!((summary.rows_deleted, summary.stopped_because), (25, StoppedBecause::Drained));
    assert!(summary.claims_without_lock >= 5, "{}", summary.claims_without_lock);
    assert!(summary.evictions_failed >= 5, "counted, not an error");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_when_unavailable_wait_nothing_is_claimed_until_redis_is_back() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let mut redis = Redis::start().await;
    redis.kill().await;
    let mut worker = world
        .program("cleanup-worker")
        .args(&["run"])
        .env("REDIS_URL", &redis.url())
        .env("CLEANUP_LOCK_WHEN_UNAVAILABLE", "wait")
        .start();
    worker.until_it_logs("waiting").await;
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
    redis.start_again().await;
    assert_eq!(worker.end().await.code(), 0);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_keys_of_deleted_pastes_are_gone_and_no_others() {
    let world = World::new().await;
    let redis = Redis::start().await;
    world.put("expired", "a", Ago(60.0)).await;
    world.put("live", "b", Never).await;
    for code in ["expired", "live"] {
        command(&redis, &["SET", &format!("paste:{code}:body"), "cached"]).await;
    }
    let url = redis.url();
    let worker = world
        .worker_with(|settings| {
            settings.redis.url = Some(url.into());
            settings.cache.key_pattern = "paste:{short_code}:body".into();
        })
        .await;
    drain(&worker).await;
    assert_eq!(command(&redis, &["GET", "paste:expired:body"]).await, None);
    assert_eq!(command(&redis, &["GET", "paste:live:body"]).await.as_deref(), Some("cached"));
}
