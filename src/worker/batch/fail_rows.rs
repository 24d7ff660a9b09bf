//! Taking bad rows out of their batch, inside its one decrement or finish transaction.

use std::collections::HashSet;

use deadpool_postgres::Transaction;
use tracing::warn;

use super::Worker;

const FAIL_ROWS: &str = sql!("claim/fail_rows");
/// What S3 or Postgres says about a row is kept, but not without end.
const LONGEST_ERROR: usize = 500;

/// A paste whose own step failed.
#[derive(Debug, Clone)]
pub(in crate::worker) struct Bad {
    pub short_code: String,
    pub error: String,
    /// The object that it still owes S3, if its batch was decremented.
    pub pending_key: Option<String>,
    /// Counts as an attempt. Otherwise it waits for as long as backing off may take.
    pub own_fault: bool,
}

/// What became of the bad rows.
#[derive(Debug, Default)]
pub(in crate::worker) struct FailedRows {
    pub found: HashSet<String>,
    pub dead_letters: usize,
}

impl FailedRows {
    /// Pastes that something keeps from taking over the key of their object, and that key.
    pub fn keys_without_a_row(&self, bad: &[Bad]) -> Vec<(String, String)> {
        let lost = bad.iter().filter(|bad| !self.found.contains(&bad.short_code));
        lost.filter_map(|bad| Some((bad.short_code.clone(), bad.pending_key.clone()?))).collect()
    }
}

impl Worker {
    /// The rows back off. If it is their own fault they count an attempt, and become dead letters
    /// at the last one.
    pub(in crate::worker) async fn fail_rows(
        &self,
        transaction: &Transaction<'_>,
        claim: i64,
        bad: &[Bad],
        decremented: bool,
    ) -> Result<FailedRows, tokio_postgres::Error> {
        let codes: Vec<&str> = bad.iter().map(|bad| &*bad.short_code).collect();
        let errors: Vec<String> =
            bad.iter().map(|bad| bad.error.chars().take(LONGEST_ERROR).collect()).collect();
        let keys: Vec<Option<&str>> = bad.iter().map(|bad| bad.pending_key.as_deref()).collect();
        let own_faults: Vec<bool> = bad.iter().map(|bad| bad.own_fault).collect();
        let max_attempts = i32::from(self.settings.worker.max_attempts);
        let cap = self.settings.worker.backoff_cap.as_secs_f64();
        let rows = transaction
            .query(
                FAIL_ROWS,
                &[&claim, &codes, &errors, &keys, &decremented, &max_attempts, &cap, &own_faults],
            )
            .await?;
        let dead = rows.iter().filter(|row| row.get::<_, bool>("dead_letter")).count();
        warn!(
            claim,
            rows = bad.len(),
            dead_letters = dead,
            "claim {claim}: {} pastes could not be deleted, {dead} of them are dead letters now; the \
             first, {:?}: {}",
            bad.len(),
            bad.first().map(|bad| &*bad.short_code).unwrap_or_default(),
            errors.first().map(String::as_str).unwrap_or_default()
        );
        let changed = rows.iter().filter(|row| row.get::<_, bool>("is_changed"));
        let found = changed.map(|row| row.get("short_code")).collect();
        Ok(FailedRows { found, dead_letters: dead })
    }
}
