//! A paste service that does nothing but write, by the contract. A process of its own: it is
//! killed now and then.

use std::time::Duration;

use aws_sdk_s3::{Client as S3, primitives::ByteStream};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, Row};

use crate::{
    journal::{Event, Journal},
    stage,
    support::{hash, hex, try_connect},
    transact::{Args, Told, in_transaction},
};

const PUT: &str = include_str!("../../sql/queries/ctl/put_paste.sql");
const EXTEND: &str = "SELECT paste_extend($1, now() + $2::float8 * interval '1 second')";
const EXPIRE: &str = "SELECT paste_expire_now($1)";
const BACKLOG: &str = "SELECT count(*) FROM pastes WHERE expires_at <= now()
                       AND deletion_status = 'NOT_EXPIRED'";
const TIMEOUT: Duration = Duration::from_secs(10);
/// Few enough that counts reach zero and bodies are stored anew all the time.
const MORTAL_BODIES: u32 = 80;
/// Held by pastes that never expire, among others.
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
    /// A mistake on purpose, for whoever wants to see the soak fail: one key for each body.
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
pub async fn write(name: String, seed: u64, journal: &str) -> ! {
    let (s3, bucket) = stage::s3_of_environment().await;
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
        writer.rest().await;
    }
}

impl Writer {
    /// A moment; longer while the fleet is behind: bodies are stored anew only when it gets to
    /// delete them.
    async fn rest(&mut self) {
        let mut pause = self.rng.u64(..10);
        if self.rng.u32(..10) == 0
            && let Told::Committed(row) = self.transact(BACKLOG, &[]).await
        {
            pause += (row.get::<_, i64>(0).cast_unsigned() * 5).min(2000);
        }
        sleep(Duration::from_millis(pause)).await;
    }

    fn think_of_a_paste(&mut self) -> Paste {
        self.number += 1;
        let code = format!("{}-{}", self.name, self.number);
        let (body, expires) = match self.rng.u32(..100) {
            ..70 => (format!("mortal body {}", self.rng.u32(..MORTAL_BODIES)), true),
            70..90 => (format!("lasting body {}", self.rng.u32(..LASTING_BODIES)), self.rng.bool()),
            _ => (format!("body of {code}"), self.rng.u32(..10) > 0),
        };
        let longest = if self.rng.u32(..4) > 0 { 2.0 } else { 20.0 };
        let expires = expires.then(|| self.rng.f64() * longest);
        Paste { code, body, expires }
    }

    /// One request, repeated now and then when nobody knows what became of it.
    async fn put_something(&mut self) {
        let paste = self.think_of_a_paste();
        for attempt in 0..3 {
            match self.put(&paste, attempt).await {
                Told::Committed(()) => {
                    self.remember(paste);
                    return;
                }
                Told::RolledBack => return,
                Told::Unknown if self.rng.bool() => return,
                Told::Unknown => {}
            }
        }
    }

    /// Half of the time it asks first whether an upload is needed at all.
    async fn put(&mut self, paste: &Paste, attempt: u32) -> Told<()> {
        if self.rng.bool() {
            match self.put_row(paste, None).await {
                Told::Committed(row) if row.get::<_, &str>("outcome") == "needs_upload" => {}
                Told::Committed(row) => {
                    self.note_put(&row, true);
                    return Told::Committed(());
                }
                Told::RolledBack => return Told::RolledBack,
                Told::Unknown => return Told::Unknown,
            }
        }
        let digest = hex(&hash(&paste.body));
        // Never used before: codes are not, and each attempt uploads anew.
        let key = match self.reuses_keys {
            true => format!("{digest}/x"),
            false => format!("{digest}/{}.{attempt}", paste.code),
        };
        self.journal.note(&Event::Upload { key: key.clone() });
        let body = ByteStream::from(paste.body.clone().into_bytes());
        let upload = self.s3.put_object().bucket(&self.bucket).key(&key).body(body);
        if upload.send().await.is_err() {
            sleep(Duration::from_millis(200)).await;
            return Told::RolledBack;
        }
        self.dawdle().await;
        match self.put_row(paste, Some(&key)).await {
            Told::Committed(row) => {
                self.drop_unused_upload(&row, &key).await;
                Told::Committed(())
            }
            Told::RolledBack => {
                self.drop_upload(key).await;
                Told::RolledBack
            }
            Told::Unknown => Told::Unknown,
        }
    }

