//! The settings of the checks: what is in the tables at the start, and which faults can occur. One
//! setting with all faults at once would have too many states, so each combines faults that
//! interact.

use super::{
    budget::Budget,
    examples::{
        ABANDONED, DEFERRED, DONE_ALREADY, EXTENDED, FENCED_OFF, LATE, LOST_CLAIM, LOST_DECREMENT,
        LOST_FAIL_ROWS, LOST_FINISH, PENDING_RETRIED, SLOW_CLAIM, SLOW_DECREMENT, SLOW_FINISH,
        STORED_AGAIN, STRANDED_BY_FINISH, STRANDED_BY_RESET, TWO_CLAIMERS,
    },
    mistakes::Mistake,
    protocol::Protocol,
    state::{CLAIMS, CONTENT_ROWS, Content, PASTES, Row, Set, State, WORKERS, Worker, Writer},
};

/// Builds a setting from these pastes, with matching content rows, counts and objects: content `n`
/// is stored under key `n`.
pub(crate) fn setting(
    pastes: [Option<Row>; PASTES],
    budget: Budget,
    puts: &'static [(usize, u8)],
) -> Protocol {
    let mut start = State {
        pastes,
        content: [None; CONTENT_ROWS],
        claims: [None; CLAIMS],
        lock: None,
        workers: [Worker::Idle; WORKERS],
        backend: None,
        locked_content: None,
        watchdog: None,
        writer: Writer::Idle,
        bucket: Set::default(),
        in_flight: Set::default(),
        next_key: CONTENT_ROWS as u8,
        budget: Budget { puts: puts.len() as u8, ..budget },
    };
    for hash in 0..CONTENT_ROWS as u8 {
        let ref_count = start.reference_count(hash);
        if ref_count > 0 {
            start.content[usize::from(hash)] = Some(Content { s3_key: hash, ref_count });
            start.bucket.insert(hash.into());
        }
    }
    Protocol { start, puts, examples: &[], mistake: None }
}

impl Protocol {
    /// Returns the same setting for a protocol with this mistake.
    pub(crate) fn with(self, mistake: Mistake) -> Self {
        Self { mistake: Some(mistake), ..self }
    }

    /// Returns the same setting, whose check must find these examples.
    fn with_examples(self, examples: &'static [&'static str]) -> Self {
        Self { examples, ..self }
    }
}

/// No faults.
pub(crate) const NOTHING: Budget = Budget {
    crashes: 0,
    lease_expiries: 0,
    lost_answers: 0,
    slow_commits: 0,
    lost_locks: 0,
    releases: 0,
    late_deletes: 0,
    repeated_deletes: 0,
    refusals: 0,
    row_errors: 0,
    puts: 0,
    extensions: 0,
    content_locks: 0,
    stranded_rows: 0,
};
/// An expired paste of content 0, a live one (which can expire at any time), and an expired paste
/// of content 1.
pub(crate) const EXPIRED: Option<Row> = Some(Row::expired(0));
pub(crate) const LIVE: Option<Row> = Some(Row::live(0));
const EXPIRED_OTHER: Option<Row> = Some(Row::expired(1));

/// Two pastes share content and a third one joins them, while workers crash or continue as zombies,
/// and deletes are carried out late and twice.
pub(crate) fn late_deletes() -> Protocol {
    let budget =
        Budget { lease_expiries: 1, crashes: 1, late_deletes: 1, repeated_deletes: 1, ..NOTHING };
    setting([EXPIRED, LIVE, None], budget, &[(2, 0)]).with_examples(&[
        FENCED_OFF,
        LATE,
        STORED_AGAIN,
    ])
}

/// A worker loses the Redis lock; users extend a paste at the last moment, and store it again under
/// its old short code.
pub(crate) fn lost_redis_lock() -> Protocol {
    let budget =
        Budget { lease_expiries: 2, lost_locks: 1, late_deletes: 1, extensions: 1, ..NOTHING };
    setting([EXPIRED, LIVE, None], budget, &[(0, 0)]).with_examples(&[
        TWO_CLAIMERS,
        FENCED_OFF,
        LATE,
        EXTENDED,
    ])
}

/// Commits whose answer is lost: those of claims, decrements and finishes, and of the writer.
pub(crate) fn lost_answers() -> Protocol {
    let budget = Budget { lost_answers: 2, lease_expiries: 1, late_deletes: 1, ..NOTHING };
    let examples = &[LOST_CLAIM, LOST_DECREMENT, LOST_FINISH, FENCED_OFF, LATE];
    setting([EXPIRED, LIVE, None], budget, &[(0, 0)]).with_examples(examples)
}

