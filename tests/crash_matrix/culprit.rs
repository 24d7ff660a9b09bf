//! A paste that kills whoever holds it, and a batch that breaks off.

use super::{
    scene::Stage,
    support::{invariants::Expected, *},
};

/// So many workers die of it: two while it has company, the others of it alone.
const MAX_ATTEMPTS: i64 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_kills_every_worker_ends_alone_as_a_dead_letter_and_its_mates_are_deleted() {
    let stage = Stage::new().await;
    for n in 0..100 {
        stage.world.put(&format!("innocent {n}"), &format!("{}", n / 2), Ago(200.0)).await;
    }
    stage.world.put("killer", "killer", Ago(150.0)).await;
    let fleet = |program: Process| {
        let program = program.env("CLEANUP_WORKER_BATCH_SIZE", "40");
        program.env("CLEANUP_WORKER_MAX_ATTEMPTS", &MAX_ATTEMPTS.to_string())
    };
    let mut watchdog = fleet(stage.program("cleanup-watchdog")).start();
    watchdog.until_it_logs("watching").await;
    let mut deaths = 0;
    let given_up = "SELECT count(*) FROM pastes WHERE retry_at = 'infinity'";
    while stage.world.count(given_up).await == 0 {
        assert!(deaths <= MAX_ATTEMPTS, "it is never given up");
        let worker = fleet(stage.armed("cleanup-worker", "paste.held=return(killer)"));
        deaths += i64::from(worker.start().end().await.code() == -1);
    }
    let last = fleet(stage.worker()).output().await;
    assert_eq!(last.code(), 0, "{}", last.stderr());
    assert_eq!(deaths, MAX_ATTEMPTS, "each attempt was a death");
    let dead_letters = ["killer".to_string()].into();
    let found = stage.world.store().check(&Expected { dead_letters, ..Expected::default() }).await;
    found.assert_clean("only the killer is left");
    assert_eq!(found.pastes, 1);
    let story = "SELECT attempts || ' ' || retry_at || ' ' || last_error FROM pastes";
    let story = stage.world.text(story).await.expect("the killer's story");
    assert!(story.starts_with("5 infinity worker lease expired"), "{story}");
    let alone = "SELECT string_agg(rows_claimed::text, ' ') FROM (
                     SELECT rows_claimed FROM deletion_claims WHERE reset_at IS NOT NULL
                     ORDER BY id DESC LIMIT 3) AS last";
    assert_eq!(
        stage.world.text(alone).await.as_deref(),
        Some("1 1 1"),
        "the last died of it alone"
    );
    watchdog.signal(Signal::TERM);
    assert_eq!(watchdog.end().await.code(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_breaks_off_costs_its_rows_an_attempt_and_the_run_its_exit_code() {
    let stage = Stage::new().await;
    for n in 0..20 {
        stage.world.put(&format!("p{n}"), &format!("{}", n / 2), Ago(200.0)).await;
    }
    let broken =
        stage.armed("cleanup-worker", "decrement.fenced=1*panic(told to)").start().end().await;
    assert_eq!(broken.code(), 1, "{}", broken.stderr());
    let summary = broken.json();
    assert_eq!(summary["rows_deleted"], 20, "its rows are due again, and deleted: {summary}");
    let error = summary["error"].as_str().unwrap_or_default();
    assert!(error.contains("1 batches broke off"), "{summary}");
    let counted =
        "SELECT count(*) FROM deletion_claims WHERE reset_reason = 'worker lease expired'";
    assert_eq!(stage.world.count(counted).await, 1);
    stage.world.assert_drained().await;
}
