//! The keys of all content rows, as a stream in the order of the listing.
//!
//! S3 lists in byte order, and an index has the database's collation, so the server sorts the keys. It
//! sorts one range at a time: neither the sort nor the snapshot that it needs grows with the table.

use std::collections::VecDeque;

use tokio_postgres::{Client, Error};

const SIZES: &str = sql!("audit/sizes");
const RANGES: &str = sql!("audit/ranges");
const OPEN: &str = sql!("audit/open_rows");
const FETCH: &str = sql!("audit/fetch_rows");
const CLOSE: &str = sql!("audit/close_rows");

/// Rows of a range: sorted within seconds, in a temporary file of about 200 MB.
pub(super) const ROWS_PER_RANGE: u64 = 2_000_000;
/// Sampled rows for each range, to find where the ranges begin and end.
const SAMPLE_PER_RANGE: u64 = 500;
/// A sort reads the whole table, so it may take longer than other statements. It takes no lock that
/// another session waits for.
const SORT_SETTINGS: &str = "SET LOCAL statement_timeout = '20min'; SET LOCAL work_mem = '64MB'; \
                             SET LOCAL enable_seqscan = on";

/// The key of one content row.
#[derive(Debug)]
pub(super) struct ContentKey {
    pub key: String,
    /// The row only reserves the key of a deleted object.
    pub is_sentinel: bool,
}

/// The stream. Its cursor lives in the session: a new connection needs a new one.
#[derive(Debug)]
pub(super) struct ContentKeys {
    prefix: String,
    /// The last key of each remaining range; `None`: the end of the table.
    ends: VecDeque<Option<String>>,
    after: String,
    is_open: bool,
    fetched: VecDeque<ContentKey>,
}

/// Estimates the number of rows of content and of pastes.
pub(super) async fn sizes(db: &Client) -> Result<(u64, u64), Error> {
    let row = db.query_one(SIZES, &[]).await?;
    let size = |name: &str| u64::try_from(row.get::<_, i64>(name)).unwrap_or_default();
    Ok((size("content"), size("pastes")))
}

impl ContentKeys {
    /// Starts a stream of the keys after this one, under this prefix.
    pub(super) async fn start(
        db: &Client,
        prefix: &str,
        after: String,
        per_range: u64,
    ) -> Result<Self, Error> {
        // An earlier walk over the same connection may have left its cursor open.
        db.batch_execute("CLOSE ALL").await?;
        let ends = ends(db, per_range).await?.into_iter().filter(|end| *end > after).map(Some);
        Ok(Self {
            prefix: prefix.into(),
            ends: ends.chain([None]).collect(),
            after,
            is_open: false,
            fetched: VecDeque::new(),
        })
    }

    /// Returns the next key without taking it.
    pub(super) async fn peek(&mut self, db: &mut Client) -> Result<Option<&ContentKey>, Error> {
        while self.fetched.is_empty() {
            if !self.is_open && !self.open_range(db).await? {
                return Ok(None);
            }
            self.fetch(db).await?;
        }
        Ok(self.fetched.front())
    }

    /// Takes the key that [`Self::peek`] has returned.
    pub(super) fn take(&mut self) -> Option<ContentKey> {
        self.fetched.pop_front()
    }

    /// Sorts the next range into a cursor. Returns false after the last range.
    async fn open_range(&mut self, db: &mut Client) -> Result<bool, Error> {
        let Some(end) = self.ends.front() else {
            return Ok(false);
        };
        let transaction = db.transaction().await?;
        transaction.batch_execute(SORT_SETTINGS).await?;
        transaction.execute(OPEN, &[&self.after, end, &self.prefix]).await?;
        // The cursor is WITH HOLD: the commit reads and sorts the rows.
        transaction.commit().await?;
        self.is_open = true;
        Ok(true)
    }

    async fn fetch(&mut self, db: &Client) -> Result<(), Error> {
        let rows = db.query(FETCH, &[]).await?;
        if rows.is_empty() {
            db.batch_execute(CLOSE).await?;
            self.is_open = false;
            if let Some(Some(end)) = self.ends.pop_front() {
                self.after = end;
            }
        }
        let row =
            |row: tokio_postgres::Row| ContentKey { key: row.get(0), is_sentinel: row.get(1) };
        self.fetched.extend(rows.into_iter().map(row));
        Ok(())
    }
}

/// Returns the last keys of all ranges but the last one.
async fn ends(db: &Client, per_range: u64) -> Result<Vec<String>, Error> {
    let (rows, _) = sizes(db).await?;
    let ranges = rows.div_ceil(per_range.max(1)).max(1);
    if ranges == 1 {
        return Ok(Vec::new());
    }
    let percent = 100.0 * (ranges * SAMPLE_PER_RANGE) as f64 / rows as f64;
    let ranges = i32::try_from(ranges).unwrap_or(i32::MAX);
    let rows = db.query(RANGES, &[&percent.min(100.0), &ranges]).await?;
    Ok(rows.iter().map(|row| row.get("last_key")).collect())
}
