//! Bucket and tables, by a sample: a page of each. What it shows, an audit shows whole.

use std::time::Duration;

use anyhow::Result;
use tokio::time::timeout;
use uuid::Uuid;

use super::finding::{Outcome, left_out, ok, warning};
use crate::{
    audit::{Report, Sample, sample},
    cli::thousands,
    config::Settings,
    objects::{KEYS_PER_CALL, Objects},
};

const PATIENCE: Duration = Duration::from_secs(20);
/// Younger ones may belong to writers who have not committed yet.
const GRACE: Duration = Duration::from_secs(24 * 3600);

pub(super) async fn bodies(objects: &Objects, settings: &Settings) -> Result<Outcome> {
    Ok(match timeout(PATIENCE, look(objects, settings)).await {
        Ok(Ok(report)) => judge(&report),
        // Workers need no right to list, and before the first run there is nothing to compare.
        Ok(Err(error)) => left_out(format!("{error:#}")),
        Err(_) => left_out(format!("S3 took longer than {PATIENCE:?} for it")),
    })
}

/// From a random place on; from the beginning if there is not much behind that.
async fn look(objects: &Objects, settings: &Settings) -> Result<Report> {
    let place = Uuid::new_v4();
    let after_key = format!("{}{}", objects.prefix(), place.simple());
    let somewhere = Sample {
        after_key,
        after_hash: place.into_bytes().into(),
        size: KEYS_PER_CALL,
        grace: GRACE,
    };
    let report = sample(settings, &somewhere).await?;
    let enough = KEYS_PER_CALL as u64;
    if report.found() > 0 || (report.objects >= enough && report.content_rows >= enough) {
        return Ok(report);
    }
    let start = Sample { after_key: String::new(), after_hash: Vec::new(), ..somewhere };
    sample(settings, &start).await
}

fn judge(report: &Report) -> Outcome {
    let seen = format!(
        "of {} objects and {} bodies looked at",
        thousands(report.objects),
        thousands(report.content_rows)
    );
    let wrong: Vec<String> = [
        (report.orphans, "objects are known to no row"),
        (report.missing_objects, "bodies have no object"),
        (report.wrong_counts, "counts are wrong"),
        (report.unheld_bodies, "bodies are held by nobody"),
        (report.owed_bodies, "bodies are about to be deleted"),
        (report.ambiguous, "keys may be other spellings of content keys"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{} {what}", thousands(count)))
    .collect();
    if wrong.is_empty() {
        return ok(format!("nothing is wrong {seen}"));
    }
    warning(
        format!("{seen}, {}", wrong.join(", ")),
        "`cleanupctl audit` looks at all of them, `cleanupctl audit --repair` mends what can be mended",
    )
}
