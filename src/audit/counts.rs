//! The second walk: does each `ref_count` say how many rows hold the body?
//!
//! Counted without locks first, a page at a time; what disagrees is counted again under the content
//! row's lock, in a later statement, by the query with which a release recounts. Whoever changes the
//! number of holders needs that lock, too: a put takes it before it inserts, a release before it
//! subtracts, and a row that comes back from deletion (`pastes_return`) while it keeps its hash.
//! A release that has stamped its claim and waits for us is not committed: its rows are counted, and
//! it subtracts them afterwards.
//!
//! A body that nobody holds goes as a release would let it go, row first: under the lock its row
//! becomes the sentinel of its key. After the commit the object is deleted; ended in between, the
//! next audit finds an object under a sentinel.

use std::collections::HashMap;

use tokio_postgres::{Row, Transaction};

use super::{Audit, AuditError, Finding, Kind, error::is_held, orphans::Erased};

const COUNTS: &str = include_str!("../../sql/queries/audit_counts.sql");
const IN_PROGRESS: &str = include_str!("../../sql/queries/audit_counts_in_progress.sql");
const LOCK: &str = include_str!("../../sql/queries/audit_lock_content.sql");
const COUNT_HOLDERS: &str = include_str!("../../sql/queries/release_count_holders.sql");
const RECOUNT: &str = include_str!("../../sql/queries/release_recount.sql");
const DOOM: &str = include_str!("../../sql/queries/release_doom.sql");
const SENTINEL: &str = include_str!("../../sql/queries/audit_sentinel.sql");

const PAGE: i64 = 1000;
/// So many bodies are locked together: writers of these wait as long as the count takes.
const LOCKED_AT_ONCE: usize = 100;
/// Others wait for those that are locked already.
const WAIT: &str = "SET LOCAL lock_timeout = '1s'";
const REPAIR: &str = "`cleanupctl audit --repair` corrects it";

/// A locked body.
struct Body {
    hash: Vec<u8>,
    key: String,
    ref_count: i64,
    bytes: u64,
    is_fresh: bool,
    holders: i64,
}

impl Audit {
    /// One page of content rows. Returns the last hash; `None`: there are no more.
    pub(super) async fn counts_page(
        &mut self,
        after: &[u8],
    ) -> Result<Option<Vec<u8>>, AuditError> {
        let rows = self.db.query(COUNTS, &[&after, &PAGE, &self.objects.prefix()]).await?;
        let Some(last) = rows.last() else {
            return Ok(None);
        };
        let suspects = self.suspects(&rows).await?;
        self.judge_counts(&suspects).await?;
        let is = |name: &'static str| rows.iter().filter(move |row| row.get(name)).count() as u64;
        self.report.sentinels += is("is_sentinel");
        self.report.content_rows += rows.len() as u64 - is("is_sentinel");
        self.report.outside_prefix += is("is_outside");
        Ok(Some(last.get("content_hash")))
    }

    /// Bodies whose count disagrees with what two quick looks say.
    pub(super) async fn suspects(&self, rows: &[Row]) -> Result<Vec<Vec<u8>>, AuditError> {
        let bodies = rows.iter().filter(|row| !row.get::<_, bool>("is_sentinel"));
        let hashes: Vec<&[u8]> = bodies.clone().map(|row| row.get("content_hash")).collect();
        let going = self.db.query(IN_PROGRESS, &[&hashes]).await?;
        let going: HashMap<&[u8], i64> =
            going.iter().map(|row| (row.get("content_hash"), row.get("holders"))).collect();
        let suspects = bodies.filter(|row| {
            let hash: &[u8] = row.get("content_hash");
            let holders = row.get::<_, i64>("holders") + going.get(hash).copied().unwrap_or(0);
            holders == 0 || holders != row.get::<_, i64>("ref_count")
        });
        Ok(suspects.map(|row| row.get("content_hash")).collect())
    }

    pub(super) async fn judge_counts(&mut self, hashes: &[Vec<u8>]) -> Result<(), AuditError> {
        for some in hashes.chunks(LOCKED_AT_ONCE) {
            self.judge_some(some).await?;
        }
        Ok(())
    }

    async fn judge_some(&mut self, hashes: &[Vec<u8>]) -> Result<(), AuditError> {
        match self.recount(hashes).await {
            Err(AuditError::Postgres(error)) if is_held(&error) => {}
            judged => return judged,
        }
        // One of them is held for long: it should not hide the others.
        for hash in hashes {
            match self.recount(std::slice::from_ref(hash)).await {
                Err(AuditError::Postgres(error)) if is_held(&error) => self.report.undecided += 1,
                judged => judged?,
            }
        }
        Ok(())
    }

