//! The run's own record in `cleanup_runs`: for `status` and metrics. What cannot be written down is made
//! up for by the next report, and stops nobody. One column decides something: `busy_claims` keeps a worker
//! that waits for a lock from being taken for dead.

use std::time::Duration;

use serde_json::{Map, json};
use tokio::time::timeout;
use tokio_postgres::{GenericClient, types::ToSql};
use tracing::debug;
use uuid::Uuid;

use super::{StoppedBecause, Summary, Worker, summary::Stats};
use crate::{config::Settings, objects::ObjectsError, postgres::Target, worker::start::NotReady};

const RECORD: &str = sql!("run/record");
/// An error may be long; its beginning says what it is.
const LONGEST_ERROR: usize = 500;
/// Whoever could not start should not also be slow to say so.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Worker {
    /// So far. `busy`: claims that the heartbeat could not reach.
    pub(in crate::worker) async fn report_progress(
        &self,
        client: &impl GenericClient,
        busy: &[i64],
    ) -> Result<(), tokio_postgres::Error> {
        self.write_down(client, None, busy).await
    }

    /// The last word.
    pub(in crate::worker) async fn report_end(
        &self,
        client: &impl GenericClient,
        summary: &Summary,
    ) -> Result<(), tokio_postgres::Error> {
        self.write_down(client, Some(summary), &[]).await
    }

    async fn write_down(
        &self,
        client: &impl GenericClient,
        end: Option<&Summary>,
        busy: &[i64],
    ) -> Result<(), tokio_postgres::Error> {
        let figures = self.tally.figures();
        let because = end.map(|summary| summary.stopped_because);
        let because_name = because.map(StoppedBecause::name);
        let error: Option<String> = end
            .and_then(|summary| summary.error.as_ref())
            .map(|error| error.replace('\0', " ").chars().take(LONGEST_ERROR).collect());
        let failed = end.map_or(figures.failed_count, |summary| summary.rows_failed);
        let [rows, objects, bytes, failed] = [figures.rows, figures.objects, figures.bytes, failed]
            .map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        let waiting_for = figures.waiting_for.clone().or_else(|| self.objects.waiting_for());
        let waiting_for = waiting_for.filter(|_| end.is_none());
        let elapsed = self.started.elapsed().as_secs_f64();
        let told = self.figures_by_name(&figures, because_name);
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
                    &told,
                    &busy,
                ],
            )
            .await?;
        Ok(())
    }

    /// What the watchdog adds to the totals: see `metrics::COUNTERS` for the names.
    fn figures_by_name(&self, figures: &Stats, because: Option<&str>) -> String {
        let mut told = Map::new();
        for (name, count) in [
            ("claims_lost", figures.lost),
            ("claims_without_lock", figures.without_lock),
            ("evictions_failed", figures.evictions_failed),
        ] {
            told.insert(name.into(), json!(count));
        }
        for (class, count) in self.objects.errors() {
            told.insert(format!("s3_errors.{class}"), json!(count));
        }
        let waited = figures.waited.iter().map(|(reason, time)| (*reason, *time));
        for (reason, time) in waited.chain([("s3_pace", self.objects.paced())]) {
            told.insert(format!("throttled_seconds.{reason}"), json!(time.as_secs_f64()));
        }
        if let Some(because) = because {
            told.insert(format!("runs.{because}"), json!(1));
        }
        told.retain(|_, value| value.as_f64() != Some(0.0));
        serde_json::Value::Object(told).to_string()
    }
}

/// A run that could not even start, so that `status` and alerts know of it: unless it is Postgres itself
/// that does not answer, or is not what it should be.
pub(in crate::worker) async fn record_failed_start(settings: &Settings, failure: &anyhow::Error) {
    let Some(NotReady(cause)) = failure.downcast_ref() else {
        return;
    };
    let mut told = Map::from_iter([("runs.failed".to_string(), json!(1))]);
    match cause.downcast_ref::<ObjectsError>() {
        Some(ObjectsError::Unavailable { .. }) => {
            told.insert("s3_errors.unavailable".into(), json!(1))
        }
        Some(_) => told.insert("s3_errors.denied".into(), json!(1)),
        None => None,
    };
    let told = serde_json::Value::Object(told).to_string();
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
            &told,
            &None::<Vec<i64>>,
        ];
        client.execute(RECORD, &row).await?;
        anyhow::Ok(())
    };
    if let Ok(Err(reason)) = timeout(TIMEOUT, written).await {
        debug!("that this run did not start could not be recorded: {reason:#}");
    }
}

/// For people who look for the machine; nobody decides by it.
fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_string()).filter(|name| !name.is_empty())
}
