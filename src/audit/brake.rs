//! The safety brake: when the deletions would be suspiciously many, nothing at all is deleted.
//!
//! To the wrong tables everything looks like an orphan. A second set of tables in another schema knows
//! no object of the bucket; content that was adopted without its pastes has no reference. Nothing in
//! the tables tells, so two signs do: more than half would go, or the fleet has never erased a paste
//! here. There is no minimum: a bucket of 80 objects is somebody's whole service.

use tokio_postgres::{Client, Error, error::SqlState};

use super::{Audit, Report};
use crate::format::thousands;

const ERASED_CLAIMS: &str = sql!("audit/erased_claims");
const ERASED_TOTAL: &str = sql!("audit/erased_total");

/// What to check before anything is deleted.
pub(crate) const CHECK: &str = "check that the tables are those of the paste service (schema, \
                                search_path, table names), that the bucket and its endpoint are \
                                theirs, and that the database is no restored copy";

impl Audit {
    /// Returns why nothing may be deleted, if something is against it.
    pub(super) fn brake(&mut self) -> Option<String> {
        let (orphans, bodies) = (self.pending.orphan_count(), self.pending.body_count());
        if orphans + bodies == 0 {
            return None;
        }
        let suspicion = match self.options.override_brake {
            true => None,
            false => self.report.suspicion(orphans, bodies),
        };
        let suspicion = suspicion.map(|what| {
            format!(
                "{what}, so nothing was deleted: {CHECK}; --override-brake deletes all the same"
            )
        });
        let reasons: Vec<String> =
            suspicion.into_iter().chain(self.beyond_max_delete(orphans + bodies)).collect();
        (!reasons.is_empty()).then(|| reasons.join("; and "))
    }

    /// Says after an audit that only looked what a repair would run into.
    pub(super) fn warn_of_brake(&mut self) {
        let (orphans, bodies) = (self.report.orphans, self.report.unreferenced_content);
        if self.options.repair || orphans + bodies == 0 {
            return;
        }
        if let Some(what) = self.report.suspicion(orphans, bodies) {
            self.report.warnings.push(format!("--repair deletes nothing here: {what}; {CHECK}"));
        }
    }

    fn beyond_max_delete(&mut self, found: u64) -> Option<String> {
        if found <= self.options.max_delete {
            return None;
        }
        self.report.beyond_max_delete = found;
        Some(format!(
            "{} were to be deleted, more than --max-delete {}, so none of them was: look why there \
             are so many, then raise it",
            thousands(found),
            thousands(self.options.max_delete),
        ))
    }
}

impl Report {
    /// Returns the sign that these are the wrong tables, or the wrong bucket, if there is one.
    /// `orphans`, `bodies`: how many objects and content rows would be deleted.
    pub(crate) fn suspicion(&self, orphans: u64, bodies: u64) -> Option<String> {
        if self.never_erased {
            return Some("no worker has erased a paste in this database yet".into());
        }
        // Unknown to all rows, and only too young to be deleted today.
        let objects = self.objects.saturating_sub(self.fresh_objects);
        majority(orphans + bodies, objects, "objects")
            .or_else(|| majority(bodies, self.content_rows, "content rows"))
    }
}

/// Says how many would be deleted if these are more than half.
fn majority(deleted: u64, of: u64, what: &str) -> Option<String> {
    (deleted > 0 && deleted.saturating_mul(2) > of).then(|| {
        let percent = (deleted.saturating_mul(100)).checked_div(of).unwrap_or(100).min(100);
        let (deleted, of) = (thousands(deleted), thousands(of));
        format!("would delete {deleted} of {of} {what} ({percent} %, limit 50 %)")
    })
}

/// Whether a worker has ever erased a paste here.
pub(super) async fn has_erased(db: &Client) -> Result<bool, Error> {
    if db.query_one(ERASED_CLAIMS, &[]).await?.get("has_erased") {
        return Ok(true);
    }
    match db.query_one(ERASED_TOTAL, &[]).await {
        Ok(row) => Ok(row.get("has_erased")),
        // `doctor` may run under a worker's login, which does not see the totals.
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_may_be_deleted_and_one_more_may_not() {
        assert_eq!(majority(0, 0, "objects"), None);
        assert_eq!(majority(40, 80, "objects"), None);
        let told = majority(41, 80, "objects").expect("a majority");
        assert_eq!(told, "would delete 41 of 80 objects (51 %, limit 50 %)");
        assert!(majority(1, 0, "objects").is_some(), "its object is not even listed");
    }
}
