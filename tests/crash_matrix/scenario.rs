//! The scenarios: what is going on when a process reaches a failpoint, and which process that is.

/// What is going on when the failpoint is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// A worker drains.
    Drain,
    /// A worker waits for S3 while it sends heartbeats.
    Heartbeat,
    /// A worker releases its claim, after two signals.
    Release,
    /// S3 refuses the object of one paste.
    RefusedKey,
    /// The content row of one paste cannot be written.
    ContentError,
    /// The owner's trigger refuses the claim of one paste.
    Unclaimable,
    /// The owner's trigger refuses the DELETE of one paste.
    DeleteRefused,
    /// The owner's trigger suppresses the DELETE of one paste.
    DeleteSuppressed,
    /// A worker died after its decrement; a watchdog resets its claim.
    DeadWorker,
    /// The same, but the owner's trigger refuses the reset of one paste.
    ResetRefused,
    /// The same, and no other row of its batch can take over its pending key: the claim keeps it.
    PendingKeyKept,
    /// Such a claim has ended, and the trigger is gone; a watchdog resets the row with its key.
    PendingKeyReset,
    /// A worker died before its decrement; a watchdog resets its claim while another transaction
    /// locks the content row of one paste.
    LockedContent,
    /// Something other than the fleet marked rows as in progress; a watchdog resets them.
    MarkedRows,
    /// Rows wait for their content rows, one of which another transaction still locks; a watchdog
    /// resets the others.
    Deferred,
    /// A finish left a row in progress because the owner's trigger refused every change; a watchdog
    /// resets it.
    StrandedRow,
    /// A watchdog prunes history and tombstones.
    Prune,
}

impl Scenario {
    /// The process that reaches the failpoint is a watchdog, not a worker.
    pub(crate) fn is_watchdog(self) -> bool {
        use Scenario::*;
        matches!(
            self,
            DeadWorker
                | ResetRefused
                | PendingKeyKept
                | PendingKeyReset
                | LockedContent
                | MarkedRows
                | Deferred
                | StrandedRow
                | Prune
        )
    }
}

/// Returns the scenarios in which a failpoint is reached.
pub(crate) fn scenarios_of(point: &str) -> Vec<Scenario> {
    match point.split_once('.').expect("step.point") {
        ("heartbeat", _) => vec![Scenario::Heartbeat],
        ("release", _) => vec![Scenario::Release],
        ("claim", "remembered") => vec![Scenario::Unclaimable],
        ("claim", "marked" | "committed") => vec![Scenario::Drain, Scenario::Unclaimable],
        ("decrement", "rows_failed") => vec![Scenario::ContentError],
        ("decrement", "committed") => vec![Scenario::Drain, Scenario::ContentError],
        ("finish", "locked") => vec![Scenario::DeleteRefused],
        ("finish", "leftovers") => vec![Scenario::DeleteRefused, Scenario::DeleteSuppressed],
        ("finish", "rows_failed") => vec![Scenario::RefusedKey],
        ("finish", "committed") => {
            vec![Scenario::Drain, Scenario::RefusedKey, Scenario::DeleteRefused]
        }
        ("reset", "locked" | "good_reset") => {
            vec![Scenario::ResetRefused, Scenario::PendingKeyKept]
        }
        ("reset", "pastes_reset") => {
            vec![Scenario::DeadWorker, Scenario::Release, Scenario::LockedContent]
        }
        ("reset", _) => vec![Scenario::DeadWorker, Scenario::Release],
        ("sweep", "committed") => {
            vec![
                Scenario::DeadWorker,
                Scenario::ResetRefused,
                Scenario::PendingKeyKept,
                Scenario::LockedContent,
            ]
        }
        ("sweep", _) => vec![Scenario::DeadWorker],
        ("stranded", "reset" | "committed") => {
            vec![
                Scenario::MarkedRows,
                Scenario::Deferred,
                Scenario::StrandedRow,
                Scenario::PendingKeyReset,
            ]
        }
        ("stranded", _) => vec![Scenario::MarkedRows],
        ("count" | "prune" | "purge", _) => vec![Scenario::Prune],
        _ => vec![Scenario::Drain],
    }
}
