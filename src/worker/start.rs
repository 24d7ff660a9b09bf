//! Starting a worker: everything that would fail later fails here, within seconds, before anything
//! is claimed.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail};
use futures_util::future::join;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::{
    Worker,
    batch::{Lock, OpenClaims},
    report::Tally,
};
use crate::{
    config::Settings, fleet, migrate, objects::Objects, postgres::Target, shutdown::Shutdown,
};

/// Postgres is there, and remembers; something else is not.
#[derive(thiserror::Error, Debug)]
#[error("{0:#}")]
pub(super) struct NotReady(pub anyhow::Error);

const START_TIMEOUT: Duration = Duration::from_secs(10);

impl Worker {
    /// Connects, and checks schema and bucket.
    pub async fn start(settings: Arc<Settings>, shutdown: Shutdown) -> Result<Arc<Self>> {
        let id = Uuid::new_v4();
        let target = Target::new(&settings, "cleanup-worker", Some(id))?;
        let redis = crate::redis::pool(&settings)?;
        let objects = Objects::new(&settings).await?;
        let opening = async {
            let client = target.open().await?;
            migrate::check(&client).await?;
            migrate::advance_claim_ids(&client).await?;
            let fleet = fleet::read(&client).await?;
            anyhow::Ok((client, fleet))
        };
        let (opened, probed) = join(opening, timeout(START_TIMEOUT, objects.probe())).await;
        let (client, fleet) = opened?;
        let ready = async {
            match probed {
                Ok(probed) => probed?,
                Err(_) => {
                    bail!("S3 did not answer within {START_TIMEOUT:?}; is the endpoint right?")
                }
            }
            // After the probe: a mistyped bucket must not be remembered.
            fleet::bind_bucket(&client, objects.bucket(), objects.prefix()).await
        };
        ready.await.map_err(NotReady)?;
        Ok(Arc::new(Self {
            id,
            lock: Lock::new(redis.clone(), &settings.lock, &fleet.database),
            pool: target.pool(settings.postgres.pool_size)?,
            target,
            redis,
            objects,
            settings,
            // A child: a run that gives up its batches must not delete the runs after it.
            shutdown: Shutdown { abandon: shutdown.abandon.child_token(), ..shutdown },
            open: OpenClaims::default(),
            tally: Tally::default(),
            blame: Default::default(),
            missing: Default::default(),
            override_brake: Default::default(),
            started: Instant::now(),
        }))
    }
}
