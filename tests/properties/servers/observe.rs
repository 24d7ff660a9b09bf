//! Reads the tables and the bucket whole, and converts them to the reference's types.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Row;

use crate::{
    reference::{Content, LastError, Lease, Paste, State, Status, When},
    servers::{Environment, LOCKED, TRIGGER_ERROR},
};

const PASTES: &str = "SELECT short_code, deletion_status::text AS status, claim_id, content_hash,
        pending_s3_key, attempts, last_error,
        EXISTS (SELECT FROM deletion_claims c
                WHERE c.id = claim_id AND c.claimed_at = deletion_initiated_at) AS is_known,
        CASE WHEN expires_at IS NULL THEN 'unset' WHEN expires_at <= now() THEN 'past'
             ELSE 'later' END AS expires,
        CASE WHEN retry_at IS NULL THEN 'unset' WHEN retry_at = 'infinity' THEN 'infinity'
             WHEN retry_at <= now() THEN 'past' ELSE 'later' END AS retry
     FROM pastes ORDER BY coalesce(retry_at, expires_at)";
const CONTENT: &str = "SELECT content_hash, s3_key, ref_count FROM content";
const CLAIMS: &str = "SELECT id, worker, rows_claimed, decremented_at IS NOT NULL AS decremented,
        finished_at IS NOT NULL AS finished, reset_at IS NOT NULL AS reset, rows_deleted,
        coalesce(finished_at, reset_at) IS NULL
            AND heartbeat_at < now() - interval '2 hours' AS expired,
        coalesce(pending_owners, '{}') AS pending_owners, coalesce(pending_s3_keys, '{}') AS keys
     FROM deletion_claims";
/// Postpones new backoffs by 12 hours: they are some seconds long, and a scenario must not depend
/// on how long its steps take. $1 is a moment before they were set, so the backoff is between
/// `least` and `most`.
const POSTPONE: &str = "UPDATE pastes SET retry_at = retry_at + interval '12 hours'
     WHERE retry_at > $1 AND retry_at < $1 + interval '5 minutes'
     RETURNING short_code,
        extract(epoch FROM retry_at - interval '12 hours' - clock_timestamp())::float8 AS least,
        extract(epoch FROM retry_at - interval '12 hours' - $1)::float8 AS most";

impl Environment {
    /// Reads the whole state. `objects`: the keys in the bucket, if no step can have changed them.
    pub(crate) async fn observe(&self, objects: Option<BTreeSet<String>>) -> State {
        let db = &self.world.db;
        let objects = async {
            match objects {
                Some(objects) => objects,
                None => self.world.keys().await.into_iter().collect(),
            }
        };
        let (pastes, content, claims, objects) = tokio::join!(
            db.query(PASTES, &[]),
            db.query(CONTENT, &[]),
            db.query(CLAIMS, &[]),
            objects
        );
        let pastes = pastes.expect("pastes").into_iter();
        let pastes: Vec<(String, Paste)> = pastes.map(|row| self.paste(&row)).collect();
        let due = pastes.iter().filter(|(_, paste)| paste.due().is_some());
        let content = content.expect("content").into_iter().map(|row| {
            let content = Content { key: row.get("s3_key"), ref_count: row.get("ref_count") };
            (self.content_id_of(row.get("content_hash")), content)
        });
        State {
            queue: due.map(|(code, _)| code.clone()).collect(),
            pastes: pastes.into_iter().collect(),
            content: content.collect(),
            objects,
            claims: claims.expect("claims").iter().map(|row| self.lease(row)).collect(),
        }
    }

    fn paste(&self, row: &Row) -> (String, Paste) {
        let status = match row.get("status") {
            "NOT_EXPIRED" if row.get::<_, Option<i64>>("claim_id").is_none() => Status::NotExpired,
            "DELETION_IN_PROGRESS" => match row.get("claim_id") {
                Some(claim) if !row.get::<_, bool>("is_known") => Status::UnknownClaim(claim),
                claim => Status::InProgress(claim),
            },
            "DELETED" if row.get::<_, Option<i64>>("claim_id").is_none() => Status::Deleted,
            odd => panic!("{:?} is {odd} and claimed", row.get::<_, String>("short_code")),
        };
        let hash: Option<&[u8]> = row.get("content_hash");
        let paste = Paste {
            status,
            content_id: hash.map(|hash| self.content_id_of(hash)),
            pending_s3_key: row.get("pending_s3_key"),
            attempts: row.get("attempts"),
            expires: when(row.get("expires")),
            retry: when(row.get("retry")),
            last_error: last_error(row.get("last_error")),
        };
        (row.get("short_code"), paste)
    }

