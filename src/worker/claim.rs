//! Step 2: claim due pastes. One statement marks them and inserts the claim row that is their lease.

use std::{
    sync::PoisonError,
    time::{Duration, SystemTime},
};

use deadpool_postgres::Client;
use futures_util::future::try_join;
use tokio::time::Instant;
use tokio_postgres::types::ToSql;
use tracing::warn;

use super::{PgError, Worker, lock::Turn};
use crate::{
    claim::{Claim, Fence, Paste, attempts_with_company},
    failpoint,
    migrate::{self, SchemaError},
    postgres::{BY_KEY, answered, describe, describe_pool, is_hopeless, is_row_fault},
};

const TURN: &str = include_str!("../../sql/queries/claim_turn.sql");
const CLAIM: &str = include_str!("../../sql/queries/claim.sql");
const CANDIDATE: &str = include_str!("../../sql/queries/claim_candidate.sql");
/// No other plan than the walk along pastes_due_idx, whatever the statistics say or do not say.
pub const ONE_PLAN: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off";
/// More rows than this that cannot be claimed are not a few odd rows but a broken table.
const MOST_IMPOSSIBLE: usize = 1000;

/// What to claim.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// At most so many pastes.
    pub size: u32,
    /// Nothing due before this: the last due time that this process claimed in this run.
    pub mark: Option<SystemTime>,
    /// Other claims are open in this process, so rows that must run alone are left for later.
    pub busy: bool,
    /// Wait for the lock no longer than this.
    pub until: Option<Instant>,
}

/// Why nothing was claimed.
#[derive(thiserror::Error, Debug)]
pub enum ClaimError {
    /// Whether the claim was committed is unknown until [`Worker::give_back_unknown`] has looked.
    #[error("claiming failed: {}", describe_pool(.0))]
    Postgres(#[from] PgError),
    /// Somebody has migrated the database while this worker ran.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error("claiming failed: Redis is unavailable ({0}), and lock.when_unavailable is \"wait\"")]
    NoLock(String),
}

impl From<tokio_postgres::Error> for ClaimError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error.into())
    }
}

impl ClaimError {
    /// Waiting does not help: a missing privilege, say, or another schema.
    pub fn is_hopeless(&self) -> bool {
        match self {
            Self::Postgres(PgError::Backend(error)) => is_hopeless(error),
            Self::Schema(_) => true,
            Self::Postgres(_) | Self::NoLock(_) => false,
        }
    }
}

impl Worker {
    /// Takes the lock, claims, lets go of the lock. `None`: nothing to claim, or asked to stop.
    pub async fn claim(&self, wanted: Wanted) -> Result<Option<Claim>, ClaimError> {
        // Before the lock: nobody waits for it while this process waits for a connection.
        let mut client = answered::<_, PgError>(self.pool.get()).await?;
        let started = Instant::now();
        let turn = self.lock.acquire(&self.shutdown, wanted.until).await;
        let waited = started.elapsed();
        self.tally.lock_waited(waited);
        match &turn {
            Turn::Stopped => return Ok(None),
            Turn::Unavailable(reason) => return Err(ClaimError::NoLock(reason.clone())),
            Turn::Without(reason) => self.tally.lock_missing(reason),
            Turn::Held(_) => {}
        }
        let mut claimed = self.claim_around_the_impossible(&mut client, wanted).await;
        if let Turn::Held(token) = &turn {
            self.lock.release(token).await;
            if let Ok(Some(claim)) = &mut claimed {
                (claim.lock_wait, claim.lock_hold) = (waited, started.elapsed() - waited);
            }
        }
        claimed
    }

    /// A row that cannot even be marked (it violates an owner's NOT VALID constraint, say) must not
    /// stop all claims: it is found by halving, and left out from then on.
    async fn claim_around_the_impossible(
        &self,
        client: &mut Client,
        wanted: Wanted,
    ) -> Result<Option<Claim>, ClaimError> {
        let mut size = wanted.size;
        loop {
            let mut suspect = None;
            let attempt = self.claim_rows(client, Wanted { size, ..wanted }, &mut suspect);
            match answered(attempt).await {
                Err(ClaimError::Postgres(PgError::Backend(error))) if is_row_fault(&error) => {
                    let Some(culprit) = suspect else {
                        if size == 1 {
                            return Err(error.into());
                        }
                        size = size.div_ceil(2);
                        continue;
                    };
                    if !self.leave_out(culprit, &describe(&error)) {
                        return Err(error.into());
                    }
                    size = wanted.size;
                }
                claimed => return claimed,
            }
        }
    }

