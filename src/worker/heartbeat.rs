//! Proving life: one statement for all open claims, on a connection of its own. The run's record is
//! brought up to date by the way.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_postgres::Client;
use tracing::{debug, warn};

use super::Worker;
use crate::{failpoint, postgres::describe};

const BEAT: &str = include_str!("../../sql/queries/beat.sql");

impl Worker {
    /// Beats until the task is dropped. Never fails: a beat that did not arrive is made up for by
    /// the next one.
    pub(super) async fn heartbeat(self: Arc<Self>) {
        let every = self.settings.worker.heartbeat_interval;
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connection: Option<Client> = None;
        loop {
            ticks.tick().await;
            let silenced = self.open.lose_silent(self.settings.watchdog.stuck_after);
            if silenced > 0 {
                warn!(silenced, "no beat for stuck_after: dropping {silenced} claims");
            }
            let held = !self.open.ids().is_empty();
            if let Err(reason) = self.beat_once(&mut connection, every).await {
                connection = None;
                if held {
                    warn!(reason, "the heartbeat did not arrive: {reason}");
                }
            }
        }
    }

    async fn beat_once(
        &self,
        connection: &mut Option<Client>,
        every: Duration,
    ) -> Result<(), String> {
        // A beat that hangs must not keep silent claims from being dropped in time.
        let most = self.settings.watchdog.stuck_after / 2;
        let patience = every.max(self.target.patience()).min(most);
        let beat = async {
            let client = match connection.take().filter(|client| !client.is_closed()) {
                Some(client) => client,
                None => self.target.connect().await?,
            };
            self.beat(&client).await?;
            *connection = Some(client);
            Ok::<_, tokio_postgres::Error>(())
        };
        match timeout(patience, beat).await {
            Ok(beat) => beat.map_err(|error| describe(&error)),
            Err(_) => Err(format!("no answer within {patience:?}")),
        }
    }

    /// One beat for the claims that make progress; learns which claims were reset. A claim whose row is
    /// locked by its own step is kept alive in the run's record instead.
    pub async fn beat(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let (held, alive) = (self.open.ids(), self.open.progressing());
        let sent = Instant::now();
        let busy = match held.is_empty() {
            true => Vec::new(),
            false => self.beat_claims(client, &held, &alive, sent).await?,
        };
        // After the beat, which must not wait for it.
        match self.report_progress(client, &busy).await {
            Ok(()) => busy.into_iter().for_each(|claim| self.open.beaten(claim, sent)),
            Err(error) => debug!("progress could not be recorded: {}", describe(&error)),
        }
        Ok(())
    }

    /// Returns the claims whose rows are locked.
    async fn beat_claims(
        &self,
        client: &Client,
        held: &[i64],
        alive: &[i64],
        sent: Instant,
    ) -> Result<Vec<i64>, tokio_postgres::Error> {
        failpoint::reached("heartbeat.before");
        let rows = client.query(BEAT, &[&held, &self.id, &alive]).await?;
        failpoint::reached("heartbeat.after");
        let mut busy = Vec::new();
        for row in rows {
            let claim: i64 = row.get("id");
            if row.get("beaten") {
                self.open.beaten(claim, sent);
            } else if row.get("lost") {
                self.open.lose(claim);
            } else if row.get("busy") {
                busy.push(claim);
            }
        }
        Ok(busy)
    }
}
