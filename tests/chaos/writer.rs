//! A paste service that only writes, by the writer's contract. It is a separate process, because
//! faults kill it.

use std::time::Duration;

use aws_sdk_s3::{Client as S3, primitives::ByteStream};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, Row};

use crate::{
    environment,
    journal::{Event, Journal},
    support::{hash, hex, try_connect},
    transact::{Args, Outcome, in_transaction},
};

const PUT: &str = include_str!("../../sql/queries/ctl/put_paste.sql");
const EXTEND: &str = "SELECT paste_extend($1, now() + $2::float8 * interval '1 second')";
const EXPIRE: &str = "SELECT paste_expire_now($1)";
const BACKLOG: &str = "SELECT count(*) FROM pastes WHERE expires_at <= now()
                       AND deletion_status = 'NOT_EXPIRED'";
const TIMEOUT: Duration = Duration::from_secs(10);
/// Few enough that counts often reach zero and the same content is stored again.
const EXPIRING_BODIES: u32 = 80;
/// Shared by pastes of which some never expire.
const LASTING_BODIES: u32 = 16;
/// Pastes that a writer remembers.
const MEMORY: usize = 300;

/// The writer.
struct Writer {
    name: String,
    rng: fastrand::Rng,
    journal: Journal,
    database_url: String,
    db: Option<Client>,
    s3: S3,
    bucket: String,
    number: u64,
    recent: Vec<Paste>,
    /// A deliberate mistake that makes the soak fail: the same key for every upload of a body.
    reuses_keys: bool,
}

#[derive(Clone)]
struct Paste {
    code: String,
    body: String,
    /// Seconds from now; `None` = never.
    expires: Option<f64>,
}

/// Writes until it is killed.
pub(crate) async fn write(name: String, seed: u64, journal: &str) -> ! {
    let (s3, bucket) = environment::s3_of_environment().await;
    let mut writer = Writer {
        name,
        rng: fastrand::Rng::with_seed(seed),
        journal: Journal::open(journal),
        database_url: std::env::var("DATABASE_URL").expect("DATABASE_URL"),
        db: None,
        s3,
        bucket,
        number: 0,
        recent: Vec::new(),
        reuses_keys: std::env::var_os("CHAOS_REUSE_KEYS").is_some(),
    };
    loop {
        match writer.rng.u32(..100) {
            ..70 => writer.put_something().await,
            70..85 => writer.extend_something().await,
            _ => writer.expire_something().await,
        }
        writer.pause().await;
    }
}

impl Writer {
    /// Pauses for a moment; longer while the fleet has a backlog, because content is stored again
    /// only after the fleet has deleted it.
    async fn pause(&mut self) {
        let mut pause = self.rng.u64(..10);
        if self.rng.u32(..10) == 0
            && let Outcome::Committed(row) = self.transact(BACKLOG, &[]).await
        {
            pause += (row.get::<_, i64>(0).cast_unsigned() * 5).min(2000);
        }
        sleep(Duration::from_millis(pause)).await;
    }

    fn next_paste(&mut self) -> Paste {
        self.number += 1;
        let code = format!("{}-{}", self.name, self.number);
        let (body, expires) = match self.rng.u32(..100) {
            ..70 => (format!("expiring body {}", self.rng.u32(..EXPIRING_BODIES)), true),
            70..90 => (format!("lasting body {}", self.rng.u32(..LASTING_BODIES)), self.rng.bool()),
            _ => (format!("body of {code}"), self.rng.u32(..10) > 0),
        };
        let longest = if self.rng.u32(..4) > 0 { 2.0 } else { 20.0 };
        let expires = expires.then(|| self.rng.f64() * longest);
        Paste { code, body, expires }
    }

    /// Puts one paste. A put with an unknown outcome is sometimes repeated.
    async fn put_something(&mut self) {
        let paste = self.next_paste();
        for attempt in 0..3 {
            match self.put(&paste, attempt).await {
                Outcome::Committed(()) => {
                    self.remember(paste);
                    return;
                }
                Outcome::RolledBack => return,
                Outcome::Unknown if self.rng.bool() => return,
                Outcome::Unknown => {}
            }
        }
    }

