//! Step 2: claim due pastes. One statement marks them as DELETION_IN_PROGRESS and inserts the claim
//! row, which is their lease.
//!
//! In: how many pastes, due from when on. Out: a [`Claim`], or nothing to claim. A crash before the
//! commit leaves nothing; after it, a claim that the watchdog resets when its lease expires.

mod error;
mod row_by_row;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use deadpool_postgres::{Client, Pool, Transaction};
use futures_util::future::try_join;
use tokio::time::Instant;
use tokio_postgres::{Row, types::ToSql};
use uuid::Uuid;

pub use self::error::ClaimError;
use self::row_by_row::Found;
use super::{
    Lock, OpenClaims, Tally,
    lock::{LockError, LockOutcome},
};
use crate::{
    claim::{Claim, Fence, Paste, max_shared_attempts},
    config::Settings,
    failpoint,
    fleet::OtherBucket,
    migrate,
    objects::Objects,
    postgres::{
        Fault, Unreadable, answered,
        bisect::Blame,
        planner::{BY_DUE_INDEX, BY_KEY},
        read,
    },
    shutdown::Shutdown,
};

const LOCK_WORKER: &str = sql!("claim/lock_worker");
const CLAIM: &str = sql!("claim/claim");
/// The table whose columns a claim reads.
const PASTES: &str = "pastes";

/// What to claim.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The maximum number of pastes.
    pub size: u32,
    /// The low-water mark: the last due time that this process claimed in this run. Nothing due before
    /// it is claimed.
    pub mark: Option<SystemTime>,
    /// Other claims are open in this process, so rows that must run alone are left for later.
    pub busy: bool,
    /// When to stop waiting for the lock.
    pub until: Option<Instant>,
}

/// A busy worker leaves the rows that must run alone for later.
fn most_attempts(wanted: Wanted) -> i32 {
    if wanted.busy { max_shared_attempts(wanted.size) } else { i32::MAX }
}

/// Claims due pastes for one worker.
pub(in crate::worker) struct ClaimStep {
    id: Uuid,
    pool: Pool,
    lock: Lock,
    lock_ttl: Duration,
    bucket: String,
    prefix: String,
    backoff_cap: Duration,
    shutdown: Shutdown,
    open: Arc<OpenClaims>,
    tally: Arc<Tally>,
    blame: Blame,
}

impl ClaimStep {
    #[expect(clippy::too_many_arguments, reason = "a constructor: each becomes a field")]
    pub(crate) fn new(
        id: Uuid,
        pool: Pool,
        lock: Lock,
        objects: &Objects,
        settings: &Settings,
        shutdown: Shutdown,
        open: Arc<OpenClaims>,
        tally: Arc<Tally>,
    ) -> Self {
        Self {
            id,
            pool,
            lock: lock.counted_in(Arc::clone(&tally)),
            lock_ttl: settings.lock.ttl,
            bucket: objects.bucket().into(),
            prefix: objects.prefix().into(),
            backoff_cap: settings.worker.backoff_cap,
            shutdown,
            open,
            tally,
            blame: Blame::default(),
        }
    }

    pub(crate) fn lock_key(&self) -> &str {
        self.lock.key()
    }

    /// Checks that Redis would grant the lock.
    pub(crate) async fn probe_lock(&self) -> Result<(), LockError> {
        self.lock.probe().await.map(|_| ())
    }

    /// Takes the lock, claims, releases the lock. `None`: there is nothing to claim, or the run
    /// must stop.
    pub(crate) async fn run(&self, wanted: Wanted) -> Result<Option<Claim>, ClaimError> {
        // Before the lock: no other worker waits for it while this one waits for a connection.
        let mut client = answered::<_, ClaimError>(async { Ok(self.pool.get().await?) }).await?;
        let started = Instant::now();
        let lock = self.lock.acquire(&self.shutdown, wanted.until).await;
        let waited = started.elapsed();
        self.tally.lock_waited(waited);
        let token = match lock {
            LockOutcome::Stopped => return Ok(None),
            LockOutcome::Unavailable(error) => return Err(ClaimError::NoLock(error)),
            LockOutcome::Without(reason) => {
                self.tally.lock_missing(&reason.to_string());
                None
            }
            LockOutcome::Held(token) => Some(token),
        };
        let mut claimed = self.claim_batch(&mut client, wanted).await;
        if let Some(token) = &token {
            self.lock.release(token).await;
            if let Ok(Some(claim)) = &mut claimed {
                (claim.lock_wait, claim.lock_hold) = (waited, started.elapsed() - waited);
            }
        }
        claimed
    }

    /// Claims a whole batch. If Postgres refuses to mark some row, claims row by row, and repeats
    /// while every candidate is unclaimable.
    async fn claim_batch(
        &self,
        client: &mut Client,
        wanted: Wanted,
    ) -> Result<Option<Claim>, ClaimError> {
        while !self.must_not_claim(wanted) {
            match answered(self.claim_rows(client, wanted)).await {
                Err(error) if error.may_be_a_row() => {}
                claimed => return claimed,
            }
            match answered(self.claim_good(client, wanted)).await? {
                Found::Claim(claim) => return Ok(Some(claim)),
                Found::Nothing => return Ok(None),
                Found::Unclaimable => {}
            }
        }
        Ok(None)
    }

