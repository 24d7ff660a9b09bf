//! Step 5: evict the batch from the read cache, before the rows with the short codes are deleted.
//!
//! In: the claim. Out: nothing. A crash leaves the cache entries to a repetition, or to their TTL.

use std::sync::Arc;

use redis::Pipeline;
use tracing::warn;

use super::Tally;
use crate::{
    claim::Claim,
    failpoint,
    redis::{Failure, Redis},
};

const KEYS_PER_UNLINK: usize = 500;

/// Evicts pastes from the read cache.
pub(in crate::worker) struct EvictStep {
    redis: Redis,
    /// Empty: there is no cache.
    key_pattern: String,
    tally: Arc<Tally>,
}

impl EvictStep {
    pub(crate) fn new(redis: Redis, key_pattern: String, tally: Arc<Tally>) -> Self {
        Self { redis, key_pattern, tally }
    }

    /// A failed eviction is a warning, not a failure: cache entries should have a TTL anyway.
    pub(crate) async fn run(&self, claim: &Claim) {
        let pattern = &self.key_pattern;
        if pattern.is_empty() {
            return;
        }
        let mut pipeline = Pipeline::new();
        for chunk in claim.pastes.chunks(KEYS_PER_UNLINK) {
            let keys: Vec<String> = chunk
                .iter()
                .map(|paste| pattern.replace("{short_code}", &paste.short_code))
                .collect();
            pipeline.cmd("UNLINK").arg(keys).ignore();
        }
        failpoint::reached("evict.before");
        let sent = self.send(&pipeline).await;
        failpoint::reached("evict.after");
        if let Err(reason) = sent {
            self.tally.eviction_failed();
            let id = claim.fence.claim;
            warn!(
                claim = id,
                "claim {id}: could not evict its cache keys: {reason}; the entries stay until their TTL ends"
            );
        }
    }

    async fn send(&self, pipeline: &Pipeline) -> Result<(), Failure> {
        let mut connection = self.redis.connection().await?;
        pipeline.exec_async(&mut *connection).await.map_err(|error| self.redis.failed(error))
    }
}
