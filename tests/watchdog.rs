//! The watchdog: resets what is stuck, not a second earlier, all of it, once.

mod support;

use std::time::Duration;

use paste_cleanup::watchdog::{prune::prune, totals};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const IN_PROGRESS: &str =
    "SELECT count(*) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'";

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_reset_two_hours_after_its_last_heartbeat_and_not_a_second_earlier() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 20).await;
    world.expire_leases(7199.0).await;
    assert_eq!(world.sweep().await.reset.claims, 0);
    assert_eq!(world.count(IN_PROGRESS).await, 20);
    world.expire_leases(7201.0).await;
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows), (1, 20));
    let expected = format!(
        "SELECT count(*) FROM pastes
         WHERE deletion_status = 'NOT_EXPIRED' AND deletion_initiated_at IS NULL
           AND claim_id IS NULL AND attempts = 1 AND content_hash IS NOT NULL
           AND retry_at BETWEEN now() - interval '1 minute' AND now() + interval '1 second'
           AND last_error = 'worker lease expired (claim {}, worker {})'",
        claim.fence.claim, worker.id
    );
    assert_eq!(world.count(&expected).await, 20);
}

/// Rows that something else marked, as old as told, plus what the seeds' statement would reset.
async fn orphans(world: &World, age: &str) {
    world.put_many(30, 30).await;
    world
        .run_sql(&format!(
            "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                               deletion_initiated_at = now() - interval '{age}'"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watchdog_once_resets_rows_without_a_claim_at_two_hours_and_a_minute() {
    let world = World::new().await;
    orphans(&world, "2 hours 1 minute").await;
    let ended = world.program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let reset = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED'
                 AND deletion_initiated_at IS NULL";
    assert_eq!(world.count(reset).await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn watchdog_once_leaves_rows_without_a_claim_at_an_hour_and_59_minutes() {
    let world = World::new().await;
    orphans(&world, "1 hour 59 minutes").await;
    let ended = world.program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(world.count(IN_PROGRESS).await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_without_a_claim_are_reset_exactly_as_the_two_hour_statement_would() {
    let world = World::new().await;
    world.put_many(200, 200).await;
    world
        .run_sql(
            "UPDATE pastes SET
                deletion_status = (ARRAY['NOT_EXPIRED', 'DELETION_IN_PROGRESS', 'DELETED'])
                                  [1 + (random() * 2)::int],
                deletion_initiated_at = now() - random() * interval '4 hours'",
        )
        .await;
    let by_the_statement = "
        SELECT coalesce(string_agg(short_code, ',' ORDER BY short_code), '') FROM pastes
        WHERE deletion_status = 'DELETION_IN_PROGRESS'
          AND deletion_initiated_at < now() - interval '2 hours'";
    let expected = world.text(by_the_statement).await;
    let swept = world.sweep().await;
    let reset = "SELECT coalesce(string_agg(short_code, ',' ORDER BY short_code), '') FROM pastes
                 WHERE deletion_status = 'NOT_EXPIRED' AND deletion_initiated_at IS NULL";
    assert_eq!(world.text(reset).await, expected);
    assert!(swept.stranded > 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_claim_with_a_heartbeat_are_not_reset_however_old_they_are() {
    let world = World::new().await;
    world.put_many(5, 5).await;
    let worker = world.worker().await;
    claim_some(&worker, 5).await;
    world.run_sql("UPDATE pastes SET deletion_initiated_at = now() - interval '5 hours'").await;
    assert_eq!(world.sweep().await.stranded, 0);
    assert_eq!(world.count(IN_PROGRESS).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_an_ended_or_missing_claim_do_not_stay_in_progress_forever() {
    let world = World::new().await;
    world.put_many(30, 30).await;
    let worker = world.worker().await;
    for ended in ["finished_at = now()", "reset_at = now()"] {
        let claim = claim_some(&worker, 10).await.fence.claim;
        world.run_sql(&format!("UPDATE deletion_claims SET {ended} WHERE id = {claim}")).await;
    }
    let claim = claim_some(&worker, 10).await.fence.claim;
    world.run_sql(&format!("DELETE FROM deletion_claims WHERE id = {claim}")).await;
    world.run_sql("UPDATE pastes SET deletion_initiated_at = now() - interval '3 hours'").await;
    assert_eq!(world.sweep().await.stranded, 30);
    assert_eq!(world.count(IN_PROGRESS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_resident_watchdog_resets_rows_of_a_missing_claim_at_its_first_tick() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let worker = world.worker().await;
    claim_some(&worker, 10).await;
    world.run_sql("DELETE FROM deletion_claims").await;
    world.run_sql("UPDATE pastes SET deletion_initiated_at = now() - interval '3 hours'").await;
    let watchdog = world.program("cleanup-watchdog").env("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0");
    let _watchdog = watchdog.start();
    world.until("all are back", &IN_PROGRESS.replace("count(*)", "count(*) = 0")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_in_progress_without_a_time_gets_one_and_is_reset_later() {
    let world = World::new().await;
    world.put("odd", "a", Ago(60.0)).await;
    world.run_sql("UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS'").await;
    world.sweep().await;
    let stamped = "SELECT count(*) FROM pastes WHERE deletion_initiated_at = now()::timestamptz
                   OR deletion_initiated_at > now() - interval '1 minute'";
    assert_eq!(world.count(stamped).await, 1);
    world.run_sql("UPDATE pastes SET deletion_initiated_at = now() - interval '3 hours'").await;
    assert_eq!(world.sweep().await.stranded, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_watchdogs_at_once_reset_every_claim_once() {
    let world = World::new().await;
    world.put_many(300, 300).await;
    let worker = world.worker().await;
    while claim(&worker, 10).await.is_some() {}
    world.expire_leases(7201.0).await;
    let (one, two) = tokio::join!(world.sweep(), world.sweep());
    // The second one may have been told that the first is at it; nothing is done twice.
    assert_eq!(one.reset.claims + two.reset.claims, 30);
    let once = "SELECT count(*) FROM pastes WHERE attempts = 1 AND deletion_status = 'NOT_EXPIRED'";
    assert_eq!(world.count(once).await, 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_resets_everything_that_is_stuck_page_by_page() {
    let world = World::new().await;
    world.put_many(6000, 6000).await;
    let worker = world.worker().await;
    for _ in 0..23 {
        claim_some(&worker, 20).await;
    }
    world.expire_leases(7201.0).await;
    world
        .run_sql(
            "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                    deletion_initiated_at = now() - interval '3 hours'
             WHERE deletion_status = 'NOT_EXPIRED'",
        )
        .await;
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows), (23, 460));
    assert_eq!(swept.stranded, 5540);
    assert_eq!(world.count(IN_PROGRESS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_row_backs_off_by_the_square_of_its_attempts_up_to_the_cap() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    let mut settings = world.settings.clone();
    settings.worker.max_attempts = 100;
    settings.worker.backoff_cap = Duration::from_secs(10);
    for (attempts, pause) in [(1, 1), (2, 4), (3, 9), (4, 10)] {
        claim_some(&worker, 10).await;
        world.expire_leases(7201.0).await;
        world.sweep_with(&settings).await;
        let state = "SELECT count(*) FROM pastes p, deletion_claims c
                     WHERE p.attempts = $1 AND c.id = (SELECT max(id) FROM deletion_claims)
                       AND p.retry_at = c.reset_at + $2 * interval '1 second'";
        let (attempts, pause) = (attempts as i16, f64::from(pause));
        assert_eq!(world.count_with(state, &[&attempts, &pause]).await, 1, "attempt {attempts}");
        world.end_backoff().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_failed_alone_too_often_is_a_dead_letter_with_its_last_error() {
    let world = World::new().await;
    world.put("culprit", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    for _ in 0..5 {
        claim_some(&worker, 1000).await;
        world.expire_leases(7201.0).await;
        world.sweep().await;
        world.end_backoff().await;
    }
    let dead = "SELECT count(*) FROM pastes WHERE retry_at = 'infinity' AND attempts = 5
                AND deletion_status = 'NOT_EXPIRED' AND last_error LIKE 'worker lease expired%'";
    assert_eq!(world.count(dead).await, 1);
    assert!(claim(&worker, 10).await.is_none(), "waits for a person");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_failed_in_a_larger_batch_is_never_dead_lettered() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    world.run_sql("UPDATE pastes SET attempts = 1").await;
    let worker = world.worker().await;
    let mut settings = world.settings.clone();
    settings.worker.max_attempts = 2;
    assert_eq!(claim_some(&worker, 200).await.pastes.len(), 20);
    world.expire_leases(7201.0).await;
    let swept = world.sweep_with(&settings).await;
    assert_eq!((swept.reset.rows, swept.reset.dead_letters), (20, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn pruning_deletes_old_history_and_never_an_open_claim() {
    let world = World::new().await;
    world.put_many(30, 30).await;
    let worker = world.worker().await;
    let [open, old, young] = [
        claim_some(&worker, 10).await,
        claim_some(&worker, 10).await,
        claim_some(&worker, 10).await,
    ]
    .map(|claim| claim.fence.claim);
    world
        .run_sql(&format!(
            "UPDATE deletion_claims SET claimed_at = now() - interval '90 days',
                                        heartbeat_at = now() - interval '90 days';
             UPDATE deletion_claims SET finished_at = now() - interval '31 days' WHERE id = {old};
             UPDATE deletion_claims SET finished_at = now() - interval '29 days' WHERE id = {young}"
        ))
        .await;
    let pool = world.watchdog_pool();
    let pruned = prune(&pool, &world.settings).await.expect("prune");
    assert_eq!(pruned.claims, 0, "not before it is in the totals");
    totals::count(&pool, &world.settings).await.expect("count");
    let pruned = prune(&pool, &world.settings).await.expect("prune");
    assert_eq!(pruned.claims, 0, "nor while rows of it could not be put back");
    world.run_sql(&format!("DELETE FROM pastes WHERE claim_id IN ({old}, {young})")).await;
    let pruned = prune(&pool, &world.settings).await.expect("prune");
    assert_eq!(pruned.claims, 1);
    let left = "SELECT count(*) FROM deletion_claims WHERE id = ANY ($1)";
    assert_eq!(world.count_with(left, &[&vec![open, young]]).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn tombstones_stay_for_their_retention_and_are_purged_after_it() {
    let world = World::new().await;
    world.put("expired", "a", Ago(60.0)).await;
    world.put("live", "b", Never).await;
    let worker =
        world.worker_with(|s| s.retention.tombstones = Duration::from_secs(7 * 86400)).await;
    assert_eq!(drain(&worker).await.rows_deleted, 1);
    let buried = "SELECT count(*) FROM pastes WHERE short_code = 'expired'
                  AND deletion_status = 'DELETED' AND content_hash IS NULL AND claim_id IS NULL";
    assert_eq!(world.count(buried).await, 1);
    world.assert_drained().await;
    let pool = world.watchdog_pool();
    assert_eq!(prune(&pool, &worker.settings).await.expect("prune").tombstones, 0);
    world
        .run_sql(
            "UPDATE pastes SET deletion_initiated_at = deletion_initiated_at - interval '8 days'
                  WHERE short_code = 'expired'",
        )
        .await;
    assert_eq!(prune(&pool, &worker.settings).await.expect("prune").tombstones, 1);
    assert_eq!(world.read("live").await.as_deref(), Some("b"));
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 1);
}

async fn get(address: &str, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connect");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answer");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn the_resident_watchdog_resets_serves_metrics_and_stops_on_sigterm() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let worker = world.worker().await;
    claim_some(&worker, 10).await;
    world.expire_leases(7201.0).await;
    let mut watchdog = world
        .program("cleanup-watchdog")
        .env("CLEANUP_WATCHDOG_TICK", "200ms")
        .env("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0")
        .start();
    let line = watchdog.until_it_logs("health and metrics on").await;
    let address = line.split("http://").nth(1).expect("address");
    let address = address.split(['"', ' ']).next().expect("address");
    watchdog.until_it_logs("reset claim").await;
    world.until("all reset", "SELECT count(*) = 10 FROM pastes WHERE attempts = 1").await;
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
    // The tick that made the reset counts it when it ends.
    while !get(address, "/metrics")
        .await
        .contains("cleanup_claims_reset_total{reason=\"lease_expired\"} 1")
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    watchdog.signal(Signal::TERM);
    assert_eq!(watchdog.end().await.code(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_sweeps_expired_claims_when_it_starts() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let worker = world.worker().await;
    claim_some(&worker, 10).await;
    world.expire_leases(7201.0).await;
    let summary = drain(&world.worker().await).await;
    assert_eq!((summary.claims_reset_at_start, summary.rows_deleted), (1, 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_stays_in_progress_and_no_other_row_of_its_claim_does() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    let worker = world.worker().await;
    let blocked = claim_some(&worker, 10).await;
    claim_some(&worker, 10).await;
    world.expire_leases(7201.0).await;
    world
        .run_sql(&format!(
            "UPDATE deletion_claims SET heartbeat_at = now() - interval '3 hours' WHERE id = {}",
            blocked.fence.claim
        ))
        .await;
    // Somebody's forgotten transaction holds a row of the older claim.
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    let lock = "SELECT FROM pastes WHERE short_code = $1 FOR UPDATE";
    holding.query(lock, &[&blocked.pastes[0].short_code]).await.expect("lock");
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows, swept.reset.left), (2, 19, 1));
    assert_eq!(world.count(IN_PROGRESS).await, 1);
    holding.rollback().await.expect("rollback");
    assert_eq!(world.sweep().await.stranded, 1);
    assert_eq!(world.count(IN_PROGRESS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_claim_is_reported_and_reset_once_it_can_be() {
    let world = World::new().await;
    world.put("only", "only", Ago(60.0)).await;
    let worker = world.worker().await;
    claim_some(&worker, 1).await;
    world.expire_leases(7201.0).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    holding.query("SELECT FROM pastes FOR UPDATE", &[]).await.expect("lock");
    let once = world.program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(once.code(), 1, "cron should hear of it: {}", once.stdout());
    assert!(once.stdout().contains("1 claims could not be reset"), "{}", once.stdout());
    holding.rollback().await.expect("rollback");
    assert_eq!(world.sweep().await.reset.claims, 1);
    assert_eq!(world.count(IN_PROGRESS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_with_content_or_a_pending_object_delete_is_not_pruned() {
    let world = World::new().await;
    for code in ["holds", "owes", "ours"] {
        world.put(code, code, Ago(60.0)).await;
    }
    // Tombstones of another system beside one of the fleet's.
    world
        .run_sql(
            "UPDATE pastes SET content_hash = NULL WHERE short_code <> 'holds';
             UPDATE pastes SET pending_s3_key = 'k' WHERE short_code = 'owes';
             UPDATE pastes SET deletion_status = 'DELETED',
                               deletion_initiated_at = now() - interval '1 day'",
        )
        .await;
    let pruned = prune(&world.watchdog_pool(), &world.settings).await.expect("prune");
    assert_eq!(pruned.tombstones, 1);
    let left = "SELECT string_agg(short_code, ',' ORDER BY short_code) FROM pastes";
    assert_eq!(world.text(left).await.as_deref(), Some("holds,owes"));
}
