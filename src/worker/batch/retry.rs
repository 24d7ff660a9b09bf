//! Retries a step. If the answer to a COMMIT was lost, the claim row is read back under its lock to
//! learn whether the commit happened, and the step continues accordingly.

use std::time::Duration;

use deadpool_postgres::Pool;
use tracing::warn;

use crate::{
    backoff::Retries,
    claim::{DatabaseFault, Decremented, Fence, LeaseLost, PendingDelete, StepError},
    mutex::Mutex,
    postgres::{
        PgError, answered,
        bisect::{ApplyError, Failed, Refusal},
        forget_statements,
    },
};

const READ_CLAIM: &str = sql!("claim/read");
/// How long a step is retried, at most, while Postgres is unavailable or busy.
pub(in crate::worker) const STEP_TIMEOUT: Duration = Duration::from_secs(120);

/// How a decrement or finish processes its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::worker) enum Mode {
    /// All at once: the usual case.
    Whole,
    /// After some row of the batch turned out to be bad, locked or slow: takes what can be locked, and
    /// finds the bad ones with savepoints.
    RowByRow,
}

/// Why one try of a step did not succeed.
#[derive(Debug)]
pub(in crate::worker) enum TryError {
    /// The fence matched no row: the lease is lost, or an earlier try was committed and its answer
    /// was lost.
    NotFenced,
    /// Not as many rows were written as the claim has: a try row by row finds out which.
    Unaccounted,
    /// Every row fails in the same way.
    Database(DatabaseFault),
    /// The safety brake: too much would be deleted.
    Brake(String),
    /// Trying again would not help, releasing the claim will.
    Release(String),
    Postgres(PgError),
}

impl<E: Into<PgError>> From<E> for TryError {
    fn from(error: E) -> Self {
        Self::Postgres(error.into())
    }
}

impl TryError {
    /// Converts the error of a bisection. `name` returns the short codes of a unit.
    pub(crate) fn from_search<T>(error: ApplyError<T>, name: impl Fn(&T) -> Vec<String>) -> Self {
        match error {
            ApplyError::Postgres(error) => error.into(),
            ApplyError::Database(failed) => Self::Database(database_fault(&failed, name)),
        }
    }

    /// Converts the error of a write to all rows at once.
    pub(crate) fn from_refusal(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Postgres(error) => error.into(),
            Refusal::Swallowed => Self::Unaccounted,
        }
    }

    /// Returns whether single rows may be the cause, so that a try row by row is worthwhile.
    fn may_be_a_row(&self) -> bool {
        match self {
            Self::Unaccounted => true,
            Self::Postgres(error) => error.may_be_a_row(),
            Self::NotFenced | Self::Database(_) | Self::Brake(_) | Self::Release(_) => false,
        }
    }

    fn is_permanent(&self) -> bool {
        matches!(self, Self::Postgres(error) if error.is_permanent())
    }

    /// Returns the error of the step, if another try would not help.
    fn ends_step(&self) -> Option<StepError> {
        Some(match self {
            _ if self.is_permanent() => StepError::Permanent(self.reason()),
            Self::Database(fault) => StepError::Database(fault.clone()),
            Self::Brake(reason) => StepError::Brake(reason.clone()),
            Self::Release(reason) => StepError::Transient(reason.clone()),
            Self::NotFenced | Self::Unaccounted | Self::Postgres(_) => return None,
        })
    }

    fn reason(&self) -> String {
        match self {
            Self::NotFenced => {
                "the fence matched no row: the claim was reset, or its step is already done".into()
            }
            Self::Unaccounted => {
                "not all rows of the claim were changed: another program or a trigger interferes"
                    .into()
            }
            Self::Database(fault) => fault.to_string(),
            Self::Brake(reason) | Self::Release(reason) => reason.clone(),
            Self::Postgres(error) => error.to_string(),
        }
    }
}

fn database_fault<T>(failed: &[Failed<T>], name: impl Fn(&T) -> Vec<String>) -> DatabaseFault {
    let error = failed.last().map(|failed| failed.error.clone()).unwrap_or_default();
    let named = |failed: &Failed<T>| {
        let error = failed.error.clone();
        name(&failed.unit).into_iter().map(move |code| (code, error.clone()))
    };
    DatabaseFault { error, pastes: failed.iter().flat_map(named).collect() }
}

/// The state of a claim as its row has it.
#[derive(Debug)]
pub(in crate::worker) struct ClaimState {
    pub decremented: Option<Decremented>,
    /// How many rows were deleted, when the claim is finished.
    pub finished: Option<u64>,
}

