//! While Postgres, Redis or S3 fails: claim nothing, look again and again, go on by itself, and give
//! up in the end.

use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::{StoppedBecause, Worker, drain::Drain, stop::Stop};
use crate::{backoff::backoff, config::WhenUnavailable, worker::batch::claim::ClaimError};

impl Drain {
    /// What failed and has not been seen to work since.
    pub(in crate::worker) fn current_outage(&self) -> Option<String> {
        let store = || self.worker.objects.failing().map(|error| error.to_string());
        self.outage.clone().or_else(store)
    }

    /// Claims nothing until the dependencies are available again. How long that may take is counted from
    /// the first trouble to the next batch that is finished: what answers a question but lets every
    /// batch fail does not work.
    pub(in crate::worker) async fn wait_out_outage(&mut self, reason: String) -> Option<Stop> {
        self.reap().await;
        let since = *self.outage_since.get_or_insert_with(Instant::now);
        let timeout = self.worker.settings.worker.outage_timeout;
        if since.elapsed() >= timeout {
            let timeout = humantime::format_duration(timeout);
            let reason = format!("gave up after {timeout} without a finished batch: {reason}");
            return Some((StoppedBecause::Failed, Some(reason)));
        }
        if self.said.as_ref() != Some(&reason) {
            warn!(reason, "claiming nothing until the dependencies are available: {reason}");
            self.said = Some(reason.clone());
        }
        let pause = backoff(self.outage_checks + 2).min(timeout);
        self.wait_for(("dependency_unavailable", &reason), pause).await;
        self.outage_checks += 1;
        self.worker.forget_statements();
        if let Some(looked) = self.unless_stopped(self.worker.check_dependencies()).await {
            self.outage = looked.err();
        }
        if self.current_outage().is_none() {
            info!("the dependencies are available again");
            self.said = None;
        }
        None
    }

    /// A look that a signal or the deadline cuts short.
    pub(in crate::worker) async fn unless_stopped<T>(
        &self,
        look: impl Future<Output = T>,
    ) -> Option<T> {
        let deadline = self.options.deadline;
        let out_of_time = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            looked = look => Some(looked),
            () = out_of_time => None,
            () = self.worker.shutdown.stop.cancelled() => None,
        }
    }
}

impl Worker {
    /// Lets every connection prepare its statements anew. Somebody may have altered a column: a statement
    /// that was prepared before answers 0A000 for good then.
    pub(in crate::worker) fn forget_statements(&self) {
        self.pool.manager().statement_caches.clear();
    }

    /// Do Postgres, S3 and, if it is waited for, Redis answer? Also resolves claims whose answer was
    /// lost.
    async fn check_dependencies(&self) -> Result<(), String> {
        self.release_unconfirmed().await.map_err(|error| error.to_string())?;
        if self.settings.lock.when_unavailable == WhenUnavailable::Wait {
            let probed = self.lock.probe().await;
            probed.map_err(|reason| ClaimError::NoLock(reason).to_string())?;
        }
        self.objects.probe().await.map_err(|error| error.to_string())
    }
}
