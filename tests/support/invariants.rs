//! The one checker of all guarantees, used by every test that puts the fleet under stress. It
//! shares no query with the product: it reads the tables whole and judges them here.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_sdk_s3::Client as S3;
use sha2::{Digest, Sha256};
use tokio_postgres::Client;

use super::{connect, hex, list_keys, try_connect};

/// One database and the bucket that belongs to it.
#[derive(Clone)]
pub(crate) struct Store {
    pub database_url: String,
    pub s3: S3,
    pub bucket: String,
    /// Violations that were observed while the fleet was running.
    pub seen: Arc<Mutex<Vec<String>>>,
}

/// What must exist, and what may exist, when no work is in progress.
#[derive(Debug, Default, Clone)]
pub(crate) struct Expected {
    /// Pastes that have not expired, with the bodies that their writers uploaded.
    pub alive: BTreeMap<String, String>,
    /// Expired pastes may be left: no run has drained them.
    pub backlog: bool,
    /// Expired pastes that are left for an operator.
    pub dead_letters: BTreeSet<String>,
    /// Uploads of writers that died before they knew the outcome of their put.
    pub in_doubt: BTreeSet<String>,
}

/// The result of a check.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub pastes: usize,
    pub content_rows: usize,
    pub objects: usize,
    /// Objects read from S3 and compared by SHA-256.
    pub read: usize,
    pub violations: Vec<String>,
}

struct PasteRow {
    hash: Option<Vec<u8>>,
    expired: bool,
    status: String,
    claimed: bool,
    pending_s3_key: Option<String>,
}

struct ContentRow {
    key: String,
    ref_count: i64,
}

/// A sentinel only keeps the key of an orphan that the audit has deleted.
fn is_sentinel(hash: &[u8], key: &str) -> bool {
    hash.strip_prefix(b"audit:") == Some(key.as_bytes())
}

/// Returns those of these keys that content uses. Sentinels do not: their objects are deleted.
const COUNTED: &str = "SELECT s3_key FROM content WHERE s3_key = ANY ($1)
                       AND content_hash <> 'audit:'::bytea || convert_to(s3_key, 'UTF8')";

impl Store {
    /// Checks everything that must hold when no work is in progress.
    pub(crate) async fn check(&self, expected: &Expected) -> Findings {
        let db = connect(&self.database_url).await;
        let (pastes, contents) = (pastes(&db).await, contents(&db).await);
        let keys: BTreeSet<String> = list_keys(&self.s3, &self.bucket).await.into_iter().collect();
        let mut violations = self.seen.lock().expect("seen").clone();
        violations.extend(nothing_is_claimed(&db, &pastes).await);
        violations.extend(claims_ended_once(&db).await);
        violations.extend(nothing_expired_is_left(&pastes, expected));
        violations.extend(counts_are_right(&pastes, &contents));
        violations.extend(objects_are_known(&pastes, &contents, &keys, expected));
        let (read, unreadable) = self.live_pastes_are_readable(&pastes, &contents, expected).await;
        violations.extend(unreadable);
        let (pastes, content_rows, objects) = (pastes.len(), contents.len(), keys.len());
        Findings { pastes, content_rows, objects, read, violations }
    }

