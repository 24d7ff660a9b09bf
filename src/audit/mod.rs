//! The audit: compares the bucket with the tables in both directions, while workers and writers run.
//!
//! Three walks, each page by page and in constant memory:
//!
//! 1. `walk_counts`: is each `ref_count` right, and is each content row referenced?
//! 2. `walk_pastes`: does the content of each paste have a content row?
//! 3. `walk_bucket`: the bucket's listing, merged with the keys of all content rows.
//!
//! What a walk finds is only a suspect, because it was read some time ago. Before it is reported it is
//! checked again, in an order that no interleaving can break (`orphans`, `missing_objects`, `recount`).
//! Counts are corrected at once. What is to be deleted goes into `delete_queue`, and is deleted when
//! the walks have ended (`delete`), unless the safety brake refuses (`brake`). No object is deleted
//! before a sentinel reserves its key (`sentinel`).

mod brake;
mod content_keys;
mod delete;
mod delete_queue;
mod error;
mod missing_objects;
mod orphans;
mod position;
mod preconditions;
mod progress;
mod record;
mod recount;
mod report;
mod sample;
mod sentinel;
mod spellings;
mod unreferenced_content;
mod walk_bucket;
mod walk_counts;
mod walk_pastes;

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::{
    brake::has_erased,
    content_keys::ROWS_PER_RANGE,
    delete_queue::DeleteQueue,
    preconditions::{check, connect, loose_prefix, refuse_loose_prefix},
    progress::Progress,
    record::Recorded,
    walk_bucket::BucketWalk,
};
pub use self::{
    error::AuditError,
    position::Position,
    report::{Finding, Kind, Report, Stopped},
    sample::{Sample, sample},
};
use crate::{
    backoff::Retries,
    config::Settings,
    objects::Objects,
    postgres::{Target, describe},
    shutdown::Shutdown,
};

/// How long a lost connection to Postgres is tried again.
const RECONNECT_WITHIN: Duration = Duration::from_secs(60);
/// A connection that is lost this often on the same page is not lost by chance.
const MAX_LOSSES: u32 = 5;

/// The options of an audit.
#[derive(Debug, Clone)]
pub struct Options {
    /// Repair what can be repaired without losing a body.
    pub repair: bool,
    /// Leave alone what is younger: its writer may not have committed yet.
    pub grace: Duration,
    /// Delete nothing if more objects than this are to be deleted.
    pub max_delete: u64,
    /// Delete even if that is more than half, if no paste was ever erased in this database, or if
    /// other databases may share the prefix.
    pub override_brake: bool,
    /// Resume after this position.
    pub after: Position,
    /// Number of findings of each kind to keep in the report.
    pub list: usize,
    /// Sort the content keys in ranges of about this many rows.
    pub rows_per_range: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            repair: false,
            grace: Duration::from_secs(24 * 3600),
            max_delete: 1000,
            override_brake: false,
            after: Position::default(),
            list: 20,
            rows_per_range: ROWS_PER_RANGE,
        }
    }
}

/// One audit: [`Audit::open`], then [`Audit::run`].
pub struct Audit {
    target: Target,
    db: Client,
    objects: Objects,
    options: Options,
    report: Report,
    progress: Progress,
    queue: DeleteQueue,
    /// The last missing object that was reported, so that a page that is repeated reports none twice.
    missing_up_to: Option<String>,
}

impl Audit {
    /// Connects, and checks everything that an audit requires.
    pub async fn open(settings: &Settings, options: Options) -> Result<Self> {
        let objects = Objects::new(settings).await?;
        if options.repair && !options.override_brake {
            refuse_loose_prefix(objects.prefix())?;
        }
        let target = Target::new(settings, "cleanupctl audit", None)?;
        let db = connect(&target).await?;
        check(&db, &objects).await?;
        let report = Report {
            repair: options.repair,
            after: (options.after != Position::default()).then(|| options.after.to_string()),
            never_erased: !has_erased(&db).await.map_err(AuditError::from)?,
            warnings: loose_prefix(objects.prefix()).into_iter().collect(),
            ..Report::default()
        };
        let capacity = usize::try_from(options.max_delete).unwrap_or(usize::MAX).max(options.list);
        let audit = Self {
            target,
            db,
            objects,
            options,
            report,
            progress: Progress::default(),
            queue: DeleteQueue::new(capacity),
            missing_up_to: None,
        };
        if audit.options.repair {
            audit.refuse_while_paused().await?;
        }
        Ok(audit)
    }

