//! What the tests stand on: real servers (started by `ops/test`), a database and a bucket of their
//! own for every test, real worker processes, and proxies that misbehave on demand.

#![allow(dead_code, unused_imports, reason = "every test file uses a part of it")]

pub mod adopted;
pub mod database;
pub mod faulty_s3;
pub mod findings;
pub mod guarded;
pub mod invariants;
pub mod memory_s3;
pub mod moto;
pub mod pgbouncer;
pub mod postgres;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod random;
pub mod seaweedfs;
pub mod servers;
pub mod small_disk;
pub mod sockets;
pub mod work;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_sdk_s3::{Client as S3, primitives::ByteStream};
use deadpool_postgres::Pool;
use paste_cleanup::{
    claim::Claim,
    config::{Settings, defaults},
    objects::Objects,
    postgres::Target,
    shutdown::Shutdown,
    watchdog::{Depth, Swept, sweep},
    worker::{
        Worker,
        batch::claim::Wanted,
        report::{PhaseTimes, Summary},
        run::Options,
    },
};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use tokio_postgres::{Client, types::ToSql};
use uuid::Uuid;

use database::{AUDITOR, WATCHDOG, WORKER, migrate_at, migrated_database, url_as, url_of};
pub use database::{connect, empty_database, try_connect};
use invariants::{Expected, Store};
use postgres::Postgres;
pub use process::{Process, Signal};

/// One test's database and bucket, and a client to each. Workers and watchdogs have the rights of
/// their roles, and not one more; the test itself is the owner.
pub struct World {
    pub name: String,
    /// The owner's.
    pub database_url: String,
    pub watchdog_url: String,
    pub db: Client,
    pub s3: S3,
    pub bucket: String,
    /// A worker's.
    pub settings: Settings,
    /// What was seen to go wrong while it happened.
    pub seen: Arc<Mutex<Vec<String>>>,
}

/// When a paste expires, in seconds from now.
#[derive(Clone, Copy)]
pub enum Expires {
    Ago(f64),
    In(f64),
    Never,
}

pub use Expires::{Ago, In, Never};

pub fn env(name: &str) -> String {
    std::env::var(format!("PASTE_CLEANUP_TEST_{name}"))
        .unwrap_or_else(|_| panic!("no PASTE_CLEANUP_TEST_{name}: run the tests with ops/test"))
}

impl World {
    pub async fn new() -> Self {
        let name = migrated_database().await;
        let url = url_of(&name);
        Self::on(name, url).await
    }

    /// With a database on a server of the test's own.
    pub async fn on_server(server: &Postgres) -> Self {
        let name = format!("t{}", Uuid::new_v4().simple());
        let maintenance = connect(&server.url("postgres")).await;
        maintenance.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("database");
        let url = server.url(&name);
        migrate_at(&url).await;
        Self::on(name, url).await
    }

    /// With a database that sorts text as people do, not by bytes.
    pub async fn with_icu_collation() -> Self {
        drop(migrated_database().await); // makes the logins, too
        let name = format!("t{}", Uuid::new_v4().simple());
        let create = format!(
            "CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
        );
        let maintenance = connect(&env("DATABASE_URL")).await;
        maintenance.batch_execute(&create).await.expect("database");
        let url = url_of(&name);
        let options = paste_cleanup::migrate::Options { roles: true, ..Default::default() };
        let db = connect(&url).await;
        paste_cleanup::migrate::migrate(&db, &options, &mut |_| {}).await.expect("migrate");
        Self::on(name, url).await
    }

    async fn on(name: String, database_url: String) -> Self {
        let db = connect(&database_url).await;
        let bucket = name.clone();
        let mut settings = defaults();
        settings.postgres.url = Some(SecretString::from(url_as(WORKER, &database_url)));
        settings.redis.url = Some(SecretString::from(env("REDIS_URL")));
        settings.s3.bucket = Some(bucket.clone());
        settings.s3.endpoint = Some(env("S3_ENDPOINT"));
        let objects = Objects::new(&settings).await.expect("S3 client");
        let s3 = objects.client().clone();
        s3.create_bucket().bucket(&bucket).send().await.expect("create bucket");
        let watchdog_url = url_as(WATCHDOG, &database_url);
        Self { name, database_url, watchdog_url, db, s3, bucket, settings, seen: Arc::default() }
    }

    /// The database as a worker sees it.
    pub fn worker_url(&self) -> String {
        self.settings.postgres_url().expect("a URL").expose_secret().to_string()
    }

    /// `cleanupctl` under an auditor's login.
    pub fn auditor(&self) -> Process {
        self.program("cleanupctl").env("DATABASE_URL", &url_as(AUDITOR, &self.database_url))
    }

    /// `cleanupctl audit` under the login that is its due.
    pub fn audit(&self, args: &[&str]) -> Process {
        self.auditor()
            .args(&["audit", "--format", "json"])
            .args(args)
            .env("AWS_ENDPOINT_URL", self.settings.s3.endpoint.as_deref().unwrap_or_default())
    }

