//! Step 5: forget the batch in the read cache, before the rows that remember its keys are gone.

use redis::Pipeline;
use tracing::warn;

use super::Worker;
use crate::{claim::Claim, failpoint};

const KEYS_PER_UNLINK: usize = 500;

impl Worker {
    /// A failed eviction is a warning, not a failure: cache entries should have a TTL anyway.
    pub async fn evict(&self, claim: &Claim) {
        let pattern = &self.settings.cache.key_pattern;
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
            warn!(claim = id, reason, "claim {id}: its cache keys are left to their TTL: {reason}");
        }
    }

    async fn send(&self, pipeline: &Pipeline) -> Result<(), String> {
        let mut connection = self.redis.connection().await?;
        pipeline.exec_async(&mut *connection).await.map_err(|error| self.redis.failed(&error))
    }
}
