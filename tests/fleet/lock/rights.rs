//! A login that may not release the lock does not take it: a run continues without it, or waits.
//! The documented rights are enough.

use paste_cleanup::{
    config::defaults,
    shutdown::Shutdown,
    worker::batch::{Lock, lock::LockOutcome},
};

use super::{command, token, ttl_ms};
use crate::support::{servers::Redis, *};

/// Starts a Redis, and returns its URL for a login without this right.
async fn redis_without(right: &str) -> (Redis, String) {
    let redis = Redis::start().await;
    grant(&redis, &["reset", "on", ">secret", "~*", "+@all", right]).await;
    let url = format!("redis://fleet:secret@127.0.0.1:{}", redis.port());
    (redis, url)
}

async fn grant(redis: &Redis, rules: &[&str]) {
    command(redis, &[&["ACL", "SETUSER", "fleet"], rules].concat()).await;
}

fn lock_at(url: &str) -> Lock {
    let mut settings = defaults();
    settings.redis.url = Some(url.into());
    Lock::new(paste_cleanup::redis::pool(&settings).expect("pool"), &settings.lock, "db")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_could_not_be_released_is_not_taken() {
    for right in ["-@scripting", "-evalsha", "-del", "-get"] {
        let (redis, url) = redis_without(right).await;
        let lock = lock_at(&url);
        match lock.acquire(&Shutdown::default(), None).await {
            LockOutcome::Without(reason) => {
                assert!(reason.to_string().contains("SCRIPT LOAD"), "{right}: {reason}");
            }
            other => panic!("{right}: {other:?}"),
        }
        let left = ttl_ms(&redis, &lock).await;
        assert!(left <= 1, "{right}: others wait {left} ms for a lock without a holder");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_continues_without_a_lock_that_cannot_be_released_and_warns_once() {
    let world = World::new().await;
    for n in 0..6 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    let (_redis, url) = redis_without("-@scripting").await;
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json", "--batch-size", "2"])
        .env("REDIS_URL", &url)
        .env("CLEANUP_LOCK_TTL", "3s")
        .output()
        .await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let claims = world.count("SELECT count(*) FROM deletion_claims").await;
    let without = ended.json()["claims_without_lock"].as_i64().expect("a number");
    assert!(without >= claims, "{without} of {claims} claims were made without the lock");
    let warnings = ended.stderr().matches("claiming without the Redis lock").count();
    assert_eq!(warnings, 1, "{}", ended.stderr());
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_when_unavailable_wait_nothing_is_claimed_until_the_lock_can_be_released() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let (redis, url) = redis_without("-@scripting").await;
    let mut worker = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json"])
        .env("REDIS_URL", &url)
        .env("CLEANUP_LOCK_TTL", "3s")
        .env("CLEANUP_LOCK_WHEN_UNAVAILABLE", "wait")
        .start();
    worker.until_it_logs("paused claims").await;
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
    grant(&redis, &["+@scripting"]).await;
    let ended = worker.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert!(ended.json()["waited_ms"]["dependency_unavailable"].is_u64(), "{}", ended.stdout());
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_could_not_be_released_is_replaced_by_the_next_claim_of_its_worker() {
    let (redis, url) = redis_without("+@all").await;
    let lock = lock_at(&url);
    let first = token(lock.acquire(&Shutdown::default(), None).await);
    grant(&redis, &["-@scripting"]).await;
    lock.release(&first).await;
    assert_eq!(command(&redis, &["GET", lock.key()]).await, Some(first.clone()));
    assert!(matches!(lock.acquire(&Shutdown::default(), None).await, LockOutcome::Without(_)));
    grant(&redis, &["+@scripting"]).await;
    // Without the replacement it would wait for the TTL, and this key never expires.
    command(&redis, &["SET", lock.key(), &first]).await;
    let second = token(lock.acquire(&Shutdown::default(), None).await);
    assert_ne!(second, first);
    lock.release(&second).await;
    assert_eq!(command(&redis, &["GET", lock.key()]).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_enough_for_the_lock() {
    let (redis, url) = redis_without("-@all").await;
    let documented = include_str!("../../../ops/SECURITY.md").split_once("its login needs `");
    let rules = documented.and_then(|(_, rest)| rest.split_once('`')).expect("the rights").0;
    let rules: Vec<&str> = ["resetkeys"].into_iter().chain(rules.split(' ')).collect();
    grant(&redis, &rules).await;
    let lock = lock_at(&url);
    for _ in 0..2 {
        let token = token(lock.acquire(&Shutdown::default(), None).await);
        lock.release(&token).await;
        assert_eq!(command(&redis, &["GET", lock.key()]).await, None);
    }
}
