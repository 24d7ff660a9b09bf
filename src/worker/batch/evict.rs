//! Step 5: evict the batch from the read cache, before the rows with the short codes are deleted.
//!
//! In: the claim. Out: nothing. A crash leaves the cache entries to a repetition, or to their TTL.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::warn;

use super::Tally;
use crate::{
    backoff::Retries,
    claim::{Claim, Paste},
    failpoint,
    mutex::Mutex,
    redis::{Failure, Redis},
};

const KEYS_PER_UNLINK: usize = 500;
/// How long a failover may take: a Cluster's nodes wait for 15 s before they elect another master.
pub(super) const FAILOVER_TAKES: Duration = Duration::from_secs(30);

/// Evicts pastes from the read cache.
pub(in crate::worker) struct EvictStep {
    redis: Redis,
    /// Empty: there is no cache.
    key_pattern: String,
    /// Since when no batch was evicted.
    failing_since: Mutex<Option<Instant>>,
    tally: Arc<Tally>,
}

impl EvictStep {
    pub(crate) fn new(redis: Redis, key_pattern: String, tally: Arc<Tally>) -> Self {
        Self { redis, key_pattern, failing_since: Mutex::default(), tally }
    }

    /// A failed eviction is a warning, not a failure: cache entries should have a TTL anyway.
    pub(crate) async fn run(&self, claim: &Claim) {
        let pattern = &self.key_pattern;
        if pattern.is_empty() {
            return;
        }
        let key = |paste: &Paste| pattern.replace("{short_code}", &paste.short_code);
        let keys: Vec<String> = claim.pastes.iter().map(key).collect();
        failpoint::reached("evict.before");
        let evicted = self.evict(&keys).await;
        failpoint::reached("evict.after");
        if let Err(reason) = evicted {
            self.tally.eviction_failed();
            let id = claim.fence.claim;
            warn!(
                claim = id,
                "claim {id}: could not evict its cache keys: {reason}; the entries stay until their TTL ends"
            );
        }
    }

    /// Tries again while another server may take over from a master that has died: entries that are not
    /// evicted now stay until their TTL ends. Later batches of a longer outage do not wait again.
    async fn evict(&self, keys: &[String]) -> Result<(), Failure> {
        let mut retries = Retries::within(FAILOVER_TAKES);
        loop {
            let Err(failure) = self.unlink(keys).await else {
                *self.failing_since.lock() = None;
                return Ok(());
            };
            let since = *self.failing_since.lock().get_or_insert_with(Instant::now);
            let may_be_a_failover = self.redis.fails_over() && !failure.is_denied();
            if !may_be_a_failover || since.elapsed() >= FAILOVER_TAKES {
                return Err(failure);
            }
            retries.pause().await;
        }
    }

    async fn unlink(&self, keys: &[String]) -> Result<(), Failure> {
        for chunk in keys.chunks(KEYS_PER_UNLINK) {
            self.redis.unlink(chunk).await?;
        }
        Ok(())
    }
}
