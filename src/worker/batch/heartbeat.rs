//! The heartbeat: one statement for all open claims, on a connection of its own. It also updates the run's
//! record.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_postgres::Client;
use tracing::{debug, warn};
use uuid::Uuid;

use super::OpenClaims;
use crate::{
    config::Settings,
    failpoint,
    format::counted,
    postgres::{PgError, Target, describe},
    worker::report::RunRecord,
};

const HEARTBEAT: &str = sql!("run/heartbeat");

/// Describes why a worker drops a claim by its own clock.
pub(super) fn no_heartbeat(stuck_after: Duration) -> String {
    let stuck_after = humantime::format_duration(stuck_after);
    format!("no heartbeat reached Postgres for {stuck_after} (watchdog.stuck_after)")
}

/// Keeps the leases of one worker's open claims.
pub(in crate::worker) struct Heartbeat {
    id: Uuid,
    target: Target,
    interval: Duration,
    stuck_after: Duration,
    open: Arc<OpenClaims>,
    record: Arc<RunRecord>,
}

impl Heartbeat {
    pub(crate) fn new(
        id: Uuid,
        target: Target,
        settings: &Settings,
        open: Arc<OpenClaims>,
        record: Arc<RunRecord>,
    ) -> Self {
        let (interval, stuck_after) =
            (settings.worker.heartbeat_interval, settings.watchdog.stuck_after);
        Self { id, target, interval, stuck_after, open, record }
    }

    /// Sends heartbeats until the task is dropped. Never fails: the next heartbeat replaces one that was
    /// lost.
    pub(crate) async fn run(&self) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connection: Option<Client> = None;
        loop {
            ticks.tick().await;
            let expired = self.open.lose_expired(self.stuck_after);
            if expired > 0 {
                let (claims, why) = (counted(expired, "claim"), no_heartbeat(self.stuck_after));
                warn!(expired, "dropped {claims}, which a watchdog may have reset: {why}");
            }
            let has_claims = !self.open.ids().is_empty();
            if let Err(reason) = self.connect_and_send(&mut connection).await {
                connection = None;
                if has_claims {
                    let every = humantime::format_duration(self.interval);
                    let stuck_after = humantime::format_duration(self.stuck_after);
                    warn!(
                        "heartbeat failed: {reason}; retrying every {every}, open claims are \
                         dropped after {stuck_after} without a heartbeat"
                    );
                }
            }
        }
    }

    async fn connect_and_send(&self, connection: &mut Option<Client>) -> Result<(), PgError> {
        // A heartbeat that hangs must not keep expired claims from being dropped in time.
        let longest = self.interval.max(self.target.connect_timeout()).min(self.stuck_after / 2);
        let heartbeat = async {
            let client = match connection.take().filter(|client| !client.is_closed()) {
                Some(client) => client,
                None => self.target.connect().await?,
            };
            self.once(&client).await?;
            *connection = Some(client);
            Ok::<_, tokio_postgres::Error>(())
        };
        match timeout(longest, heartbeat).await {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(PgError::NoAnswer(longest)),
        }
    }

    /// Sends one heartbeat for the claims that make progress, and learns which claims were reset. A claim
    /// whose row is locked by its own step is kept alive in the run's record instead.
    pub(crate) async fn once(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let (all, alive) = (self.open.ids(), self.open.progressing());
        let sent = Instant::now();
        let busy = match all.is_empty() {
            true => Vec::new(),
            false => self.send(client, &all, &alive, sent).await?,
        };
        // After the heartbeat, which must not wait for it.
        match self.record.write_progress(client, &busy).await {
            Ok(()) => busy.into_iter().for_each(|claim| self.open.heartbeat_accepted(claim, sent)),
            Err(error) => debug!("could not record the run's progress: {}", describe(&error)),
        }
        Ok(())
    }

    /// Returns the claims whose rows are locked.
    async fn send(
        &self,
        client: &Client,
        all: &[i64],
        alive: &[i64],
        sent: Instant,
    ) -> Result<Vec<i64>, tokio_postgres::Error> {
        failpoint::reached("heartbeat.before");
        let rows = client.query(HEARTBEAT, &[&all, &self.id, &alive]).await?;
        failpoint::reached("heartbeat.after");
        let mut busy = Vec::new();
        for row in rows {
            let claim: i64 = row.get("id");
            if row.get("accepted") {
                self.open.heartbeat_accepted(claim, sent);
            } else if row.get("lost") {
                self.open.lose(claim);
            } else if row.get("busy") {
                busy.push(claim);
            }
        }
        Ok(busy)
    }
}
