//! Proving life: one statement for all open claims, on a connection of its own. The run's record is
//! brought up to date by the way.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_postgres::Client;
use tracing::{debug, warn};

use super::Worker;
use crate::{failpoint, postgres::describe};

const HEARTBEAT: &str = sql!("run/heartbeat");

impl Worker {
    /// Sends heartbeats until the task is dropped. Never fails: a heartbeat that did not arrive is made up for by
    /// the next one.
    pub(in crate::worker) async fn keep_alive(self: Arc<Self>) {
        let every = self.settings.worker.heartbeat_interval;
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connection: Option<Client> = None;
        loop {
            ticks.tick().await;
            let expired = self.open.lose_expired(self.settings.watchdog.stuck_after);
            if expired > 0 {
                warn!(expired, "no heartbeat for stuck_after: dropping {expired} claims");
            }
            let held = !self.open.ids().is_empty();
            if let Err(reason) = self.connect_and_heartbeat(&mut connection, every).await {
                connection = None;
                if held {
                    warn!(reason, "the heartbeat did not arrive: {reason}");
                }
            }
        }
    }

    async fn connect_and_heartbeat(
        &self,
        connection: &mut Option<Client>,
        every: Duration,
    ) -> Result<(), String> {
        // A heartbeat that hangs must not keep silent claims from being dropped in time.
        let most = self.settings.watchdog.stuck_after / 2;
        let longest = every.max(self.target.connect_timeout()).min(most);
        let heartbeat = async {
            let client = match connection.take().filter(|client| !client.is_closed()) {
                Some(client) => client,
                None => self.target.connect().await?,
            };
            self.heartbeat(&client).await?;
            *connection = Some(client);
            Ok::<_, tokio_postgres::Error>(())
        };
        match timeout(longest, heartbeat).await {
            Ok(heartbeat) => heartbeat.map_err(|error| describe(&error)),
            Err(_) => Err(format!("no answer within {longest:?}")),
        }
    }

    /// One heartbeat for the claims that make progress; learns which claims were reset. A claim whose row is
    /// locked by its own step is kept alive in the run's record instead.
    pub async fn heartbeat(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let (held, alive) = (self.open.ids(), self.open.progressing());
        let sent = Instant::now();
        let busy = match held.is_empty() {
            true => Vec::new(),
            false => self.heartbeat_claims(client, &held, &alive, sent).await?,
        };
        // After the heartbeat, which must not wait for it.
        match self.report_progress(client, &busy).await {
            Ok(()) => busy.into_iter().for_each(|claim| self.open.heartbeat_accepted(claim, sent)),
            Err(error) => debug!("progress could not be recorded: {}", describe(&error)),
        }
        Ok(())
    }

    /// Returns the claims whose rows are locked.
    async fn heartbeat_claims(
        &self,
        client: &Client,
        held: &[i64],
        alive: &[i64],
        sent: Instant,
    ) -> Result<Vec<i64>, tokio_postgres::Error> {
        failpoint::reached("heartbeat.before");
        let rows = client.query(HEARTBEAT, &[&held, &self.id, &alive]).await?;
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
