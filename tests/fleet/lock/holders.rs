//! The lock has one holder at a time and a TTL, and only its holder releases it.

use std::time::Duration;

use paste_cleanup::{
    config::{WhenUnavailable, defaults},
    shutdown::Shutdown,
    worker::batch::{Lock, lock::LockOutcome},
};

use super::{command, token, ttl_ms};
use crate::support::servers::Redis;

fn lock_on(redis: &Redis, ttl: Duration, when_unavailable: WhenUnavailable) -> Lock {
    let mut settings = defaults();
    settings.redis.url = Some(redis.url().into());
    settings.lock.ttl = ttl;
    settings.lock.when_unavailable = when_unavailable;
    let pool = paste_cleanup::redis::pool(&settings).expect("pool");
    Lock::new(pool, &settings.lock, "db")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_has_a_ttl_and_carries_the_databases_name() {
    let redis = Redis::start().await;
    let lock = lock_on(&redis, Duration::from_secs(30), WhenUnavailable::Proceed);
    let token = token(lock.acquire(&Shutdown::default(), None).await);
    assert_eq!(lock.key(), "paste-cleanup:claim:db");
    assert_eq!(command(&redis, &["GET", lock.key()]).await, Some(token.clone()));
    let ttl = ttl_ms(&redis, &lock).await;
    assert!((1..=30_000).contains(&ttl), "{ttl}");
    lock.release(&token).await;
    assert_eq!(command(&redis, &["GET", lock.key()]).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_has_one_holder_and_the_next_one_waits() {
    let redis = Redis::start().await;
    let lock = lock_on(&redis, Duration::from_secs(30), WhenUnavailable::Proceed);
    let first = token(lock.acquire(&Shutdown::default(), None).await);
    let second = lock.clone();
    let waiting = tokio::spawn(async move { second.acquire(&Shutdown::default(), None).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished(), "two holders");
    lock.release(&first).await;
    assert_ne!(token(waiting.await.expect("join")), first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_stolen_is_not_released_by_its_old_holder() {
    let redis = Redis::start().await;
    let lock = lock_on(&redis, Duration::from_secs(30), WhenUnavailable::Proceed);
    let old = token(lock.acquire(&Shutdown::default(), None).await);
    command(&redis, &["SET", lock.key(), "another token"]).await;
    lock.release(&old).await;
    assert_eq!(command(&redis, &["GET", lock.key()]).await.as_deref(), Some("another token"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_never_released_is_waited_for_only_a_few_ttls() {
    let redis = Redis::start().await;
    let lock = lock_on(&redis, Duration::from_millis(200), WhenUnavailable::Wait);
    command(&redis, &["SET", lock.key(), "never released"]).await;
    assert!(matches!(lock.acquire(&Shutdown::default(), None).await, LockOutcome::Without(_)));
}
