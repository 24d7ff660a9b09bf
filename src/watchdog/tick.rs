//! The tick loop of the resident watchdog.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use deadpool_postgres::Pool;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    prune::{Pruned, prune},
    stranded::Depth,
    sweep::{SweepError, Swept, let_workers_heartbeat_first, sweep},
    totals,
};
use crate::{
    config::Settings,
    fleet::stranded::Stranded,
    metrics::{Metrics, Tick},
    migrate::{self, SchemaError},
    mutex::Mutex,
    postgres::{PgError, Target, answered},
    shutdown::Shutdown,
};

const RECORD_TICK: &str = sql!("watchdog/record_tick");
/// How often a tick searches thoroughly.
const THOROUGH_EVERY: Duration = Duration::from_secs(3600);

/// The result of a tick.
#[derive(Debug, Default, Clone, Copy)]
pub struct Ticked {
    /// What the sweep found and reset.
    pub swept: Swept,
    /// What was pruned and purged: nothing if another watchdog was sweeping.
    pub pruned: Pruned,
}

/// The watchdog process.
pub struct Watchdog {
    settings: Arc<Settings>,
    pool: Pool,
    ready: AtomicBool,
    /// When the loop last made progress.
    last_progress: Mutex<Instant>,
    last_thorough: Mutex<Option<Instant>>,
    metrics: Arc<Metrics>,
    /// A missing privilege was logged.
    warned_of_privilege: AtomicBool,
}

impl Watchdog {
    /// Connects and checks the schema.
    pub async fn start(settings: Arc<Settings>) -> Result<Arc<Self>> {
        let target = Target::new(&settings, "cleanup-watchdog", None)?;
        let client = target.open().await?;
        migrate::check(&client).await?;
        Ok(Arc::new(Self {
            pool: target.pool(2)?,
            settings,
            ready: AtomicBool::new(true),
            last_progress: Mutex::new(Instant::now()),
            last_thorough: Mutex::new(None),
            metrics: Metrics::new(),
            warned_of_privilege: AtomicBool::new(false),
        }))
    }

    /// Sweeps, adds up the totals and prunes, once.
    pub async fn tick(&self) -> Result<Ticked, SweepError> {
        let started = Instant::now();
        let depth = self.depth();
        let swept = sweep(&self.pool, &self.settings, depth).await?;
        if depth == Depth::Thorough && !swept.not_elected {
            *self.last_thorough.lock() = Some(started);
        }
        self.unless_forbidden(self.record_tick().await)?;
        let pruned = match swept.not_elected {
            true => Pruned::default(),
            false => {
                self.unless_forbidden(totals::count(&self.pool, &self.settings).await)?;
                prune(&self.pool, &self.settings).await?
            }
        };
        self.metrics.tick_succeeded(Tick {
            elapsed: started.elapsed(),
            claims_pruned: pruned.claims,
            tombstones_purged: pruned.tombstones,
        });
        Ok(Ticked { swept, pruned })
    }

    /// Records the tick in the database, for `status` and `explain`.
    async fn record_tick(&self) -> Result<(), PgError> {
        self.pool.get().await?.execute(RECORD_TICK, &[]).await?;
        Ok(())
    }

    /// Takes a snapshot of the fleet, for the next scrapes.
    pub async fn take_snapshot(&self) -> Result<(), PgError> {
        let read = answered(totals::read(&self.pool, &self.settings)).await;
        if let Some((totals, snapshot)) = self.unless_forbidden(read)? {
            self.metrics.show(totals, snapshot);
        }
        Ok(())
    }

    /// Ignores a missing privilege, which is logged once: without metrics the watchdog still resets and prunes.
    fn unless_forbidden<T>(&self, done: Result<T, PgError>) -> Result<Option<T>, PgError> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error) if error.is_permanent() => {
                if !self.warned_of_privilege.swap(true, Ordering::AcqRel) {
                    warn!("cannot export fleet metrics: {error}; run `cleanupctl migrate --roles`");
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Finds expired pastes that a sweep could not reset.
    pub async fn stranded(&self) -> Result<Option<Stranded>, PgError> {
        Ok(Stranded::find(&*self.pool.get().await?, &self.settings).await?)
    }

    /// Returns what `/metrics` shows.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns how thoroughly to search: thoroughly at the first tick, and once an hour.
    fn depth(&self) -> Depth {
        let last = *self.last_thorough.lock();
        match last {
            Some(last) if last.elapsed() < THOROUGH_EVERY => Depth::Quick,
            _ => Depth::Thorough,
        }
    }

    /// Ticks until the shutdown begins. Waits for Postgres during an outage; returns an error if the schema
    /// is not the one this program was built for.
    pub async fn run(&self, shutdown: &Shutdown) -> Result<(), SchemaError> {
        self.before_first_tick(&shutdown.stop).await;
        let mut ticks = interval(self.settings.watchdog.tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.stop.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
            let was_ready = self.ready.load(Ordering::Acquire);
            if !was_ready {
                self.wait_for_postgres(shutdown).await;
            }
            let tick = async {
                let ticked = self.tick().await?;
                self.take_snapshot().await?;
                Ok(ticked)
            };
            let ticked = tokio::select! {
                ticked = tick => ticked,
                () = shutdown.stop.cancelled() => return Ok(()),
            };
            self.record_outcome(ticked, was_ready)?;
            self.record_progress();
        }
    }

    fn record_outcome(
        &self,
        ticked: Result<Ticked, SweepError>,
        was_ready: bool,
    ) -> Result<(), SchemaError> {
        match ticked {
            Ok(_) => {
                if !was_ready {
                    info!("ticks succeed again");
                }
                self.ready.store(true, Ordering::Release);
            }
            Err(SweepError::Schema(error)) => return Err(error),
            Err(error) => {
                self.ready.store(false, Ordering::Release);
                self.metrics.tick_failed();
                warn!("tick failed: {error}; the next tick tries again");
            }
        }
        Ok(())
    }

    /// Waits as in [`let_workers_heartbeat_first`]. An error is ignored: the tick will report it.
    pub async fn before_first_tick(&self, stop: &CancellationToken) {
        let _ = let_workers_heartbeat_first(&self.pool, &self.settings, stop).await;
    }

    /// Records that the loop is running, for [`Self::is_alive`].
    fn record_progress(&self) {
        *self.last_progress.lock() = Instant::now();
    }

    /// Waits until Postgres is available and workers have had time for a heartbeat: while it was down none
    /// could send one, so old heartbeats prove nothing.
    async fn wait_for_postgres(&self, shutdown: &Shutdown) {
        loop {
            let answers = match self.pool.get().await {
                Ok(client) => client.simple_query("").await.is_ok(),
                Err(_) => false,
            };
            let pause = match answers {
                true => self.settings.worker.three_heartbeats(),
                false => self.settings.watchdog.tick.min(Duration::from_secs(5)),
            };
            tokio::select! {
                () = shutdown.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            self.record_progress();
            if answers {
                return;
            }
        }
    }

    /// Returns whether the last tick reached Postgres.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Returns whether the tick loop is running: it is stuck after three ticks without progress.
    pub fn is_alive(&self) -> bool {
        let last = *self.last_progress.lock();
        let longest = self.settings.watchdog.tick * 3 + self.settings.worker.three_heartbeats();
        last.elapsed() < longest + Duration::from_secs(60)
    }
}
