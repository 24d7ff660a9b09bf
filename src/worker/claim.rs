//! Step 2: claim due pastes. One statement marks them and inserts the claim row that is their lease.

use std::time::SystemTime;

use tokio::time::Instant;
use tracing::{info, warn};

use super::{Worker, lock::Turn};
use crate::{
    claim::{Claim, Fence, Paste},
    postgres::describe,
};

const TURN: &str = include_str!("../../sql/queries/claim_turn.sql");
const CLAIM: &str = include_str!("../../sql/queries/claim.sql");
const UNKNOWN: &str = include_str!("../../sql/queries/claims_of_worker.sql");

/// What to claim.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// At most so many pastes.
    pub size: u32,
    /// Nothing due before this: the last due time that this process claimed in this run.
    pub mark: Option<SystemTime>,
    /// Other claims are open in this process, so rows that must run alone are left for later.
    pub busy: bool,
}

/// An error in the surroundings; whether the claim was committed is unknown until
/// [`Worker::give_back_unknown`] has looked.
#[derive(thiserror::Error, Debug)]
#[error("claiming failed: {0}")]
pub struct ClaimError(pub String);

impl Worker {
    /// Takes the lock, claims, lets go of the lock. `None`: nothing to claim, or asked to stop.
    pub async fn claim(&self, wanted: Wanted) -> Result<Option<Claim>, ClaimError> {
        let started = Instant::now();
        let turn = self.lock.acquire(&self.shutdown).await;
        let waited = started.elapsed();
        self.tally.lock_waited(waited);
        match &turn {
            Turn::Stopped => return Ok(None),
            Turn::Without(reason) => self.tally.lock_missing(reason),
            Turn::Held(_) => {}
        }
        let claimed = self.claim_rows(wanted).await;
        if let Turn::Held(token) = &turn {
            self.lock.release(token).await;
        }
        claimed.map_err(|error| ClaimError(describe_pool(&error)))
    }

    /// The claim itself, safe with or without the lock.
    async fn claim_rows(&self, wanted: Wanted) -> Result<Option<Claim>, super::PgError> {
        let started = Instant::now();
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        // Shorter than the lock's TTL: a claim that outlives its lock is cancelled.
        let allowed_ms = self.settings.lock.ttl.as_millis() * 2 / 3;
        transaction
            .batch_execute(&format!("SET LOCAL statement_timeout = {allowed_ms}"))
            .await?;
        let turn = transaction.prepare_cached(TURN).await?;
        transaction.query(&turn, &[&self.id.to_string()]).await?;
        let claim = transaction.prepare_cached(CLAIM).await?;
        let size = i32::try_from(wanted.size).unwrap_or(i32::MAX);
        let most_attempts = if wanted.busy {
            busy_attempts(wanted.size)
        } else {
            i32::MAX
        };
        let rows = transaction
            .query(&claim, &[&self.id, &size, &wanted.mark, &most_attempts])
            .await?;
        let Some(first) = rows.first() else {
            return Ok(None);
        };
        let fence = Fence {
            claim: first.get("claim_id"),
            worker: self.id,
        };
        let mut last_due = SystemTime::UNIX_EPOCH;
        let mut pastes = Vec::with_capacity(rows.len());
        for row in rows {
            last_due = last_due.max(row.get("due_at"));
            pastes.push(Paste {
                short_code: row.get("short_code"),
                content_hash: row.get("content_hash"),
                doomed_key: row.get("doomed_key"),
                attempts: row.get("attempts"),
            });
        }
        transaction.commit().await?;
        self.tally.claimed(started.elapsed());
        Ok(Some(Claim {
            fence,
            pastes,
            last_due,
        }))
    }

    /// After a claim whose answer was lost: waits for the old backend, then gives back every open
    /// claim of this worker that it does not know of.
    pub async fn give_back_unknown(&self) -> Result<usize, super::PgError> {
        let unknown = {
            let mut client = self.pool.get().await?;
            let transaction = client.transaction().await?;
            transaction.query(TURN, &[&self.id.to_string()]).await?;
            let rows = transaction
                .query(UNKNOWN, &[&self.id, &self.open.ids()])
                .await?;
            transaction.commit().await?;
            rows.into_iter()
                .map(|row| row.get::<_, i64>("id"))
                .collect::<Vec<_>>()
        };
        for claim in &unknown {
            warn!(
                claim,
                "claim {claim} was committed but its answer was lost: giving it back"
            );
            let fence = Fence {
                claim: *claim,
                worker: self.id,
            };
            if let Err(error) = self.give_back(fence, "claim answer lost").await {
                info!(claim, "claim {claim} is left to the watchdog: {error}");
            }
        }
        Ok(unknown.len())
    }
}

/// The most `attempts` whose batches still have company, and so may run beside other claims.
fn busy_attempts(size: u32) -> i32 {
    (0..9)
        .take_while(|&attempts| attempts == 0 || size / 10_u32.pow(attempts) >= 2)
        .count() as i32
        - 1
}

/// A row that came back from a silent worker often enough to be claimed by itself.
pub(super) fn must_run_alone(size: u32, attempts: i16) -> bool {
    i32::from(attempts) > busy_attempts(size)
}

/// One line for an error of the pool or of Postgres behind it.
pub(super) fn describe_pool(error: &super::PgError) -> String {
    match error {
        super::PgError::Backend(error) => describe(error),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_shrink_to_one_by_tens() {
        assert_eq!(busy_attempts(1000), 2);
        assert!(!must_run_alone(1000, 2));
        assert!(must_run_alone(1000, 3));
        assert!(must_run_alone(5, 1));
        assert!(!must_run_alone(1, 0));
    }
}
