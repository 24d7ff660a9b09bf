//! Starting a worker: everything that would fail later fails here, within seconds, before anything
//! is claimed.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use futures_util::future::join;
use tokio::time::timeout;
use tracing::warn;
use uuid::Uuid;

use super::{
    Worker,
    batch::{Lock, OpenClaims, Steps, StepsNeed, heartbeat::Heartbeat},
    report::{RunRecord, Tally},
};
use crate::{
    config::Settings,
    fleet::{self, Fleet},
    migrate,
    objects::{Objects, S3_REMEDY},
    postgres::Target,
    problem::Problem,
    redis::Redis,
    shutdown::Shutdown,
};

/// Postgres is available, so the failed start can be recorded; something else is not ready.
#[derive(thiserror::Error, Debug)]
#[error("{0:#}")]
pub(super) struct NotReady(pub anyhow::Error);

const S3_TIMEOUT: Duration = Duration::from_secs(10);

/// The servers, checked, and what a worker needs to know of the fleet.
struct Servers {
    target: Target,
    redis: Redis,
    objects: Objects,
    fleet: Fleet,
}

impl Servers {
    /// Connects, and checks schema and bucket.
    async fn connect(settings: &Settings, id: Uuid) -> Result<Self> {
        let target = Target::new(settings, "cleanup-worker", Some(id))?;
        let redis = crate::redis::pool(settings)?;
        let objects = Objects::new(settings).await?;
        let opening = async {
            let client = target.open().await?;
            migrate::check(&client).await?;
            migrate::advance_claim_ids(&client).await?;
            let fleet = fleet::read(&client).await?;
            anyhow::Ok((client, fleet))
        };
        let (opened, checked) = join(opening, timeout(S3_TIMEOUT, objects.check())).await;
        let (client, fleet) = opened?;
        let ready = async {
            let Ok(checked) = checked else {
                let problem = format!("S3 did not answer within {S3_TIMEOUT:?}");
                return Err(Problem::new(problem, S3_REMEDY).into());
            };
            if let Some(doubt) = checked? {
                warn!("{doubt}");
            }
            // After the check: a mistyped bucket must not be remembered.
            fleet::bind_bucket(&client, objects.bucket(), objects.prefix()).await
        };
        ready.await.map_err(NotReady)?;
        Ok(Self { target, redis, objects, fleet })
    }
}

impl Worker {
    /// Connects, and checks schema and bucket.
    pub async fn start(settings: Arc<Settings>, shutdown: Shutdown) -> Result<Arc<Self>> {
        let id = Uuid::new_v4();
        let Servers { target, redis, objects, fleet } = Servers::connect(&settings, id).await?;
        // A child: a run that abandons its batches must not abandon those of the runs after it.
        let shutdown = Shutdown { abandon: shutdown.abandon.child_token(), ..shutdown };
        let (open, tally) = (Arc::new(OpenClaims::default()), Arc::new(Tally::default()));
        let record = Arc::new(RunRecord::new(id, Arc::clone(&tally), objects.clone()));
        let pool = target.pool(settings.postgres.pool_size)?;
        let lock = Lock::new(redis.clone(), &settings.lock, &fleet.database);
        let steps = Steps::new(StepsNeed {
            id,
            settings: Arc::clone(&settings),
            shutdown: shutdown.clone(),
            open: Arc::clone(&open),
            tally: Arc::clone(&tally),
            pool: pool.clone(),
            lock,
            redis,
            objects: objects.clone(),
        });
        let heartbeat =
            Heartbeat::new(id, target, &settings, Arc::clone(&open), Arc::clone(&record));
        Ok(Arc::new(Self {
            id,
            settings,
            open,
            tally,
            shutdown,
            steps,
            heartbeat,
            record,
            pool,
            objects,
        }))
    }
}
