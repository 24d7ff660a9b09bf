//! Compares bucket and tables by a sample: one page of each. `cleanupctl audit` compares all of them.

use std::time::Duration;

use anyhow::Result;
use tokio::time::timeout;
use uuid::Uuid;

use super::finding::{Outcome, left_out, ok, warning};
use crate::{
    audit::{Report, Sample, sample},
    config::Settings,
    format::counted,
    objects::{KEYS_PER_CALL, Objects},
    problem::Problem,
};

const AUDIT: &str = "`cleanupctl audit` checks all of them and changes nothing";
const REPAIR: &str = "`cleanupctl audit --repair` repairs what can be repaired";
const END_PREFIX: &str = "let s3.prefix end in '/' and run `cleanupctl migrate --rebind-bucket`";
const TIMEOUT: Duration = Duration::from_secs(20);
/// Younger objects may belong to writers that have not committed yet.
const GRACE: Duration = Duration::from_secs(24 * 3600);

pub(super) async fn objects(objects: &Objects, settings: &Settings) -> Result<Outcome, Problem> {
    Ok(match timeout(TIMEOUT, compare(objects, settings)).await {
        Ok(Ok(report)) => judge(&report),
        // Workers need no right to list, and before the first run no bucket is bound.
        Ok(Err(error)) => left_out(format!("{error:#}")),
        Err(_) => left_out(format!("S3 did not list a page within {TIMEOUT:?}")),
    })
}

/// Compares a page that starts at a random position. If that page is not full, compares the first
/// page instead, so that a small database is compared as a whole.
async fn compare(objects: &Objects, settings: &Settings) -> Result<Report> {
    let position = Uuid::new_v4();
    let after_key = format!("{}{}", objects.prefix(), position.simple());
    let random = Sample {
        after_key,
        after_hash: position.into_bytes().into(),
        size: KEYS_PER_CALL,
        grace: GRACE,
    };
    let report = sample(settings, &random).await?;
    let full = KEYS_PER_CALL as u64;
    if report.objects >= full && report.content_rows >= full {
        return Ok(report);
    }
    let start = Sample { after_key: String::new(), after_hash: Vec::new(), ..random };
    let first = sample(settings, &start).await?;
    Ok(if first.found() == 0 && report.found() > 0 { report } else { first })
}

fn judge(report: &Report) -> Outcome {
    let sampled = format!(
        "in a sample of {} and {}",
        counted(report.objects, "object"),
        counted(report.content_rows, "content row")
    );
    let wrong: Vec<String> = [
        (report.orphans, "orphan", ""),
        (report.missing_objects, "content row", " without an object"),
        (report.wrong_counts, "wrong ref_count", ""),
        (report.unreferenced_content, "unreferenced content row", ""),
        (report.pending_deletions, "content row", " pending deletion"),
        (report.missing_content_rows, "missing content row", ""),
        (report.ambiguous, "key", " that may be another spelling of a content key"),
    ]
    .into_iter()
    .filter(|(count, ..)| *count > 0)
    .map(|(count, noun, detail)| format!("{}{detail}", counted(count, noun)))
    .collect();
    if wrong.is_empty() {
        return match report.warnings.first() {
            Some(prefix) => warning(prefix.clone(), END_PREFIX),
            None => ok(format!("nothing wrong {sampled}")),
        };
    }
    let found = format!("{sampled}: {}", wrong.join(", "));
    match why_not_repair(report) {
        Some((why, check)) => warning(format!("{found}; {why}"), format!("{check}; {AUDIT}")),
        None => warning(found, format!("{AUDIT}; {REPAIR}")),
    }
}

/// The reason not to recommend a repair, and what to check instead: an s3.prefix that other databases
/// may share, or a sign that the deletes would be a mistake. A sample is enough to see either.
fn why_not_repair(report: &Report) -> Option<(String, &'static str)> {
    if let Some(prefix) = report.warnings.first() {
        return Some((prefix.clone(), END_PREFIX));
    }
    let suspicions = report.suspicions(report.orphans, report.unreferenced_content);
    suspicions.into_iter().next().map(|suspicion| (suspicion.what, suspicion.check))
}
