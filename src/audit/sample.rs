//! Audits one page of each walk, without repairs, for `cleanupctl doctor`.

use std::time::Duration;

use anyhow::Result;

use super::{Audit, AuditError, Options, Report};
use crate::{config::Settings, objects::Start};

const COUNTS: &str = sql!("audit/counts");
const MOST: usize = 1000;

/// The part to audit.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Objects after this key.
    pub after_key: String,
    /// Content rows after this hash, for counts and existence.
    pub after_hash: Vec<u8>,
    /// Number of objects and of content rows, at most 1000.
    pub size: usize,
    /// Objects and rows that are younger count as fresh: their writer may not have committed yet.
    pub grace: Duration,
}

/// Audits a sample and changes nothing. Requires the role `cleanup_auditor` and the right to list, as
/// every audit does.
pub async fn sample(settings: &Settings, sample: &Sample) -> Result<Report> {
    let options = Options { grace: sample.grace, ..Options::default() };
    let mut audit = Audit::open(settings, options).await?;
    audit.sample(sample).await?;
    Ok(audit.report)
}

impl Audit {
    async fn sample(&mut self, sample: &Sample) -> Result<(), AuditError> {
        let size = sample.size.clamp(1, MOST);
        let start = Start::After(sample.after_key.clone());
        let page = self.objects.list(&start, size).await?;
        self.report.objects = page.objects.len() as u64;
        self.report.bytes = page.objects.iter().map(|object| object.bytes).sum();
        let store_time_s = self.time_of(page.store_time_s).await?;
        self.confirm_orphans(page.objects, store_time_s).await?;
        let limit = i64::try_from(size).unwrap_or(i64::MAX);
        let prefix = self.objects.prefix();
        let rows = self.db.query(COUNTS, &[&sample.after_hash, &limit, &prefix]).await?;
        let sentinels = rows.iter().filter(|row| row.get("is_sentinel")).count();
        self.report.sentinels = sentinels as u64;
        self.report.content_rows = (rows.len() - sentinels) as u64;
        let pending = self.pending_deletions(&rows).await?;
        pending.into_iter().for_each(|finding| self.note(finding));
        let suspects = self.suspects(&rows).await?;
        self.confirm_counts(&suspects).await?;
        let within = rows.iter().filter(|row| !row.get::<_, bool>("is_outside"));
        self.confirm_missing(within.map(|row| row.get("s3_key")).collect()).await?;
        self.pastes_page(&sample.after_hash).await?;
        Ok(())
    }
}
