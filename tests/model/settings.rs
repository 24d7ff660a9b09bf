//! Where a check starts: what is in the tables, and what may go wrong. One setting with all faults
//! at once would be too big, so each of them combines those that have to do with each other.

use super::{
    mistakes::Mistake,
    properties::{
        ABANDONED, BODY_BACK, DEFERRED, DONE_ALREADY, EXTENDED, FENCED_OFF, LATE, LEFT_BY_FINISH,
        LEFT_BY_RESET, LOST_CLAIM, LOST_DECREMENT, LOST_FAIL_ROWS, LOST_FINISH, OWING, SLOW_CLAIM,
        SLOW_DECREMENT, SLOW_FINISH, TWO_CLAIM,
    },
    protocol::Protocol,
    state::{BODIES, CLAIMS, Content, Left, PASTES, Row, Set, State, WORKERS, Worker, Writer},
};

/// These pastes, with the bodies and counts that belong to them: body `n` is stored under key `n`.
pub fn night(pastes: [Option<Row>; PASTES], left: Left, puts: &'static [(usize, u8)]) -> Protocol {
    let mut start = State {
        pastes,
        content: [None; BODIES],
        claims: [None; CLAIMS],
        lock: None,
        workers: [Worker::Idle; WORKERS],
        backend: None,
        held: None,
        watchdog: None,
        writer: Writer::Idle,
        bucket: Set::default(),
        under_way: Set::default(),
        next_key: BODIES as u8,
        left: Left { puts: puts.len() as u8, ..left },
    };
    for body in 0..BODIES as u8 {
        let ref_count = start.holders(body);
        if ref_count > 0 {
            start.content[usize::from(body)] = Some(Content { s3_key: body, ref_count });
            start.bucket.insert(body.into());
        }
    }
    Protocol { start, puts, shows: &[], mistake: None }
}

impl Protocol {
    /// The same with a mistake in it.
    pub fn with(self, mistake: Mistake) -> Self {
        Self { mistake: Some(mistake), ..self }
    }

    /// The same, which must show these examples.
    fn showing(self, shows: &'static [&'static str]) -> Self {
        Self { shows, ..self }
    }
}

/// Nothing goes wrong.
pub const NOTHING: Left = Left {
    crashes: 0,
    lease_expiries: 0,
    lost_answers: 0,
    slow_commits: 0,
    lost_locks: 0,
    releases: 0,
    late_deletes: 0,
    repeated_deletes: 0,
    refusals: 0,
    row_faults: 0,
    puts: 0,
    extensions: 0,
    holds: 0,
    leftovers: 0,
};
/// A paste of body 0 that has expired, one that may at any time, and one of body 1.
pub const EXPIRED: Option<Row> = Some(Row::expired(0));
pub const LIVE: Option<Row> = Some(Row::holding(0));
const ANOTHER: Option<Row> = Some(Row::expired(1));

/// Two pastes share a body and a third one joins them, while workers crash, or go on as zombies,
/// and deletes come late and twice.
pub fn late_deletes() -> Protocol {
    let left =
        Left { lease_expiries: 1, crashes: 1, late_deletes: 1, repeated_deletes: 1, ..NOTHING };
    night([EXPIRED, LIVE, None], left, &[(2, 0)]).showing(&[FENCED_OFF, LATE, BODY_BACK])
}

/// The Redis lock vanishes under a worker; owners extend at the last moment, and store the paste
/// again under its old short code.
pub fn vanishing_lock() -> Protocol {
    let left = Left { lease_expiries: 2, lost_locks: 1, late_deletes: 1, extensions: 1, ..NOTHING };
    night([EXPIRED, LIVE, None], left, &[(0, 0)]).showing(&[TWO_CLAIM, FENCED_OFF, LATE, EXTENDED])
}

/// Commits whose answer is lost: of claims, decrements and finishes, and of the writer.
pub fn lost_answers() -> Protocol {
    let left = Left { lost_answers: 2, lease_expiries: 1, late_deletes: 1, ..NOTHING };
    let shows = &[LOST_CLAIM, LOST_DECREMENT, LOST_FINISH, FENCED_OFF, LATE];
    night([EXPIRED, LIVE, None], left, &[(0, 0)]).showing(shows)
}