/// A commit is still in flight when its connection is lost, and then lands or rolls back. Meanwhile
/// its worker reads the claim back or loses its lease, and pastes of the same content are stored
/// and claimed.
pub(crate) fn slow_commits() -> Protocol {
    let budget = Budget { slow_commits: 1, lease_expiries: 1, ..NOTHING };
    let examples = &[SLOW_CLAIM, SLOW_DECREMENT, SLOW_FINISH, DONE_ALREADY, FENCED_OFF];
    setting([EXPIRED, LIVE, None], budget, &[(2, 0)]).with_examples(examples)
}

/// The same with row errors in Postgres, while workers crash and answers are lost.
pub(crate) fn slow_failed_rows() -> Protocol {
    let budget = Budget { slow_commits: 1, lost_answers: 1, row_errors: 1, crashes: 1, ..NOTHING };
    let examples = &[SLOW_DECREMENT, SLOW_FINISH, DONE_ALREADY, ABANDONED, LOST_FAIL_ROWS];
    setting([EXPIRED, EXPIRED_OTHER, None], budget, &[]).with_examples(examples)
}

/// Workers crash around lost answers, and content is stored twice while it is being erased.
pub(crate) fn crashes() -> Protocol {
    let budget = Budget { crashes: 1, lost_answers: 1, late_deletes: 1, ..NOTHING };
    setting([EXPIRED, None, None], budget, &[(2, 0), (1, 0)]).with_examples(&[
        LOST_DECREMENT,
        LATE,
        STORED_AGAIN,
    ])
}

/// Keys that S3 refuses and row errors in Postgres, in batches with two content rows.
pub(crate) fn refusals() -> Protocol {
    let budget = Budget { refusals: 1, row_errors: 1, lease_expiries: 1, releases: 1, ..NOTHING };
    setting([EXPIRED, EXPIRED, EXPIRED_OTHER], budget, &[])
        .with_examples(&[PENDING_RETRIED, FENCED_OFF])
}

/// Two claimed rows share content whose count is too low; one of them can be reset and extended.
pub(crate) fn drift_in_progress() -> Protocol {
    let budget = Budget { lease_expiries: 1, extensions: 1, late_deletes: 1, ..NOTHING };
    let mut protocol = setting([EXPIRED, EXPIRED, None], budget, &[]).with_examples(&[FENCED_OFF]);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    protocol
}

/// Another transaction locks a content row, while batches that reference it are decremented,
/// released and reset, and another paste joins.
pub(crate) fn locked_content_rows() -> Protocol {
    let budget = Budget { content_locks: 1, lease_expiries: 1, releases: 1, ..NOTHING };
    setting([EXPIRED, LIVE, None], budget, &[(2, 0)]).with_examples(&[DEFERRED, FENCED_OFF])
}

/// The same with a count that is too low: the reference of a deferred row must still be found.
pub(crate) fn drift_deferred() -> Protocol {
    let budget = Budget { content_locks: 1, lease_expiries: 1, extensions: 1, ..NOTHING };
    let mut protocol = setting([EXPIRED, EXPIRED, None], budget, &[]).with_examples(&[DEFERRED]);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    protocol
}

/// A trigger lets a row be neither deleted nor reset, while workers die or continue as zombies.
pub(crate) fn stranded_rows() -> Protocol {
    let budget = Budget { stranded_rows: 1, crashes: 1, lease_expiries: 1, ..NOTHING };
    let examples = &[STRANDED_BY_FINISH, STRANDED_BY_RESET, FENCED_OFF];
    setting([EXPIRED, EXPIRED, LIVE], budget, &[]).with_examples(examples)
}

/// The same for rows whose objects S3 refuses to delete, in batches with two content rows.
pub(crate) fn stranded_rows_with_refused_keys() -> Protocol {
    let budget = Budget { stranded_rows: 1, refusals: 1, lease_expiries: 1, ..NOTHING };
    setting([EXPIRED, EXPIRED_OTHER, None], budget, &[]).with_examples(&[
        STRANDED_BY_FINISH,
        STRANDED_BY_RESET,
        PENDING_RETRIED,
    ])
}

/// A row was marked by something other than the fleet, and the count of its content is too low from
/// the start.
pub(crate) fn drift() -> Protocol {
    let marked = EXPIRED.map(|row| Row { in_progress: true, ..row });
    let budget = Budget { lease_expiries: 1, crashes: 1, late_deletes: 1, ..NOTHING };
    let mut protocol = setting([marked, LIVE, LIVE], budget, &[]).with_examples(&[FENCED_OFF]);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    protocol
}
