//! When the walks have ended: deletes what they found, or, if that is suspiciously much, nothing.

use super::{
    Audit, AuditError, Stopped,
    bodies::{LOCKED_AT_ONCE, unreferenced_content},
    pending::Pending,
};
use crate::{fleet, objects::KEYS_PER_CALL};
use tokio_util::sync::CancellationToken;

const FOUND_AGAIN: &str = "not deleted when the audit ended: going on finds it again";

impl Audit {
    /// All or nothing, as far as the brake is concerned; chunk by chunk otherwise, and each is asked
    /// about once more.
    pub(super) async fn delete_pending(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Stopped, AuditError> {
        if let Some(reason) = self.brake() {
            self.leave_pending(&reason);
            self.report.brake = Some(reason);
            return Ok(Stopped::Brake);
        }
        if self.pending.count() > 0 {
            self.refuse_while_paused().await?;
        }
        while self.pending.count() > 0 {
            if stop.is_cancelled() {
                return Ok(Stopped::Signal);
            }
            self.delete_some().await?;
        }
        Ok(Stopped::Done)
    }

    /// A chunk is forgotten when it is done: after a lost connection it is done again.
    async fn delete_some(&mut self) -> Result<(), AuditError> {
        if self.pending.orphans.is_empty() {
            let bodies = self.pending.next_bodies(LOCKED_AT_ONCE);
            if self.remove_bodies(&bodies).await? {
                self.pending.forget_bodies(bodies.len());
            } else {
                self.pending.one_by_one(bodies.len());
            }
            return Ok(());
        }
        let some = self.pending.orphans.len().min(KEYS_PER_CALL);
        let orphans = self.pending.orphans[..some].to_vec();
        self.delete_orphans(orphans).await?;
        self.pending.orphans.drain(..some);
        Ok(())
    }

    /// A pause is there to keep things as they are.
    pub(super) async fn refuse_while_paused(&self) -> Result<(), AuditError> {
        let fleet = fleet::read(&self.db).await;
        let fleet = fleet.map_err(|error| AuditError::Refused(format!("{error:#}")))?;
        match fleet.paused {
            Some(reason) => Err(AuditError::Refused(format!(
                "the fleet is paused ({reason}), so nothing is deleted; `cleanupctl resume` ends \
                 that, and without --repair an audit only looks"
            ))),
            None => Ok(()),
        }
    }

    /// It ended before they could be deleted.
    pub(super) fn note_pending(&mut self) {
        self.leave_pending(FOUND_AGAIN);
    }

    fn leave_pending(&mut self, reason: &str) {
        let Pending { orphans, bodies, more, .. } = std::mem::take(&mut self.pending);
        for orphan in orphans {
            self.note_orphan(&orphan, Err(reason.into()));
        }
        for body in bodies {
            self.note(unreferenced_content(&body, reason));
        }
        self.report.orphans += more.orphans;
        self.report.orphan_bytes += more.orphan_bytes;
        self.report.unreferenced_content += more.bodies;
    }
}
