//! One sweep: every claim whose worker was silent for `stuck_after`, and rows in progress that no open
//! claim covers. Set-based, in bounded chunks, until nothing is left.

use std::time::Duration;

use deadpool_postgres::{Pool, PoolError, Transaction};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::stranded::{self, Depth, reset_stranded};
use crate::{
    claim::reset::{LockedClaim, Reset, Why, reset},
    config::Settings,
    failpoint,
    migrate::{self, SchemaError},
    postgres::{answered, describe, describe_pool},
};

const HEARTBEAT_GRACE: &str = sql!("watchdog/heartbeat_grace");
const ELECT: &str = sql!("watchdog/elect");
const EXPIRED_CLAIMS: &str = sql!("watchdog/expired_claims");
/// One: a reset locks bodies in hash order, which a second claim would begin anew.
const CLAIMS_PER_TRANSACTION: i32 = 1;

/// What a sweep found.
#[derive(Debug, Default, Clone, Copy)]
pub struct Swept {
    /// Another watchdog was at it.
    pub not_elected: bool,
    pub reset: Reset,
    /// Rows in progress without an open claim.
    pub stranded: u64,
    /// Claims that could not be reset: other transactions hold all their rows, or a trigger refuses it.
    pub blocked: usize,
}

/// Before the first sweep of a process: a server that has just started may have been away for longer
/// than `stuck_after`, and its workers, alive as ever, had no chance to say so yet.
pub async fn let_workers_heartbeat_first(
    pool: &Pool,
    settings: &Settings,
    stop: &CancellationToken,
) -> Result<(), PoolError> {
    let (stuck_after, heartbeats) =
        (settings.watchdog.stuck_after, settings.worker.three_heartbeats());
    let look = async {
        let client = pool.get().await?;
        let times = [stuck_after.as_secs_f64(), heartbeats.as_secs_f64()];
        Ok::<_, PoolError>(client.query_one(HEARTBEAT_GRACE, &[&times[0], &times[1]]).await?)
    };
    let wait_s: f64 = answered(look).await?.get("wait_s");
    if wait_s > 0.0 {
        info!(
            wait_s,
            "Postgres has just started: letting workers heartbeat before claims are reset"
        );
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs_f64(wait_s)) => {}
            () = stop.cancelled() => {}
        }
    }
    Ok(())
}

/// Why a sweep did not get to its end. What it had reset stays reset.
#[derive(thiserror::Error, Debug)]
pub enum SweepError {
    #[error("{}", describe_pool(.0))]
    Postgres(#[from] PoolError),
    /// Somebody has migrated the database while this program ran.
    #[error(transparent)]
    Schema(#[from] SchemaError),
}

impl From<tokio_postgres::Error> for SweepError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error.into())
    }
}

/// What could not be reset in this sweep, and is not tried again in it.
#[derive(Default)]
struct Tried {
    claims: Vec<i64>,
    stranded: stranded::Tried,
}

/// Resets all that is stuck right now.
pub async fn sweep(pool: &Pool, settings: &Settings, depth: Depth) -> Result<Swept, SweepError> {
    let (mut swept, mut tried) = (Swept::default(), Tried::default());
    while answered(sweep_some(pool, settings, depth, &mut swept, &mut tried)).await? {}
    swept.blocked = tried.claims.len();
    Ok(swept)
}

/// One short transaction. True: there may be more.
async fn sweep_some(
    pool: &Pool,
    settings: &Settings,
    depth: Depth,
    swept: &mut Swept,
    tried: &mut Tried,
) -> Result<bool, SweepError> {
    let mut client = pool.get().await?;
    let mut transaction = client.transaction().await?;
    if !elected(&transaction).await? {
        swept.not_elected = true;
        return Ok(false);
    }
    failpoint::reached("sweep.before");
    let claims =
        reset_expired(&mut transaction, settings, &mut swept.reset, &mut tried.claims).await?;
    let stranded = match claims {
        0 => reset_stranded(&mut transaction, settings, depth, &mut tried.stranded).await?,
        _ => None,
    };
    transaction.commit().await?;
    if claims > 0 {
        failpoint::reached("sweep.committed");
    }
    if stranded > Some(0) {
        failpoint::reached("stranded.committed");
    }
    swept.stranded += stranded.unwrap_or_default();
    Ok(claims > 0 || stranded.is_some())
}

async fn elected(transaction: &Transaction<'_>) -> Result<bool, SweepError> {
    let row = transaction.query_one(ELECT, &[]).await?;
    migrate::expect(&row)?;
    Ok(row.get("elected"))
}

async fn reset_expired(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    total: &mut Reset,
    blocked: &mut Vec<i64>,
) -> Result<usize, tokio_postgres::Error> {
    let stuck_after = settings.watchdog.stuck_after.as_secs_f64();
    let rows = transaction
        .query(EXPIRED_CLAIMS, &[&stuck_after, &CLAIMS_PER_TRANSACTION, blocked])
        .await?;
    if !rows.is_empty() {
        failpoint::reached("sweep.locked");
    }
    for claim in rows.iter().map(LockedClaim::from) {
        // One claim that cannot be reset (a forgotten transaction holds all of its rows) must not
        // keep the others from it.
        let mut savepoint = transaction.savepoint("claim").await?;
        let done = match reset(&mut savepoint, settings, &claim, Why::LeaseExpired).await {
            Ok(done) => done,
            Err(failure) if failure.as_db_error().is_some() => {
                savepoint.rollback().await?;
                error!(
                    claim = claim.id,
                    "claim {} cannot be reset: {}",
                    claim.id,
                    describe(&failure)
                );
                blocked.push(claim.id);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        savepoint.commit().await?;
        warn!(
            claim = claim.id,
            worker = %claim.worker,
            rows = done.rows,
            dead_letters = done.dead_letters,
            "reset claim {}: its worker was silent; {} pastes are due again",
            claim.id,
            done.rows
        );
        total.claims += 1;
        total.rows += done.rows;
        total.dead_letters += done.dead_letters;
        total.left += done.left;
    }
    Ok(rows.len())
}
