//! The tick loop of the resident watchdog.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use deadpool_postgres::{Pool, PoolError};
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
    metrics::Metrics,
    migrate::{self, SchemaError},
    postgres::{Target, answered, describe, is_permanent},
    shutdown::Shutdown,
};

const RECORD_TICK: &str = sql!("watchdog/record_tick");
/// How often a tick looks thoroughly.
const THOROUGH_EVERY: Duration = Duration::from_secs(3600);

/// What a tick did.
#[derive(Debug, Default, Clone, Copy)]
pub struct Ticked {
    pub swept: Swept,
    pub pruned: Pruned,
}

/// The watchdog process.
pub struct Watchdog {
    settings: Arc<Settings>,
    pool: Pool,
    ready: AtomicBool,
    last_tick: Mutex<Instant>,
    last_thorough: Mutex<Option<Instant>>,
    metrics: Arc<Metrics>,
    /// It was said that a right is missing.
    forbidden: AtomicBool,
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
            last_tick: Mutex::new(Instant::now()),
            last_thorough: Mutex::new(None),
            metrics: Metrics::new(),
            forbidden: AtomicBool::new(false),
        }))
    }

    /// One sweep, one counting and one pruning.
    pub async fn tick(&self) -> Result<Ticked, SweepError> {
        let started = Instant::now();
        let depth = self.depth();
        let swept = sweep(&self.pool, &self.settings, depth).await?;
        if depth == Depth::Thorough && !swept.not_elected {
            *self.last_thorough.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        }
        self.unless_forbidden(self.note_tick().await)?;
        let pruned = match swept.not_elected {
            true => Pruned::default(),
            false => {
                self.unless_forbidden(totals::count(&self.pool, &self.settings).await)?;
                prune(&self.pool, &self.settings).await?
            }
        };
        self.metrics.ticked(started.elapsed(), &pruned);
        Ok(Ticked { swept, pruned })
    }

    async fn note_tick(&self) -> Result<(), PoolError> {
        self.pool.get().await?.execute(RECORD_TICK, &[]).await?;
        Ok(())
    }

    /// Looks how the fleet is doing, for the next scrapes.
    pub async fn take_snapshot(&self) -> Result<(), PoolError> {
        let read = answered(totals::read(&self.pool, &self.settings)).await;
        if let Some((totals, snapshot)) = self.unless_forbidden(read)? {
            self.metrics.show(totals, snapshot);
        }
        Ok(())
    }

    /// Figures are no reason to stop resetting and pruning: a right that is missing is named, once.
    fn unless_forbidden<T>(&self, done: Result<T, PoolError>) -> Result<Option<T>, PoolError> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(PoolError::Backend(error)) if is_permanent(&error) => {
                if !self.forbidden.swap(true, Ordering::AcqRel) {
                    let reason = describe(&error);
                    warn!(
                        "there are no figures of the fleet: {reason}; run `cleanupctl migrate --roles`"
                    );
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// What `/metrics` shows.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Thoroughly at the first tick, and once an hour.
    fn depth(&self) -> Depth {
        let last = *self.last_thorough.lock().unwrap_or_else(PoisonError::into_inner);
        match last {
            Some(last) if last.elapsed() < THOROUGH_EVERY => Depth::Quick,
            _ => Depth::Thorough,
        }
    }

    /// Ticks until asked to stop. An outage of Postgres is waited out; a schema that this program
    /// does not know is not.
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
            let turn = async {
                let ticked = self.tick().await?;
                self.take_snapshot().await?;
                Ok(ticked)
            };
            let ticked = tokio::select! {
                ticked = turn => ticked,
                () = shutdown.stop.cancelled() => return Ok(()),
            };
            match ticked {
                Ok(_) => {
                    if !was_ready {
                        info!("Postgres is back");
                    }
                    self.ready.store(true, Ordering::Release);
                }
                Err(SweepError::Schema(error)) => return Err(error),
                Err(error) => {
                    self.ready.store(false, Ordering::Release);
                    self.metrics.tick_failed();
                    warn!("the tick did not succeed: {error}");
                }
            }
            self.turned();
        }
    }

    /// See [`let_workers_heartbeat_first`]. An error shows again at the tick itself.
    pub async fn before_first_tick(&self, stop: &CancellationToken) {
        let _ = let_workers_heartbeat_first(&self.pool, &self.settings, stop).await;
    }

    fn turned(&self) {
        *self.last_tick.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// While Postgres was away nobody could heartbeat: silence proves nothing until they had a chance.
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
            self.turned();
            if answers {
                return;
            }
        }
    }

    /// Did the last tick reach Postgres?
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Is the loop still turning? Three ticks without one is a wedge.
    pub fn is_alive(&self) -> bool {
        let last = *self.last_tick.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = self.settings.watchdog.tick * 3 + self.settings.worker.three_heartbeats();
        last.elapsed() < longest + Duration::from_secs(60)
    }
}