    /// Counts again under the locks, and repairs in the same transaction.
    async fn recount(&mut self, hashes: &[Vec<u8>]) -> Result<(), AuditError> {
        let grace_s = self.options.grace.as_secs_f64();
        let repair = self.options.repair;
        let may_delete = self.may_delete(usize::MAX);
        let prefix = self.objects.prefix().to_string();
        let transaction = self.db.transaction().await?;
        let mut wrong = count_locked(&transaction, hashes, grace_s).await?;
        let fresh = wrong.extract_if(.., |body| body.holders == 0 && body.is_fresh).count();
        let (mut unheld, miscounted): (Vec<Body>, Vec<Body>) =
            wrong.into_iter().partition(|body| body.holders == 0);
        let outside: Vec<Body> =
            unheld.extract_if(.., |body| !body.key.starts_with(&prefix)).collect();
        let beyond =
            if repair { unheld.split_off(may_delete.min(unheld.len())) } else { Vec::new() };
        if repair {
            correct(&transaction, &miscounted).await?;
            make_sentinels(&transaction, &unheld).await?;
        }
        transaction.commit().await?;
        self.report.fresh_rows += fresh as u64;
        for body in &miscounted {
            let finding = wrong_count(body);
            self.note(if repair { finding.repaired() } else { finding });
        }
        for body in &outside {
            self.note(unheld_body(body, "its key is not under s3.prefix: remove it by hand"));
        }
        self.report.beyond_max_delete += beyond.len() as u64;
        for body in &beyond {
            self.note(unheld_body(body, "more than --max-delete: look why, then raise it"));
        }
        if repair {
            return self.erase_bodies(&unheld).await;
        }
        for body in &unheld {
            self.note(unheld_body(body, "`cleanupctl audit --repair` removes row and object"));
        }
        Ok(())
    }

    /// Their rows are sentinels by now; the objects follow.
    async fn erase_bodies(&mut self, bodies: &[Body]) -> Result<(), AuditError> {
        let keys: Vec<String> = bodies.iter().map(|body| body.key.clone()).collect();
        let (mut erased, failed): (Erased, _) = self.erase(&keys).await;
        for body in bodies {
            let finding = match erased.remove(&body.key).unwrap_or(Ok(())) {
                Ok(()) => {
                    self.report.bytes_deleted += body.bytes;
                    unheld_body(body, "").repaired()
                }
                Err(reason) => unheld_body(body, &reason),
            };
            self.note(finding);
        }
        failed
    }
}

/// The bodies among these whose count is wrong: locked, then counted in a later statement.
async fn count_locked(
    transaction: &Transaction<'_>,
    hashes: &[Vec<u8>],
    grace_s: f64,
) -> Result<Vec<Body>, tokio_postgres::Error> {
    transaction.batch_execute(WAIT).await?;
    let locked = transaction.query(LOCK, &[&hashes, &grace_s]).await?;
    let hashes: Vec<&[u8]> = locked.iter().map(|row| row.get("content_hash")).collect();
    let counted = transaction.query(COUNT_HOLDERS, &[&hashes]).await?;
    let holders: HashMap<&[u8], i64> =
        counted.iter().map(|row| (row.get("content_hash"), row.get("holders"))).collect();
    let bodies = locked.iter().map(|row| {
        let hash: &[u8] = row.get("content_hash");
        Body {
            hash: hash.to_vec(),
            key: row.get("s3_key"),
            ref_count: row.get("ref_count"),
            bytes: u64::try_from(row.get::<_, i64>("size_bytes")).unwrap_or_default(),
            is_fresh: row.get("is_fresh"),
            holders: holders.get(hash).copied().unwrap_or_default(),
        }
    });
    Ok(bodies.filter(|body| body.holders == 0 || body.holders != body.ref_count).collect())
}

async fn correct(
    transaction: &Transaction<'_>,
    bodies: &[Body],
) -> Result<(), tokio_postgres::Error> {
    let hashes: Vec<&[u8]> = bodies.iter().map(|body| &*body.hash).collect();
    let holders: Vec<i64> = bodies.iter().map(|body| body.holders).collect();
    transaction.execute(RECOUNT, &[&hashes, &holders]).await?;
    Ok(())
}

async fn make_sentinels(
    transaction: &Transaction<'_>,
    bodies: &[Body],
) -> Result<(), tokio_postgres::Error> {
    let hashes: Vec<&[u8]> = bodies.iter().map(|body| &*body.hash).collect();
    let keys: Vec<&str> = bodies.iter().map(|body| &*body.key).collect();
    transaction.execute(DOOM, &[&hashes]).await?;
    transaction.execute(SENTINEL, &[&keys]).await?;
    Ok(())
}

fn wrong_count(body: &Body) -> Finding {
    let what = format!("ref_count is {}, but {} pastes hold it", body.ref_count, body.holders);
    Finding::new(Kind::WrongCount, what, REPAIR).key(&body.key).content_hash(&body.hash)
}

fn unheld_body(body: &Body, remedy: &str) -> Finding {
    let what = format!("ref_count is {}, but no paste holds it", body.ref_count);
    Finding::new(Kind::UnheldBody, what, remedy).key(&body.key).content_hash(&body.hash)
}
