//! A paste that kills every worker that claims it, and a batch that panics.

use super::{
    environment::Environment,
    support::{invariants::Expected, *},
};

/// The number of workers that die: two with a batch of several pastes, the others with it alone.
const MAX_ATTEMPTS: i64 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_kills_every_worker_becomes_a_dead_letter_and_all_others_are_deleted() {
    let env = Environment::new().await;
    for n in 0..100 {
        env.world.put(&format!("harmless {n}"), &format!("{}", n / 2), Ago(200.0)).await;
    }
    env.world.put("killer", "killer", Ago(150.0)).await;
    let fleet = |program: Process| {
        let program = program.env("CLEANUP_WORKER_BATCH_SIZE", "40");
        program.env("CLEANUP_WORKER_MAX_ATTEMPTS", &MAX_ATTEMPTS.to_string())
    };
    let mut watchdog = fleet(env.program("cleanup-watchdog")).start();
    watchdog.until_it_logs("health and metrics on").await;
    let mut deaths = 0;
    let dead_letters = "SELECT count(*) FROM pastes WHERE retry_at = 'infinity'";
    while env.world.count(dead_letters).await == 0 {
        assert!(deaths <= MAX_ATTEMPTS, "it never becomes a dead letter");
        let worker = fleet(env.armed("cleanup-worker", "paste.held=return(killer)"));
        deaths += i64::from(worker.start().end().await.code() == -1);
    }
    let last = fleet(env.worker()).output().await;
    assert_eq!(last.code(), 0, "{}", last.stderr());
    assert_eq!(deaths, MAX_ATTEMPTS, "each attempt killed a worker");
    let dead_letters = ["killer".to_string()].into();
    let found = env.world.store().check(&Expected { dead_letters, ..Expected::default() }).await;
    found.assert_clean("only the killer is left");
    assert_eq!(found.pastes, 1);
    let row = "SELECT attempts || ' ' || retry_at || ' ' || last_error FROM pastes";
    let row = env.world.text(row).await.expect("the killer's row");
    assert!(row.starts_with("5 infinity worker lease expired"), "{row}");
    let alone = "SELECT string_agg(rows_claimed::text, ' ') FROM (
                     SELECT rows_claimed FROM deletion_claims AS claim WHERE reset_at IS NOT NULL
                       -- Not of a live worker, which can lose a claim on a busy machine.
                       AND NOT EXISTS (SELECT FROM cleanup_runs AS run
                                       WHERE run.worker = claim.worker AND ended_at IS NOT NULL)
                     ORDER BY id DESC LIMIT 3) AS last";
    assert_eq!(
        env.world.text(alone).await.as_deref(),
        Some("1 1 1"),
        "the last three workers died with this paste alone"
    );
    watchdog.signal(Signal::TERM);
    assert_eq!(watchdog.end().await.code(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panicked_batch_costs_its_rows_an_attempt_and_fails_the_run() {
    let env = Environment::new().await;
    for n in 0..20 {
        env.world.put(&format!("p{n}"), &format!("{}", n / 2), Ago(200.0)).await;
    }
    let panicked =
        env.armed("cleanup-worker", "decrement.fenced=1*panic(by the test)").start().end().await;
    assert_eq!(panicked.code(), 1, "{}", panicked.stderr());
    let summary = panicked.json();
    assert_eq!(summary["rows_deleted"], 20, "its rows are due again, and deleted: {summary}");
    let error = summary["error"].as_str().unwrap_or_default();
    assert!(error.contains("1 batch panicked"), "{summary}");
    let counted =
        "SELECT count(*) FROM deletion_claims WHERE reset_reason = 'worker lease expired'";
    assert_eq!(env.world.count(counted).await, 1);
    env.world.assert_drained().await;
}
