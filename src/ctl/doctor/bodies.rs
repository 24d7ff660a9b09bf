//! Bucket and tables, by a sample: a page of each. What it shows, an audit shows whole.

use std::time::Duration;

use anyhow::Result;
use tokio::time::timeout;
use uuid::Uuid;

use super::finding::{Outcome, left_out, ok, warning};
use crate::{
    audit::{CHECK, Report, Sample, sample},
    config::Settings,
    format::thousands,
    objects::{KEYS_PER_CALL, Objects},
};

const LOOK: &str = "`cleanupctl audit` looks at all of them and changes nothing";
const REPAIR: &str = "`cleanupctl audit --repair` repairs what can be repaired";
const END_PREFIX: &str = "let s3.prefix end in '/' and run `cleanupctl migrate --rebind-bucket`";
const TIMEOUT: Duration = Duration::from_secs(20);
/// Younger ones may belong to writers who have not committed yet.
const GRACE: Duration = Duration::from_secs(24 * 3600);

pub(super) async fn bodies(objects: &Objects, settings: &Settings) -> Result<Outcome> {
    Ok(match timeout(TIMEOUT, look(objects, settings)).await {
        Ok(Ok(report)) => judge(&report),
        // Workers need no right to list, and before the first run there is nothing to compare.
        Ok(Err(error)) => left_out(format!("{error:#}")),
        Err(_) => left_out(format!("S3 took longer than {TIMEOUT:?} for it")),
    })
}

/// From a random place on; from the beginning if there is not much behind that. A small database is
/// seen whole: shares of its last few objects would say nothing.
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
    if report.objects >= enough && report.content_rows >= enough {
        return Ok(report);
    }
    let start = Sample { after_key: String::new(), after_hash: Vec::new(), ..somewhere };
    let first = sample(settings, &start).await?;
    Ok(if first.found() == 0 && report.found() > 0 { report } else { first })
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
        (report.unreferenced_content, "bodies are held by nobody"),
        (report.pending_deletions, "bodies are about to be deleted"),
        (report.ambiguous, "keys may be other spellings of content keys"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{} {what}", thousands(count)))
    .collect();
    if wrong.is_empty() {
        return ok(format!("nothing is wrong {seen}"));
    }
    let found = format!("{seen}, {}", wrong.join(", "));
    match why_not_repair(report) {
        Some((why, check)) => warning(format!("{found}; {why}"), format!("{check}; {LOOK}")),
        None => warning(found, format!("{LOOK}; {REPAIR}")),
    }
}

/// What speaks against a repair, and what to check instead: then nobody is told to repair. A sample
/// is enough to see that something else is wrong.
fn why_not_repair(report: &Report) -> Option<(String, &'static str)> {
    if let Some(prefix) = report.warnings.first() {
        return Some((prefix.clone(), END_PREFIX));
    }
    let suspicion = report.suspicion(report.orphans, report.unreferenced_content)?;
    let what = "so these may be the wrong tables or the wrong bucket";
    Some((format!("{suspicion}, {what}"), CHECK))
}
