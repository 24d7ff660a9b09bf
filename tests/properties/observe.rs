//! What is really there: the tables and the bucket, read whole, in the reference's terms.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Row;

use super::{
    reference::{Blame, Content, Lease, Paste, State, Status, When},
    stage::{KEPT, LOCKED, Stage},
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
/// Backoffs are some seconds; a story must not depend on how long it takes. $1 is a moment before
/// they were set, so the pause is between `least` and `most`.
const PARK: &str = "UPDATE pastes SET retry_at = retry_at + interval '12 hours'
     WHERE retry_at > $1 AND retry_at < $1 + interval '5 minutes'
     RETURNING short_code,
        extract(epoch FROM retry_at - interval '12 hours' - clock_timestamp())::float8 AS least,
        extract(epoch FROM retry_at - interval '12 hours' - $1)::float8 AS most";

impl Stage {
    /// The whole state. `objects`: what the bucket holds, if nothing can have touched it.
    pub async fn observe(&self, objects: Option<BTreeSet<String>>) -> State {
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
            (self.body_of(row.get("content_hash")), content)
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
                Some(claim) if !row.get::<_, bool>("is_known") => Status::Stale(claim),
                claim => Status::InProgress(claim),
            },
            "DELETED" if row.get::<_, Option<i64>>("claim_id").is_none() => Status::Deleted,
            odd => panic!("{:?} is {odd} and claimed", row.get::<_, String>("short_code")),
        };
        let hash: Option<&[u8]> = row.get("content_hash");
        let paste = Paste {
            status,
            body: hash.map(|hash| self.body_of(hash)),
            pending_s3_key: row.get("pending_s3_key"),
            attempts: row.get("attempts"),
            expires: when(row.get("expires")),
            retry: when(row.get("retry")),
            blame: blame(row.get("last_error")),
        };
        (row.get("short_code"), paste)
    }

    fn lease(&self, row: &Row) -> (i64, Lease) {
        let worker: uuid::Uuid = row.get("worker");
        let worker = self.workers.iter().position(|known| known.id == worker);
        let pending_owners: Vec<String> = row.get("pending_owners");
        let keys: Vec<String> = row.get("keys");
        assert_eq!(pending_owners.len(), keys.len(), "every key has its paste");
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

    /// Puts new backoffs off for days, and says how long each was, as a range of seconds.
    pub async fn park_backoffs(
        &self,
        since: std::time::SystemTime,
    ) -> BTreeMap<String, std::ops::RangeInclusive<f64>> {
        let parked = self.world.db.query(PARK, &[&since]).await.expect("park");
        let range = |row: Row| (row.get("short_code"), row.get("least")..=row.get("most"));
        parked.into_iter().map(range).collect()
    }

    /// The row that owes each key.
    pub async fn pending_rows(&self) -> BTreeMap<String, BTreeSet<String>> {
        let owed = "SELECT pending_s3_key, array_agg(short_code) FROM pastes
                     WHERE pending_s3_key IS NOT NULL GROUP BY pending_s3_key";
        let rows = self.world.db.query(owed, &[]).await.expect("debts");
        rows.iter()
            .map(|row| (row.get(0), row.get::<_, Vec<String>>(1).into_iter().collect()))
            .collect()
    }

    /// Postgres' clock.
    pub async fn moment(&self) -> std::time::SystemTime {
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

fn blame(error: Option<&str>) -> Blame {
    match error {
        None => Blame::Nobody,
        Some(error) if error.starts_with("worker lease expired") => Blame::Worker,
        Some(error) if error.starts_with("S3 ObjectLocked") => Blame::S3,
        Some(error) if error.contains(KEPT) || error.contains("swallows it") => Blame::Owner,
        Some(LOCKED) => Blame::Locked,
        Some(odd) => panic!("nobody wrote {odd:?}"),
    }
}

/// What differs, each on a line of its own.
pub fn differences(expected: &State, found: &State) -> Vec<String> {
    let mut lines = Vec::new();
    differ("paste", &expected.pastes, &found.pastes, &mut lines);
    differ("content of body", &expected.content, &found.content, &mut lines);
    differ("claim", &expected.claims, &found.claims, &mut lines);
    let extra = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect();
    let missing: Vec<String> = extra(&expected.objects, &found.objects);
    let left: Vec<String> = extra(&found.objects, &expected.objects);
    lines.extend(missing.iter().map(|key| format!("object {key} is missing")));
    lines.extend(left.iter().map(|key| format!("object {key} is still there")));
    if expected.queue != found.queue {
        lines.push(format!("due are {:?}, not {:?}", found.queue, expected.queue));
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
                lines.push(format!("{what} {name:?} is     {other:?}\n    and should be {value:?}"))
            }
            (Some(value), None) => {
                lines.push(format!("{what} {name:?} is missing; should be {value:?}"));
            }
            (None, other) => lines.push(format!("{what} {name:?} should be gone; is {other:?}")),
        }
    }
}