    fn lease(&self, row: &Row) -> (i64, Lease) {
        let worker: uuid::Uuid = row.get("worker");
        let worker = self.workers.iter().position(|known| known.id == worker);
        let pending_owners: Vec<String> = row.get("pending_owners");
        let keys: Vec<String> = row.get("keys");
        assert_eq!(pending_owners.len(), keys.len(), "every pending key has its owner");
        let lease = Lease {
            worker: worker.unwrap_or(usize::MAX),
            rows_claimed: usize::try_from(row.get::<_, i32>("rows_claimed")).expect("rows"),
            expired: row.get("expired"),
            decremented: row.get("decremented"),
            finished: row.get("finished"),
            reset: row.get("reset"),
            pending_owners: keys.into_iter().zip(pending_owners).collect(),
            rows_deleted: row
                .get::<_, Option<i32>>("rows_deleted")
                .map(|n| n.unsigned_abs().into()),
        };
        (row.get("id"), lease)
    }

    /// Postpones new backoffs, and returns how long each was, as a range of seconds.
    pub(crate) async fn postpone_backoffs(
        &self,
        since: std::time::SystemTime,
    ) -> BTreeMap<String, std::ops::RangeInclusive<f64>> {
        let postponed = self.world.db.query(POSTPONE, &[&since]).await.expect("postpone");
        let range = |row: Row| (row.get("short_code"), row.get("least")..=row.get("most"));
        postponed.into_iter().map(range).collect()
    }

    /// Returns the rows that have each pending key.
    pub(crate) async fn pending_rows(&self) -> BTreeMap<String, BTreeSet<String>> {
        let pending = "SELECT pending_s3_key, array_agg(short_code) FROM pastes
                     WHERE pending_s3_key IS NOT NULL GROUP BY pending_s3_key";
        let rows = self.world.db.query(pending, &[]).await.expect("pending keys");
        rows.iter()
            .map(|row| (row.get(0), row.get::<_, Vec<String>>(1).into_iter().collect()))
            .collect()
    }

    /// Reads Postgres' clock.
    pub(crate) async fn moment(&self) -> std::time::SystemTime {
        let row = self.world.db.query_one("SELECT clock_timestamp()", &[]).await;
        row.expect("clock").get(0)
    }
}

fn when(text: &str) -> When {
    match text {
        "unset" => When::Unset,
        "past" => When::Past(0),
        "later" => When::Later(0),
        _ => When::Infinity,
    }
}

fn last_error(error: Option<&str>) -> LastError {
    // A reset appends the hash of missing content.
    let own = error.and_then(|error| error.split("content row ").next());
    match own.map(|error| error.trim_end_matches("; ")).filter(|error| !error.is_empty()) {
        None => LastError::None,
        Some(error) if error.starts_with("worker lease expired") => LastError::Worker,
        Some(error) if error.starts_with("S3 ObjectLocked") => LastError::S3,
        Some(error) if error.contains(TRIGGER_ERROR) || error.contains("swallows it") => {
            LastError::OwnerTrigger
        }
        Some(LOCKED) => LastError::Locked,
        Some(odd) => panic!("unexpected last_error {odd:?}"),
    }
}

/// Lists the differences, each as a line.
pub(crate) fn differences(expected: &State, found: &State) -> Vec<String> {
    let mut lines = Vec::new();
    differ("paste", &expected.pastes, &found.pastes, &mut lines);
    differ("content", &expected.content, &found.content, &mut lines);
    differ("claim", &expected.claims, &found.claims, &mut lines);
    let extra = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect();
    let missing: Vec<String> = extra(&expected.objects, &found.objects);
    let left: Vec<String> = extra(&found.objects, &expected.objects);
    lines.extend(missing.iter().map(|key| format!("object {key} is missing")));
    lines.extend(left.iter().map(|key| format!("object {key} still exists")));
    if expected.queue != found.queue {
        lines.push(format!("due pastes are {:?}, expected {:?}", found.queue, expected.queue));
    }
    lines
}

fn differ<K: Ord + std::fmt::Debug, V: PartialEq + std::fmt::Debug>(
    what: &str,
    expected: &BTreeMap<K, V>,
    found: &BTreeMap<K, V>,
    lines: &mut Vec<String>,
) {
    let names: BTreeSet<&K> = expected.keys().chain(found.keys()).collect();
    for name in names {
        match (expected.get(name), found.get(name)) {
            (Some(value), Some(other)) if value == other => {}
            (Some(value), Some(other)) => {
                lines
                    .push(format!("{what} {name:?} is     {other:?}\n    and should be {value:?}"));
            }
            (Some(value), None) => {
                lines.push(format!("{what} {name:?} is missing; should be {value:?}"));
            }
            (None, other) => lines.push(format!("{what} {name:?} should be gone; is {other:?}")),
        }
    }
}