    /// A request is slow now and then, between its upload and its transaction.
    async fn dawdle(&mut self) {
        if self.rng.u32(..10) == 0 {
            let pause = self.rng.u64(..500);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn drop_unused_upload(&mut self, row: &Row, key: &str) {
        let ours = row.get::<_, Option<&str>>("s3_key") == Some(key);
        self.note_put(row, !ours);
        if row.get("drop_upload") {
            self.drop_upload(key.to_string()).await;
        } else {
            self.journal.note(&Event::Known { key: key.to_string() });
        }
    }

    fn note_put(&mut self, row: &Row, shared: bool) {
        let outcome = row.get("outcome");
        self.journal.note(&Event::Put { outcome, shared });
    }

    async fn put_row(&mut self, paste: &Paste, key: Option<&str>) -> Told<Row> {
        let (digest, size) = (hash(&paste.body), paste.body.len() as i64);
        self.transact(PUT, &[&paste.code, &digest, &key, &size, &paste.expires]).await
    }

    /// Until S3 has confirmed it, or for a while: then it stays in doubt.
    async fn drop_upload(&mut self, key: String) {
        for _ in 0..5 {
            let call = self.s3.delete_object().bucket(&self.bucket).key(&key);
            if call.send().await.is_ok() {
                self.journal.note(&Event::Dropped { key });
                return;
            }
            sleep(Duration::from_millis(300)).await;
        }
    }

    fn remember(&mut self, paste: Paste) {
        if paste.expires.is_none() {
            let (code, body) = (paste.code.clone(), paste.body.clone());
            self.journal.note(&Event::Alive { code, body });
        }
        if self.recent.len() == MEMORY {
            self.recent.remove(0);
        }
        self.recent.push(paste);
    }

    fn recall(&mut self) -> Option<Paste> {
        let place = self.rng.usize(..MEMORY);
        self.recent.get(place).cloned()
    }

    async fn extend_something(&mut self) {
        let Some(mut paste) = self.recall() else {
            return;
        };
        // For ever only where that does not keep a body from being stored anew.
        let lasting = !paste.body.starts_with("mortal") && self.rng.bool();
        paste.expires = if lasting { None } else { Some(self.rng.f64() * 4.0) };
        if !lasting {
            self.journal.note(&Event::Mortal { code: paste.code.clone() });
        }
        match self.transact(EXTEND, &[&paste.code, &paste.expires]).await {
            Told::Committed(row) => {
                let in_time = row.get(0);
                self.journal.note(&Event::Extended { in_time });
                if in_time && lasting {
                    self.journal.note(&Event::Alive { code: paste.code, body: paste.body });
                }
            }
            Told::RolledBack | Told::Unknown => {}
        }
    }

    async fn expire_something(&mut self) {
        let Some(paste) = self.recall() else {
            return;
        };
        self.journal.note(&Event::Mortal { code: paste.code.clone() });
        if let Told::Committed(row) = self.transact(EXPIRE, &[&paste.code]).await {
            self.journal.note(&Event::ExpiredNow { in_time: row.get(0) });
        }
    }

    /// One statement in a transaction of its own.
    async fn transact(&mut self, sql: &str, args: Args<'_>) -> Told<Row> {
        let Some(mut db) = self.connection().await else {
            sleep(Duration::from_millis(200)).await;
            return Told::RolledBack;
        };
        let Ok(told) = timeout(TIMEOUT, in_transaction(&mut db, sql, args)).await else {
            self.journal.note(&Event::Unknown);
            return Told::Unknown;
        };
        if let Told::Unknown = told {
            self.journal.note(&Event::Unknown);
        }
        self.db = Some(db);
        told
    }

    async fn connection(&mut self) -> Option<Client> {
        match self.db.take().filter(|db| !db.is_closed()) {
            Some(db) => Some(db),
            None => timeout(TIMEOUT, try_connect(&self.database_url)).await.ok().flatten(),
        }
    }
}
