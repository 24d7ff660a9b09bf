//! Records the result of an audit, for `status` and metrics.

use tokio_postgres::{Client, Error};

use super::Report;

const RECORD: &str = sql!("audit/record");

/// The numbers that are recorded.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Recorded {
    objects: u64,
    orphans: u64,
    missing_objects: u64,
    wrong_counts: u64,
    left: u64,
}

impl Recorded {
    pub(super) fn of(report: &Report) -> Self {
        Self {
            objects: report.objects,
            orphans: report.orphans,
            missing_objects: report.missing_objects,
            wrong_counts: report.wrong_counts
                + report.unreferenced_content
                + report.missing_content_rows
                + report.pending_deletions,
            left: report.left() + report.undecided,
        }
    }
}

/// Inserts the result. An audit that resumed adds to the one before, so `found` leaves out what the
/// next one finds again.
pub(super) async fn record(db: &Client, report: &Report, found: Recorded) -> Result<(), Error> {
    let [objects, orphans, missing, wrong, left] =
        [found.objects, found.orphans, found.missing_objects, found.wrong_counts, found.left]
            .map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    let resumed = report.after.is_some();
    db.execute(RECORD, &[&report.complete, &resumed, &objects, &orphans, &missing, &wrong, &left])
        .await?;
    Ok(())
}