/// A commit is still under way when its connection is lost, and lands or does not, while its worker
/// asks or is taken for expired, and pastes of the same body are stored and claimed.
pub fn slow_commits() -> Protocol {
    let left = Left { slow_commits: 1, lease_expiries: 1, ..NOTHING };
    let shows = &[SLOW_CLAIM, SLOW_DECREMENT, SLOW_FINISH, DONE_ALREADY, FENCED_OFF];
    night([EXPIRED, LIVE, None], left, &[(2, 0)]).showing(shows)
}

/// The same with rows that Postgres refuses to change, while workers crash and answers are lost.
pub fn slow_failed_rows() -> Protocol {
    let left = Left { slow_commits: 1, lost_answers: 1, row_faults: 1, crashes: 1, ..NOTHING };
    let shows = &[SLOW_DECREMENT, SLOW_FINISH, DONE_ALREADY, ABANDONED, LOST_FAIL_ROWS];
    night([EXPIRED, ANOTHER, None], left, &[]).showing(shows)
}

/// Workers crash around lost answers, and a body is stored twice while it is being erased.
pub fn crashes() -> Protocol {
    let left = Left { crashes: 1, lost_answers: 1, late_deletes: 1, ..NOTHING };
    night([EXPIRED, None, None], left, &[(2, 0), (1, 0)]).showing(&[
        LOST_DECREMENT,
        LATE,
        BODY_BACK,
    ])
}

/// Keys that S3 refuses, and rows that Postgres refuses to change, in batches of two bodies.
pub fn refusals() -> Protocol {
    let left = Left { refusals: 1, row_faults: 1, lease_expiries: 1, releases: 1, ..NOTHING };
    night([EXPIRED, EXPIRED, ANOTHER], left, &[]).showing(&[OWING, FENCED_OFF])
}

/// Two claimed rows share a body whose count is too low; one of them may come back and be extended.
pub fn drift_in_progress() -> Protocol {
    let left = Left { lease_expiries: 1, extensions: 1, late_deletes: 1, ..NOTHING };
    let mut protocol = night([EXPIRED, EXPIRED, None], left, &[]).showing(&[FENCED_OFF]);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    protocol
}

/// A transaction of others holds a body's content row, while batches with it are decremented, released
/// and reset, and a paste joins.
pub fn held_content() -> Protocol {
    let left = Left { holds: 1, lease_expiries: 1, releases: 1, ..NOTHING };
    night([EXPIRED, LIVE, None], left, &[(2, 0)]).showing(&[DEFERRED, FENCED_OFF])
}

/// The same under a count that is too low: what waits for its content is not forgotten.
pub fn drift_deferred() -> Protocol {
    let left = Left { holds: 1, lease_expiries: 1, extensions: 1, ..NOTHING };
    let mut protocol = night([EXPIRED, EXPIRED, None], left, &[]).showing(&[DEFERRED]);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    protocol
}

/// A trigger lets a row neither be deleted nor be put back, while workers die or go on as zombies.
pub fn leftovers() -> Protocol {
    let left = Left { leftovers: 1, crashes: 1, lease_expiries: 1, ..NOTHING };
    let shows = &[LEFT_BY_FINISH, LEFT_BY_RESET, FENCED_OFF];
    night([EXPIRED, EXPIRED, LIVE], left, &[]).showing(shows)
}

/// The same for rows whose objects S3 refuses, in batches of two bodies.
pub fn kept_keys() -> Protocol {
    let left = Left { leftovers: 1, refusals: 1, lease_expiries: 1, ..NOTHING };
    night([EXPIRED, ANOTHER, None], left, &[]).showing(&[LEFT_BY_FINISH, LEFT_BY_RESET, OWING])
}

/// Something else marked a row, and the count of its body is too low from the start.
pub fn drift() -> Protocol {
    let marked = EXPIRED.map(|row| Row { in_progress: true, ..row });
    let left = Left { lease_expiries: 1, crashes: 1, late_deletes: 1, ..NOTHING };
    let mut protocol = night([marked, LIVE, LIVE], left, &[]).showing(&[FENCED_OFF]);
    protocol.start.content[0] = Some(Content { s3_key: 0, ref_count: 1 });
    protocol
}
