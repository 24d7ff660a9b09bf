//! Throttling: right before each claim, is there a reason to wait? A flag file, standbys that lag, or a
//! rate. Batches in flight go on, and whatever stops a run stops it while it waits, too.

use std::{io, path::Path, time::Duration};

use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use super::in_flight::InFlight;
use crate::{
    config::Throttle as Settings, format::counted, postgres::PgError, printable::printable,
    worker::Worker,
};

const REPLICA_LAG: &str = sql!("run/replica_lag");
/// How often the lag of the standbys is read.
const LAG_CHECK: Duration = Duration::from_secs(1);
/// How long that may take: a primary under load, for which throttling is meant, answers late.
const LAG_TIMEOUT: Duration = Duration::from_secs(10);
/// While nothing is in flight: how often the backlog is checked.
const DUE_CHECK: Duration = Duration::from_secs(10);
/// The other reasons can come and go meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const FLAG_PAUSE: Duration = Duration::from_millis(500);

/// What the throttle remembers between claims.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// No claim before this, by the rate.
    next_claim: Option<Instant>,
    lag: Option<Duration>,
    lag_checked: Option<Instant>,
    /// It was logged that the lag of the standbys is hidden from this login.
    hidden_logged: bool,
    due_checked: Option<Instant>,
    /// The reason that was logged last: one line per change.
    logged: Option<&'static str>,
}

/// Why nothing is claimed right now.
#[derive(Debug)]
pub(super) struct WaitReason {
    /// Its name in the summary and the metrics.
    pub name: &'static str,
    /// For people.
    pub reason: String,
    pub pause: Duration,
}

impl Throttle {
    /// Delays the next claim by the time that `pastes` take at the maximum rate. That time counts
    /// from the start of the claim; for the first claim, which also connects, from its end.
    pub(super) fn claimed(&mut self, pastes: usize, requested_at: Instant, max_rate: u32) {
        if max_rate > 0 {
            let from = self.next_claim.map_or_else(Instant::now, |_| requested_at);
            let worth = Duration::from_secs_f64(pastes as f64 / f64::from(max_rate));
            self.next_claim = Some(from + worth);
        }
    }

    /// Returns the first reason to wait, if there is one.
    pub(super) async fn reason_to_wait(
        &mut self,
        worker: &Worker,
        in_flight: &InFlight,
    ) -> Option<WaitReason> {
        let Settings { flag_file, max_replica_lag, max_rate, .. } = &worker.settings.throttle;
        let mut wait = None;
        if let Some(path) = flag_file {
            wait = by_flag(path, tokio::fs::try_exists(path).await);
        }
        if let (None, Some(most)) = (&wait, *max_replica_lag) {
            wait = self.by_lag(worker, in_flight, most).await;
        }
        let wait = wait.or_else(|| self.by_rate(*max_rate));
        self.log_change(wait.as_ref());
        wait
    }

    /// Whether the backlog is to be checked while the run waits with nothing in flight.
    pub(super) fn must_check_due(&mut self) -> bool {
        if self.due_checked.is_some_and(|checked| checked.elapsed() < DUE_CHECK) {
            return false;
        }
        self.due_checked = Some(Instant::now());
        true
    }

    fn by_rate(&self, max_rate: u32) -> Option<WaitReason> {
        let left = self.next_claim?.checked_duration_since(Instant::now())?;
        let reason = format!("max_rate ({max_rate} pastes/s)");
        (!left.is_zero()).then(|| WaitReason {
            name: "max_rate",
            reason,
            pause: left.min(LONGEST_PAUSE),
        })
    }

    async fn by_lag(
        &mut self,
        worker: &Worker,
        in_flight: &InFlight,
        most: Duration,
    ) -> Option<WaitReason> {
        if self.lag_checked.is_none_or(|checked| checked.elapsed() >= LAG_CHECK) {
            self.read_lag(worker, in_flight).await;
        }
        let lag = self.lag.filter(|lag| *lag > most)?;
        let most = humantime::format_duration(most);
        let reason = format!("replica lag {:.1} s > {most}", lag.as_secs_f64());
        Some(WaitReason { name: "replica_lag", reason, pause: LAG_CHECK })
    }

    /// A failure to read the lag is neither an outage nor a reason to wait: if Postgres is unavailable,
    /// the claim that follows reports it. No answer in time proves nothing: the last lag counts.
    async fn read_lag(&mut self, worker: &Worker, in_flight: &InFlight) {
        let read = timeout(LAG_TIMEOUT, replica_lag(worker));
        let Some(read) = in_flight.unless_stopped(read).await else {
            return;
        };
        let (hidden, lag) = match read {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => {
                debug!("could not read the lag of the standbys: {error}");
                (0, None)
            }
            Err(_) => {
                debug!("could not read the lag of the standbys within {LAG_TIMEOUT:?}");
                (0, self.lag)
            }
        };
        self.lag = lag;
        self.lag_checked = Some(Instant::now());
        if hidden > 0 && !self.hidden_logged {
            self.hidden_logged = true;
            warn!(
                hidden,
                "throttle.max_replica_lag ignores {}: this login cannot read the lag; GRANT \
                 pg_monitor TO it",
                counted(hidden, "standby")
            );
        }
    }

    /// One line per change. The rate makes the run wait between any two claims: that is no change.
    fn log_change(&mut self, wait: Option<&WaitReason>) {
        match (self.logged, wait) {
            (logged, Some(wait)) if logged != Some(wait.name) => {
                info!(throttle = wait.name, "paused claims: {}", wait.reason);
                self.logged = Some(wait.name);
            }
            (Some(name), None) if name != "max_rate" => {
                let now = match (name, self.lag) {
                    ("flag_file", _) => "no flag file".to_string(),
                    (_, Some(lag)) => format!("replica lag {:.1} s", lag.as_secs_f64()),
                    (_, None) => "no replica lag".to_string(),
                };
                info!(throttle = name, "resumed claims: throttle cleared: {now}");
                self.logged = None;
            }
            _ => {}
        }
    }
}

/// Returns how many standbys hide their lag from this login, and the largest lag of the others.
async fn replica_lag(worker: &Worker) -> Result<(i64, Option<Duration>), PgError> {
    let client = worker.pool.get().await?;
    let query = client.prepare_cached(REPLICA_LAG).await?;
    let row = client.query_one(&query, &[]).await?;
    let lag_ms = row.get::<_, Option<i64>>("lag_ms").and_then(|ms| u64::try_from(ms).ok());
    Ok((row.get("hidden"), lag_ms.map(Duration::from_millis)))
}

/// A flag file that cannot be checked counts as present: it may ask for a pause.
fn by_flag(path: &Path, exists: io::Result<bool>) -> Option<WaitReason> {
    let path = printable(&path.display().to_string());
    let reason = match exists {
        Ok(false) => return None,
        Ok(true) => format!("flag file {path} exists"),
        Err(error) => format!("flag file {path} cannot be checked: {error}"),
    };
    Some(WaitReason { name: "flag_file", reason, pause: FLAG_PAUSE })
}
