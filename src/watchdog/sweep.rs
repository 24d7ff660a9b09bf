//! One sweep: resets every claim without a heartbeat for `stuck_after`, and stranded rows. Set-based, in
//! bounded transactions, until nothing is left.

use std::time::Duration;

use deadpool_postgres::{Pool, PoolError, Transaction};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::stranded::{self, Depth, reset_stranded};
use crate::{
    claim::reset::{LockedClaim, Reset, ResetReason, reset},
    config::Settings,
    failpoint,
    format::counted,
    migrate::{self, SchemaError},
    postgres::{PgError, answered, describe},
};

const HEARTBEAT_GRACE: &str = sql!("sweep/heartbeat_grace");
const ELECT: &str = sql!("watchdog/elect");
const EXPIRED_CLAIMS: &str = sql!("sweep/expired_claims");
/// One: a reset locks content rows in hash order, and a second claim would start that order again.
const CLAIMS_PER_TRANSACTION: i32 = 1;

/// The result of a sweep.
#[derive(Debug, Default, Clone, Copy)]
pub struct Swept {
    /// Another watchdog was sweeping.
    pub not_elected: bool,
    /// The claims whose lease had expired, and their rows.
    pub reset: Reset,
    /// Stranded rows that were reset.
    pub stranded: u64,
    /// Blocked claims, which could not be reset: other transactions have locked all their rows, or a trigger
    /// refuses it.
    pub blocked: usize,
}

/// Waits before the first sweep of a process, if needed: a server that has just started may have been
/// down for longer than `stuck_after`, and live workers had no chance to send a heartbeat yet.
pub async fn let_workers_heartbeat_first(
    pool: &Pool,
    settings: &Settings,
    stop: &CancellationToken,
) -> Result<(), PgError> {
    let (stuck_after, heartbeats) =
        (settings.watchdog.stuck_after, settings.worker.three_heartbeats());
    let query = async {
        let client = pool.get().await?;
        let times = [stuck_after.as_secs_f64(), heartbeats.as_secs_f64()];
        Ok::<_, PgError>(client.query_one(HEARTBEAT_GRACE, &[&times[0], &times[1]]).await?)
    };
    let wait_s: f64 = answered(query).await?.get("wait_s");
    if wait_s > 0.0 {
        info!(
            wait_s,
            "Postgres has just started: waiting {wait_s:.0} s for heartbeats before resetting claims"
        );
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs_f64(wait_s)) => {}
            () = stop.cancelled() => {}
        }
    }
    Ok(())
}

/// Why a sweep did not complete. What it has reset stays reset.
#[derive(thiserror::Error, Debug)]
pub enum SweepError {
    /// Postgres is unavailable, or refuses a statement of the sweep itself.
    #[error(transparent)]
    Postgres(#[from] PgError),
    /// The database was migrated while this program was running.
    #[error(transparent)]
    Schema(#[from] SchemaError),
}

impl From<tokio_postgres::Error> for SweepError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error.into())
    }
}

impl From<PoolError> for SweepError {
    fn from(error: PoolError) -> Self {
        Self::Postgres(error.into())
    }
}

/// What could not be reset, and is not tried again in this sweep.
#[derive(Default)]
struct Tried {
    claims: Vec<i64>,
    stranded: stranded::Tried,
}

/// Resets everything that is stuck now.
pub async fn sweep(pool: &Pool, settings: &Settings, depth: Depth) -> Result<Swept, SweepError> {
    let (mut swept, mut tried) = (Swept::default(), Tried::default());
    while answered(sweep_some(pool, settings, depth, &mut swept, &mut tried)).await? {}
    swept.blocked = tried.claims.len();
    Ok(swept)
}

/// Sweeps in one short transaction. Returns whether there may be more.
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

/// Returns whether this watchdog may sweep in this transaction.
async fn elected(transaction: &Transaction<'_>) -> Result<bool, SweepError> {
    let row = transaction.query_one(ELECT, &[]).await?;
    migrate::expect(&row)?;
    Ok(row.get("elected"))
}

/// Resets claims whose lease has expired, and returns how many were found.
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
        match reset_claim(transaction, settings, &claim).await? {
            Some(done) => {
                total.claims += 1;
                total.rows += done.rows;
                total.dead_letters += done.dead_letters;
                total.left += done.left;
            }
            None => blocked.push(claim.id),
        }
    }
    Ok(rows.len())
}

/// Resets one claim. `None`: it is blocked (a forgotten transaction has locked all of its rows, for
/// example), which must not keep the others from being reset.
async fn reset_claim(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
) -> Result<Option<Reset>, tokio_postgres::Error> {
    let mut savepoint = transaction.savepoint("claim").await?;
    let done = match reset(&mut savepoint, settings, claim, ResetReason::LeaseExpired).await {
        Ok(done) => done,
        Err(failure) if failure.as_db_error().is_some() => {
            savepoint.rollback().await?;
            let (id, reason) = (claim.id, describe(&failure));
            error!(claim = id, "cannot reset claim {id}: {reason}; a later sweep tries again");
            return Ok(None);
        }
        Err(failure) => return Err(failure),
    };
    savepoint.commit().await?;
    warn!(
        claim = claim.id,
        worker = %claim.worker,
        rows = done.rows,
        dead_letters = done.dead_letters,
        "reset claim {}: its lease expired; {} due again",
        claim.id,
        counted(done.rows, "paste")
    );
    Ok(Some(done))
}
