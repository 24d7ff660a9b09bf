//! The budget of a check: how many faults of each kind can still occur.

use super::protocol::Commit;

/// The faults and outside events that can still occur. Each occurrence uses up one, so the state
/// space is finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Budget {
    pub crashes: u8,
    /// Resets of claims whose worker lives: it was paused, and continues as a zombie.
    pub lease_expiries: u8,
    pub lost_answers: u8,
    /// Commits of workers that are still in flight when their connection is lost.
    pub slow_commits: u8,
    pub lost_locks: u8,
    pub releases: u8,
    /// Deletes that time out and stay in flight.
    pub late_deletes: u8,
    /// Deletes that are carried out a second time.
    pub repeated_deletes: u8,
    /// Keys that S3 refuses to delete.
    pub refusals: u8,
    /// Writes that fail for a row of the batch (SQLSTATE classes 22 and 23).
    pub row_errors: u8,
    pub puts: u8,
    pub extensions: u8,
    /// Transactions outside the fleet that lock a content row.
    pub content_locks: u8,
    /// Rows that a finish or a reset can neither delete nor change, because a trigger refuses it.
    pub stranded_rows: u8,
}

impl Budget {
    /// Uses up a fault for a commit without an answer.
    pub(crate) fn spend(&mut self, commit: Commit) {
        match commit {
            Commit::Answered => {}
            Commit::AnswerLost | Commit::RolledBack => self.lost_answers -= 1,
            Commit::InFlight => self.slow_commits -= 1,
        }
    }
}
