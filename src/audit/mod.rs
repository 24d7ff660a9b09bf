//! The audit: bucket against tables in both directions, while fleet and writers go on.
//!
//! Three walks, each in pages and in constant memory: the bucket's listing merged with the keys that
//! content knows ([`bucket`]), the counts of content ([`counts`]), and the bodies that pastes hold
//! ([`pastes`]). Everything they come upon is only a suspicion, for it is older than a moment: it
//! is asked again, in an order that no interleaving can break, before it is reported
//! ([`orphans`], [`missing`], [`counts`]). Nothing is deleted before a sentinel keeps its key
//! ([`sentinel`]).

mod bucket;
mod counts;
mod error;
mod missing;
mod orphans;
mod pastes;
mod position;
mod progress;
mod record;
mod report;
mod rows;
mod sample;
mod sentinel;

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use self::{
    error::AuditError,
    position::Position,
    report::{Finding, Kind, Report, Stopped},
    sample::{Sample, sample},
};
use self::{progress::Progress, rows::ROWS_PER_RANGE};
use crate::{
    backoff::backoff,
    config::Settings,
    fleet, migrate,
    objects::{Objects, Start},
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
    /// The brake: delete no more objects than that.
    pub max_delete: u64,
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
    /// Objects deleted, or tried to; the brake counts them.
    deletions: u64,
}

impl Audit {
    /// Ready to go: connected, the schema is ours, and the bucket is this database's.
    pub async fn open(settings: &Settings, options: Options) -> Result<Self> {
        let objects = Objects::new(settings).await?;
        let target = Target::new(settings, "cleanupctl audit", None)?;
        let db = connect(&target).await?;
        migrate::check(&db).await?;
        check_binding(&db, &objects).await?;
        let report = Report {
            repair: options.repair,
            after: (options.after != Position::default()).then(|| options.after.to_string()),
            ..Report::default()
        };
        let progress = Progress::default();
        Ok(Self { target, db, objects, options, report, progress, deletions: 0 })
    }

    /// Audits to the end, or until a signal or a server that stays away: then the report says where
    /// to go on. A second signal does not wait for the page.
    pub async fn run(mut self, shutdown: &Shutdown) -> Report {
        let started = Instant::now();
        let mut at = self.options.after.clone();
        self.progress = Progress::start(&self.db).await;
        let ended = self.walk(&mut at, shutdown).await;
        self.progress.end();
        let mut report = std::mem::take(&mut self.report);
        report.stopped_because = *ended.as_ref().unwrap_or(&Stopped::Failed);
        report.error = ended.err().map(|error| error.to_string());
        report.complete = report.stopped_because == Stopped::Done;
        report.position = (!report.complete).then(|| at.to_string());
        report.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Err(error) = record::record(&self.db, &report).await {
            warn!("what it found could not be written down for status: {}", describe(&error));
        }
        report
    }

    /// Walks on from the last whole page when the connection was lost.
    async fn walk(
        &mut self,
        at: &mut Position,
        shutdown: &Shutdown,
    ) -> Result<Stopped, AuditError> {
        let mut losses = 0;
        loop {
            let before = at.clone();
            let ended = tokio::select! {
                ended = self.walk_on(at, &shutdown.stop) => ended,
                () = shutdown.abandon.cancelled() => return Ok(Stopped::Signal),
            };
            losses = if *at == before { losses + 1 } else { 1 };
            match ended {
                Err(error) if error.is_lost_connection() && losses < MOST_LOSSES => {
                    warn!("{error}: connecting anew, and going on after {at}");
                    tokio::select! {
                        reopened = self.reopen(error) => reopened?,
                        () = shutdown.stop.cancelled() => return Ok(Stopped::Signal),
                    }
                }
                ended => return ended,
            }
        }
    }

    async fn walk_on(
        &mut self,
        at: &mut Position,
        stop: &CancellationToken,
    ) -> Result<Stopped, AuditError> {
        if let Position::Objects(after) = at.clone() {
            let mut walk = bucket::Walk::start(self, after).await?;
            while let Position::Objects(_) = at {
                if stop.is_cancelled() {
                    return Ok(Stopped::Signal);
                }
                let last = self.objects_page(&mut walk).await?;
                *at = last.map_or(Position::Counts(Vec::new()), Position::Objects);
                self.progress.show(&self.report, at);
            }
        }
        loop {
            if stop.is_cancelled() {
                return Ok(Stopped::Signal);
            }
            *at = match at {
                Position::Counts(after) => match self.counts_page(after).await? {
                    Some(last) => Position::Counts(last),
                    None => Position::Pastes(Vec::new()),
                },
                Position::Pastes(after) => match self.pastes_page(after).await? {
                    Some(last) => Position::Pastes(last),
                    None => return Ok(Stopped::Done),
                },
                Position::Objects(_) => return Ok(Stopped::Done),
            };
            self.progress.show(&self.report, at);
        }
    }

    async fn reopen(&mut self, lost: AuditError) -> Result<(), AuditError> {
        let give_up = Instant::now() + REOPEN_WITHIN;
        for tries in 1.. {
            match connect(&self.target).await {
                Ok(db) => {
                    self.db = db;
                    return Ok(());
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

/// A session that finds rows by their keys, however little the planner knows about the tables.
async fn connect(target: &Target) -> Result<Client> {
    let db = target.open().await?;
    let by_key = db.batch_execute("SET enable_seqscan = off").await;
    by_key.map_err(|error| target.explain(&error))?;
    Ok(db)
}

/// To a wrong bucket everything in it would look like an orphan, and every body like missing.
async fn check_binding(db: &Client, objects: &Objects) -> Result<()> {
    let fleet = fleet::read(db).await?;
    if fleet.bucket.is_some() {
        return fleet.belongs_to(objects.bucket(), objects.prefix());
    }
    let first = objects.list(&Start::After(String::new()), 1).await?;
    let rows = db.query_opt("SELECT FROM content LIMIT 1", &[]).await.map_err(AuditError::from)?;
    if !first.objects.is_empty() || rows.is_some() {
        bail!(
            "this database is not bound to a bucket yet, so nobody can say what in {:?} is its \
             own; the first run of a worker binds it",
            objects.bucket()
        );
    }
    Ok(())
}
