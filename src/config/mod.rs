//! Every setting of the fleet: one struct, one file, one environment variable each.
//!
//! Flags heartbeat the environment, the environment heartbeats the file, the file heartbeats the default.
//! `config/default.toml` is generated from the comments below (`cleanupctl config`).

mod load;
mod values;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use confique::Config;
use secrecy::SecretString;

pub use load::{ConfigError, default_toml, defaults, load};
pub use values::{Checksum, LogFormat, WhenUnavailable, parse_cron, parse_duration};

/// All settings. Every key can also be set as `CLEANUP_<SECTION>_<KEY>`, which heartbeats this file.
#[derive(Config, Debug, Clone)]
pub struct Settings {
    /// The database that holds `pastes`, `content` and the fleet's own tables.
    #[config(nested)]
    pub postgres: Postgres,
    /// The lock that keeps workers from trampling each other, and the paste service's read cache.
    #[config(nested)]
    pub redis: Redis,
    /// Where the bodies are. Credentials and region come from the usual AWS variables and files.
    #[config(nested)]
    pub s3: S3,
    /// How a worker goes through the night.
    #[config(nested)]
    pub worker: Worker,
    /// The short lock around a claim. It saves work; it is not what makes a claim safe.
    #[config(nested)]
    pub lock: Lock,
    /// The paste service's read cache in Redis.
    #[config(nested)]
    pub cache: Cache,
    /// When `cleanup-worker schedule` runs.
    #[config(nested)]
    pub schedule: Schedule,
    /// The sidecar that resets the claims of workers that went silent.
    #[config(nested)]
    pub watchdog: Watchdog,
    /// What stays in the tables, and for how long.
    #[config(nested)]
    pub retention: Retention,
    /// Deletion cannot be undone: a run that would delete suspiciously much (a wrong clock, a bad
    /// migration) claims nothing, or nothing more, and ends with exit code 4, until told
    /// `--override-brake`.
    #[config(nested)]
    pub brake: Brake,
    /// Throttling: what a run waits for before it claims more, for the sake of the service beside it.
    /// Batches in flight go on; log, progress bar and summary name what is waited for.
    #[config(nested)]
    pub throttle: Throttle,
    /// Logs go to stderr; results go to stdout.
    #[config(nested)]
    pub log: Log,
}

#[derive(Config, Debug, Clone)]
pub struct Postgres {
    /// Connection URL, several hosts allowed. `DATABASE_URL` is read too.
    /// `sslmode` is one of disable, prefer (default), require, verify-ca, verify-full.
    /// Example: "postgres://cleanup:secret@db1,db2/pastes?sslmode=verify-full&target_session_attrs=read-write"
    #[config(env = "CLEANUP_POSTGRES_URL")]
    pub url: Option<SecretString>,
    /// Schema that holds the tables, for example "app"; it becomes the whole `search_path`.
    /// Default: the first schema of the login's own `search_path`.
    #[config(env = "CLEANUP_POSTGRES_SCHEMA")]
    pub schema: Option<String>,
    /// Connections one process may open, besides the heartbeat's own. At least 2.
    #[config(env = "CLEANUP_POSTGRES_POOL_SIZE", default = 6)]
    pub pool_size: usize,
    /// PEM file with the CA that signed the server's certificate. Default: the system's CAs.
    #[config(env = "CLEANUP_POSTGRES_CA_FILE")]
    pub ca_file: Option<PathBuf>,
}

#[derive(Config, Debug, Clone)]
pub struct Redis {
    /// Connection URL, `redis://` or `rediss://` for TLS. `REDIS_URL` is read too.
    #[config(env = "CLEANUP_REDIS_URL")]
    pub url: Option<SecretString>,
    /// PEM file with the CA that signed the server's certificate. Default: the system's CAs.
    #[config(env = "CLEANUP_REDIS_CA_FILE")]
    pub ca_file: Option<PathBuf>,
}

