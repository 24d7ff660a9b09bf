//! The run's own row in `cleanup_runs`, for `status` and metrics. A failed write is ignored; the
//! next one writes all values again. Only `busy_claims` affects the protocol: it keeps the claims
//! of a worker that waits for a lock from being reset.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use serde_json::{Map, json};
use tokio::time::{Instant, timeout};
use tokio_postgres::{GenericClient, types::ToSql};
use tracing::debug;
use uuid::Uuid;

use super::{Stats, StoppedBecause, Summary, Tally};
use crate::{
    config::Settings,
    objects::{Objects, ObjectsError},
    postgres::{PgError, Target},
    worker::start::NotReady,
};

const RECORD: &str = sql!("run/record");
/// Errors are cut after this many characters.
const LONGEST_ERROR: usize = 500;
/// A run that could not start should not also be slow to report it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Records one run.
pub(in crate::worker) struct RunRecord {
    id: Uuid,
    tally: Arc<Tally>,
    objects: Objects,
    started: Instant,
}

impl RunRecord {
    pub(crate) fn new(id: Uuid, tally: Arc<Tally>, objects: Objects) -> Self {
        Self { id, tally, objects, started: Instant::now() }
    }

    /// Writes the stats so far. `busy`: claims that the heartbeat could not reach.
    pub(crate) async fn write_progress(
        &self,
        client: &impl GenericClient,
        busy: &[i64],
    ) -> Result<(), tokio_postgres::Error> {
        self.write(client, None, busy).await
    }

    /// Writes how the run ended.
    pub(crate) async fn write_end(&self, pool: &Pool, summary: &Summary) -> Result<(), PgError> {
        let client = pool.get().await?;
        Ok(self.write(&**client, Some(summary), &[]).await?)
    }

    /// Returns what the claims wait for right now, else the batches in flight.
    pub(crate) fn waiting_for(&self) -> Option<String> {
        self.tally.waiting_for().or_else(|| self.objects.waiting_for())
    }

    async fn write(
        &self,
        client: &impl GenericClient,
        end: Option<&Summary>,
        busy: &[i64],
    ) -> Result<(), tokio_postgres::Error> {
        let stats = self.tally.stats();
        let because = end.map(|summary| summary.stopped_because);
        let because_name = because.map(StoppedBecause::name);
        let error: Option<String> = end
            .and_then(|summary| summary.error.as_ref())
            .map(|error| error.replace('\0', " ").chars().take(LONGEST_ERROR).collect());
        let failed = end.map_or(stats.failed_count, |summary| summary.rows_failed);
        let [rows, objects, bytes, failed] = [stats.rows, stats.objects, stats.bytes, failed]
            .map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        let waiting_for = self.waiting_for().filter(|_| end.is_none());
        let elapsed = self.started.elapsed().as_secs_f64();
        let named = self.stats_by_name(&stats, because_name);
        client
            .execute(
                RECORD,
                &[
                    &self.id,
                    &host(),
                    &elapsed,
                    &end.is_some(),
                    &because_name,
                    &error,
                    &rows,
                    &objects,
                    &bytes,
                    &failed,
                    &waiting_for,
                    &named,
                    &busy,
                ],
            )
            .await?;
        Ok(())
    }

    /// Returns what the watchdog adds to the totals; `metrics::COUNTERS` has the names.
    fn stats_by_name(&self, stats: &Stats, because: Option<&str>) -> String {
        let mut named = Map::new();
        for (name, count) in [
            ("leases_lost", stats.lost),
            ("claims_without_lock", stats.without_lock),
            ("evictions_failed", stats.evictions_failed),
        ] {
            named.insert(name.into(), json!(count));
        }
        for (class, count) in self.objects.errors() {
            named.insert(format!("s3_errors.{class}"), json!(count));
        }
        let waited = stats.waited.iter().map(|(reason, time)| (*reason, *time));
        for (reason, time) in waited.chain([("s3_pace", self.objects.paced())]) {
            named.insert(format!("throttled_seconds.{reason}"), json!(time.as_secs_f64()));
        }
        if let Some(because) = because {
            named.insert(format!("runs.{because}"), json!(1));
        }
        named.retain(|_, value| value.as_f64() != Some(0.0));
        serde_json::Value::Object(named).to_string()
    }
}

/// Records a run that could not start, for `status` and alerts; unless Postgres itself is unavailable or
/// has another schema.
pub(in crate::worker) async fn record_failed_start(settings: &Settings, failure: &anyhow::Error) {
    let Some(NotReady(cause)) = failure.downcast_ref() else {
        return;
    };
    let mut named = Map::from_iter([("runs.failed".to_string(), json!(1))]);
    match cause.downcast_ref::<ObjectsError>() {
        Some(ObjectsError::Unavailable { .. }) => {
            named.insert("s3_errors.unavailable".into(), json!(1))
        }
        Some(_) => named.insert("s3_errors.denied".into(), json!(1)),
        None => None,
    };
    let named = serde_json::Value::Object(named).to_string();
    let error: String =
        format!("{failure:#}").replace('\0', " ").chars().take(LONGEST_ERROR).collect();
    let written = async {
        let client = Target::new(settings, "cleanup-worker", None)?.open().await?;
        let (none, failed, waiting) = (0_i64, StoppedBecause::Failed.name(), None::<String>);
        let row: [&(dyn ToSql + Sync); 13] = [
            &Uuid::new_v4(),
            &host(),
            &0.0_f64,
            &true,
            &failed,
            &error,
            &none,
            &none,
            &none,
            &none,
            &waiting,
            &named,
            &None::<Vec<i64>>,
        ];
        client.execute(RECORD, &row).await?;
        anyhow::Ok(())
    };
    if let Ok(Err(reason)) = timeout(TIMEOUT, written).await {
        debug!("could not record that this run did not start: {reason:#}");
    }
}

/// For people who search for the machine; no decision depends on it.
fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_string()).filter(|name| !name.is_empty())
}