/// Remembers what the latest try was about to commit, as far as the claim row does not record it
/// (failed rows, drift). If the read-back shows that the step is done, that try committed it: the
/// fence stops every try after a committed one.
#[derive(Debug, Default)]
pub(in crate::worker) struct LastTry<T>(Mutex<T>);

impl<T: Clone> LastTry<T> {
    pub(super) fn new(none_yet: T) -> Self {
        Self(Mutex::new(none_yet))
    }

    /// Must be called right before the COMMIT: its answer may never arrive.
    pub(super) fn commits(&self, what: T) {
        *self.0.lock() = what;
    }

    pub(super) fn what(&self) -> T {
        self.0.lock().clone()
    }
}

/// Retries steps.
#[derive(Clone)]
pub(in crate::worker) struct Retry {
    pool: Pool,
    timeout: Duration,
}

impl Retry {
    pub(crate) fn new(pool: Pool, outage_timeout: Duration) -> Self {
        Self { pool, timeout: STEP_TIMEOUT.min(outage_timeout) }
    }

    /// Tries a step until it is done, was done already, or the lease is lost. `step`: its name in
    /// the log.
    pub(crate) async fn step<T, Trying: Future<Output = Result<T, TryError>>>(
        &self,
        step: &str,
        fence: Fence,
        attempt: impl Fn(Mode) -> Trying,
        done_already: impl Fn(&ClaimState) -> Option<T>,
    ) -> Result<T, StepError> {
        let (mut mode, mut retries) = (Mode::Whole, Retries::within(self.timeout));
        let mut was_read_back = false;
        loop {
            let error = match answered(attempt(mode)).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            // Such an error is an answer: the transaction is rolled back.
            if error.may_be_a_row() && mode == Mode::Whole {
                mode = Mode::RowByRow;
                continue;
            }
            if let Some(end) = error.ends_step() {
                return Err(end);
            }
            let (id, reason) = (fence.claim, error.reason());
            if retries.none_yet() && !matches!(error, TryError::NotFenced) {
                let longest = humantime::format_duration(self.timeout);
                warn!(
                    claim = id,
                    "claim {id}: {step} failed, retrying for up to {longest}: {reason}"
                );
            }
            if retries.are_over() {
                return Err(StepError::Transient(reason));
            }
            // A fence that matched nothing is checked at once, but not again and again: after a failover
            // that lost the decrement, no check will ever explain it.
            if was_read_back || !matches!(error, TryError::NotFenced) {
                retries.pause().await;
            }
            was_read_back = true;
            forget_statements(&self.pool);
            let read = self.read_back(fence).await;
            if read.is_err() && matches!(error, TryError::NotFenced) {
                warn!(claim = id, "claim {id}: {step} wrote nothing, its fence matched no row");
            }
            if let Some(done) = read?.as_ref().and_then(&done_already) {
                return Ok(done);
            }
        }
    }

    /// Reads the claim under its lock. `None`: Postgres does not answer.
    async fn read_back(&self, fence: Fence) -> Result<Option<ClaimState>, LeaseLost> {
        let Ok(row) = answered(self.read_claim(fence)).await else {
            return Ok(None);
        };
        let row = row.ok_or(LeaseLost(fence))?;
        if row.get("reset") {
            return Err(LeaseLost(fence));
        }
        let pending_owners: Option<Vec<String>> = row.get("pending_owners");
        let keys: Option<Vec<String>> = row.get("pending_s3_keys");
        let pairs = pending_owners.unwrap_or_default().into_iter().zip(keys.unwrap_or_default());
        let decremented = row.get::<_, bool>("decremented").then(|| Decremented {
            unreferenced: pairs
                .map(|(pending_owner, s3_key)| PendingDelete { pending_owner, s3_key })
                .collect(),
            bytes: row.get("bytes"),
            // Not recorded: other spellings are searched for.
            keys_are_odd: true,
            ..Decremented::default()
        });
        let rows_deleted = u64::try_from(row.get::<_, i64>("rows_deleted")).unwrap_or_default();
        let finished = row.get::<_, bool>("finished").then_some(rows_deleted);
        Ok(Some(ClaimState { decremented, finished }))
    }

    async fn read_claim(&self, fence: Fence) -> Result<Option<tokio_postgres::Row>, PgError> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let row = transaction.query_opt(READ_CLAIM, &[&fence.claim, &fence.worker]).await?;
        transaction.commit().await?;
        Ok(row)
    }
}
