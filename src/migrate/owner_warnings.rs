//! Finds what the tables' owner should know before the fleet works on them: the owner's triggers that run
//! inside its statements, foreign keys without an index, tables that a crash empties, and pastes without
//! content. These are warnings; none of them stops the fleet.

use tokio_postgres::{Client, Error};

use crate::format::thousands;
use crate::problem::Problem;

const OWNER_TRIGGERS: &str = sql!("migrate/owner_triggers");
const TABLE_WARNINGS: &str = sql!("migrate/table_warnings");
const SAMPLE_CONTENT: &str = sql!("migrate/sample_content");
const TABLE_PAGES: &str = sql!("backlog/table_pages");
/// About 8,000 pastes: enough to see a share of one percent, in less than 0.1 s.
const SAMPLED_PAGES: f64 = 100.0;

/// What triggers and rules of the owner can do to the fleet's statements, and the remedy.
pub const OWNER_TRIGGERS_MEAN: &str = "such triggers and rules run inside the fleet's \
    statements; one that raises an error or swallows the change keeps pastes from being erased, \
    and one that changes ref_count makes counts wrong; make them ignore the fleet's logins";
/// What to do about pastes without content.
pub const MISSING_CONTENT_REMEDY: &str = "a run deletes such pastes, but none of their objects: check \
    that content is complete and the right table; until then, pause the cleanup (`cleanupctl pause`)";

/// Returns the triggers and rules of the owner that can make the fleet's statements fail or swallow them.
pub async fn owner_triggers(client: &Client) -> Result<Vec<String>, Error> {
    let rows = client.query(OWNER_TRIGGERS, &[]).await?;
    rows.iter().map(|row| row.try_get("what")).collect()
}

/// Returns the properties of the tables that slow the fleet down or can lose its work, without
/// stopping it.
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
    /// Returns whether content is probably the wrong table, or incomplete: more than one percent is missing.
    /// Every old database has lost some.
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

/// Checks for the content rows of a sample of all pastes.
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
        let text = sampled(1_250, 8_000).to_string();
        assert_eq!(text, "1,250 of 8,000 sampled pastes (15.6 %) have no content row");
    }
}
