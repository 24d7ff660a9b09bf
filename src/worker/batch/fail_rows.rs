//! Taking bad rows out of their batch, inside its one decrement or finish transaction. They back off and
//! are claimed again, or become dead letters.

use std::collections::HashSet;

use deadpool_postgres::Transaction;
use tracing::warn;

use crate::{config::Worker as Settings, format::counted};

const FAIL_ROWS: &str = sql!("claim/fail_rows");
/// Error texts of S3 and Postgres are cut after this many characters.
const LONGEST_ERROR: usize = 500;

/// A paste for which a step failed.
#[derive(Debug, Clone)]
pub(in crate::worker) struct BadRow {
    pub short_code: String,
    pub error: String,
    /// The object that must still be deleted, if its batch was decremented.
    pub pending_key: Option<String>,
    /// A row error counts as an attempt. Otherwise the row backs off for `worker.backoff_cap`.
    pub is_row_error: bool,
}

/// What became of the bad rows.
#[derive(Debug, Default)]
pub(in crate::worker) struct FailedRows {
    pub found: HashSet<String>,
    pub dead_letters: usize,
}

impl FailedRows {
    /// Returns the pastes that could not take over the key of their object, and that key.
    pub(crate) fn keys_without_a_row(&self, bad: &[BadRow]) -> Vec<(String, String)> {
        let lost = bad.iter().filter(|bad| !self.found.contains(&bad.short_code));
        lost.filter_map(|bad| Some((bad.short_code.clone(), bad.pending_key.clone()?))).collect()
    }
}

/// Fails rows by the settings of the worker.
#[derive(Debug, Clone, Copy)]
pub(in crate::worker) struct FailRows {
    max_attempts: i32,
    backoff_cap_s: f64,
}

impl FailRows {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            max_attempts: i32::from(settings.max_attempts),
            backoff_cap_s: settings.backoff_cap.as_secs_f64(),
        }
    }

    /// The rows back off. Row errors count an attempt; the last one makes a dead letter.
    pub(crate) async fn run(
        &self,
        transaction: &Transaction<'_>,
        claim: i64,
        bad: &[BadRow],
        decremented: bool,
    ) -> Result<FailedRows, tokio_postgres::Error> {
        let codes: Vec<&str> = bad.iter().map(|bad| &*bad.short_code).collect();
        let errors: Vec<String> =
            bad.iter().map(|bad| bad.error.chars().take(LONGEST_ERROR).collect()).collect();
        let keys: Vec<Option<&str>> = bad.iter().map(|bad| bad.pending_key.as_deref()).collect();
        let row_errors: Vec<bool> = bad.iter().map(|bad| bad.is_row_error).collect();
        let rows = transaction
            .query(
                FAIL_ROWS,
                &[
                    &claim,
                    &codes,
                    &errors,
                    &keys,
                    &decremented,
                    &self.max_attempts,
                    &self.backoff_cap_s,
                    &row_errors,
                ],
            )
            .await?;
        let dead = rows.iter().filter(|row| row.get::<_, bool>("dead_letter")).count();
        warn!(
            claim,
            rows = bad.len(),
            dead_letters = dead,
            "claim {claim}: {} failed ({}); the first is {:?}: {}",
            counted(bad.len(), "paste"),
            counted(dead, "dead letter"),
            bad.first().map(|bad| &*bad.short_code).unwrap_or_default(),
            errors.first().map(String::as_str).unwrap_or_default()
        );
        let changed = rows.iter().filter(|row| row.get::<_, bool>("is_changed"));
        let found = changed.map(|row| row.get("short_code")).collect();
        Ok(FailedRows { found, dead_letters: dead })
    }
}
