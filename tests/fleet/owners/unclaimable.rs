//! Unclaimable rows: Postgres refuses the UPDATE that marks them.

use super::*;
use crate::support::{Signal, *};

const ALL: &str = "SELECT count(*) FROM cleanup_unclaimable";

/// Adds a NOT VALID constraint that the `bad` oldest rows violate.
async fn add_constraint_violated_by(world: &World, bad: i32, good: i32) {
    world.put_many(bad + good, bad + good).await;
    let sql = format!(
        "ALTER TABLE pastes ADD COLUMN note text;
         UPDATE pastes SET note = 'bad' WHERE short_code <= 'p' || lpad('{bad}', 8, '0');
         ALTER TABLE pastes ADD CONSTRAINT owners CHECK (note <> 'bad') NOT VALID"
    );
    world.run_sql(&sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_unclaimable_rows_do_not_keep_others_from_being_claimed() {
    let world = World::new().await;
    add_constraint_violated_by(&world, 1200, 300).await;
    let ended = run(&world).await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!(ended.json()["rows_deleted"], 300);
    assert_eq!((world.count(ALL).await, world.count(LEFT).await), (1200, 1200));
    assert_eq!(ended.json()["left"]["unclaimable"], 1200);
    // The next run knows them, and deletes only the new paste.
    world.put("new", "new", Ago(1.0)).await;
    let ended = run(&world).await;
    assert_deleted(&ended, 1);
    let status = world.program("cleanupctl").args(&["status"]).output().await.stdout();
    assert!(status.contains("1,200 pastes cannot be claimed"), "{status}");
    // The owner drops the constraint, and requeues the rows.
    world.run_sql("ALTER TABLE pastes DROP CONSTRAINT owners").await;
    let requeue = world.program("cleanupctl").args(&["requeue", "--all"]).output().await;
    assert_eq!(requeue.code(), 0, "{}", requeue.stderr());
    assert_eq!(run(&world).await.json()["rows_deleted"], 1200);
    assert_eq!((world.count(ALL).await, world.count(LEFT).await), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_claim_a_trigger_refuses_do_not_keep_others_from_being_claimed() {
    let world = World::new().await;
    world.put_many(60, 60).await;
    let raise = "IF OLD.short_code <= 'p00000040' THEN RAISE EXCEPTION 'not these'; END IF;
                 RETURN NEW;";
    trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", raise).await;
    let ended = run_with(&world, &["--batch-size", "30"]).await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!((&ended.json()["rows_deleted"], world.count(ALL).await), (&20.into(), 40));
    assert_eq!(world.count(ATTEMPTS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_no_paste_can_be_claimed_the_run_reports_it_once_and_stops() {
    let world = World::new().await;
    world.put_many(300, 300).await;
    let raise = "RAISE EXCEPTION 'nothing may change';";
    trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", raise).await;
    let ended = run(&world).await;
    ended.assert_refused(1, &["every paste fails", "nothing may change", "triggers"]);
    assert_eq!(ended.stderr().matches("nothing may change").count(), 1, "{}", ended.stderr());
    assert_eq!((world.count(LEFT).await, world.count(ALL).await), (300, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_search_for_unclaimable_rows() {
    let world = World::new().await;
    add_constraint_violated_by(&world, 3000, 1).await;
    // The last two thousand wait until the signal is sent.
    world
        .run_sql(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
             BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
             CREATE TRIGGER wait BEFORE UPDATE ON pastes FOR EACH ROW
                 WHEN (OLD.short_code > 'p00001000') EXECUTE FUNCTION wait()",
        )
        .await;
    let holder = connect(&world.database_url).await;
    holder.batch_execute("SELECT pg_advisory_lock(1)").await.expect("hold");
    let mut worker = world.program("cleanup-worker").args(&["run", "--batch-size", "100"]).start();
    worker.until_it_logs("cannot be claimed").await;
    worker.signal(Signal::TERM);
    holder.batch_execute("SELECT pg_advisory_unlock(1)").await.expect("let go");
    let ended = worker.end().await;
    assert!(matches!(ended.code(), 1 | 3), "{}", ended.stderr());
    assert!(world.count(ALL).await < 3000, "it stopped before the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_in_a_trigger_delays_the_claim_and_makes_no_row_unclaimable() {
    let world = World::new().await;
    world.put_many(40, 40).await;
    world
        .run_sql("CREATE TABLE audit_log (at timestamptz); GRANT ALL ON audit_log TO PUBLIC")
        .await;
    let log = "INSERT INTO audit_log VALUES (now()); RETURN NULL;";
    trigger(&world, "AFTER UPDATE ON pastes FOR EACH ROW", log).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    holding.batch_execute("LOCK audit_log").await.expect("lock");
    let mut worker = world.program("cleanup-worker").args(&["run", "--format", "json"]).start();
    worker.until_it_logs("paused claims").await;
    holding.rollback().await.expect("let go");
    let ended = worker.end().await;
    assert_eq!((ended.code(), world.count(LEFT).await), (0, 0), "{}", ended.stderr());
    assert_eq!(world.count(ALL).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_claim_waits_for_a_lock_do_not_keep_others_from_being_claimed() {
    let world = World::new().await;
    world.put_many(60, 60).await;
    let users = "CREATE TABLE users (id int PRIMARY KEY, changes int NOT NULL DEFAULT 0);
                 GRANT ALL ON users TO PUBLIC;
                 INSERT INTO users VALUES (1), (2);
                 ALTER TABLE pastes ADD COLUMN user_id int NOT NULL DEFAULT 2;
                 UPDATE pastes SET user_id = 1 WHERE short_code <= 'p00000040'";
    world.run_sql(users).await;
    let count = "UPDATE users SET changes = changes + 1 WHERE id = NEW.user_id; RETURN NEW;";
    trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", count).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    holding.batch_execute("UPDATE users SET changes = 0 WHERE id = 1").await.expect("lock");
    let ended = run_with(&world, &["--batch-size", "30"]).await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!((&ended.json()["rows_deleted"], world.count(LEFT).await), (&20.into(), 40));
    // As long as any locked row, however often that happens, and without an attempt.
    let soon = "SELECT count(*) FROM cleanup_unclaimable
                WHERE retry_at - found_at = interval '15 minutes'";
    assert_eq!((world.count(soon).await, world.count(ATTEMPTS).await), (40, 0));
    holding.rollback().await.expect("let go");
    world.run_sql("UPDATE cleanup_unclaimable SET retry_at = now()").await;
    assert_deleted(&run(&world).await, 40);
    world.assert_drained().await;
}
