//! Where it all happens: the servers, what stands between them and the fleet, and the settings.

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
/// Silence after which a watchdog takes a worker for dead.
pub const STUCK_AFTER: Duration = Duration::from_secs(2);
/// How long a worker waits for an answer of S3.
pub const S3_DEADLINE: Duration = Duration::from_secs(4);
/// Servers are never next door: it takes a while to reach them, so that a fault in the middle of a
/// step is likely.
const TO_S3: Duration = Duration::from_millis(30);
const TO_POSTGRES: Duration = Duration::from_millis(6);
const POSTGRES: [&str; 3] =
    ["max_connections = 200", "shared_buffers = 64MB", "max_prepared_transactions = 20"];
/// Short, so that everything happens often.
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

/// The stage. A mutex for each thing that can take only one fault at a time.
pub struct Stage {
    folder: PathBuf,
    /// What is left for people to look at.
    pub kept: PathBuf,
    pub postgres: Mutex<Postgres>,
    pub redis: Mutex<Redis>,
    pub seaweedfs: Mutex<SeaweedFs>,
    /// Postgres, as the fleet and the writers reach it.
    pub proxies: Mutex<Proxies>,
    /// S3, as the fleet reaches it.
    pub faulty: FaultyS3,
    /// Held while S3 is in a mood.
    pub mood: Mutex<()>,
    /// The truth, and what was seen to go wrong.
    pub store: Store,
    /// The tables belong to somebody with habits.
    pub has_owner: bool,
    redis_url: String,
    s3_url: String,
    /// To Postgres, for the fleet and for the writers.
    fleet_url: String,
    writers_url: String,
}

/// What stands before Postgres.
pub struct Proxies {
    pub fleet: Proxy,
    pub writers: Proxy,
}

impl Stage {
    pub async fn set_up(kept: &Path, has_owner: bool) -> Arc<Self> {
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
        s3_is_there(&s3).await;
        migrate(&database_url).await;
        if has_owner {
            owner::move_in(&database_url).await;
        }
        let fleet_url = proxies.fleet.through(&database_url);
        let writers_url = proxies.writers.through(&database_url);
        let store = Store { database_url, s3, bucket: BUCKET.into(), seen: Arc::default() };
        proxies.calm();
        let stage = Self {
            folder,
            kept: kept.to_path_buf(),
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
        stage.calm_s3();
        Arc::new(stage)
    }

    /// One of the fleet's programs.
    pub fn program(&self, name: &str) -> Process {
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

    /// This program again, as a writer. It talks to S3 itself.
    pub fn writer(&self, name: &str, seed: u64, journal: &Path) -> Process {
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

    /// S3 is well, only not next door.
    pub fn calm_s3(&self) {
        self.faulty.set_mode(Mode::Slow { by: TO_S3 });
    }

    /// Something is wrong that must not be.
    pub fn accuse(&self, violation: String) {
        let mut seen = self.store.seen.lock().expect("seen");
        if !seen.contains(&violation) {
            seen.push(violation);
        }
    }

    pub fn violations(&self) -> usize {
        self.store.seen.lock().expect("seen").len()
    }

    /// Stops the servers, and keeps what they said.
    pub async fn clear(&self) {
        let _ = self.seaweedfs.lock().await.kill().await;
        let _ = self.redis.lock().await.kill().await;
        let postgres = self.postgres.lock().await;
        postgres.stop_immediately().await;
        let _ = fs::copy(postgres.log(), self.kept.join("postgres.log"));
        let _ = fs::copy(self.folder.join("seaweedfs/weed.log"), self.kept.join("seaweedfs.log"));
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Proxies {
    /// All is well, only not next door.
    pub fn calm(&self) {
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

/// The first answer of a new store may be long in coming.
async fn s3_is_there(s3: &S3) {
    while s3.create_bucket().bucket(BUCKET).send().await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    s3_answers(s3, BUCKET).await;
}

/// A client to the real S3.
async fn s3_client(url: &str) -> S3 {
    let mut settings = defaults();
    settings.s3.bucket = Some(BUCKET.into());
    settings.s3.endpoint = Some(url.into());
    settings.s3.deadline = Duration::from_secs(5);
    Objects::new(&settings).await.expect("S3 client").client().clone()
}

/// The same in a writer's process.
pub async fn s3_of_environment() -> (S3, String) {
    let url = std::env::var("AWS_ENDPOINT_URL").expect("AWS_ENDPOINT_URL");
    (s3_client(&url).await, BUCKET.into())
}
