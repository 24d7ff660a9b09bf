//! What an audit found, written down for `status` and metrics.

use tokio_postgres::{Client, Error};

use super::Report;

const RECORD: &str = include_str!("../../sql/queries/record_audit.sql");

/// One that went on where the last one had ended adds to it.
pub(super) async fn record(db: &Client, report: &Report) -> Result<(), Error> {
    let wrong_counts = report.wrong_counts + report.unheld_bodies + report.bodies_without_content;
    let [objects, orphans, missing, wrong, left] = [
        report.objects,
        report.orphans,
        report.missing_objects,
        wrong_counts,
        report.left() + report.undecided,
    ]
    .map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    let went_on = report.after.is_some();
    db.execute(RECORD, &[&report.complete, &went_on, &objects, &orphans, &missing, &wrong, &left])
        .await?;
    Ok(())
}
