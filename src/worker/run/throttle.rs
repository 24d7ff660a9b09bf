//! Throttling: right before each claim, is there a reason to wait? A flag file, standbys that lag, or a
//! rate. Batches in flight go on, and whatever stops a run stops it here, too.

use std::{io, path::Path, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use super::{PgError, Worker, drain::Drain, next_due::NextDue, stop::Stop};
use crate::{
    postgres::{answered, describe_pool},
    printable::printable,
};

const REPLICA_LAG: &str = sql!("run/replica_lag");
/// How often the standbys are looked at, and how long a look may take.
const LAG_CHECK: Duration = Duration::from_secs(1);
/// While nothing is in flight: how often it is asked whether there is anything to wait for at all.
const DUE_CHECK: Duration = Duration::from_secs(10);
/// The other reasons can come and go meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const FLAG_PAUSE: Duration = Duration::from_millis(500);

/// What the throttle remembers between claims.
#[derive(Debug, Default)]
pub(in crate::worker) struct Throttle {
    /// No claim before this, by the rate.
    next_claim: Option<Instant>,
    lag: Option<Duration>,
    lag_checked: Option<Instant>,
    /// It was said that the standbys cannot be seen.
    blind: bool,
    due_checked: Option<Instant>,
    /// The reason that was last told: the log gets one line per change.
    said: Option<&'static str>,
}

/// Why nothing is claimed right now.
#[derive(Debug)]
pub(in crate::worker) struct Hold {
    /// Its name in the summary.
    what: &'static str,
    /// For people.
    reason: String,
    pause: Duration,
}

impl Throttle {
    /// Pushes the next claim back by the time that so many pastes are worth. Counted from when they
    /// were asked for, so that a claim's own time is part of it; the first one connects, too.
    pub fn claimed(&mut self, pastes: usize, asked_at: Instant, max_rate: u32) {
        if max_rate > 0 {
            let from = self.next_claim.map_or_else(Instant::now, |_| asked_at);
            let worth = Duration::from_secs_f64(pastes as f64 / f64::from(max_rate));
            self.next_claim = Some(from + worth);
        }
    }

    fn by_rate(&self, max_rate: u32) -> Option<Hold> {
        let left = self.next_claim?.checked_duration_since(Instant::now())?;
        let reason = format!("max_rate ({max_rate} pastes/s)");
        (!left.is_zero()).then(|| Hold { what: "max_rate", reason, pause: left.min(LONGEST_PAUSE) })
    }

    /// One line per change. A rate is waited for between any two claims: that is no change.
    fn say(&mut self, hold: Option<&Hold>) {
        match (self.said, hold) {
            (said, Some(hold)) if said != Some(hold.what) => {
                info!(what = hold.what, "claiming nothing for now: {}", hold.reason);
                self.said = Some(hold.what);
            }
            (Some(what), None) if what != "max_rate" => {
                info!(what, "claiming again: {what} is no reason to wait any more");
                self.said = None;
            }
            _ => {}
        }
    }
}

impl Drain {
    /// The first reason to wait, if there is one.
    pub(in crate::worker) async fn throttled(&mut self) -> Option<Hold> {
        let settings = Arc::clone(&self.worker.settings);
        let mut hold = None;
        if let Some(path) = &settings.throttle.flag_file {
            hold = by_flag(path, tokio::fs::try_exists(path).await);
        }
        if let (None, Some(most)) = (&hold, settings.throttle.max_replica_lag) {
            hold = self.by_lag(most).await;
        }
        let hold = hold.or_else(|| self.throttle.by_rate(settings.throttle.max_rate));
        self.throttle.say(hold.as_ref());
        hold
    }

    /// Waits for a while, unless there is nothing that could be claimed afterwards.
    pub(in crate::worker) async fn hold_back(&mut self, hold: Hold) -> Option<Stop> {
        if self.nothing_is_due().await {
            return self.drained().await;
        }
        let started = Instant::now();
        self.wait_for((hold.what, &hold.reason), hold.pause).await;
        // A wait on purpose uses up nobody's patience.
        self.outage_since = self.outage_since.map(|since| since + started.elapsed());
        self.idle_since = None;
        None
    }

    async fn nothing_is_due(&mut self) -> bool {
        let lately = |checked: Instant| checked.elapsed() < DUE_CHECK;
        if !self.batches.is_empty() || self.throttle.due_checked.is_some_and(lately) {
            return false;
        }
        self.throttle.due_checked = Some(Instant::now());
        let looked = self.unless_stopped(answered(self.worker.next_due())).await;
        matches!(looked, Some(Ok(NextDue::Nothing)))
    }

    async fn by_lag(&mut self, most: Duration) -> Option<Hold> {
        if self.throttle.lag_checked.is_none_or(|checked| checked.elapsed() >= LAG_CHECK) {
            self.look_at_standbys().await;
        }
        let lag = self.throttle.lag.filter(|lag| *lag > most)?;
        let most = humantime::format_duration(most);
        let reason = format!("replica lag {:.1} s > {most}", lag.as_secs_f64());
        Some(Hold { what: "replica_lag", reason, pause: LAG_CHECK })
    }

    /// A look that fails is no trouble of its own, and nothing to wait for: if Postgres is away, the
    /// claim that follows says so.
    async fn look_at_standbys(&mut self) {
        let look = timeout(LAG_CHECK, self.worker.replica_lag());
        let Some(looked) = self.unless_stopped(look).await else {
            return;
        };
        let too_long = |_| PgError::Timeout(deadpool_postgres::TimeoutType::Recycle);
        let (hidden, lag) = looked.map_err(too_long).flatten().unwrap_or_else(|error| {
            debug!("the standbys could not be looked at: {}", describe_pool(&error));
            (0, None)
        });
        self.throttle.lag = lag;
        self.throttle.lag_checked = Some(Instant::now());
        if hidden > 0 && !self.throttle.blind {
            self.throttle.blind = true;
            warn!(
                hidden,
                "throttle.max_replica_lag: this login may not see how far {hidden} standbys are \
                 behind, so they are not waited for; GRANT pg_monitor to it"
            );
        }
    }
}

impl Worker {
    /// How many standbys this login may not see, and the largest lag of the others.
    async fn replica_lag(&self) -> Result<(i64, Option<Duration>), PgError> {
        let client = self.pool.get().await?;
        let look = client.prepare_cached(REPLICA_LAG).await?;
        let row = client.query_one(&look, &[]).await?;
        let lag_ms = row.get::<_, Option<i64>>("lag_ms").and_then(|ms| u64::try_from(ms).ok());
        Ok((row.get("hidden"), lag_ms.map(Duration::from_millis)))
    }
}

/// Not to know whether somebody asks for a stop is no leave to go on.
fn by_flag(path: &Path, exists: io::Result<bool>) -> Option<Hold> {
    let path = printable(&path.display().to_string());
    let reason = match exists {
        Ok(false) => return None,
        Ok(true) => format!("flag file {path} exists"),
        Err(error) => format!("flag file {path} cannot be looked for: {error}"),
    };
    Some(Hold { what: "flag_file", reason, pause: FLAG_PAUSE })
}
