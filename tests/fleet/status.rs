//! `cleanupctl status`: shows what the fleet does, what failed, and what an operator should do.

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    process::Ended,
    *,
};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

async fn status(world: &World) -> Value {
    let ended = world.program("cleanupctl").args(&["status", "--format", "json"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    ended.json()
}

async fn screen(world: &World) -> Ended {
    world.program("cleanupctl").args(&["status"]).output().await
}

/// The remedy of the `to do` entry that contains this text.
fn remedy(status: &Value, what: &str) -> String {
    let todo = status["todo"].as_array().expect("a list");
    let found = todo.iter().find(|todo| todo["what"].as_str().expect("text").contains(what));
    let found = found.unwrap_or_else(|| panic!("{what:?} is not in {todo:#?}"));
    found["remedy"].as_str().expect("text").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_fleet_has_nothing_to_do_and_shows_when_it_was_last_drained() {
    let world = World::new().await;
    let before = status(&world).await;
    assert_eq!((&before["last_success_s"], &before["runs"]), (&Value::Null, &Value::Array(vec![])));
    world.put_many(20, 20).await;
    let due = status(&world).await;
    assert_eq!((&due["backlog"], &due["backlog_estimated"]), (&20.into(), &false.into()));
    assert!(due["oldest_overdue_s"].as_f64().expect("an age") >= 19.0, "{due:#}");
    assert_eq!(world.program("cleanup-worker").args(&["run"]).output().await.code(), 0);
    let after = status(&world).await;
    assert_eq!((&after["backlog"], &after["deleted_24h"]), (&0.into(), &20.into()));
    assert!(after["last_success_s"].is_f64(), "{after:#}");
    let run = &after["runs"][0];
    assert_eq!((&run["state"], &run["rows_deleted"]), (&"drained".into(), &20.into()));
    assert_eq!(after["todo"], Value::Array(vec![]), "{after:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_run_shows_why_it_stopped_and_the_last_failure_is_something_to_do() {
    let world = World::new().await;
    world.put_many(30, 30).await;
    let run = |args: &[&str]| world.program("cleanup-worker").args(args).output();
    run(&["run", "--limit", "10"]).await;
    world.run_sql("UPDATE cleanup_fleet SET paused_at = now(), pause_reason = 'a restore'").await;
    run(&["run"]).await;
    let paused = status(&world).await;
    assert_eq!(remedy(&paused, "a restore"), "cleanupctl resume");
    world.run_sql("UPDATE cleanup_fleet SET paused_at = NULL").await;
    let braked = world.program("cleanup-worker").args(&["run"]).env("CLEANUP_BRAKE_MAX_ROWS", "5");
    assert_eq!(braked.output().await.code(), 4);
    let seen = status(&world).await;
    let states: Vec<&str> =
        seen["runs"].as_array().expect("runs").iter().filter_map(|r| r["state"].as_str()).collect();
    assert_eq!(states, ["brake", "paused", "limit"]);
    assert!(remedy(&seen, "brake.max_rows").contains("cleanup-worker run --dry-run"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_in_mid_batch_is_named_with_its_claim_and_the_remedies_work() {
    let world = World::new().await;
    world.put_many(400, 400).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let worker = world
        .program("cleanup-worker")
        .args(&["run", "--batch-size", "10", "--concurrency", "2"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .start();
    let open = "SELECT count(*) = 2 FROM deletion_claims WHERE finished_at IS NULL";
    world.until("two batches that hang", open).await;
    world.until("its record", "SELECT count(*) = 1 FROM cleanup_runs").await;
    let alive = status(&world).await;
    assert_eq!(alive["todo"], Value::Array(vec![]), "{alive:#}");
    assert_eq!((&alive["open_claims"], &alive["in_progress"]), (&2.into(), &20.into()));
    assert_eq!(alive["runs"][0]["state"], "running");
    worker.signal(Signal::KILL);
    worker.end().await;
    // As if a minute had passed.
    world.expire_leases(60.0).await;
    world.run_sql("UPDATE cleanup_runs SET seen_at = now() - interval '1 minute'").await;
    let seen = status(&world).await;
    assert_eq!(seen["runs"][0]["state"], "dead");
    let claim = seen["workers"][0]["claim_ids"][0].as_i64().expect("a claim");
    let id = seen["workers"][0]["worker"].as_str().expect("a worker").to_string();
    let remedy_now = remedy(&seen, &format!("worker {id} has sent no heartbeat for "));
    assert_eq!(remedy_now, format!("if it is dead: cleanupctl reset --worker {id}"));
    let text = screen(&world).await.stdout();
    assert!(text.contains(&id) && text.contains(&remedy_now), "{text}");
    let reset = world.program("cleanupctl").args(&["reset", &claim.to_string()]).output().await;
    assert_eq!(reset.code(), 0, "{}", reset.stderr());
    // As if two hours had passed without a watchdog.
    world.expire_leases(7201.0).await;
    let seen = status(&world).await;
    assert!(remedy(&seen, "1 claim without a heartbeat").contains("cleanup-watchdog --once"));
    let once = world.program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(once.code(), 0, "{}", once.stderr());
    let seen = status(&world).await;
    assert_eq!((&seen["open_claims"], &seen["todo"]), (&0.into(), &Value::Array(vec![])));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_and_findings_of_an_audit_are_something_to_do() {
    let world = World::new().await;
    world.put_many(3, 3).await;
    world
        .run_sql(
            "UPDATE pastes SET retry_at = 'infinity', attempts = 5;
             INSERT INTO cleanup_audits (complete, objects, orphans, missing_objects, wrong_counts,
                                         findings_left)
             VALUES (true, 100, 2, 0, 0, 2), (false, 5, 0, 0, 0, 0)",
        )
        .await;
    let seen = status(&world).await;
    assert!(remedy(&seen, "3 pastes failed permanently").contains("cleanupctl dead-letters"));
    assert!(remedy(&seen, "the last audit left 2 findings").contains("cleanupctl audit"));
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_prints_one_json_object_per_line_with_current_values() {
    let world = World::new().await;
    let watch =
        world.program("cleanupctl").args(&["status", "--watch", "200ms", "--format", "json"]);
    let mut watching = watch.into_command().spawn().expect("watch");
    let mut lines = BufReader::new(watching.stdout.take().expect("stdout")).lines();
    let mut next = async || {
        let line = lines.next_line().await.expect("a line").expect("it goes on");
        serde_json::from_str::<Value>(&line).expect("one JSON object")
    };
    assert_eq!(next().await["backlog"], 0);
    world.put_many(7, 7).await;
    while next().await["backlog"] != 7 {}
    watching.kill().await.expect("kill");
}

#[tokio::test(flavor = "multi_thread")]
async fn times_in_the_future_and_at_minus_infinity_are_named_and_no_age_is_negative() {
    let world = World::new().await;
    world.put_many(3, 3).await;
    let worker = world.worker().await;
    claim_some(&worker, 1).await;
    for future in ["now() + interval '1 year'", "'infinity'"] {
        world.run_sql(&format!("UPDATE deletion_claims SET heartbeat_at = {future}")).await;
        world.run_sql("UPDATE cleanup_fleet SET watchdog_at = now() + interval '1 year'").await;
        world.run_sql("UPDATE pastes SET expires_at = '-infinity' WHERE claim_id IS NULL").await;
        let seen = status(&world).await;
        let heartbeat = &seen["workers"][0];
        assert_eq!(
            (&heartbeat["heartbeat_age_s"], &heartbeat["in_the_future"]),
            (&0.0.into(), &true.into())
        );
        let watchdog = (&seen["watchdog_s_ago"], &seen["watchdog_in_the_future"]);
        assert_eq!(watchdog, (&0.0.into(), &true.into()));
        assert_eq!(
            (&seen["backlog"], &seen["expired_at_minus_infinity"]),
            (&2.into(), &true.into())
        );
        let text = screen(&world).await.stdout();
        assert!(text.contains("in the future") && text.contains("-infinity"), "{text}");
        assert!(!text.contains(" -31"), "no age is negative: {text}");
    }
}
