//! Stranded rows: in progress, but without an open claim.

use super::IN_PROGRESS;
use crate::support::*;

/// Puts 30 stranded rows of this age: another system marked them, without a claim.
async fn put_stranded_rows(world: &World, age: &str) {
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
    put_stranded_rows(&world, "2 hours 1 minute").await;
    let ended = world.program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let reset = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED'
                 AND deletion_initiated_at IS NULL";
    assert_eq!(world.count(reset).await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn watchdog_once_leaves_rows_without_a_claim_at_an_hour_and_59_minutes() {
    let world = World::new().await;
    put_stranded_rows(&world, "1 hour 59 minutes").await;
    let ended = world.program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(world.count(IN_PROGRESS).await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_another_system_marks_while_it_backs_off_is_left_to_it_for_stuck_after() {
    let world = World::new().await;
    for error in
        ["NULL", "'S3 ObjectLocked: no'", "'another transaction has locked its content row'"]
    {
        world.run_sql("TRUNCATE pastes, content").await;
        world.put("marked", "a", Ago(3600.0)).await;
        let mark = format!(
            "UPDATE pastes SET attempts = 1, last_error = {error},
                               retry_at = now() - interval '1 minute',
                               deletion_status = 'DELETION_IN_PROGRESS',
                               deletion_initiated_at = now() - interval '2 minutes'"
        );
        world.run_sql(&mark).await;
        assert_eq!(
            (world.sweep().await.stranded, world.count(IN_PROGRESS).await),
            (0, 1),
            "{error}"
        );
        let later = "UPDATE pastes SET deletion_initiated_at = now() - interval '3 hours'";
        world.run_sql(later).await;
        assert_eq!(
            (world.sweep().await.stranded, world.count(IN_PROGRESS).await),
            (1, 0),
            "{error}"
        );
    }
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
                deletion_initiated_at = now() - random() * interval '100 minutes'
                                        - (random() * 2)::int * interval '130 minutes'",
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
    world.until("all rows are reset", &IN_PROGRESS.replace("count(*)", "count(*) = 0")).await;
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
