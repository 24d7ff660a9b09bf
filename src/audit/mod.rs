//! The audit: bucket against tables in both directions, while fleet and writers go on.
//!
//! Three walks, each in pages and in constant memory: the counts of content (`counts`), the bodies
//! that pastes hold (`pastes`), and the bucket's listing merged with the keys that content knows
//! (`bucket`). Everything they come upon is only a suspicion, for it is older than a moment: it
//! is asked again, in an order that no interleaving can break, before it is reported
//! (`orphans`, `missing`, `counts`). What is to be deleted is collected (`pending`) and
//! deleted when the walks have ended, unless it is suspiciously much (`deletions`); and no object
//! before a sentinel keeps its key (`sentinel`).

mod bodies;
mod brake;
mod bucket;
mod checks;
mod counts;
mod deletions;
mod error;
mod missing;
mod orphans;
mod pastes;
mod pending;
mod position;
mod progress;
mod record;
mod report;
mod rows;
mod sample;
mod sentinel;
mod spellings;
mod unreferenced;

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub(crate) use self::brake::CHECK;
use self::{
    brake::has_erased,
    checks::{check, connect, loose_prefix, refuse_loose_prefix},
    pending::Pending,
    progress::Progress,
    record::Recorded,
    rows::ROWS_PER_RANGE,
};
pub use self::{
    error::AuditError,
    position::Position,
    report::{Finding, Kind, Report, Stopped},
    sample::{Sample, sample},
};
use crate::{
    backoff::backoff,
    config::Settings,
    objects::Objects,
    postgres::{Target, describe},
    shutdown::Shutdown,
};

/// How long a Postgres that went away is waited for.
const REOPEN_WITHIN: Duration = Duration::from_secs(60);
/// A connection that is lost so often at the same place is not lost by chance.
const MOST_LOSSES: u32 = 5;

/// How to audit.
#[derive(Debug, Clone)]
pub struct Options {
    /// Repair what can be repaired without losing anything.
    pub repair: bool,
    /// What is younger may be in the hands of a writer who has not committed yet.
    pub grace: Duration,
    /// The brake: delete nothing when more than that is to be deleted.
    pub max_delete: u64,
    /// Also when that is more than half, when no paste was ever erased here, or under a prefix that
    /// others may share.
    pub override_brake: bool,
    pub after: Position,
    /// So many findings of each kind are kept in words.
    pub list: usize,
    /// Content is sorted in ranges of about so many rows.
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

/// One audit.
pub struct Audit {
    target: Target,
    db: Client,
    objects: Objects,
    options: Options,
    report: Report,
    progress: Progress,
    pending: Pending,
    /// The last missing object that was reported: a page that is walked through again reports none
    /// twice.
    missing_up_to: Option<String>,
}

impl Audit {
    /// Ready to go: connected, the schema is ours, and the bucket is this database's.
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
        let most = usize::try_from(options.max_delete).unwrap_or(usize::MAX).max(options.list);
        let audit = Self {
            target,
            db,
            objects,
            options,
            report,
            progress: Progress::default(),
            pending: Pending::keeping(most),
            missing_up_to: None,
        };
        if audit.options.repair {
            audit.refuse_while_paused().await?;
        }
        Ok(audit)
    }

    /// Audits to the end, or until a signal or a server that stays away: then the report says where
    /// to go on. A second signal does not wait for the page.
    pub async fn run(mut self, shutdown: &Shutdown) -> Report {
        let started = Instant::now();
        let mut at = Some(self.options.after.clone());
        self.progress = Progress::start(&self.db).await;
        let ended = self.walk(&mut at, shutdown).await;
        self.progress.end();
        self.report.stopped_because = *ended.as_ref().unwrap_or(&Stopped::Failed);
        self.report.error = ended.err().map(|error| error.to_string());
        let found = self.end_at(at);
        let mut report = std::mem::take(&mut self.report);
        report.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Err(error) = record::record(&self.db, &report, found).await {
            warn!("what it found could not be written down for status: {}", describe(&error));
        }
        report
    }

    /// Says where to go on, if that is to be said, and returns what is not found again from there.
    fn end_at(&mut self, at: Option<Position>) -> Recorded {
        self.report.complete =
            matches!(self.report.stopped_because, Stopped::Done | Stopped::Brake);
        if self.report.complete {
            self.warn_of_brake();
            return Recorded::of(&self.report);
        }
        let first = self.pending.first().cloned();
        let before = Recorded::of(&self.report);
        self.note_pending();
        let (at, found) = first.unwrap_or((at.unwrap_or_default(), before));
        self.report.position = Some(at.to_string());
        found
    }

    /// Walks on from the last whole page when the connection was lost.
    async fn walk(
        &mut self,
        at: &mut Option<Position>,
        shutdown: &Shutdown,
    ) -> Result<Stopped, AuditError> {
        let mut losses = 0;
        loop {
            let before = (at.clone(), self.pending.count());
            let ended = tokio::select! {
                ended = self.walk_on(at, &shutdown.stop) => ended,
                () = shutdown.abandon.cancelled() => Ok(Stopped::Signal),
            };
            if at.is_some() {
                self.pending.undo_page();
            }
            losses = if (at.clone(), self.pending.count()) == before { losses + 1 } else { 1 };
            match ended {
                Err(error) if error.is_lost_connection() && losses < MOST_LOSSES => {
                    warn!("{error}: connecting anew, and going on");
                    tokio::select! {
                        reopened = self.reopen(error) => reopened?,
                        () = shutdown.stop.cancelled() => return Ok(Stopped::Signal),
                    }
                }
                ended => return ended,
            }
        }
    }

    /// Page by page, and then the deletions. `at` is `None` when the walks have ended.
    async fn walk_on(
        &mut self,
        at: &mut Option<Position>,
        stop: &CancellationToken,
    ) -> Result<Stopped, AuditError> {
        let mut walk = None;
        while let Some(before) = at.clone() {
            if stop.is_cancelled() {
                return Ok(Stopped::Signal);
            }
            let figures = Recorded::of(&self.report);
            let next = self.page(&before, &mut walk).await?;
            self.pending.end_page(&before, figures);
            self.show_progress(next.as_ref().unwrap_or(&before));
            *at = next;
        }
        self.delete_pending(stop).await
    }

    /// One page of one of the three walks, and where it ends.
    async fn page(
        &mut self,
        at: &Position,
        walk: &mut Option<bucket::Walk>,
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
                    None => walk.insert(bucket::Walk::start(self, after.clone()).await?),
                };
                return Ok(self.objects_page(walk).await?.map(Position::Objects));
            }
        }))
    }

    /// Told is the place from which nothing would be left out.
    fn show_progress(&mut self, at: &Position) {
        let at = self.pending.first().map_or(at, |(first, _)| first);
        self.progress.show(&self.report, self.pending.count(), at);
    }

    async fn reopen(&mut self, lost: AuditError) -> Result<(), AuditError> {
        let give_up = Instant::now() + REOPEN_WITHIN;
        for tries in 1.. {
            match connect(&self.target).await {
                Ok(db) => {
                    self.db = db;
                    // Another server may answer by now, with another state.
                    let checked = check(&self.db, &self.objects).await;
                    return checked.map_err(|error| AuditError::Refused(format!("{error:#}")));
                }
                Err(_) if Instant::now() < give_up => tokio::time::sleep(backoff(tries)).await,
                Err(_) => break,
            }
        }
        Err(lost)
    }

    fn note(&mut self, finding: Finding) {
        self.report.note(finding, self.options.list);
    }
}
