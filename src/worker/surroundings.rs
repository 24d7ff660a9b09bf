//! While Postgres, Redis or S3 fails: claim nothing, look again and again, go on by itself, and give
//! up in the end.

use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::{Worker, claim::ClaimError, drain::Drain, stop::Stop, summary::StoppedBecause};
use crate::{backoff::backoff, config::WhenUnavailable};

impl Drain {
    /// What failed and has not been seen to work since.
    pub(super) fn in_trouble(&self) -> Option<String> {
        let store = || self.worker.objects.failing().map(|error| error.to_string());
        self.trouble.clone().or_else(store)
    }

    /// Claims nothing until the surroundings answer again. How long that may take is counted from
    /// the first trouble to the next batch that is finished: what answers a question but lets every
    /// batch fail does not work.
    pub(super) async fn wait_for_surroundings(&mut self, reason: String) -> Option<Stop> {
        self.reap().await;
        let since = *self.trouble_since.get_or_insert_with(Instant::now);
        let patience = self.worker.settings.worker.patience;
        if since.elapsed() >= patience {
            let patience = humantime::format_duration(patience);
            let reason = format!("gave up after {patience} without a finished batch: {reason}");
            return Some((StoppedBecause::Failed, Some(reason)));
        }
        if self.said.as_ref() != Some(&reason) {
            warn!(reason, "claiming nothing until the surroundings answer: {reason}");
            self.said = Some(reason.clone());
        }
        let pause = backoff(self.troubles + 2).min(patience);
        self.wait_for(("surroundings", &reason), pause).await;
        self.troubles += 1;
        self.worker.forget_statements();
        if let Some(looked) = self.unless_stopped(self.worker.surroundings()).await {
            self.trouble = looked.err();
        }
        if self.in_trouble().is_none() {
            info!("the surroundings answer again");
            self.said = None;
        }
        None
    }

    /// A look that a signal or the deadline cuts short.
    pub(super) async fn unless_stopped<T>(&self, look: impl Future<Output = T>) -> Option<T> {
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
    pub(super) fn forget_statements(&self) {
        self.pool.manager().statement_caches.clear();
    }

    /// Do Postgres, S3 and, if it is waited for, Redis answer? Also settles claims whose answer was
    /// lost.
    async fn surroundings(&self) -> Result<(), String> {
        self.give_back_unknown().await.map_err(|error| error.to_string())?;
        if self.settings.lock.when_unavailable == WhenUnavailable::Wait {
            let probed = self.lock.probe().await;
            probed.map_err(|reason| ClaimError::NoLock(reason).to_string())?;
        }
        self.objects.probe().await.map_err(|error| error.to_string())
    }
}
