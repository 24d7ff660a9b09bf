//! One test's database and bucket, and the programs that run on them.

use std::sync::{Arc, Mutex};

use aws_sdk_s3::Client as S3;
use paste_cleanup::{
    config::{Settings, defaults},
    objects::Objects,
    shutdown::Shutdown,
    worker::Worker,
};
use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::Client;
use uuid::Uuid;

use super::{
    connect,
    database::{AUDITOR, WATCHDOG, WORKER, migrate_at, migrated_database, url_as, url_of},
    env,
    invariants::{Expected, Store},
    postgres::Postgres,
    process::Process,
};

/// One test's database and bucket, and a client to each.
///
/// Workers and watchdogs log in with exactly the rights of their roles; the test itself is the
/// owner of the database.
pub(crate) struct World {
    pub name: String,
    /// Logs in as the owner.
    pub database_url: String,
    pub watchdog_url: String,
    pub db: Client,
    pub s3: S3,
    pub bucket: String,
    /// The settings of a worker.
    pub settings: Settings,
    /// Violations that were seen while the test ran.
    pub seen: Arc<Mutex<Vec<String>>>,
}

impl World {
    pub(crate) async fn new() -> Self {
        let name = migrated_database().await;
        let url = url_of(&name);
        Self::on(name, url).await
    }

    /// Uses a database on the test's own server.
    pub(crate) async fn on_server(server: &Postgres) -> Self {
        let name = format!("t{}", Uuid::new_v4().simple());
        let maintenance = connect(&server.url("postgres")).await;
        maintenance.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("database");
        let url = server.url(&name);
        migrate_at(&url).await;
        Self::on(name, url).await
    }

    /// Uses a database that sorts text by an ICU locale, not by bytes.
    pub(crate) async fn with_icu_collation() -> Self {
        drop(migrated_database().await); // It creates the logins, too.
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

    /// The URL of a worker's login.
    pub(crate) fn worker_url(&self) -> String {
        self.settings.postgres.current_url().expect("a URL").expose_secret().to_string()
    }

    /// `cleanupctl` with the auditor's login.
    pub(crate) fn auditor(&self) -> Process {
        self.program("cleanupctl").env("DATABASE_URL", &url_as(AUDITOR, &self.database_url))
    }

    /// `cleanupctl audit` with the auditor's login.
    pub(crate) fn audit(&self, args: &[&str]) -> Process {
        self.auditor()
            .args(&["audit", "--format", "json"])
            .args(args)
            .env("AWS_ENDPOINT_URL", self.settings.s3.endpoint.as_deref().unwrap_or_default())
    }

    /// Binds the database to the bucket, as the first run of a worker does.
    pub(crate) async fn bind(&self) {
        let bound = paste_cleanup::fleet::bind_bucket(&self.db, &self.bucket, "").await;
        bound.expect("bind the bucket");
    }

    /// What the invariant checker reads.
    pub(crate) fn store(&self) -> Store {
        Store {
            database_url: self.database_url.clone(),
            s3: self.s3.clone(),
            bucket: self.bucket.clone(),
            seen: Arc::clone(&self.seen),
        }
    }

    /// Starts a worker in this process, with settings modified by `change`.
    pub(crate) async fn worker_with(&self, change: impl FnOnce(&mut Settings)) -> Arc<Worker> {
        let mut settings = self.settings.clone();
        change(&mut settings);
        Worker::start(Arc::new(settings), Shutdown::default()).await.expect("start a worker")
    }

    pub(crate) async fn worker(&self) -> Arc<Worker> {
        self.worker_with(|_| {}).await
    }

    /// One of the three programs as a process, with this world's settings and the login of its role.
    pub(crate) fn program(&self, name: &str) -> Process {
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

    /// Asserts what must hold while no batch is open: counts are correct, the bucket has exactly
    /// the objects that the tables know, nothing is claimed, live pastes are readable. A backlog is
    /// allowed.
    pub(crate) async fn assert_consistent(&self) {
        let expected = Expected { backlog: true, ..Expected::default() };
        self.store().check(&expected).await.assert_clean("consistent");
    }

    /// Asserts [`World::assert_consistent`], and that no expired paste is left.
    pub(crate) async fn assert_drained(&self) {
        self.store().check(&Expected::default()).await.assert_clean("drained");
    }
}
