//! The safety brake: if the deletes are suspiciously many, nothing is deleted.
//!
//! With the wrong tables every object looks like an orphan. A second set of tables in another schema
//! knows no object of the bucket; content that was adopted without its pastes has no references. The
//! tables themselves do not show the mistake. Two signs do: more than half would be deleted, or the
//! fleet has never erased a paste here. There is no minimum: 80 objects may be all that a service has.
//!
//! Where another program has deleted content rows of live pastes, the bodies of these pastes are among
//! the orphans, and nothing shows which ones. The content rows can still be restored; the objects could
//! not. So nothing overrides this sign: the way out is to restore the rows or to expire the pastes.

use tokio_postgres::{Client, Error, error::SqlState};

use super::{Audit, Report};
use crate::format::thousands;

const ERASED_CLAIMS: &str = sql!("audit/erased_claims");
const ERASED_TOTAL: &str = sql!("audit/erased_total");

const WRONG_TABLES: &str = "these may be the wrong tables or the wrong bucket: check that the \
                            tables are those of the paste service (schema, search_path, table \
                            names), that bucket and endpoint belong to them, and that the \
                            database is not a restored copy";
const LOST_ROWS: &str = "their objects may be among the orphans: restore their content rows, or \
                         expire the pastes";

/// A sign that the deletes would be a mistake, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Suspicion {
    pub what: String,
    pub check: &'static str,
    /// Whether `--override-brake` deletes anyway.
    can_be_overridden: bool,
}

impl Audit {
    /// Returns why nothing may be deleted, if one of the limits is exceeded.
    pub(super) fn brake(&mut self) -> Option<String> {
        let (orphans, content) = (self.queue.orphan_count(), self.queue.content_count());
        let overrides = self.options.override_brake;
        let suspicions = self.report.suspicions(orphans, content);
        let reasons: Vec<String> = suspicions
            .iter()
            .filter(|suspicion| !(overrides && suspicion.can_be_overridden))
            .map(Suspicion::reason)
            .chain(self.beyond_max_delete(orphans + content))
            .collect();
        (!reasons.is_empty()).then(|| format!("nothing was deleted: {}", reasons.join("; ")))
    }

    /// Warns, after an audit without --repair, that the brake would stop a repair.
    pub(super) fn warn_of_brake(&mut self) {
        if self.options.repair {
            return;
        }
        let (orphans, content) = (self.report.orphans, self.report.unreferenced_content);
        for Suspicion { what, check, .. } in self.report.suspicions(orphans, content) {
            self.report
                .warnings
                .push(format!("the safety brake would stop --repair: {what}; {check}"));
        }
    }

    fn beyond_max_delete(&mut self, found: u64) -> Option<String> {
        if found <= self.options.max_delete {
            return None;
        }
        self.report.beyond_max_delete = found;
        Some(format!(
            "would delete {} objects (limit --max-delete {}); find the cause, then raise the limit",
            thousands(found),
            thousands(self.options.max_delete),
        ))
    }
}

impl Report {
    /// Returns the signs that these deletes would be a mistake.
    /// `orphans`, `content`: the numbers of objects and content rows that would be deleted.
    pub(crate) fn suspicions(&self, orphans: u64, content: u64) -> Vec<Suspicion> {
        if orphans + content == 0 {
            return Vec::new();
        }
        let suspicion =
            |check, can_be_overridden| move |what| Suspicion { what, check, can_be_overridden };
        let wrong_tables = self.wrong_tables(orphans, content);
        let wrong_tables = wrong_tables.map(suspicion(WRONG_TABLES, true));
        wrong_tables
            .into_iter()
            .chain(self.lost_rows(orphans).map(suspicion(LOST_ROWS, false)))
            .collect()
    }

    fn wrong_tables(&self, orphans: u64, content: u64) -> Option<String> {
        if self.never_erased {
            return Some("no worker has erased a paste in this database yet".into());
        }
        // No row knows these either; they are only too young to be deleted yet.
        let unknown = self.fresh_objects + self.unchecked_objects;
        let objects = self.objects.saturating_sub(unknown);
        majority(orphans + content, objects, "objects")
            .or_else(|| majority(content, self.content_rows, "content rows"))
    }

    fn lost_rows(&self, orphans: u64) -> Option<String> {
        match self.live_without_content {
            _ if orphans == 0 => None,
            0 => None,
            1 => Some("1 live paste has no content row".into()),
            live => Some(format!("{} live pastes have no content row", thousands(live))),
        }
    }
}

impl Suspicion {
    fn reason(&self) -> String {
        let Self { what, check, .. } = self;
        match self.can_be_overridden {
            true => format!("{what}; {check}; --override-brake deletes anyway"),
            false => format!("{what}; {check}"),
        }
    }
}

/// Describes how many would be deleted, if they are more than half.
fn majority(deleted: u64, of: u64, what: &str) -> Option<String> {
    (deleted > 0 && deleted.saturating_mul(2) > of).then(|| {
        let percent = (deleted.saturating_mul(100)).checked_div(of).unwrap_or(100).min(100);
        let (deleted, of) = (thousands(deleted), thousands(of));
        format!("would delete {deleted} of {of} {what} ({percent} %, limit 50 %)")
    })
}

/// Whether a worker has ever erased a paste in this database.
pub(super) async fn has_erased(db: &Client) -> Result<bool, Error> {
    if db.query_one(ERASED_CLAIMS, &[]).await?.get("has_erased") {
        return Ok(true);
    }
    match db.query_one(ERASED_TOTAL, &[]).await {
        Ok(row) => Ok(row.get("has_erased")),
        // `doctor` may run under a worker's login, which may not read the totals.
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
        let description = majority(41, 80, "objects").expect("a majority");
        assert_eq!(description, "would delete 41 of 80 objects (51 %, limit 50 %)");
        assert!(majority(1, 0, "objects").is_some(), "an object that was not listed");
    }
}
