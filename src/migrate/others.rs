//! What the owner of the tables should know before the fleet works on them: triggers of theirs that run
//! inside its statements, foreign keys without an index, tables that a crash empties, and pastes without
//! content. None stops anything.

use tokio_postgres::{Client, Error};

use super::error::Problem;
use crate::format::thousands;

const OWNER_TRIGGERS: &str = sql!("migrate/owner_triggers");
const TABLE_WARNINGS: &str = sql!("migrate/table_warnings");
const SAMPLE_CONTENT: &str = sql!("migrate/sample_content");
const TABLE_PAGES: &str = sql!("fleet/table_pages");
/// Some 8,000 pastes: a share of one percent shows, and it takes less than 0.1 s.
const SAMPLED_PAGES: f64 = 100.0;

/// What triggers and rules of the owner can do to the fleet's work.
pub const OWNER_TRIGGERS_MEAN: &str = "each runs inside the cleanup's own statements: one that raises an \
    error or suppresses the row keeps pastes from being erased, one that changes ref_count makes counts \
    wrong; let it ignore the logins of the cleanup";
/// What to do about pastes without content.
pub const MISSING_CONTENT_REMEDY: &str = "a run deletes such pastes, but none of their objects: is content \
    complete, and the right table? restore it, or pause the cleanup (`cleanupctl pause`) until it is";

/// Names the triggers and rules of the owner that can stop or swallow the fleet's statements.
pub async fn owner_triggers(client: &Client) -> Result<Vec<String>, Error> {
    let rows = client.query(OWNER_TRIGGERS, &[]).await?;
    rows.iter().map(|row| row.try_get("what")).collect()
}

/// Returns what about the tables slows the cleanup down or can lose its work, without stopping it.
pub async fn table_warnings(client: &Client) -> Result<Vec<Problem>, Error> {
    let rows = client.query(TABLE_WARNINGS, &[]).await?;
    Ok(rows.iter().map(Problem::from).collect())
}

/// How many pastes of a sample have no content row.
#[derive(Debug, Clone, Copy)]
pub struct Sampled {
    pub pastes: i64,
    pub missing: i64,
}

impl Sampled {
    /// Some are lost in every old database; more than one percent is a wrong or incomplete table.
    pub fn is_suspicious(self) -> bool {
        self.missing.saturating_mul(100) > self.pastes
    }
}

impl std::fmt::Display for Sampled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = |number: i64| thousands(number.unsigned_abs());
        write!(f, "{} of {} sampled pastes", count(self.missing), count(self.pastes))?;
        if self.pastes > 0 {
            write!(f, " ({:.1} %)", 100.0 * self.missing as f64 / self.pastes as f64)?;
        }
        write!(f, " have no content row")
    }
}

/// Looks for the content of a sample of all pastes.
pub async fn sample_content(client: &Client) -> Result<Sampled, Error> {
    let pages: i64 = client.query_one(TABLE_PAGES, &[]).await?.try_get("pages")?;
    let percent = (100.0 * SAMPLED_PAGES / pages.max(1) as f64).min(100.0);
    let row = client.query_one(SAMPLE_CONTENT, &[&percent]).await?;
    Ok(Sampled { pastes: row.try_get("sampled")?, missing: row.try_get("missing")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_percent_without_content_is_suspicious() {
        let sampled = |missing, pastes| Sampled { pastes, missing };
        assert!(!sampled(0, 0).is_suspicious() && !sampled(1, 100).is_suspicious());
        assert!(sampled(2, 100).is_suspicious() && sampled(1, 1).is_suspicious());
        let told = sampled(1_250, 8_000).to_string();
        assert_eq!(told, "1,250 of 8,000 sampled pastes (15.6 %) have no content row");
    }
}
