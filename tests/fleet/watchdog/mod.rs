//! The watchdog resets everything that is stuck, exactly once, and not a second too early.

mod attempts;
mod claims;
mod prune;
mod resident;
mod stranded;

const IN_PROGRESS: &str =
    "SELECT count(*) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'";
