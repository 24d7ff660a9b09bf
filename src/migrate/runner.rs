//! Executes steps one by one on the session that holds the migration lock.

use super::error::MigrateError;
use super::script::{Migration, Step, StepKind, steps};
use crate::format::counted;
use std::time::{Duration, Instant};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

const SESSION: &str = sql!("migrate/session");
const TRY_LOCK: &str = sql!("migrate/try_lock");
const UNLOCK: &str = sql!("migrate/unlock");
const RECORD: &str = sql!("migrate/record");
const INDEX_STATE: &str = sql!("migrate/index_state");
const LOCK_HOLDERS: &str = sql!("migrate/lock_holders");

/// How long a step waits for a lock, over all tries.
const TIMEOUT: Duration = Duration::from_secs(300);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
const LOCK_POLL: Duration = Duration::from_secs(1);
/// How often the wait for another migration is reported, in polls.
const REPORT_EVERY: u32 = 30;

/// The one session that migrates a database.
pub(super) struct Runner<'a> {
    pub client: &'a Client,
    print: &'a mut dyn FnMut(&str),
}

impl<'a> Runner<'a> {
    pub(super) fn new(client: &'a Client, print: &'a mut dyn FnMut(&str)) -> Self {
        Self { client, print }
    }

    /// Prints a line about the progress.
    pub(super) fn print(&mut self, line: &str) {
        (self.print)(line);
    }

    /// Waits until no other session migrates this database.
    pub(super) async fn lock(&mut self) -> Result<(), MigrateError> {
        let failed = MigrateError::while_doing("take the migration lock");
        self.client.batch_execute(SESSION).await.map_err(&failed)?;
        let mut polls = 0;
        while !self.try_lock().await.map_err(&failed)? {
            if polls % REPORT_EVERY == 0 {
                self.print("another migration is running on this database; waiting for it to end");
            }
            polls += 1;
            tokio::time::sleep(LOCK_POLL).await;
        }
        Ok(())
    }

    async fn try_lock(&self) -> Result<bool, Error> {
        self.client.query_one(TRY_LOCK, &[]).await?.try_get(0)
    }

    /// Releases the lock.
    pub(super) async fn unlock(&self) {
        // A failure here means a lost connection, and the lock went with it.
        if let Err(error) = self.client.query_one(UNLOCK, &[]).await {
            tracing::debug!(%error, "could not release the migration lock");
        }
    }

    /// Runs all steps of a migration and records that it is complete.
    pub(super) async fn apply(&mut self, migration: &Migration) -> Result<(), MigrateError> {
        let Migration { version, name, sql } = migration;
        self.print(&format!("migration V{version} {name}"));
        for step in steps(sql) {
            self.run_step(&step).await?;
        }
        let recorded = self.client.execute(RECORD, &[version, name]).await;
        recorded.map(drop).map_err(MigrateError::while_doing("record the migration"))
    }

    /// Rebuilds the indexes of a completed migration that are invalid or missing.
    pub(super) async fn rebuild_indexes(
        &mut self,
        migration: &Migration,
    ) -> Result<Vec<String>, MigrateError> {
        let mut rebuilt = Vec::new();
        for step in steps(migration.sql) {
            if let StepKind::Index(name) = step.kind
                && self.build_index(&step, name).await?
            {
                rebuilt.push(name.to_owned());
            }
        }
        Ok(rebuilt)
    }

    /// Repeats the steps of a completed migration that repair later changes.
    pub(super) async fn repair(&mut self, migration: &Migration) -> Result<(), MigrateError> {
        for step in steps(migration.sql) {
            if step.kind == StepKind::Always {
                self.run_step(&step).await?;
            }
        }
        Ok(())
    }

    /// Runs one step, with retries while its table is locked.
    pub(super) async fn run_step(&mut self, step: &Step<'_>) -> Result<(), MigrateError> {
        tracing::debug!(step = step.title, "migration step");
        match step.kind {
            StepKind::Locking | StepKind::Always => {
                let client = self.client;
                self.with_retries(step, async || client.batch_execute(step.sql).await).await
            }
            StepKind::Index(name) => self.build_index(step, name).await.map(drop),
            StepKind::Repeat => self.repeat(step).await,
        }
    }

