//! The operator commands: pause and resume, dead letters, requeue, reset. Each refuses what would do harm,
//! and prints what to do instead.

use crate::support::{process::Ended, *};

async fn ctl(world: &World, args: &[&str]) -> Ended {
    world.program("cleanupctl").args(args).output().await
}

/// Adds pastes that failed permanently, each with an error of its own.
async fn dead_letters(world: &World, count: i32) {
    world.put_many(count, count).await;
    world
        .run_sql(
            "UPDATE pastes SET retry_at = 'infinity', attempts = 5,
                               last_error = 'AccessDenied: hold ' || short_code",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_fleet_claims_nothing_and_prints_the_reason_until_it_is_resumed() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    let paused = ctl(&world, &["pause", "--reason", "restoring a backup"]).await;
    assert_eq!(paused.code(), 0, "{}", paused.stderr());
    let run = ["run", "--format", "json"];
    let ended = world.program("cleanup-worker").args(&run).output().await;
    assert_eq!(ended.code(), 3, "{}", ended.stderr());
    assert_eq!(ended.json()["stopped_because"], "paused");
    assert!(ended.stdout().contains("restoring a backup"), "{}", ended.stdout());
    let status = ctl(&world, &["status"]).await;
    assert!(status.stdout().contains("restoring a backup"), "{}", status.stdout());
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
    let resumed = ctl(&world, &["resume", "--format", "json"]).await;
    assert_eq!(
        (&resumed.json()["paused"], &resumed.json()["changed"]),
        (&false.into(), &true.into())
    );
    let again = ctl(&world, &["resume"]).await;
    assert!(again.stdout().contains("was not paused"), "{}", again.stdout());
    let ended = world.program("cleanup-worker").args(&run).output().await;
    assert_eq!(ended.json()["rows_deleted"], 20, "{}", ended.stderr());
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_without_a_reason_is_refused() {
    let world = World::new().await;
    let ended = ctl(&world, &["pause", "--reason", " "]).await;
    ended.assert_refused(2, &["--reason is empty"]);
    assert_eq!(world.count("SELECT count(paused_at) FROM cleanup_fleet").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_with_their_errors_and_no_other_pastes() {
    let world = World::new().await;
    assert!(ctl(&world, &["dead-letters"]).await.stdout().contains("no dead letters"));
    dead_letters(&world, 3).await;
    world.put("well", "a", Ago(60.0)).await;
    let list = ctl(&world, &["dead-letters", "--format", "json"]).await.json();
    let letters = list["dead_letters"].as_array().expect("an array").clone();
    assert_eq!((letters.len(), &list["more"]), (3, &false.into()));
    let listed = |letter: &serde_json::Value| {
        let code = letter["short_code"].as_str().expect("a code").to_string();
        letter["last_error"] == format!("AccessDenied: hold {code}") && letter["attempts"] == 5
    };
    assert!(letters.iter().all(listed), "{letters:?}");
    let first = ctl(&world, &["dead-letters", "--limit", "1"]).await.stdout();
    assert!(first.contains("there are more") && first.contains("cleanupctl requeue"), "{first}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requeued_dead_letter_gets_one_more_attempt_and_the_others_none() {
    let world = World::new().await;
    dead_letters(&world, 4).await;
    let code = "SELECT short_code FROM pastes ORDER BY short_code LIMIT 1";
    let code = world.text(code).await.expect("a paste");
    let ended = ctl(&world, &["requeue", &code]).await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let due = "SELECT count(*) FROM pastes WHERE retry_at <= now() AND attempts = 4";
    assert_eq!(world.count(due).await, 1);
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 1);
    let ended = ctl(&world, &["requeue", &code]).await;
    assert_eq!(ended.code(), 1, "it is gone");
    assert!(ended.stdout().contains(&code), "{}", ended.stdout());
    let filtered = ctl(&world, &["requeue", "--error-contains", "no such error"]).await;
    assert!(filtered.stdout().starts_with("requeued 0 pastes"), "{}", filtered.stdout());
    let all =
        ctl(&world, &["requeue", "--error-contains", "AccessDenied", "--format", "json"]).await;
    assert_eq!(all.json()["requeued"], 3);
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 3);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requeued_pastes_that_failed_by_themselves_are_claimed_in_full_batches() {
    let world = World::new().await;
    dead_letters(&world, 60).await;
    assert_eq!(ctl(&world, &["requeue", "--all"]).await.code(), 0);
    let run = ["run", "--format", "json", "--batch-size", "30"];
    let ended = world.program("cleanup-worker").args(&run).output().await;
    assert_eq!(ended.json()["rows_deleted"], 60, "{}", ended.stderr());
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 2, "claims");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requeued_pastes_whose_workers_died_are_claimed_one_by_one() {
    let world = World::new().await;
    dead_letters(&world, 4).await;
    world
        .run_sql("UPDATE pastes SET last_error = 'worker lease expired (claim 1, worker x)'")
        .await;
    assert_eq!(ctl(&world, &["requeue", "--all"]).await.code(), 0);
    let run = ["run", "--format", "json", "--batch-size", "30"];
    let ended = world.program("cleanup-worker").args(&run).output().await;
    assert_eq!(ended.json()["rows_deleted"], 4, "{}", ended.stderr());
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 4, "claims");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requeue_without_a_selection_is_refused() {
    let world = World::new().await;
    dead_letters(&world, 2).await;
    ctl(&world, &["requeue"]).await.assert_refused(2, &["no pastes selected", "--all"]);
    assert_eq!(world.count("SELECT count(*) FROM pastes WHERE retry_at < 'infinity'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_resets_the_claim_of_a_dead_worker_and_its_zombie_is_fenced_off() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let zombie = world.worker().await;
    let claim = claim_some(&zombie, 10).await;
    zombie.decrement(&claim).await.expect("decrement");
    world.expire_leases(31.0).await;
    let id = claim.fence.claim.to_string();
    let ended = ctl(&world, &["reset", &id]).await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert!(ended.stdout().contains("10 pastes reset"), "{}", ended.stdout());
    let lost = zombie.finish(&claim, &Default::default(), &Default::default()).await;
    assert!(lost.is_err(), "the zombie finished its batch");
    world.assert_consistent().await;
    ctl(&world, &["reset", &id]).await.assert_refused(1, &["already reset"]);
    world.end_backoff().await;
    drain(&world.worker().await).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claim_of_a_live_worker_is_not_reset_by_an_operator() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 10).await;
    let id = claim.fence.claim.to_string();
    ctl(&world, &["reset", &id]).await.assert_refused(1, &["seems to be alive", "--force"]);
    carry_out(&worker, &claim).await;
    ctl(&world, &["reset", &id]).await.assert_refused(1, &["is finished"]);
    ctl(&world, &["reset", "4711"]).await.assert_refused(1, &["claim 4711 does not exist"]);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_claims_of_a_dead_worker_are_reset_by_its_uuid_and_none_of_a_live_one() {
    let world = World::new().await;
    world.put_many(40, 40).await;
    let (dead, alive) = (world.worker().await, world.worker().await);
    for _ in 0..2 {
        claim_some(&dead, 10).await;
        claim_some(&alive, 10).await;
    }
    let [dead, alive] = [dead, alive].map(|worker| worker.id.to_string());
    world
        .run_sql(&format!(
            "UPDATE deletion_claims SET heartbeat_at = now() - interval '1 minute'
             WHERE worker = '{dead}'"
        ))
        .await;
    let misspelled = ctl(&world, &["reset", "--worker", "dead-worker"]).await;
    assert_eq!(misspelled.code(), 2);
    assert!(misspelled.stderr().contains("first 4 digits"), "{}", misspelled.stderr());
    // As `status` prints it.
    let first_digits = &dead[..8];
    let done = ctl(&world, &["reset", "--worker", first_digits, "--format", "json"]).await.json();
    assert_eq!((done["claims"].as_array().map(Vec::len), &done["pastes"]), (Some(2), &20.into()));
    ctl(&world, &["reset", "--worker", &dead]).await.assert_refused(1, &["no open claim"]);
    ctl(&world, &["reset", "--worker", &alive]).await.assert_refused(1, &["seems to be alive"]);
    let open = "SELECT count(*) FROM deletion_claims WHERE reset_at IS NULL";
    assert_eq!(world.count(open).await, 2, "those of the live worker");
    assert_eq!(ctl(&world, &["reset"]).await.code(), 2, "a claim or a worker must be named");
}

#[tokio::test(flavor = "multi_thread")]
async fn first_digits_that_several_workers_share_reset_none_of_them() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    for _ in 0..2 {
        let worker = world.worker().await;
        claim_some(&worker, 10).await;
    }
    world
        .run_sql(
            "UPDATE deletion_claims SET heartbeat_at = now() - interval '1 minute',
                 worker = overlay(worker::text PLACING '0f8b6a5e' FROM 1)::uuid",
        )
        .await;
    let ended = ctl(&world, &["reset", "--worker", "0f8b6a5e"]).await;
    ended.assert_refused(1, &["several workers begin with 0f8b6a5e", "add digits"]);
    let open = "SELECT count(*) FROM deletion_claims WHERE reset_at IS NULL";
    assert_eq!(world.count(open).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_commands_work_with_the_documented_roles() {
    let world = World::new().await;
    dead_letters(&world, 2).await;
    world.put("due", "a", Ago(60.0)).await;
    let claim = claim_some(&*world.worker().await, 1).await.fence.claim.to_string();
    world.expire_leases(60.0).await;
    let as_worker: [&[&str]; 6] = [
        &["status"],
        &["explain", "due"],
        &["dead-letters"],
        &["requeue", "--all"],
        &["reset", &claim],
        &["doctor"],
    ];
    for args in as_worker {
        let tool = world.program("cleanupctl").env("DATABASE_URL", &world.worker_url());
        let ended = tool.args(args).output().await;
        assert_eq!(ended.code(), 0, "{args:?}: {}{}", ended.stdout(), ended.stderr());
    }
    for args in [&["status"][..], &["explain", "due"], &["dead-letters"]] {
        let tool = world.auditor();
        let ended = tool.args(args).output().await;
        assert_eq!(ended.code(), 0, "{args:?}: {}", ended.stderr());
    }
    let pause = ["pause", "--reason", "not with a worker's login"];
    let tool = world.program("cleanupctl").env("DATABASE_URL", &world.worker_url());
    tool.args(&pause).output().await.assert_refused(1, &["permission denied"]);
}
