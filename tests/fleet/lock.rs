//! The Redis lock saves work; claims are safe without it.

use std::time::Duration;

use crate::support::{servers::Redis, *};
use paste_cleanup::{
    config::{WhenUnavailable, defaults},
    shutdown::Shutdown,
    worker::{
        batch::{Lock, lock::LockOutcome},
        report::StoppedBecause,
    },
};

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

/// Returns the remaining TTL; it is negative if the lock is free.
async fn ttl_ms(redis: &Redis, lock: &Lock) -> i64 {
    let client = redis::Client::open(redis.url()).expect("client");
    let mut connection = client.get_multiplexed_async_connection().await.expect("connection");
    redis::cmd("PTTL").arg(lock.key()).query_async(&mut connection).await.expect("PTTL")
}

fn token(outcome: LockOutcome) -> String {
    match outcome {
        LockOutcome::Held(token) => token,
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
                assert!(reason.to_string().contains("SCRIPT LOAD"), "{right}: {reason}")
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
    let documented = include_str!("../../ops/SECURITY.md").split_once("its login needs `");
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
