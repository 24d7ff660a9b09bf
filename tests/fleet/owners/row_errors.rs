//! An error that one row causes fails that row alone, whatever its SQLSTATE.

use super::*;
use crate::support::*;

const BAD: &str = "OLD.short_code LIKE '%7'";

/// Asserts that if every tenth of 300 pastes cannot be deleted, the others are deleted and only these
/// fail.
async fn assert_only_these_fail(raise: &str, counts: bool) {
    let world = World::new().await;
    world.put_many(300, 300).await;
    let body = format!("IF {BAD} THEN {raise} END IF; RETURN OLD;");
    trigger(&world, "BEFORE DELETE ON pastes FOR EACH ROW", &body).await;
    let ended = run_with(&world, &["--limit", "270"]).await;
    assert!(matches!(ended.code(), 1 | 3), "{raise}: {}", ended.stderr());
    assert_eq!(ended.json()["rows_deleted"], 270, "{raise}: {}", ended.stderr());
    assert_eq!(world.count(LEFT).await, 30, "{raise}");
    let failed = "SELECT count(*) FROM pastes WHERE attempts > 0 AND last_error IS NOT NULL";
    assert_eq!(world.count(failed).await, if counts { 30 } else { 0 }, "{raise}");
    let backing_off =
        "SELECT count(*) FROM pastes WHERE content_hash IS NULL AND retry_at IS NOT NULL";
    assert_eq!(world.count(backing_off).await, 30, "{raise}");
    world.run_sql("DROP TRIGGER owners_trigger ON pastes").await;
    assert_drained_after_backoff(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exception_in_a_trigger_fails_only_its_own_rows() {
    assert_only_these_fail("RAISE EXCEPTION 'keep this one';", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_statement_in_a_trigger_fails_only_its_own_rows() {
    assert_only_these_fail("PERFORM FROM no_such_table;", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsupported_feature_error_in_a_trigger_fails_only_its_own_rows() {
    let raise = "RAISE EXCEPTION 'kept' USING ERRCODE = 'feature_not_supported';";
    assert_only_these_fail(raise, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_costs_no_attempt() {
    assert_only_these_fail("RAISE EXCEPTION 'too slow' USING ERRCODE = '57014';", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_trigger_always_refuses_become_dead_letters() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    let body = format!("IF {BAD} THEN RAISE EXCEPTION 'keep this one'; END IF; RETURN OLD;");
    trigger(&world, "BEFORE DELETE ON pastes FOR EACH ROW", &body).await;
    for _ in 0..6 {
        let worker = world.worker_with(|settings| settings.worker.max_attempts = 3).await;
        drain(&worker).await;
        world.end_backoff().await;
    }
    let dead = "SELECT count(*) FROM pastes WHERE retry_at = 'infinity'
                AND last_error LIKE '%keep this one%'";
    assert_eq!((world.count(dead).await, world.count(LEFT).await), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_on_content_fails_only_its_own_pastes() {
    let world = World::new().await;
    world.put_many(100, 50).await;
    world
        .run_sql(
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF OLD.content_hash = sha256('b7') THEN RAISE EXCEPTION 'mine'; END IF;
                 RETURN OLD;
             END $$;
             CREATE TRIGGER keep BEFORE DELETE ON content FOR EACH ROW EXECUTE FUNCTION keep()",
        )
        .await;
    let ended = run_with(&world, &["--limit", "98"]).await;
    assert_eq!((&ended.json()["rows_deleted"], world.count(LEFT).await), (&98.into(), 2));
    assert_eq!(world.count(WRONG_COUNTS).await, 0);
    let failed = "SELECT count(*) FROM pastes WHERE attempts = 1 AND content_hash = sha256('b7')";
    assert_eq!(world.count(failed).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_right_is_reported_once_and_costs_no_attempt() {
    let world = World::new().await;
    for n in 0..100 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    world.run_sql("REVOKE DELETE ON pastes FROM cleanup_worker").await;
    let ended = run_with(&world, &["--batch-size", "50", "--concurrency", "1"]).await;
    ended.assert_refused(1, &["every paste fails", "permission denied for table pastes", "rights"]);
    assert_eq!((world.count(LEFT).await, world.count(ATTEMPTS).await), (100, 0));
    let claimed = "SELECT count(*) FROM pastes WHERE deletion_status <> 'NOT_EXPIRED'";
    assert_eq!(world.count(claimed).await, 0);
    world.run_sql("GRANT DELETE ON pastes TO cleanup_worker").await;
    assert_drained_after_backoff(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_adjacent_bad_rows_do_not_stop_the_run() {
    let world = World::new().await;
    world.put_many(200, 200).await;
    let body = "IF OLD.short_code <= 'p00000040' THEN
                RAISE EXCEPTION 'keep these'; END IF; RETURN OLD;";
    trigger(&world, "BEFORE DELETE ON pastes FOR EACH ROW", body).await;
    let ended = run_with(&world, &["--limit", "160"]).await;
    assert_eq!((&ended.json()["rows_deleted"], world.count(LEFT).await), (&160.into(), 40));
    // The next night these forty are claimed first, without other rows.
    world
        .run_sql(
            "INSERT INTO pastes (short_code, expires_at)
             SELECT 'z' || n, now() FROM generate_series(1, 50) n",
        )
        .await;
    world
        .run_sql("UPDATE pastes SET retry_at = now() - interval '1 day' WHERE retry_at IS NOT NULL")
        .await;
    world.run_sql("UPDATE pastes SET attempts = 1 WHERE retry_at IS NOT NULL").await;
    let ended = run_with(&world, &["--limit", "50"]).await;
    assert_eq!((&ended.json()["rows_deleted"], world.count(LEFT).await), (&50.into(), 40));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_statements_to_find_bad_rows_grows_only_with_their_number() {
    // Sequences are not rolled back, so they count every attempt.
    let mut statements = Vec::new();
    for bad in [1, 4, 16] {
        let world = World::new().await;
        world.put_many(1000, 1000).await;
        world.run_sql("CREATE SEQUENCE tries; GRANT USAGE ON SEQUENCE tries TO PUBLIC").await;
        trigger(
            &world,
            "BEFORE DELETE ON pastes FOR EACH ROW",
            &format!(
                "IF substr(OLD.short_code, 2)::int % {} = 0 THEN RAISE EXCEPTION 'bad'; END IF;
                 RETURN OLD;",
                1000 / bad
            ),
        )
        .await;
        world
            .run_sql(
                "CREATE FUNCTION count_it() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN PERFORM nextval('tries'); RETURN NULL; END $$;
                 CREATE TRIGGER count_it BEFORE DELETE ON pastes
                     FOR EACH STATEMENT EXECUTE FUNCTION count_it()",
            )
            .await;
        let worker = world.worker().await;
        let claim = claim_some(&worker, 1000).await;
        carry_out(&worker, &claim).await;
        assert_eq!(world.count(LEFT).await, i64::from(bad));
        statements.push((i64::from(bad), world.count("SELECT last_value FROM tries").await));
    }
    for (bad, tries) in &statements {
        assert!(*tries <= 2 + bad * 2 * 10, "log2(1000) is 10: {statements:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lone_pastes_that_succeed_do_not_hide_that_no_batch_does() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    world
        .run_sql(
            "CREATE FUNCTION busy() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF (SELECT count(*) FROM gone) > 1 THEN
                     RAISE EXCEPTION 'try again' USING ERRCODE = '40001';
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER busy AFTER DELETE ON pastes REFERENCING OLD TABLE AS gone
                 FOR EACH STATEMENT EXECUTE FUNCTION busy()",
        )
        .await;
    let worker = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json"])
        .env("CLEANUP_WORKER_OUTAGE_TIMEOUT", "2s")
        .start();
    let ending = worker.end();
    tokio::pin!(ending);
    // Each of these must run alone, and is due first.
    for n in 0..1000 {
        let lone = format!(
            "INSERT INTO pastes (short_code, expires_at, attempts)
             VALUES ('lone{n}', now() - interval '1 day', 4)"
        );
        world.run_sql(&lone).await;
        let soon = tokio::time::timeout(std::time::Duration::from_millis(100), &mut ending);
        if let Ok(ended) = soon.await {
            ended.assert_refused(1, &["gave up after 2s without a finished batch", "try again"]);
            let batch = "SELECT count(*) FROM pastes WHERE short_code LIKE 'p%'";
            assert!(world.count(batch).await > 1, "the batch is still there");
            return;
        }
    }
    panic!("the run did not give up while lone pastes arrived");
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_batches_of_bad_rows_do_not_keep_good_rows_from_being_erased() {
    let world = World::new().await;
    world.put_many(400, 400).await;
    let body = "IF OLD.short_code BETWEEN 'p00000051' AND 'p00000350' THEN
                RAISE EXCEPTION 'legal hold'; END IF; RETURN OLD;";
    trigger(&world, "BEFORE DELETE ON pastes FOR EACH ROW", body).await;
    let ended = run_with(&world, &["--batch-size", "50", "--concurrency", "2"]).await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!((&ended.json()["rows_deleted"], world.count(LEFT).await), (&100.into(), 300));
    assert_eq!(world.count(WRONG_COUNTS).await, 0);
}