    /// Checks, before objects are deleted, that no content row uses their keys. Keys are never used
    /// twice, so this must hold at any time after the decrement. Waits while Postgres is
    /// unavailable.
    pub(crate) async fn watch_deletion(&self, keys: &[String]) {
        loop {
            if let Some(db) = try_connect(&self.database_url).await
                && let Ok(rows) = db.query(COUNTED, &[&keys]).await
            {
                let wrong = rows.iter().map(|row| row.get::<_, String>(0));
                let wrong =
                    wrong.map(|key| format!("object {key} is deleted while a content row uses it"));
                self.seen.lock().expect("seen").extend(wrong);
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Reads the body of every live paste: those in the tables and those that the writers stored.
    async fn live_pastes_are_readable(
        &self,
        pastes: &BTreeMap<String, PasteRow>,
        contents: &BTreeMap<Vec<u8>, ContentRow>,
        expected: &Expected,
    ) -> (usize, Vec<String>) {
        let mut wrong = Vec::new();
        let mut wanted: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
        for (code, paste) in pastes.iter().filter(|(_, paste)| !paste.expired) {
            match &paste.hash {
                Some(hash) => drop(wanted.insert(code, hash.clone())),
                None => wrong.push(format!("live paste {code:?} has no content")),
            }
        }
        for (code, body) in &expected.alive {
            let hash = Sha256::digest(body).to_vec();
            if wanted.get(&**code) != Some(&hash) {
                wrong.push(format!(
                    "live paste {code:?} is missing or has other content than its writer stored"
                ));
            }
        }
        let needed: BTreeSet<Vec<u8>> = wanted.into_values().collect();
        for hash in &needed {
            let body = match contents.get(hash) {
                Some(content) => self.read(&content.key).await,
                None => None,
            };
            if body.map(|body| Sha256::digest(&body).to_vec()).as_ref() != Some(hash) {
                wrong.push(format!(
                    "the body of a live paste is missing or wrong: content {}",
                    hex(hash)
                ));
            }
        }
        (needed.len(), wrong)
    }

    async fn read(&self, key: &str) -> Option<Vec<u8>> {
        let got = self.s3.get_object().bucket(&self.bucket).key(key).send().await.ok()?;
        Some(got.body.collect().await.ok()?.into_bytes().to_vec())
    }
}

impl Findings {
    pub(crate) fn assert_clean(&self, what: &str) {
        assert!(self.violations.is_empty(), "{what}: {:#?}", self.violations);
    }
}

async fn pastes(db: &Client) -> BTreeMap<String, PasteRow> {
    let sql = "SELECT short_code, content_hash, coalesce(expires_at <= now(), false),
                      deletion_status::text, claim_id IS NOT NULL, pending_s3_key FROM pastes";
    let rows = db.query(sql, &[]).await.expect("pastes");
    let paste = |row: tokio_postgres::Row| {
        let paste = PasteRow {
            hash: row.get(1),
            expired: row.get(2),
            status: row.get(3),
            claimed: row.get(4),
            pending_s3_key: row.get(5),
        };
        (row.get(0), paste)
    };
    rows.into_iter().map(paste).collect()
}

async fn contents(db: &Client) -> BTreeMap<Vec<u8>, ContentRow> {
    let sql = "SELECT content_hash, s3_key, ref_count::bigint FROM content";
    let rows = db.query(sql, &[]).await.expect("content");
    let content = |row: tokio_postgres::Row| {
        (row.get(0), ContentRow { key: row.get(1), ref_count: row.get(2) })
    };
    let contents = rows.into_iter().map(content);
    contents.filter(|(hash, row): &(Vec<u8>, ContentRow)| !is_sentinel(hash, &row.key)).collect()
}

async fn nothing_is_claimed(db: &Client, pastes: &BTreeMap<String, PasteRow>) -> Vec<String> {
    let claimed = pastes
        .iter()
        .filter(|(_, paste)| paste.claimed || paste.status == "DELETION_IN_PROGRESS")
        .map(|(code, paste)| format!("paste {code:?} is left in status {}", paste.status));
    let open = "SELECT id FROM deletion_claims WHERE coalesce(finished_at, reset_at) IS NULL";
    let open = db.query(open, &[]).await.expect("claims");
    let open = open.iter().map(|row| format!("claim {} is left open", row.get::<_, i64>(0)));
    claimed.chain(open).collect()
}

/// A reset fences off the claim's worker: a claim is finished or reset, never both.
async fn claims_ended_once(db: &Client) -> Vec<String> {
    let both = "SELECT id FROM deletion_claims 
                WHERE finished_at IS NOT NULL AND reset_at IS NOT NULL";
    let both = db.query(both, &[]).await.expect("claims");
    both.iter()
        .map(|row| format!("claim {} was both finished and reset", row.get::<_, i64>(0)))
        .collect()
}

fn nothing_expired_is_left(
    pastes: &BTreeMap<String, PasteRow>,
    expected: &Expected,
) -> Vec<String> {
    let left = pastes.iter().filter(|(code, paste)| {
        let excused = expected.backlog || expected.dead_letters.contains(*code);
        paste.expired && paste.status != "DELETED" && !excused
    });
    left.map(|(code, _)| format!("paste {code:?} has expired but still exists")).collect()
}

fn counts_are_right(
    pastes: &BTreeMap<String, PasteRow>,
    contents: &BTreeMap<Vec<u8>, ContentRow>,
) -> Vec<String> {
    let mut recount: BTreeMap<&[u8], i64> = BTreeMap::new();
    let referencing = pastes.values().filter(|paste| paste.status != "DELETED");
    for hash in referencing.filter_map(|paste| paste.hash.as_ref()) {
        *recount.entry(hash).or_default() += 1;
    }
    let miscounted = contents.iter().filter_map(|(hash, content)| {
        let (ref_count, references) =
            (content.ref_count, recount.get(&**hash).copied().unwrap_or(0));
        (ref_count != references || references == 0).then(|| {
            format!("content {} has ref_count {ref_count}, but {references} references", hex(hash))
        })
    });
    let missing = recount.keys().filter(|hash| !contents.contains_key(**hash));
    let missing =
        missing.map(|hash| format!("content {} is referenced, but has no row", hex(hash)));
    miscounted.chain(missing).collect()
}

fn objects_are_known(
    pastes: &BTreeMap<String, PasteRow>,
    contents: &BTreeMap<Vec<u8>, ContentRow>,
    keys: &BTreeSet<String>,
    expected: &Expected,
) -> Vec<String> {
    // A tombstone is never claimed again: an object that only it knows would stay forever.
    let claimable = pastes.values().filter(|paste| paste.status != "DELETED");
    let pending = claimable.filter_map(|paste| paste.pending_s3_key.as_ref());
    let known: BTreeSet<&String> = contents.values().map(|c| &c.key).chain(pending).collect();
    let orphans =
        keys.iter().filter(|key| !known.contains(key) && !expected.in_doubt.contains(*key));
    let orphans = orphans.map(|key| format!("object {key} is an orphan: no row has its key"));
    let missing = contents.values().filter(|content| !keys.contains(&content.key));
    let missing = missing.map(|content| format!("object {} is missing", content.key));
    orphans.chain(missing).collect()
}
