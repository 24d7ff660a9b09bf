//! Tables and stores with another owner: the owner's triggers, constraints, locks, renames and
//! restores do not stop the fleet, fail only the rows they concern, and make no count wrong.

mod altered;
mod buckets;
mod by_hand;
mod claim_ids;
mod clocks;
mod created_at;
mod drained;
mod hostile_settings;
mod leftovers;
mod locks;
mod missing_content;
mod named;
mod plans;
mod redis;
mod resets;
mod restored_claims;
mod row_errors;
mod slow_rows;
mod spellings;
mod subscriber;
mod swallowed;
mod triggers;
mod unclaimable;
mod unfit_tables;
mod wrong_tables;

use crate::support::*;

/// Runs a worker process to its end, with a JSON summary.
async fn run(world: &World) -> process::Ended {
    run_with(world, &[]).await
}

async fn run_with(world: &World, args: &[&str]) -> process::Ended {
    let run = ["run", "--format", "json"];
    world.program("cleanup-worker").args(&run).args(args).output().await
}

/// Asserts that the run succeeded and deleted this many pastes.
#[track_caller]
fn assert_deleted(ended: &process::Ended, pastes: usize) {
    let deleted = &ended.json()["rows_deleted"];
    assert_eq!((ended.code(), deleted), (0, &pastes.into()), "{}", ended.stderr());
}

/// Asserts that a run deletes all that is left, once the failed pastes are due again.
async fn assert_drained_after_backoff(world: &World) {
    world.end_backoff().await;
    assert_eq!(run(world).await.code(), 0);
    world.assert_drained().await;
}

/// Asserts that the run was not drained, because it left stranded pastes of which this is the first.
#[track_caller]
fn assert_stranded(ended: &process::Ended, pastes: usize, first: &str) {
    let (summary, stderr) = (ended.json(), ended.stderr());
    assert_eq!((ended.code(), &summary["stopped_because"]), (3, &"stranded".into()), "{stderr}");
    assert_eq!(summary["left"]["stranded"], pastes, "{summary}");
    assert!(stderr.contains(&format!("cleanupctl explain {first}`")), "{stderr}");
}

/// Creates a trigger of the owner, with this text between BEGIN and END.
async fn trigger(world: &World, when: &str, code: &str) {
    let sql = format!(
        "CREATE FUNCTION owners_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN {code} END $$;
         CREATE TRIGGER owners_trigger {when} EXECUTE FUNCTION owners_trigger()"
    );
    world.run_sql(&sql).await;
}

const LEFT: &str = "SELECT count(*) FROM pastes";
const ATTEMPTS: &str = "SELECT coalesce(sum(attempts), 0) FROM pastes";
/// The number of content rows whose count is not the number of pastes that reference them.
const WRONG_COUNTS: &str = "SELECT count(*) FROM content c
    WHERE ref_count <> (SELECT count(*) FROM pastes p
                        WHERE p.content_hash = c.content_hash AND deletion_status <> 'DELETED')";