    /// Half of the puts first check without a key whether an upload is needed.
    async fn put(&mut self, paste: &Paste, attempt: u32) -> Outcome<()> {
        if self.rng.bool() {
            match self.put_row(paste, None).await {
                Outcome::Committed(row) if row.get::<_, &str>("outcome") == "needs_upload" => {}
                Outcome::Committed(row) => {
                    self.append_put(&row, true);
                    return Outcome::Committed(());
                }
                Outcome::RolledBack => return Outcome::RolledBack,
                Outcome::Unknown => return Outcome::Unknown,
            }
        }
        let digest = hex(&hash(&paste.body));
        // A fresh key: short codes are unique, and each attempt has its own upload.
        let key = match self.reuses_keys {
            true => format!("{digest}/x"),
            false => format!("{digest}/{}.{attempt}", paste.code),
        };
        self.journal.append(&Event::Upload { key: key.clone() });
        let body = ByteStream::from(paste.body.clone().into_bytes());
        let upload = self.s3.put_object().bucket(&self.bucket).key(&key).body(body);
        if upload.send().await.is_err() {
            sleep(Duration::from_millis(200)).await;
            return Outcome::RolledBack;
        }
        self.delay().await;
        match self.put_row(paste, Some(&key)).await {
            Outcome::Committed(row) => {
                self.drop_unused_upload(&row, &key).await;
                Outcome::Committed(())
            }
            Outcome::RolledBack => {
                self.drop_upload(key).await;
                Outcome::RolledBack
            }
            Outcome::Unknown => Outcome::Unknown,
        }
    }

    /// Delays one request in ten between its upload and its transaction.
    async fn delay(&mut self) {
        if self.rng.u32(..10) == 0 {
            let pause = self.rng.u64(..500);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn drop_unused_upload(&mut self, row: &Row, key: &str) {
        let uses_upload = row.get::<_, Option<&str>>("s3_key") == Some(key);
        self.append_put(row, !uses_upload);
        if row.get("drop_upload") {
            self.drop_upload(key.to_string()).await;
        } else {
            self.journal.append(&Event::Stored { key: key.to_string() });
        }
    }

    fn append_put(&mut self, row: &Row, shared: bool) {
        let outcome = row.get("outcome");
        self.journal.append(&Event::Put { outcome, shared });
    }

    async fn put_row(&mut self, paste: &Paste, key: Option<&str>) -> Outcome<Row> {
        let (digest, size) = (hash(&paste.body), paste.body.len() as i64);
        self.transact(PUT, &[&paste.code, &digest, &key, &size, &paste.expires]).await
    }

    /// Deletes an upload. After five failures its fate stays in doubt.
    async fn drop_upload(&mut self, key: String) {
        for _ in 0..5 {
            let call = self.s3.delete_object().bucket(&self.bucket).key(&key);
            if call.send().await.is_ok() {
                self.journal.append(&Event::Dropped { key });
                return;
            }
            sleep(Duration::from_millis(300)).await;
        }
    }

    fn remember(&mut self, paste: Paste) {
        if paste.expires.is_none() {
            let (code, body) = (paste.code.clone(), paste.body.clone());
            self.journal.append(&Event::NeverExpires { code, body });
        }
        if self.recent.len() == MEMORY {
            self.recent.remove(0);
        }
        self.recent.push(paste);
    }

    fn recall(&mut self) -> Option<Paste> {
        let index = self.rng.usize(..MEMORY);
        self.recent.get(index).cloned()
    }

    async fn extend_something(&mut self) {
        let Some(mut paste) = self.recall() else {
            return;
        };
        // Forever only for bodies that need not be erased and stored again.
        let lasting = !paste.body.starts_with("expiring") && self.rng.bool();
        paste.expires = if lasting { None } else { Some(self.rng.f64() * 4.0) };
        if !lasting {
            self.journal.append(&Event::MayExpire { code: paste.code.clone() });
        }
        match self.transact(EXTEND, &[&paste.code, &paste.expires]).await {
            Outcome::Committed(row) => {
                let in_time = row.get(0);
                self.journal.append(&Event::Extended { in_time });
                if in_time && lasting {
                    self.journal
                        .append(&Event::NeverExpires { code: paste.code, body: paste.body });
                }
            }
            Outcome::RolledBack | Outcome::Unknown => {}
        }
    }

    async fn expire_something(&mut self) {
        let Some(paste) = self.recall() else {
            return;
        };
        self.journal.append(&Event::MayExpire { code: paste.code.clone() });
        if let Outcome::Committed(row) = self.transact(EXPIRE, &[&paste.code]).await {
            self.journal.append(&Event::ExpiredNow { in_time: row.get(0) });
        }
    }

    /// One statement in a transaction of its own.
    async fn transact(&mut self, sql: &str, args: Args<'_>) -> Outcome<Row> {
        let Some(mut db) = self.connection().await else {
            sleep(Duration::from_millis(200)).await;
            return Outcome::RolledBack;
        };
        let Ok(outcome) = timeout(TIMEOUT, in_transaction(&mut db, sql, args)).await else {
            self.journal.append(&Event::Unknown);
            return Outcome::Unknown;
        };
        if let Outcome::Unknown = outcome {
            self.journal.append(&Event::Unknown);
        }
        self.db = Some(db);
        outcome
    }

    async fn connection(&mut self) -> Option<Client> {
        match self.db.take().filter(|db| !db.is_closed()) {
            Some(db) => Some(db),
            None => timeout(TIMEOUT, try_connect(&self.database_url)).await.ok().flatten(),
        }
    }
}
