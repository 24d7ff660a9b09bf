//! What a run and the commands report about dead workers and the watchdog is true.

use super::*;
use crate::support::*;

async fn output_of(world: &World, args: &[&str]) -> String {
    let ended = world.program("cleanupctl").args(args).output().await;
    ended.stdout()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_not_drained_while_a_dead_worker_holds_expired_pastes() {
    let world = World::new().await;
    world.put_many(30, 30).await;
    let dead = world.worker().await;
    claim_some(&dead, 20).await;
    world.expire_leases(600.0).await;
    let ended = run(&world).await;
    assert_eq!(ended.code(), 3, "{}", ended.stderr());
    assert_eq!(ended.json()["stopped_because"], "dead_worker");
    assert_eq!(ended.json()["rows_deleted"], 10);
    let stderr = ended.stderr();
    for words in ["has claimed 20 pastes", &dead.id.to_string(), "no watchdog has ever run"] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    world.expire_leases(7201.0).await;
    let ended = run(&world).await;
    assert_eq!(
        (ended.code(), world.count(LEFT).await),
        (0, 0),
        "the sweep at its start resets them"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_failed_fails_the_run_although_a_dead_worker_holds_others() {
    let world = World::new().await;
    world.put_many(30, 30).await;
    let dead = world.worker().await;
    claim_some(&dead, 20).await;
    world.expire_leases(600.0).await;
    let refused = "IF OLD.short_code = 'p00000025' THEN RAISE EXCEPTION 'refused'; END IF;
                   RETURN OLD;";
    trigger(&world, "BEFORE DELETE ON pastes FOR EACH ROW", refused).await;
    let ended = run(&world).await;
    ended.assert_refused(1, &["1 paste could not be deleted", "has claimed 20 pastes"]);
    assert_eq!(ended.json()["rows_deleted"], 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_drained_while_live_workers_hold_claims() {
    let world = World::new().await;
    world.put_many(30, 30).await;
    let alive = world.worker().await;
    claim_some(&alive, 20).await;
    let ended = run(&world).await;
    assert_eq!((ended.code(), &ended.json()["left"]["claimed_by_others"]), (0, &20.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_not_drained_while_a_row_of_an_ended_claim_cannot_be_reset() {
    let world = World::new().await;
    world.put_many(5, 5).await;
    let worker = world.worker().await;
    claim_some(&worker, 3).await;
    world.run_sql("UPDATE deletion_claims SET reset_at = now()").await;
    let refused = "IF OLD.short_code = 'p00000002' THEN RAISE EXCEPTION 'refused'; END IF;
                   RETURN NEW;";
    trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", refused).await;
    let ended = run(&world).await;
    assert_stranded(&ended, 1, "p00000002");
    assert_eq!(ended.json()["rows_deleted"], 4);
    let once = world.program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(once.code(), 1, "{}", once.stdout());
    world.run_sql("DROP TRIGGER owners_trigger ON pastes").await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    holding.batch_execute("SELECT FROM pastes FOR UPDATE").await.expect("lock");
    assert_stranded(&run(&world).await, 1, "p00000002");
    holding.rollback().await.expect("let go");
    assert_deleted(&run(&world).await, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_promises_a_reset_while_no_watchdog_runs() {
    let world = World::new().await;
    world.bind().await;
    world.put("stuck", "stuck", Ago(60.0)).await;
    let dead = world.worker().await;
    claim_some(&dead, 1).await;
    world.expire_leases(600.0).await;
    let commands: [&[&str]; 3] = [&["status"], &["doctor"], &["explain", "stuck"]];
    for args in commands {
        let output = output_of(&world, args).await;
        assert!(output.contains("no watchdog has ever run"), "{args:?}: {output}");
    }
    let once = world.program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(once.code(), 0, "{}", once.stderr());
    for args in commands {
        let output = output_of(&world, args).await;
        assert!(output.contains("the watchdog resets it in 1h"), "{args:?}: {output}");
    }
    world.run_sql("UPDATE cleanup_fleet SET watchdog_at = now() - interval '5 hours'").await;
    for args in commands {
        let output = output_of(&world, args).await;
        assert!(output.contains("no watchdog has run for 5h"), "{args:?}: {output}");
    }
}