    fn must_not_claim(&self, wanted: Wanted) -> bool {
        let over = wanted.until.is_some_and(|until| Instant::now() >= until);
        over || self.shutdown.stop.is_cancelled()
    }

    /// Begins the transaction of a claim: sets its timeout and planner switches, takes the worker's
    /// advisory lock, and checks that schema and bucket have not changed.
    async fn begin_claim<'a>(
        &self,
        client: &'a mut Client,
    ) -> Result<(Transaction<'a>, Row), ClaimError> {
        let transaction = client.transaction().await?;
        // Shorter than the lock's TTL: a claim that outlives its lock is cancelled.
        let allowed_ms = self.lock_ttl.as_millis() * 2 / 3;
        let settings =
            format!("SET LOCAL statement_timeout = {allowed_ms}; {BY_KEY}; {BY_DUE_INDEX}");
        let lock_worker = transaction.prepare_cached(LOCK_WORKER).await?;
        let worker = self.id.to_string();
        let asked: [&(dyn ToSql + Sync); 1] = [&worker];
        // Sent together, in this order: one round trip.
        let ((), checks) = try_join(
            transaction.batch_execute(&settings),
            transaction.query_one(&lock_worker, &asked),
        )
        .await?;
        migrate::expect(&checks)?;
        let (bucket, prefix) = (checks.try_get("bucket")?, checks.try_get("prefix")?);
        OtherBucket::unless(bucket, prefix, &self.bucket, &self.prefix)?;
        Ok((transaction, checks))
    }

    /// The claim itself, safe with or without the lock.
    async fn claim_rows(
        &self,
        client: &mut Client,
        wanted: Wanted,
    ) -> Result<Option<Claim>, ClaimError> {
        let started = Instant::now();
        let (transaction, checks) = self.begin_claim(client).await?;
        let unclaimable: bool = checks.get("some_are_unclaimable");
        let claim = transaction.prepare_cached(CLAIM).await?;
        let size = i32::try_from(wanted.size).unwrap_or(i32::MAX);
        failpoint::reached("claim.before");
        self.open.add_unconfirmed();
        // That is an answer: the transaction is rolled back.
        let answered_no = |error: tokio_postgres::Error| {
            self.open.confirm(usize::from(Fault::of(&error) != Fault::Transient));
            error
        };
        let asked: [&(dyn ToSql + Sync); 5] =
            [&self.id, &size, &wanted.mark, &most_attempts(wanted), &unclaimable];
        let rows = transaction.query(&claim, &asked).await.map_err(answered_no)?;
        if rows.first().is_some_and(|row| row.get::<_, i64>("picked") != marked(&rows)) {
            transaction.rollback().await?;
            self.open.confirm(1);
            return Err(ClaimError::Swallowed);
        }
        expect_our_time(&rows)?;
        if rows.is_empty() {
            // Waited for: rows that must run alone are locked by now, and the next worker with the
            // lock would skip them.
            transaction.rollback().await?;
            self.open.confirm(1);
            return Ok(None);
        }
        failpoint::reached("claim.marked");
        let claim = to_claim(&rows, self.id, started)?;
        transaction.commit().await.map_err(answered_no)?;
        failpoint::reached("claim.committed");
        self.open.confirm(1);
        self.blame.succeeded();
        self.tally.claimed(started.elapsed());
        Ok(claim)
    }
}

fn marked(rows: &[Row]) -> i64 {
    let marked = rows.iter().filter(|row| row.get::<_, Option<bool>>("is_marked") == Some(true));
    i64::try_from(marked.count()).unwrap_or(i64::MAX)
}

/// Returns an error if a trigger changed `deletion_initiated_at`: a claim recognises its rows by
/// its id and this time.
fn expect_our_time(rows: &[Row]) -> Result<(), ClaimError> {
    match rows.iter().all(|row| row.get::<_, Option<bool>>("is_timed") == Some(true)) {
        true => Ok(()),
        false => Err(ClaimError::Retimed),
    }
}

/// Turns the rows that a claim returned into a [`Claim`]. `None`: no rows.
fn to_claim(
    rows: &[Row],
    worker: Uuid,
    requested_at: Instant,
) -> Result<Option<Claim>, Unreadable> {
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    let claimed_at = read(first, PASTES, "deletion_initiated_at")?;
    let (mut first_due, mut last_due) = (claimed_at, SystemTime::UNIX_EPOCH);
    let mut pastes = Vec::with_capacity(rows.len());
    for row in rows {
        let due_at: SystemTime = read(row, PASTES, "due_at")?;
        (first_due, last_due) = (due_at.min(first_due), due_at.max(last_due));
        let expired: SystemTime = read(row, PASTES, "expires_at")?;
        let now: SystemTime = read(row, PASTES, "deletion_initiated_at")?;
        pastes.push(Paste {
            short_code: read(row, PASTES, "short_code")?,
            content_hash: read(row, PASTES, "content_hash")?,
            pending_s3_key: read(row, PASTES, "pending_s3_key")?,
            attempts: row.get("attempts"),
            failed_before: row.get("failed_before"),
            overdue: now.duration_since(expired).unwrap_or_default(),
        });
    }
    Ok(Some(Claim {
        fence: Fence { claim: read(first, PASTES, "claim_id")?, worker },
        pastes,
        requested_at,
        claimed_at,
        first_due,
        last_due,
        lock_wait: Duration::ZERO,
        lock_hold: Duration::ZERO,
    }))
}
