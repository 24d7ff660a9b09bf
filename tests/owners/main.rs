//! Tables and stores that other people own: their triggers, constraints, locks, renames and restores
//! stop nothing, cost no innocent paste anything, and make no count wrong.

mod by_hand;
mod claim_ids;
mod clocks;
mod created_at;
mod drained;
mod leftovers;
mod locks;
mod missing_content;
mod named;
mod plans;
mod resets;
mod restored_claims;
mod row_errors;
mod spellings;
mod subscriber;
#[path = "../support/mod.rs"]
mod support;
mod swallowed;
mod triggers;
mod unclaimable;
mod unfit_tables;
mod wrong_tables;

use support::*;

/// A run of a real worker process, with its JSON summary.
async fn run(world: &World) -> process::Ended {
    run_with(world, &[]).await
}

async fn run_with(world: &World, args: &[&str]) -> process::Ended {
    let run = ["run", "--format", "json"];
    world.program("cleanup-worker").args(&run).args(args).output().await
}

/// A trigger of the owner's on pastes, with this as its body.
async fn trigger(world: &World, when: &str, body: &str) {
    let sql = format!(
        "CREATE FUNCTION owners_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN {body} END $$;
         CREATE TRIGGER owners_trigger {when} EXECUTE FUNCTION owners_trigger()"
    );
    world.run_sql(&sql).await;
}

const LEFT: &str = "SELECT count(*) FROM pastes";
const ATTEMPTS: &str = "SELECT coalesce(sum(attempts), 0) FROM pastes";
/// Counts that are not the number of pastes with that content.
const WRONG_COUNTS: &str = "SELECT count(*) FROM content c
    WHERE ref_count <> (SELECT count(*) FROM pastes p
                        WHERE p.content_hash = c.content_hash AND deletion_status <> 'DELETED')";