    /// False when there are too many already.
    fn leave_out(&self, short_code: String, reason: &str) -> bool {
        warn!(?short_code, reason, "paste {short_code:?} cannot be claimed: {reason}");
        self.tally.failed([short_code.clone()]);
        let mut impossible = self.impossible.lock().unwrap_or_else(PoisonError::into_inner);
        impossible.push(short_code);
        impossible.len() <= MOST_IMPOSSIBLE
    }

    /// The short codes that this process found impossible to claim.
    pub(super) fn impossible(&self) -> Vec<String> {
        self.impossible.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The claim itself, safe with or without the lock. A claim of one row first names it, then
    /// takes exactly that one: looked for afterwards, it might be another one.
    async fn claim_rows(
        &self,
        client: &mut Client,
        wanted: Wanted,
        suspect: &mut Option<String>,
    ) -> Result<Option<Claim>, ClaimError> {
        let started = Instant::now();
        let transaction = client.transaction().await?;
        // Shorter than the lock's TTL: a claim that outlives its lock is cancelled.
        let allowed_ms = self.settings.lock.ttl.as_millis() * 2 / 3;
        let settings = format!("SET LOCAL statement_timeout = {allowed_ms}; {BY_KEY}; {ONE_PLAN}");
        let turn = transaction.prepare_cached(TURN).await?;
        let worker = self.id.to_string();
        let asked: [&(dyn ToSql + Sync); 1] = [&worker];
        // Sent together, in this order: one round trip.
        let ((), turn) =
            try_join(transaction.batch_execute(&settings), transaction.query_one(&turn, &asked))
                .await?;
        migrate::expect(&turn)?;
        let claim = transaction.prepare_cached(CLAIM).await?;
        let size = i32::try_from(wanted.size).unwrap_or(i32::MAX);
        let most_attempts = if wanted.busy { attempts_with_company(wanted.size) } else { i32::MAX };
        let impossible = self.impossible();
        if wanted.size == 1 {
            let first = transaction.query_opt(CANDIDATE, &[&wanted.mark, &impossible]).await?;
            *suspect = first.map(|row| row.get("short_code"));
        }
        failpoint::reached("claim.before");
        self.open.lose_sight();
        // That is an answer: the transaction is rolled back.
        let answered_no = |error: tokio_postgres::Error| {
            self.open.regain_sight(usize::from(is_row_fault(&error)));
            error
        };
        let rows = transaction
            .query(&claim, &[&self.id, &size, &wanted.mark, &most_attempts, &impossible, &*suspect])
            .await
            .map_err(answered_no)?;
        let Some(first) = rows.first() else {
            // Waited for: rows that must run alone are locked by now, and the next one to hold the
            // lock would pass them by.
            transaction.rollback().await?;
            self.open.regain_sight(1);
            return Ok(None);
        };
        failpoint::reached("claim.marked");
        let fence = Fence { claim: first.get("claim_id"), worker: self.id };
        let mut last_due = SystemTime::UNIX_EPOCH;
        let mut pastes = Vec::with_capacity(rows.len());
        for row in rows {
            last_due = last_due.max(row.get("due_at"));
            let (expired, now): (SystemTime, SystemTime) =
                (row.get("expires_at"), row.get("deletion_initiated_at"));
            pastes.push(Paste {
                short_code: row.get("short_code"),
                content_hash: row.get("content_hash"),
                doomed_key: row.get("doomed_key"),
                attempts: row.get("attempts"),
                overdue: now.duration_since(expired).unwrap_or_default(),
            });
        }
        transaction.commit().await.map_err(answered_no)?;
        failpoint::reached("claim.committed");
        self.open.regain_sight(1);
        self.tally.claimed(started.elapsed());
        Ok(Some(Claim {
            fence,
            pastes,
            asked_at: started,
            last_due,
            lock_wait: Duration::ZERO,
            lock_hold: Duration::ZERO,
        }))
    }
}
