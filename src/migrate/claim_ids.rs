//! Moves claim ids past those in use. If they started again, a new claim would take over the rows of an
//! old one, and finish or reset them as its own.

use tokio_postgres::{Client, Error};

use super::{
    MigrateError,
    runner::Runner,
    script::{Step, StepKind},
};
use crate::{
    postgres::{describe, remedy},
    problem::Problem,
};

const CLAIM_IDS: &str = sql!("migrate/claim_ids");
const MOVE: &str = sql!("migrate/move_claim_ids");

struct ClaimIds {
    highest: i64,
    last: i64,
    movable: bool,
}

async fn read(client: &Client) -> Result<ClaimIds, Error> {
    let row = client.query_one(CLAIM_IDS, &[]).await?;
    Ok(ClaimIds {
        highest: row.try_get("highest")?,
        last: row.try_get("last")?,
        movable: row.try_get("movable")?,
    })
}

/// Moves the sequence of claim ids past every id in use, if needed. If not, that takes two index lookups.
pub async fn advance_claim_ids(client: &Client) -> Result<(), Problem> {
    let failed = |error: Error| {
        let problem = format!("cannot check the claim ids: {}", describe(&error));
        Problem::new(problem, remedy(&error))
    };
    let ClaimIds { highest, last, movable } = read(client).await.map_err(failed)?;
    if highest <= last {
        return Ok(());
    }
    if !movable {
        let problem = format!(
            "claim ids up to {highest} are in use, but the next one would be {}, and this login may not \
             move their sequence",
            last + 1
        );
        let remedy = "run `cleanupctl migrate` (with `--roles` to grant that right)";
        return Err(Problem::new(problem, remedy));
    }
    client.batch_execute(MOVE).await.map_err(failed)?;
    tracing::warn!(
        "moved the sequence of claim ids from {last} past {highest}, the highest id in use: the database \
         was restored or copied"
    );
    Ok(())
}

/// Does the same in a migration. Returns the highest id in use, if the sequence was moved past it.
pub(super) async fn advance(runner: &mut Runner<'_>) -> Result<Option<i64>, MigrateError> {
    let failed = MigrateError::while_doing("check the claim ids");
    let ClaimIds { highest, last, .. } = read(runner.client).await.map_err(failed)?;
    if highest <= last {
        return Ok(None);
    }
    let title = format!("move claim ids from {last} past {highest}, the highest in use");
    runner.print(&title);
    runner.run_step(&Step { title: &title, kind: StepKind::Locking, sql: MOVE }).await?;
    Ok(Some(highest))
}