    /// Remembers the bucket, as the first run of a worker does.
    pub async fn bind(&self) {
        let bound = paste_cleanup::fleet::bind_bucket(&self.db, &self.bucket, "").await;
        bound.expect("bind the bucket");
    }

    /// What the checker looks at.
    pub fn store(&self) -> Store {
        Store {
            database_url: self.database_url.clone(),
            s3: self.s3.clone(),
            bucket: self.bucket.clone(),
            seen: Arc::clone(&self.seen),
        }
    }

    /// A worker in this process, with settings as `change` leaves them.
    pub async fn worker_with(&self, change: impl FnOnce(&mut Settings)) -> Arc<Worker> {
        let mut settings = self.settings.clone();
        change(&mut settings);
        Worker::start(Arc::new(settings), Shutdown::default()).await.expect("start a worker")
    }

    pub async fn worker(&self) -> Arc<Worker> {
        self.worker_with(|_| {}).await
    }

    /// One of the three programs as a process of its own, with nothing but this world's settings
    /// and the login that is its due.
    pub fn program(&self, name: &str) -> Process {
        let url = match name.rsplit('/').next() {
            Some("cleanup-worker") => self.worker_url(),
            Some("cleanup-watchdog") => self.watchdog_url.clone(),
            _ => self.database_url.clone(),
        };
        Process::new(name)
            .env("DATABASE_URL", &url)
            .env("REDIS_URL", &env("REDIS_URL"))
            .env("S3_BUCKET", &self.bucket)
            .env("AWS_ENDPOINT_URL", &env("S3_ENDPOINT"))
    }

    /// A paste by the writer's contract, with a real object. Returns the key of its body.
    pub async fn put(&self, short_code: &str, body: &str, expires: Expires) -> String {
        let hash = hash(body);
        let fresh = format!("{}/{}", hex(&hash), Uuid::new_v4().simple());
        self.upload(&fresh, body).await;
        let row = self.put_row(short_code, &hash, Some(&fresh), body.len(), expires).await;
        if row.get("drop_upload") {
            self.s3.delete_object().bucket(&self.bucket).key(&fresh).send().await.expect("drop");
        }
        row.get("s3_key")
    }

    pub async fn put_row(
        &self,
        short_code: &str,
        hash: &[u8],
        key: Option<&str>,
        size: usize,
        expires: Expires,
    ) -> tokio_postgres::Row {
        let seconds = match expires {
            Ago(seconds) => Some(-seconds),
            In(seconds) => Some(seconds),
            Never => None,
        };
        let put = include_str!("../../sql/queries/ctl/put_paste.sql");
        let size = size as i64;
        self.db
            .query_one(put, &[&short_code, &hash, &key, &size, &seconds])
            .await
            .expect("paste_put")
    }

    /// Many expired pastes without objects, by plain SQL: for tests that are about rows.
    pub async fn put_many(&self, count: i32, bodies: i32) {
        self.db
            .batch_execute(&format!(
                "INSERT INTO pastes (short_code, content_hash, expires_at)
                 SELECT 'p' || lpad(n::text, 8, '0'), sha256(('b' || n % {bodies})::bytea),
                        now() - ({count} - n + 1) * interval '1 second'
                 FROM generate_series(1, {count}) n;
                 INSERT INTO content (content_hash, s3_key, size_bytes, ref_count)
                 SELECT content_hash, encode(content_hash, 'hex') || '/x', 10, count(*)
                 FROM pastes GROUP BY content_hash
                 ON CONFLICT DO NOTHING"
            ))
            .await
            .expect("put many");
    }

    pub async fn upload(&self, key: &str, body: &str) {
        let body = ByteStream::from(body.as_bytes().to_vec());
        let put = self.s3.put_object().bucket(&self.bucket).key(key).body(body);
        put.send().await.expect("upload");
    }

    /// The body behind a live paste, as a reader of the paste service would fetch it.
    pub async fn read(&self, short_code: &str) -> Option<String> {
        let key = self
            .db
            .query_opt(
                "SELECT c.s3_key FROM pastes p JOIN content c USING (content_hash)
                 WHERE p.short_code = $1",
                &[&short_code],
            )
            .await
            .expect("look up paste")?;
        self.object(key.get(0)).await
    }

    pub async fn object(&self, key: &str) -> Option<String> {
        let got = self.s3.get_object().bucket(&self.bucket).key(key).send().await.ok()?;
        let bytes = got.body.collect().await.ok()?.into_bytes();
        String::from_utf8(bytes.to_vec()).ok()
    }

    /// All keys in the bucket, sorted.
    pub async fn keys(&self) -> Vec<String> {
        list_keys(&self.s3, &self.bucket).await
    }

    pub async fn count(&self, sql: &str) -> i64 {
        self.count_with(sql, &[]).await
    }

    pub async fn count_with(&self, sql: &str, args: &[&(dyn ToSql + Sync)]) -> i64 {
        self.db.query_one(sql, args).await.expect(sql).get(0)
    }

