//! The fence of a claim: what makes the writes of a reset worker fail.

use uuid::Uuid;

/// Identifies a claim in every write of its batch. The id alone distinguishes two claims of one
/// worker. The worker's UUID is needed because Postgres can assign the same id again after a crash
/// that loses commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The id of the row in `deletion_claims`.
    pub claim: i64,
    /// The UUID that the worker chose at process start.
    pub worker: Uuid,
}
