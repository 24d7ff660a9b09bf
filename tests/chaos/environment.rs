//! The environment of a soak: servers, the proxies in front of them, and the fleet's settings.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use aws_sdk_s3::Client as S3;
use paste_cleanup::{config::defaults, migrate, objects::Objects};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::{
    owner,
    support::{
        Process, connect, env,
        faulty_s3::{FaultyS3, Mode},
        invariants::Store,
        postgres::Postgres,
        proxy::Proxy,
        seaweedfs::{SeaweedFs, s3_answers},
        servers::Redis,
    },
};

const BUCKET: &str = "chaos";
/// The time without a heartbeat after which a watchdog resets a claim.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(2);
/// How long a worker waits for an answer from S3.
pub(crate) const S3_DEADLINE: Duration = Duration::from_secs(4);
/// The network delay to the servers. It makes a fault in the middle of a step likely.
const TO_S3: Duration = Duration::from_millis(30);
const TO_POSTGRES: Duration = Duration::from_millis(6);
const POSTGRES: [&str; 3] =
    ["max_connections = 200", "shared_buffers = 64MB", "max_prepared_transactions = 20"];
/// Short intervals, so that resets, retries and runs are frequent.
const SETTINGS: [(&str, &str); 12] = [
    ("CLEANUP_WORKER_HEARTBEAT_INTERVAL", "500ms"),
    ("CLEANUP_WATCHDOG_STUCK_AFTER", "2s"),
    ("CLEANUP_WATCHDOG_TICK", "500ms"),
    ("CLEANUP_LOCK_TTL", "3s"),
    ("CLEANUP_WORKER_BATCH_SIZE", "40"),
    ("CLEANUP_WORKER_CONCURRENCY", "3"),
    ("CLEANUP_WORKER_GRACE_PERIOD", "2s"),
    ("CLEANUP_WORKER_MAX_ATTEMPTS", "3"),
    ("CLEANUP_WORKER_BACKOFF_CAP", "1s"),
    ("CLEANUP_S3_DEADLINE", "4s"),
    ("CLEANUP_CACHE_KEY_PATTERN", "paste:{short_code}"),
    ("CLEANUP_SCHEDULE_CRON", "*/2 * * * * *"),
];

/// The environment. Everything that can have only one fault at a time has its own mutex.
pub(crate) struct Environment {
    folder: PathBuf,
    /// The folder for logs, journals and the report.
    pub output_dir: PathBuf,
    pub postgres: Mutex<Postgres>,
    pub redis: Mutex<Redis>,
    pub seaweedfs: Mutex<SeaweedFs>,
    /// The proxies through which the fleet and the writers reach Postgres.
    pub proxies: Mutex<Proxies>,
    /// The S3 proxy through which the fleet reaches SeaweedFS.
    pub faulty: FaultyS3,
    /// Locked while an S3 fault is active.
    pub mood: Mutex<()>,
    /// Direct access to Postgres and S3, and the violations found so far.
    pub store: Store,
    /// The tables have an owner with its own triggers and transactions.
    pub has_owner: bool,
    redis_url: String,
    s3_url: String,
    /// The Postgres URL for the fleet, through its proxy.
    fleet_url: String,
    writers_url: String,
}

/// The proxies in front of Postgres.
pub(crate) struct Proxies {
    pub fleet: Proxy,
    pub writers: Proxy,
}

impl Environment {
    pub(crate) async fn set_up(output_dir: &Path, has_owner: bool) -> Arc<Self> {
        let folder = Path::new(&env("DIR")).join(format!("chaos-{}", Uuid::new_v4().simple()));
        fs::create_dir(&folder).expect("folder");
        let seaweedfs = SeaweedFs::start(&folder);
        let (postgres, redis) = (Postgres::start(&POSTGRES).await, Redis::start().await);
        let (upstream, database_url) = (postgres.address(), postgres.url("postgres"));
        let proxies = Proxies {
            fleet: Proxy::start(&upstream).await,
            writers: Proxy::start(&upstream).await,
        };
        let s3 = s3_client(&seaweedfs.url).await;
        create_bucket(&s3).await;
        migrate(&database_url).await;
        if has_owner {
            owner::create_tables(&database_url).await;
        }
        let fleet_url = proxies.fleet.through(&database_url);
        let writers_url = proxies.writers.through(&database_url);
        let store = Store { database_url, s3, bucket: BUCKET.into(), seen: Arc::default() };
        proxies.calm();
        let env = Self {
            folder,
            output_dir: output_dir.to_path_buf(),
            faulty: FaultyS3::in_front_of(store.clone(), Mode::Normal).await,
            mood: Mutex::default(),
            store,
            has_owner,
            redis_url: redis.url(),
            s3_url: seaweedfs.url.clone(),
            fleet_url,
            writers_url,
            postgres: Mutex::new(postgres),
            redis: Mutex::new(redis),
            seaweedfs: Mutex::new(seaweedfs),
            proxies: Mutex::new(proxies),
        };
        env.calm_s3();
        Arc::new(env)
    }