#[derive(Config, Debug, Clone)]
pub struct S3 {
    /// The bucket. `S3_BUCKET` is read too. The database remembers it: another one is refused.
    #[config(env = "CLEANUP_S3_BUCKET")]
    pub bucket: Option<String>,
    /// The part of the bucket that belongs to this database: what an audit may look at. Ends in "/",
    /// or the audit repairs nothing: "a" is also the beginning of another database's "ab/".
    #[config(env = "CLEANUP_S3_PREFIX", default = "")]
    pub prefix: String,
    /// For MinIO, SeaweedFS, R2 and others. `AWS_ENDPOINT_URL` is read too. Default: AWS.
    #[config(env = "CLEANUP_S3_ENDPOINT")]
    pub endpoint: Option<String>,
    /// Bucket in the path instead of the host name. Default: true when an endpoint is set.
    #[config(env = "CLEANUP_S3_PATH_STYLE")]
    pub path_style: Option<bool>,
    /// What DeleteObjects proves its body with: "auto" (the SDK's CRC32), or "md5" for stores
    /// that answer MissingContentMD5.
    #[config(env = "CLEANUP_S3_CHECKSUM", default = "auto")]
    pub checksum: Checksum,
    /// How long a batch tries to delete its objects before it is released.
    #[config(env = "CLEANUP_S3_DEADLINE", default = "60s", deserialize_with = values::duration)]
    pub deadline: Duration,
    /// Keys deleted per second and worker, since S3 counts every key as a write.
    /// 0 = as fast as it goes; SlowDown answers slow a worker down either way.
    #[config(env = "CLEANUP_S3_MAX_KEYS_PER_SECOND", default = 0)]
    pub max_keys_per_second: u32,
}

#[derive(Config, Debug, Clone)]
pub struct Worker {
    /// Pastes per claim, 1 to 10000.
    #[config(env = "CLEANUP_WORKER_BATCH_SIZE", default = 1000)]
    pub batch_size: u32,
    /// Batches in flight at once in one process, so that S3's latency hides behind Postgres' work.
    #[config(env = "CLEANUP_WORKER_CONCURRENCY", default = 16)]
    pub concurrency: usize,
    /// How often a worker proves that it is alive.
    #[config(
        env = "CLEANUP_WORKER_HEARTBEAT_INTERVAL",
        default = "10s",
        deserialize_with = values::duration
    )]
    pub heartbeat_interval: Duration,
    /// After SIGTERM: how long open batches may go on before they are released.
    #[config(env = "CLEANUP_WORKER_GRACE_PERIOD", default = "20s", deserialize_with = values::duration)]
    pub grace_period: Duration,
    /// Failures of one paste before it becomes a dead letter and waits for a person.
    #[config(env = "CLEANUP_WORKER_MAX_ATTEMPTS", default = 5)]
    pub max_attempts: u16,
    /// A failed paste waits attempts² seconds, at most this long. One that is locked by another
    /// transaction waits just this long: with a minute or less, a run does not end before the lock does.
    #[config(env = "CLEANUP_WORKER_BACKOFF_CAP", default = "15m", deserialize_with = values::duration)]
    pub backoff_cap: Duration,
    /// How long a run waits for Postgres, S3 or a missing lock without finishing a batch, before it
    /// gives up with exit code 1. Nothing is claimed meanwhile.
    #[config(env = "CLEANUP_WORKER_OUTAGE_TIMEOUT", default = "5m", deserialize_with = values::duration)]
    pub outage_timeout: Duration,
}

#[derive(Config, Debug, Clone)]
pub struct Lock {
    /// Redis key; the database's name is appended.
    #[config(env = "CLEANUP_LOCK_KEY", default = "paste-cleanup:claim")]
    pub key: String,
    /// The lock vanishes after this; a claim has two thirds of it. 3s to 1h.
    #[config(env = "CLEANUP_LOCK_TTL", default = "30s", deserialize_with = values::duration)]
    pub ttl: Duration,
    /// Without Redis: "proceed" (claims stay correct, workers wait for each other in Postgres)
    /// or "wait" until it is back.
    #[config(env = "CLEANUP_LOCK_WHEN_UNAVAILABLE", default = "proceed")]
    pub when_unavailable: WhenUnavailable,
}

