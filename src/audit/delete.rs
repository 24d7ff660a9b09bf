//! After the walks: deletes what they have queued, or nothing if the safety brake refuses.

use tokio_util::sync::CancellationToken;

use super::{
    Audit, AuditError, Stopped,
    preconditions::check,
    recount::{LOCKED_AT_ONCE, unreferenced_content},
};
use crate::{fleet, objects::KEYS_PER_CALL};

const NOT_REACHED: &str = "not deleted, because the audit stopped first: resuming finds it again";

impl Audit {
    /// Deletes the queue in chunks, each of which is checked again right before. The brake is decided
    /// once, for the whole queue.
    pub(super) async fn delete_queued(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Stopped, AuditError> {
        if self.queue.orphan_count() > 0 {
            self.find_lost_rows(stop).await?;
        }
        if let Some(reason) = self.brake() {
            self.report_queued(&reason);
            self.report.brake = Some(reason);
            return Ok(Stopped::Brake);
        }
        while self.queue.count() > 0 {
            if stop.is_cancelled() {
                return Ok(Stopped::Signal);
            }
            self.refuse_by_now().await?;
            self.delete_chunk().await?;
        }
        Ok(Stopped::Done)
    }

    /// Deletes one chunk. It leaves the queue when it is done, so that a lost connection repeats it.
    async fn delete_chunk(&mut self) -> Result<(), AuditError> {
        let orphans = self.queue.next_orphans(KEYS_PER_CALL);
        if !orphans.is_empty() {
            let done = orphans.len();
            self.delete_orphans(orphans).await?;
            self.queue.finish_orphans(done);
            return Ok(());
        }
        let content = self.queue.next_content(LOCKED_AT_ONCE);
        match self.delete_content(&content).await? {
            true => self.queue.finish_content(content.len()),
            false => self.queue.split_content(content.len()),
        }
        Ok(())
    }

    /// Refuses to delete if, since the audit started, the fleet was paused, the database was bound to
    /// another bucket, or it has become the copy of another one.
    async fn refuse_by_now(&self) -> Result<(), AuditError> {
        let mut checked = self.refuse_while_paused().await;
        if checked.is_ok() {
            let fit = check(&self.db, &self.objects).await;
            checked = fit.map_err(|error| AuditError::Refused(format!("{error:#}")));
        }
        if checked.is_err() {
            // If the connection was lost, that is the error: the chunk can be repeated over another.
            self.db.simple_query("").await?;
        }
        checked
    }

    /// Refuses a repair while the fleet is paused: an operator wants nothing to change, during a
    /// restore for example.
    pub(super) async fn refuse_while_paused(&self) -> Result<(), AuditError> {
        let fleet = fleet::read(&self.db).await;
        let fleet = fleet.map_err(|error| AuditError::Refused(format!("{error:#}")))?;
        match fleet.paused {
            Some(reason) => Err(AuditError::Refused(format!(
                "the fleet is paused ({reason}), so nothing is repaired; run `cleanupctl resume` \
                 first, or audit without --repair"
            ))),
            None => Ok(()),
        }
    }

    /// Reports what is still queued when the audit stops before it could delete it.
    pub(super) fn report_not_reached(&mut self) {
        self.report_queued(NOT_REACHED);
    }

    fn report_queued(&mut self, reason: &str) {
        let (orphans, content, overflow) = self.queue.take();
        for orphan in orphans {
            self.note_orphan(&orphan, Some(reason));
        }
        for row in content {
            self.note(unreferenced_content(&row, reason));
        }
        self.report.orphans += overflow.orphans;
        self.report.orphan_bytes += overflow.orphan_bytes;
        self.report.unreferenced_content += overflow.content;
    }
}