    /// Returns one of the fleet's programs, with its settings.
    pub(crate) fn program(&self, name: &str) -> Process {
        let mut program = Process::new(name)
            .env("DATABASE_URL", &self.fleet_url)
            .env("REDIS_URL", &self.redis_url)
            .env("S3_BUCKET", BUCKET)
            .env("AWS_ENDPOINT_URL", &self.faulty.url)
            .env("CLEANUP_LOG_FORMAT", "json");
        for (name, value) in SETTINGS {
            program = program.env(name, value);
        }
        program
    }

    /// Returns this program as a writer. It connects to S3 directly.
    pub(crate) fn writer(&self, name: &str, seed: u64, journal: &Path) -> Process {
        let own = std::env::current_exe().expect("own program");
        let journal = journal.to_str().expect("a path");
        let mut writer = Process::new(own.to_str().expect("a path"))
            .args(&["writer", name, &seed.to_string(), journal])
            .env("DATABASE_URL", &self.writers_url)
            .env("AWS_ENDPOINT_URL", &self.s3_url);
        if let Ok(mistake) = std::env::var("CHAOS_REUSE_KEYS") {
            writer = writer.env("CHAOS_REUSE_KEYS", &mistake);
        }
        writer
    }

    /// Ends all S3 faults; only the network delay remains.
    pub(crate) fn calm_s3(&self) {
        self.faulty.set_mode(Mode::Slow { by: TO_S3 });
    }

    /// Records a violation, once.
    pub(crate) fn record_violation(&self, violation: String) {
        let mut seen = self.store.seen.lock().expect("seen");
        if !seen.contains(&violation) {
            seen.push(violation);
        }
    }

    pub(crate) fn violations(&self) -> usize {
        self.store.seen.lock().expect("seen").len()
    }

    /// Stops the servers and keeps their logs.
    pub(crate) async fn clear(&self) {
        self.seaweedfs.lock().await.kill().await;
        self.redis.lock().await.kill().await;
        let postgres = self.postgres.lock().await;
        postgres.stop_immediately().await;
        let _ = fs::copy(postgres.log(), self.output_dir.join("postgres.log"));
        let _ =
            fs::copy(self.folder.join("seaweedfs/weed.log"), self.output_dir.join("seaweedfs.log"));
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Proxies {
    /// Ends all Postgres faults; only the network delay remains.
    pub(crate) fn calm(&self) {
        for proxy in [&self.fleet, &self.writers] {
            proxy.arm_share(None);
            proxy.delay(Duration::ZERO);
        }
        self.fleet.delay(TO_POSTGRES);
    }
}

async fn migrate(url: &str) {
    let db = connect(url).await;
    let options = migrate::Options::default();
    migrate::migrate(&db, &options, &mut |_| {}).await.expect("migrate");
    db.batch_execute(include_str!("ledger.sql")).await.expect("ledger");
}

/// Creates the bucket, and waits until S3 answers: SeaweedFS needs time to start.
async fn create_bucket(s3: &S3) {
    while s3.create_bucket().bucket(BUCKET).send().await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    s3_answers(s3, BUCKET).await;
}

/// Returns a client for S3 that bypasses the faults.
async fn s3_client(url: &str) -> S3 {
    let mut settings = defaults();
    settings.s3.bucket = Some(BUCKET.into());
    settings.s3.endpoint = Some(url.into());
    settings.s3.deadline = Duration::from_secs(5);
    Objects::new(&settings).await.expect("S3 client").client().clone()
}

/// Returns the S3 client of a writer process.
pub(crate) async fn s3_of_environment() -> (S3, String) {
    let url = std::env::var("AWS_ENDPOINT_URL").expect("AWS_ENDPOINT_URL");
    (s3_client(&url).await, BUCKET.into())
}