    pub async fn run_sql(&self, sql: &str) {
        self.db.batch_execute(sql).await.expect(sql);
    }

    /// One value as text, for messages and comparisons.
    pub async fn text(&self, sql: &str) -> Option<String> {
        self.db.query_opt(sql, &[]).await.expect(sql).and_then(|row| row.get(0))
    }

    /// Polls until the query answers true: the signals of these tests are committed rows.
    pub async fn until(&self, what: &str, sql: &str) {
        for _ in 0..3000 {
            if self.db.query_one(sql, &[]).await.expect(sql).get(0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never happened: {what}");
    }

    /// Waits until so many statements of workers wait for a lock in this database.
    pub async fn until_workers_wait(&self, statements: i64) {
        let waiting = format!(
            "SELECT count(*) = {statements} FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'
               AND application_name LIKE 'cleanup-worker%'"
        );
        self.until("the workers wait for a lock", &waiting).await;
    }

    /// Makes every open claim look as if its worker had been silent for so long.
    pub async fn expire_leases(&self, seconds: f64) {
        let sql = "UPDATE deletion_claims SET heartbeat_at = now() - $1 * interval '1 second'
                   WHERE finished_at IS NULL AND reset_at IS NULL";
        self.db.execute(sql, &[&seconds]).await.expect("silence");
    }

    /// Due at once, whatever they back off for.
    pub async fn end_backoff(&self) {
        self.run_sql("UPDATE pastes SET retry_at = now() WHERE retry_at < 'infinity'").await;
    }

    /// Rows that wait for their content row are tried again at once.
    pub async fn end_deferral(&self) {
        let sql = "UPDATE pastes SET deletion_initiated_at = now() - interval '1 hour',
                                     retry_at = now() - interval '1 second'
                   WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NULL
                     AND retry_at > deletion_initiated_at";
        self.run_sql(sql).await;
    }

    /// What a watchdog does in a tick, with the default of two hours.
    pub async fn sweep(&self) -> Swept {
        self.sweep_with(&self.settings).await
    }

    pub async fn sweep_with(&self, settings: &Settings) -> Swept {
        sweep(&self.watchdog_pool(), settings, Depth::Thorough).await.expect("sweep")
    }

    /// Lets the fleet erase a paste. Until it has, an audit takes the tables for the wrong ones.
    pub async fn erase_one(&self) {
        self.put("erased", "erased", Ago(60.0)).await;
        let worker = self.worker().await;
        assert_eq!(drain(&worker).await.rows_deleted, 1, "one was due");
    }

    /// What a watchdog in this process works with.
    pub fn watchdog_pool(&self) -> Pool {
        let mut settings = self.settings.clone();
        settings.postgres.url = Some(SecretString::from(self.watchdog_url.clone()));
        let target = Target::new(&settings, "test", None).expect("target");
        target.pool(3).expect("pool")
    }

    /// Everything that must hold when nothing is on its way: counts right, bucket exactly what the
    /// tables say, nothing claimed, live bodies readable. There may be a backlog.
    pub async fn assert_consistent(&self) {
        let expected = Expected { backlog: true, ..Expected::default() };
        self.store().check(&expected).await.assert_clean("consistent");
    }

    /// [`World::assert_consistent`], and nothing that has expired is left.
    pub async fn assert_drained(&self) {
        self.store().check(&Expected::default()).await.assert_clean("drained");
    }
}

/// Claims as a run would, with nothing else open.
pub async fn claim(worker: &Worker, size: u32) -> Option<Claim> {
    worker.claim(Wanted { size, mark: None, busy: false, until: None }).await.expect("claim")
}

/// Claims and insists on getting something.
pub async fn claim_some(worker: &Worker, size: u32) -> Claim {
    claim(worker, size).await.expect("something to claim")
}

/// The steps after the claim, to the end.
pub async fn carry_out(worker: &Worker, claim: &Claim) {
    let decremented = worker.decrement(claim).await.expect("decrement");
    let objects = worker.delete_objects(claim, &decremented).await.expect("delete objects");
    worker.evict(claim).await;
    worker.finish(claim, &objects, &PhaseTimes::default()).await.expect("finish");
}

/// A whole run.
pub async fn drain(worker: &Arc<Worker>) -> Summary {
    worker.run(Options::default()).await
}

/// All keys in a bucket, sorted.
pub async fn list_keys(s3: &S3, bucket: &str) -> Vec<String> {
    let mut pages = s3.list_objects_v2().bucket(bucket).into_paginator().send();
    let mut keys: Vec<String> = Vec::new();
    while let Some(page) = pages.next().await {
        let objects = page.expect("list").contents.unwrap_or_default();
        keys.extend(objects.into_iter().filter_map(|object| object.key));
    }
    keys.sort();
    keys
}

pub fn codes(claim: &Claim) -> Vec<String> {
    let mut codes: Vec<String> = claim.pastes.iter().map(|p| p.short_code.clone()).collect();
    codes.sort();
    codes
}

pub fn hash(body: &str) -> Vec<u8> {
    Sha256::digest(body.as_bytes()).to_vec()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