    /// Audits to the end, or until a signal or an outage; then the report has the position to resume
    /// at. The first signal lets the current page finish, the second does not.
    pub async fn run(mut self, shutdown: &Shutdown) -> Report {
        let started = Instant::now();
        let mut at = Some(self.options.after.clone());
        self.progress = Progress::start(&self.db).await;
        let ended = self.walk(&mut at, shutdown).await;
        self.progress.end();
        self.report.stopped_because = *ended.as_ref().unwrap_or(&Stopped::Failed);
        self.report.error = ended.err().map(|error| error.to_string());
        let found = self.conclude(at);
        let mut report = std::mem::take(&mut self.report);
        report.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Err(error) = record::record(&self.db, &report, found).await {
            warn!("cannot record the audit for `cleanupctl status`: {}", describe(&error));
        }
        report
    }

    /// Completes the report with the position to resume at, if the audit did not reach the end.
    /// Returns the findings that resuming there does not find again.
    fn conclude(&mut self, at: Option<Position>) -> Recorded {
        self.report.complete =
            matches!(self.report.stopped_because, Stopped::Done | Stopped::Brake);
        if self.report.complete {
            self.warn_of_brake();
            return Recorded::of(&self.report);
        }
        let first = self.queue.first().cloned();
        let before = Recorded::of(&self.report);
        self.report_not_reached();
        let (at, found) = first.unwrap_or((at.unwrap_or_default(), before));
        self.report.position = Some(at.to_string());
        found
    }

    /// Runs the walks and the deletes. After a lost connection it resumes at the last finished page.
    async fn walk(
        &mut self,
        at: &mut Option<Position>,
        shutdown: &Shutdown,
    ) -> Result<Stopped, AuditError> {
        let mut losses = 0;
        loop {
            let before = (at.clone(), self.queue.count());
            let ended = tokio::select! {
                ended = self.walk_pages(at, &shutdown.stop) => ended,
                () = shutdown.abandon.cancelled() => Ok(Stopped::Signal),
            };
            if at.is_some() {
                self.queue.undo_page();
            }
            losses = if (at.clone(), self.queue.count()) == before { losses + 1 } else { 1 };
            match ended {
                Err(error) if error.is_lost_connection() && losses < MAX_LOSSES => {
                    warn!("{error}; reconnecting");
                    tokio::select! {
                        reconnected = self.reconnect(error) => reconnected?,
                        () = shutdown.stop.cancelled() => return Ok(Stopped::Signal),
                    }
                }
                ended => return ended,
            }
        }
    }

    /// Checks page by page, then deletes what is queued. `at` is `None` when the walks have ended.
    async fn walk_pages(
        &mut self,
        at: &mut Option<Position>,
        stop: &CancellationToken,
    ) -> Result<Stopped, AuditError> {
        let mut walk = None;
        while let Some(before) = at.clone() {
            if stop.is_cancelled() {
                return Ok(Stopped::Signal);
            }
            let recorded = Recorded::of(&self.report);
            let next = self.page(&before, &mut walk).await?;
            self.queue.end_page(&before, recorded);
            self.show_progress(next.as_ref().unwrap_or(&before));
            *at = next;
        }
        self.delete_queued(stop).await
    }

    /// Checks one page of one of the walks. Returns where the next page begins, or `None` at the end.
    async fn page(
        &mut self,
        at: &Position,
        walk: &mut Option<BucketWalk>,
    ) -> Result<Option<Position>, AuditError> {
        Ok(Some(match at {
            Position::Counts(after) => match self.counts_page(after).await? {
                Some(last) => Position::Counts(last),
                None => Position::Pastes(Vec::new()),
            },
            Position::Pastes(after) => match self.pastes_page(after).await? {
                Some(last) => Position::Pastes(last),
                None => Position::Objects(String::new()),
            },
            Position::Objects(after) => {
                let walk = match walk {
                    Some(walk) => walk,
                    None => walk.insert(BucketWalk::start(self, after.clone()).await?),
                };
                return Ok(self.objects_page(walk).await?.map(Position::Objects));
            }
        }))
    }

    fn show_progress(&mut self, at: &Position) {
        let resume = self.queue.first().map_or(at, |(first, _)| first);
        self.progress.show(&self.report, self.queue.count(), at, resume);
    }

    /// Connects again, or returns the error that lost the connection.
    async fn reconnect(&mut self, lost: AuditError) -> Result<(), AuditError> {
        let mut retries = Retries::within(RECONNECT_WITHIN);
        loop {
            match connect(&self.target).await {
                Ok(db) => {
                    self.db = db;
                    // This may be another server, with another schema or binding.
                    let checked = check(&self.db, &self.objects).await;
                    return checked.map_err(|error| AuditError::Refused(format!("{error:#}")));
                }
                Err(_) if retries.are_over() => return Err(lost),
                Err(_) => retries.pause().await,
            }
        }
    }

    fn note(&mut self, finding: Finding) {
        self.report.note(finding, self.options.list);
    }
}