    /// Runs a step again from each position it returns, until there is none.
    async fn repeat(&mut self, step: &Step<'_>) -> Result<(), MigrateError> {
        let client = self.client;
        let (mut total, mut position) = (0, Some(0_i64));
        while let Some(at) = position {
            let row =
                self.with_retries(step, async || client.query_one(step.sql, &[&at]).await).await?;
            let changed: i64 = row.try_get(0).map_err(MigrateError::in_step(step.title))?;
            position = row.try_get(1).map_err(MigrateError::in_step(step.title))?;
            total += changed;
        }
        if total > 0 {
            self.print(&format!("{}: {}", step.title, counted(total, "row")));
        }
        Ok(())
    }

    /// Returns whether the index had to be built.
    async fn build_index(&mut self, step: &Step<'_>, name: &str) -> Result<bool, MigrateError> {
        let client = self.client;
        let failed = MigrateError::in_step(step.title);
        if index_state(client, name).await.map_err(&failed)?.ready {
            return Ok(false);
        }
        self.print(&format!("building {}", step.title));
        client.batch_execute("SET lock_timeout = 0").await.map_err(&failed)?;
        let built = self.with_retries(step, async || rebuild(client, name, step.sql).await).await;
        if built.is_err() {
            // An invalid unique index would still refuse writes.
            let _ = drop_leftover(client, name).await;
        }
        let restored = client.batch_execute("SET lock_timeout = '2s'").await;
        built?;
        restored.map_err(&failed)?;
        match index_state(client, name).await.map_err(&failed)?.ready {
            true => Ok(true),
            false => Err(MigrateError::NameTaken { index: name.to_owned() }),
        }
    }

    /// Repeats an attempt while it gets no lock, with growing pauses that let the statements queued behind it
    /// proceed.
    async fn with_retries<T>(
        &mut self,
        step: &Step<'_>,
        mut attempt: impl AsyncFnMut() -> Result<T, Error>,
    ) -> Result<T, MigrateError> {
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            match attempt().await {
                Err(error) if got_no_lock(&error) => {
                    let holders = self.lock_holders().await;
                    let waited = started.elapsed();
                    if waited + pause > TIMEOUT {
                        let waited = Duration::from_secs(waited.as_secs());
                        return Err(MigrateError::Locked {
                            step: step.title.to_owned(),
                            waited,
                            holders,
                        });
                    }
                    self.print(&format!("{}: waiting for a lock; {holders}", step.title));
                }
                outcome => return outcome.map_err(MigrateError::in_step(step.title)),
            }
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Describes the transactions that have locked the tables.
    async fn lock_holders(&self) -> String {
        let rows = self.client.query(LOCK_HOLDERS, &[]).await.unwrap_or_default();
        let holders: Vec<String> = rows.iter().filter_map(|row| row.try_get(0).ok()).collect();
        match holders.is_empty() {
            true => "lock holder not visible to this role".to_owned(),
            false => holders.join("; "),
        }
    }
}

/// Whether an index is valid, and the statement that drops an invalid one.
pub(super) struct IndexState {
    pub ready: bool,
    leftover: Option<String>,
}

pub(super) async fn index_state(client: &Client, name: &str) -> Result<IndexState, Error> {
    let row = client.query_one(INDEX_STATE, &[&name]).await?;
    Ok(IndexState { ready: row.try_get(0)?, leftover: row.try_get(1)? })
}

async fn rebuild(client: &Client, name: &str, sql: &str) -> Result<(), Error> {
    drop_leftover(client, name).await?;
    client.batch_execute(sql).await
}

async fn drop_leftover(client: &Client, name: &str) -> Result<(), Error> {
    match index_state(client, name).await?.leftover {
        Some(removal) => client.batch_execute(&removal).await,
        None => Ok(()),
    }
}

fn got_no_lock(error: &Error) -> bool {
    matches!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED))
}