#[derive(Config, Debug, Clone)]
pub struct Cache {
    /// The cache key of a paste, for example "paste:{short_code}". Empty = evict nothing.
    #[config(env = "CLEANUP_CACHE_KEY_PATTERN", default = "")]
    pub key_pattern: String,
}

#[derive(Config, Debug, Clone)]
pub struct Schedule {
    /// Six fields: second minute hour day month weekday.
    #[config(env = "CLEANUP_SCHEDULE_CRON", default = "0 0 0 * * *")]
    pub cron: String,
    /// IANA name, for the cron expression and for `--until`.
    /// A time of day that a clock change skips runs right after the gap, one that occurs twice runs
    /// the first time. With `*` as the hour, every hour that elapses counts.
    #[config(env = "CLEANUP_SCHEDULE_TIMEZONE", default = "UTC")]
    pub timezone: chrono_tz::Tz,
}

#[derive(Config, Debug, Clone)]
pub struct Watchdog {
    /// A claim whose worker was silent for longer than this is reset.
    /// Safe down to three heartbeats, below that it is refused.
    #[config(env = "CLEANUP_WATCHDOG_STUCK_AFTER", default = "2h", deserialize_with = values::duration)]
    pub stuck_after: Duration,
    /// How often the watchdog looks.
    #[config(env = "CLEANUP_WATCHDOG_TICK", default = "60s", deserialize_with = values::duration)]
    pub tick: Duration,
    /// Where /healthz, /readyz and /metrics are served.
    #[config(env = "CLEANUP_WATCHDOG_LISTEN", default = "127.0.0.1:9464")]
    pub listen: SocketAddr,
}

#[derive(Config, Debug, Clone)]
pub struct Retention {
    /// How long a deleted paste stays as a DELETED row without its body. 0s = the row goes at once.
    #[config(env = "CLEANUP_RETENTION_TOMBSTONES", default = "0s", deserialize_with = values::duration)]
    pub tombstones: Duration,
    /// How long ended claims stay in `deletion_claims`.
    #[config(env = "CLEANUP_RETENTION_HISTORY", default = "30d", deserialize_with = values::duration)]
    pub history: Duration,
}

#[derive(Config, Debug, Clone)]
pub struct Brake {
    /// The largest share of all pastes that may be due, more than 0 to 1 (never brake by share).
    /// Judged only from 100,000 due pastes on; on a large table by a random sample, which tells it
    /// to about one percent of the table.
    #[config(env = "CLEANUP_BRAKE_MAX_SHARE", default = 0.5)]
    pub max_share: f64,
    /// The most pastes that one run may delete; counted exactly. Default: no limit.
    #[config(env = "CLEANUP_BRAKE_MAX_ROWS")]
    pub max_rows: Option<u64>,
}

#[derive(Config, Debug, Clone)]
pub struct Throttle {
    /// Pastes claimed per second and worker, by whole batches: with a low rate, lower
    /// worker.batch_size, too. 0 = as fast as it goes.
    #[config(env = "CLEANUP_THROTTLE_MAX_RATE", default = 0)]
    pub max_rate: u32,
    /// Claim nothing while a streaming standby is further behind than this, as the primary sees it
    /// (pg_stat_replication.replay_lag). The worker's login needs pg_monitor to see it; without, it
    /// warns and goes on. At least 100ms. Default: not looked at.
    #[config(env = "CLEANUP_THROTTLE_MAX_REPLICA_LAG", deserialize_with = values::duration)]
    pub max_replica_lag: Option<Duration>,
    /// Claim nothing while this file exists, for example "/run/paste-cleanup.stop". Default: none.
    #[config(env = "CLEANUP_THROTTLE_FLAG_FILE")]
    pub flag_file: Option<PathBuf>,
}

#[derive(Config, Debug, Clone)]
pub struct Log {
    /// "text", "json", or "auto": text on a terminal, json otherwise.
    #[config(env = "CLEANUP_LOG_FORMAT", default = "auto")]
    pub format: LogFormat,
    /// Level, or filter directives such as "info,paste_cleanup::worker=debug".
    #[config(env = "CLEANUP_LOG_FILTER", default = "info,aws_config=warn")]
    pub filter: String,
}
