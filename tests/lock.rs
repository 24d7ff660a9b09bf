//! The Redis lock: it saves work, it is not what makes a claim safe.

mod support;

use std::time::Duration;

use paste_cleanup::{
    config::{WhenUnavailable, defaults},
    shutdown::Shutdown,
    worker::{Lock, lock::Turn, summary::StoppedBecause},
};
use support::{servers::Redis, *};

fn lock_on(redis: &Redis, ttl: Duration, when_unavailable: WhenUnavailable) -> Lock {
    let mut settings = defaults();
    settings.redis.url = Some(redis.url().into());
    settings.lock.ttl = ttl;
    settings.lock.when_unavailable = when_unavailable;
    let pool = paste_cleanup::redis::pool(&settings).expect("pool");
    Lock::new(pool, &settings.lock, "db")
}

async fn command(redis: &Redis, words: &[&str]) -> Option<String> {
    let client = redis::Client::open(redis.url()).expect("client");
    let mut connection = client.get_multiplexed_async_connection().await.expect("connection");
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut connection).await.expect("command")
}

fn token(turn: Turn) -> String {
    match turn {
        Turn::Held(token) => token,
        other => panic!("not held: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_has_a_ttl_and_carries_the_databases_name() {
    let redis = Redis::start().await;
    let lock = lock_on(&redis, Duration::from_secs(30), WhenUnavailable::Proceed);
    let token = token(lock.acquire(&Shutdown::default(), None).await);
    assert_eq!(lock.key(), "paste-cleanup:claim:db");
    assert_eq!(command(&redis, &["GET", lock.key()]).await, Some(token.clone()));
    let client = redis::Client::open(redis.url()).expect("client");
    let mut connection = client.get_multiplexed_async_connection().await.expect("connection");
    let ttl: i64 =
        redis::cmd("PTTL").arg(lock.key()).query_async(&mut connection).await.expect("PTTL");
    assert!((1..=30_000).contains(&ttl), "{ttl}");
    lock.release(&token).await;
    assert_eq!(command(&redis, &["GET", lock.key()]).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_holds_the_lock_and_the_next_one_waits_for_it() {
    let redis = Redis::start().await;
    let lock = lock_on(&redis, Duration::from_secs(30), WhenUnavailable::Proceed);
    let first = token(lock.acquire(&Shutdown::default(), None).await);
    let second = lock.clone();
    let waiting = tokio::spawn(async move { second.acquire(&Shutdown::default(), None).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished(), "two hold it");
    lock.release(&first).await;
    assert_ne!(token(waiting.await.expect("join")), first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_stolen_is_not_released_by_its_old_holder() {
    let redis = Redis::start().await;
    let lock = lock_on(&redis, Duration::from_secs(30), WhenUnavailable::Proceed);
    let old = token(lock.acquire(&Shutdown::default(), None).await);
    command(&redis, &["SET", lock.key(), "the thief's"]).await;
    lock.release(&old).await;
    assert_eq!(command(&redis, &["GET", lock.key()]).await.as_deref(), Some("the thief's"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_nobody_releases_is_waited_for_a_few_ttls_and_no_longer() {
    let redis = Redis::start().await;
    let lock = lock_on(&redis, Duration::from_millis(200), WhenUnavailable::Wait);
    command(&redis, &["SET", lock.key(), "somebody's, for ever"]).await;
    assert!(matches!(lock.acquire(&Shutdown::default(), None).await, Turn::Without(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lock_lets_two_claim_at_once_and_both_stay_right() {
    let world = World::new().await;
    let redis = Redis::start().await;
    world.put_many(200, 50).await;
    let url = redis.url();
    let workers = [
        world.worker_with(|s| s.redis.url = Some(url.clone().into())).await,
        world.worker_with(|s| s.redis.url = Some(url.clone().into())).await,
    ];
    // The lock vanishes under its holders all the time.
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
async fn a_run_goes_on_when_redis_dies_in_the_middle() {
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
    assert!(summary.evictions_failed >= 5, "said, not failed");
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
    worker.until_it_says("waiting").await;
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
