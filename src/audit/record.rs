//! What an audit found, written down for `status` and metrics.

use tokio_postgres::{Client, Error};

use super::Report;

const RECORD: &str = sql!("audit/record");

/// The figures that are written down.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Recorded {
    objects: u64,
    orphans: u64,
    missing_objects: u64,
    wrong_counts: u64,
    left: u64,
}

impl Recorded {
    pub fn of(report: &Report) -> Self {
        Self {
            objects: report.objects,
            orphans: report.orphans,
            missing_objects: report.missing_objects,
            wrong_counts: report.wrong_counts
                + report.unreferenced_content
                + report.bodies_without_content
                + report.pending_deletions,
            left: report.left() + report.undecided,
        }
    }
}

/// One that went on where the last one had ended adds to it; so `found` leaves out what it finds again.
pub(super) async fn record(db: &Client, report: &Report, found: Recorded) -> Result<(), Error> {
    let [objects, orphans, missing, wrong, left] =
        [found.objects, found.orphans, found.missing_objects, found.wrong_counts, found.left]
            .map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    let went_on = report.after.is_some();
    db.execute(RECORD, &[&report.complete, &went_on, &objects, &orphans, &missing, &wrong, &left])
        .await?;
    Ok(())
}
