//! Heartbeats: a slow batch keeps its claim, a wedged one does not, and a worker that cannot send
//! heartbeats stops.

use std::{sync::Arc, time::Duration};

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    proxy::{Proxy, address_of},
    *,
};
use paste_cleanup::{claim::Claim, config::Settings, worker::Worker};
use tokio::time::Instant;
use tokio_postgres::Client;

const HEARTBEAT: Duration = Duration::from_millis(200);

/// A worker that sends heartbeats often, on this S3.
async fn worker_with_heartbeats(world: &World, s3: &FaultyS3) -> Arc<Worker> {
    let set = |settings: &mut Settings| {
        settings.s3.endpoint = Some(s3.url.clone());
        settings.worker.heartbeat_interval = HEARTBEAT;
    };
    world.worker_with(set).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_heartbeat_keeps_a_slow_batch_alive_past_stuck_after() {
    let world = World::new().await;
    world.put("slow", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let worker = worker_with_heartbeats(&world, &s3).await;
    let running = tokio::spawn(async move { drain(&worker).await });
    s3.called(1).await;
    let renewed = "SELECT heartbeat_at > now() - interval '1 hour' FROM deletion_claims";
    for _ in 0..3 {
        // As if more than stuck_after had passed since the last heartbeat.
        world.expire_leases(7201.0).await;
        world.until("the next heartbeat", renewed).await;
        assert_eq!(world.sweep().await.reset.claims, 0, "reset a live batch");
    }
    s3.let_go();
    let summary = running.await.expect("run");
    assert_eq!((summary.rows_deleted, summary.leases_lost), (1, 0));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wedged_batch_is_not_kept_alive_by_healthy_batches() {
    let world = World::new().await;
    world.put("wedged", "a", Ago(60.0)).await;
    world.put("healthy", "b", Ago(50.0)).await;
    let worker = world.worker().await;
    let (wedged, healthy) = (claim_some(&worker, 1).await, claim_some(&worker, 1).await);
    worker.open.insert(wedged.fence.claim, Instant::now(), Duration::ZERO);
    worker.open.insert(healthy.fence.claim, Instant::now(), Duration::from_secs(60));
    world.expire_leases(7201.0).await;
    worker.heartbeat(&world.db).await.expect("heartbeat");
    assert_eq!(world.sweep().await.reset.claims, 1);
    let reset = "SELECT reset_at IS NOT NULL FROM deletion_claims WHERE id = $1";
    let is_reset = async |claim: i64| -> bool {
        world.db.query_one(reset, &[&claim]).await.expect("query").get(0)
    };
    assert!(is_reset(wedged.fence.claim).await, "the wedged batch was kept alive");
    assert!(!is_reset(healthy.fence.claim).await, "the healthy batch was reset");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_claim_does_not_stop_the_heartbeat_of_the_others() {
    let world = World::new().await;
    world.put("blocked", "a", Ago(60.0)).await;
    world.put("free", "b", Ago(50.0)).await;
    let worker = world.worker().await;
    let (blocked, free) = (claim_some(&worker, 1).await, claim_some(&worker, 1).await);
    for claim in [&blocked, &free] {
        worker.open.insert(claim.fence.claim, Instant::now(), Duration::from_secs(60));
    }
    world.expire_leases(100.0).await;
    let mut decrement = connect(&world.database_url).await;
    let holding = decrement.transaction().await.expect("begin");
    holding
        .query("SELECT FROM deletion_claims WHERE id = $1 FOR UPDATE", &[&blocked.fence.claim])
        .await
        .expect("lock");
    // Without SKIP LOCKED it would wait for the lock forever.
    worker.heartbeat(&world.db).await.expect("heartbeat");
    let renewed = "SELECT count(*) FROM deletion_claims
                  WHERE id = $1 AND heartbeat_at > now() - interval '50 seconds'";
    assert_eq!(world.count_with(renewed, &[&free.fence.claim]).await, 1);
    assert_eq!(world.count_with(renewed, &[&blocked.fence.claim]).await, 0);
}

/// A worker with one open claim, whose last heartbeat was more than two hours ago.
async fn claim_with_an_expired_lease(world: &World) -> (Arc<Worker>, Claim) {
    world.put("claimed", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    worker.open.insert(claim.fence.claim, Instant::now(), Duration::from_secs(60));
    world.expire_leases(7201.0).await;
    (worker, claim)
}

/// Locks the claim row on another connection, as a decrement or finish does while it waits for a lock
/// of another transaction.
async fn lock_claims(world: &World) -> Client {
    let step = connect(&world.database_url).await;
    step.batch_execute("BEGIN; SELECT FROM deletion_claims FOR UPDATE").await.expect("lock");
    step
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_waits_for_a_lock_is_alive_and_its_claim_is_not_reset() {
    let world = World::new().await;
    let (worker, _) = claim_with_an_expired_lease(&world).await;
    let step = lock_claims(&world).await;
    worker.heartbeat(&world.db).await.expect("heartbeat");
    step.batch_execute("ROLLBACK").await.expect("the step is tried again");
    assert_eq!(world.sweep().await.reset.claims, 0, "reset a live worker");
    let expired = "SELECT count(*) FROM deletion_claims
                   WHERE cleanup_last_heartbeat(deletion_claims) < now() - interval '1 hour'";
    assert_eq!(world.count(expired).await, 0);
    // The worker dies.
    world.run_sql("UPDATE cleanup_runs SET seen_at = now() - interval '3 hours'").await;
    assert_eq!(world.sweep().await.reset.claims, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_busy_once_is_not_kept_alive_by_later_heartbeats() {
    let world = World::new().await;
    let (worker, claim) = claim_with_an_expired_lease(&world).await;
    let step = lock_claims(&world).await;
    worker.heartbeat(&world.db).await.expect("heartbeat");
    // Wedged from now on: its phase takes longer than its time limit.
    worker.open.insert(claim.fence.claim, Instant::now(), Duration::ZERO);
    worker.heartbeat(&world.db).await.expect("heartbeat");
    step.batch_execute("ROLLBACK").await.expect("unlock");
    assert_eq!(world.sweep().await.reset.claims, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_claim_was_reset_is_dropped_at_once() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let worker = worker_with_heartbeats(&world, &s3).await;
    let open = Arc::clone(&worker);
    let running = tokio::spawn(async move { drain(&worker).await });
    s3.called(1).await;
    let first = open.open.ids();
    // An operator or another watchdog resets it although it is alive. Its heartbeat may come in
    // between.
    let mut reset = 0;
    while reset == 0 {
        world.expire_leases(7201.0).await;
        reset = world.sweep().await.reset.claims;
    }
    // Its paste may be claimed again at once.
    while open.open.ids().iter().any(|claim| first.contains(claim)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    s3.let_go();
    let summary = running.await.expect("run");
    assert_eq!((summary.leases_lost, summary.rows_deleted), (1, 1), "lost, then claimed again");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_send_a_heartbeat_for_stuck_after_stops_touching_its_claims() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let proxy = Proxy::start(&address_of(&world.database_url)).await;
    let mut worker = world
        .program("cleanup-worker")
        .args(&["run"])
        .env("DATABASE_URL", &proxy.through(&world.worker_url()))
        .env("AWS_ENDPOINT_URL", &s3.url)
        .env("CLEANUP_WORKER_HEARTBEAT_INTERVAL", "1s")
        .env("CLEANUP_WATCHDOG_STUCK_AFTER", "5s")
        .start();
    s3.called(1).await;
    proxy.down();
    worker.until_it_logs("no heartbeat reached Postgres for").await;
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.claims, 1);
    proxy.up();
    s3.let_go();
    let ended = worker.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_frozen_inside_a_transaction_blocks_neither_writers_nor_watchdog() {
    let world = World::new().await;
    world.put("expired", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let mut blocker = connect(&world.database_url).await;
    let lock = blocker.transaction().await.expect("begin");
    lock.batch_execute("SELECT FROM content FOR UPDATE").await.expect("lock");
    let worker = world.program("cleanup-worker").args(&["run"]).start();
    world.until_workers_wait(1).await;
    worker.signal(Signal::STOP);
    lock.commit().await.expect("let go");
    world
        .until(
            // It is idle in its transaction, or Postgres has ended that already.
            "the frozen worker has its answer",
            "SELECT count(*) = 0 FROM pg_stat_activity
             WHERE datname = current_database() AND state = 'active'
               AND application_name LIKE 'cleanup-worker%'",
        )
        .await;
    // Postgres ends that transaction after its timeout; a writer that waits longer succeeds.
    world.run_sql("SET lock_timeout = '30s'").await;
    world.put("new", "shared", Never).await;
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.claims, 1);
    worker.signal(Signal::CONT);
    let ended = worker.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    for code in ["live", "new"] {
        assert_eq!(world.read(code).await.as_deref(), Some("shared"));
    }
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_claim_starts_after_its_wait_for_the_lock() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let redis = servers::Redis::start().await;
    let url = redis.url();
    let worker = world
        .worker_with(|settings| {
            settings.redis.url = Some(url.into());
            settings.lock.ttl = Duration::from_secs(1);
        })
        .await;
    // A worker died with the lock; its key stays for three TTLs.
    let client = redis::Client::open(redis.url()).expect("client");
    let mut connection = client.get_multiplexed_async_connection().await.expect("connection");
    let set = redis::cmd("SET").arg(worker.lock_key()).arg("the dead one's").to_owned();
    set.exec_async(&mut connection).await.expect("SET");
    let waits_from = Instant::now();
    let claim = claim_some(&worker, 10).await;
    let waited = claim.requested_at - waits_from;
    assert!(
        waited >= Duration::from_secs(2),
        "its time starts after the wait, not after {waited:?}"
    );
    let summary = drain(&worker).await;
    assert_eq!((summary.leases_lost, summary.rows_deleted), (0, 1), "released and deleted");
    world.assert_drained().await;
}
