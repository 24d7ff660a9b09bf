//! Every setting of the fleet: a field here, a key in the file, an environment variable.
//!
//! Flags override the environment, the environment overrides the file, the file overrides the default.
//! `config/default.toml` is generated from the comments below: `cleanupctl config > config/default.toml`.

mod load;
mod secret;
mod validate;
mod values;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use confique::Config;
use secrecy::SecretString;

pub use load::{ConfigError, default_toml, defaults, load};
pub use values::{BulkDelete, Checksum, LogFormat, WhenUnavailable, parse_cron, parse_duration};

/// All settings. Every key can also be set as `CLEANUP_<SECTION>_<KEY>`, which overrides this file.
#[derive(Config, Debug, Clone)]
pub struct Settings {
    /// The database with `pastes`, `content` and the fleet's own tables.
    #[config(nested)]
    pub postgres: Postgres,
    /// Redis serves the claim lock, and is the paste service's read cache.
    #[config(nested)]
    pub redis: Redis,
    /// The object store. Credentials and region come from the usual AWS variables and files.
    #[config(nested)]
    pub s3: S3,
    /// Batches, heartbeats and retries of a worker.
    #[config(nested)]
    pub worker: Worker,
    /// The short Redis lock around a claim. It saves work; claims are correct without it.
    #[config(nested)]
    pub lock: Lock,
    /// The paste service's read cache in Redis.
    #[config(nested)]
    pub cache: Cache,
    /// When `cleanup-worker schedule` runs.
    #[config(nested)]
    pub schedule: Schedule,
    /// The sidecar that resets the claims of dead workers.
    #[config(nested)]
    pub watchdog: Watchdog,
    /// How long tombstones, ended claims and runs are kept.
    #[config(nested)]
    pub retention: Retention,
    /// The safety brake. Deletion cannot be undone: a run that would delete more than this (a wrong
    /// clock, a bad migration) stops claiming and exits with 4. `--override-brake` ignores it.
    #[config(nested)]
    pub brake: Brake,
    /// Throttling: conditions that make a run wait before it claims more, to protect the paste service.
    /// Batches in flight continue; log, progress bar and summary name the reason for waiting.
    #[config(nested)]
    pub throttle: Throttle,
    /// Logs go to stderr; results go to stdout.
    #[config(nested)]
    pub log: Log,
}

/// The section `[postgres]`: the connection to the database.
#[derive(Config, Debug, Clone)]
pub struct Postgres {
    /// Connection URL; several hosts are allowed. `DATABASE_URL` is read, too.
    /// `sslmode` is one of disable, prefer (default), require, verify-ca, verify-full.
    /// Example: "postgres://cleanup:secret@db1,db2/pastes?sslmode=verify-full&target_session_attrs=read-write"
    #[config(env = "CLEANUP_POSTGRES_URL")]
    pub url: Option<SecretString>,
    /// File with the URL, instead of `url`; it is read again for each new connection, so that a password
    /// can be rotated. `DATABASE_URL_FILE` is read, too.
    #[config(env = "CLEANUP_POSTGRES_URL_FILE")]
    pub url_file: Option<PathBuf>,
    /// Shell command that prints the password, for each new connection, within 10 s. It gets PGHOST,
    /// PGPORT, PGUSER and PGDATABASE. Default: the password in the URL, else PGPASSWORD, else the file
    /// PGPASSFILE (~/.pgpass).
    /// Example: "aws rds generate-db-auth-token --hostname $PGHOST --port $PGPORT --username $PGUSER"
    #[config(env = "CLEANUP_POSTGRES_PASSWORD_COMMAND")]
    pub password_command: Option<String>,
    /// Schema of the tables, for example "app"; it becomes the whole `search_path`.
    /// Default: the first schema of the login's own `search_path`.
    #[config(env = "CLEANUP_POSTGRES_SCHEMA")]
    pub schema: Option<String>,
    /// Maximum connections of one process, besides the heartbeat's own; 2 to 1000.
    #[config(env = "CLEANUP_POSTGRES_POOL_SIZE", default = 6)]
    pub pool_size: usize,
    /// PEM file with the CA that signed the server's certificate. Default: the system's CAs.
    #[config(env = "CLEANUP_POSTGRES_CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// PEM file with a client certificate, for a server that asks for one.
    #[config(env = "CLEANUP_POSTGRES_CLIENT_CERT_FILE")]
    pub client_cert_file: Option<PathBuf>,
    /// PEM file with the key of the client certificate.
    #[config(env = "CLEANUP_POSTGRES_CLIENT_KEY_FILE")]
    pub client_key_file: Option<PathBuf>,
}

/// The section `[redis]`: the connection to Redis.
#[derive(Config, Debug, Clone)]
pub struct Redis {
    /// Connection URL: `redis://host`, `redis+unix:///path`, `redis+cluster://host1,host2` (one node is
    /// enough) or `redis+sentinel://host1,host2/name-of-the-master`; with `rediss` for TLS. `REDIS_URL` is
    /// read, too.
    #[config(env = "CLEANUP_REDIS_URL")]
    pub url: Option<SecretString>,
    /// File with the URL, instead of `url`; it is read again for each new connection.
    /// `REDIS_URL_FILE` is read, too.
    #[config(env = "CLEANUP_REDIS_URL_FILE")]
    pub url_file: Option<PathBuf>,
    /// PEM file with the CA that signed the server's certificate. Default: the system's CAs.
    #[config(env = "CLEANUP_REDIS_CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// PEM file with a client certificate, for a server that asks for one.
    #[config(env = "CLEANUP_REDIS_CLIENT_CERT_FILE")]
    pub client_cert_file: Option<PathBuf>,
    /// PEM file with the key of the client certificate.
    #[config(env = "CLEANUP_REDIS_CLIENT_KEY_FILE")]
    pub client_key_file: Option<PathBuf>,
}

/// The section `[s3]`: the bucket, and how its objects are deleted.
#[derive(Config, Debug, Clone)]
pub struct S3 {
    /// Bucket name. `S3_BUCKET` is read, too. The first run binds the database to it; another bucket is
    /// refused from then on.
    #[config(env = "CLEANUP_S3_BUCKET")]
    pub bucket: Option<String>,
    /// Prefix of this database's keys; an audit lists only these. End it with "/", or the audit repairs
    /// nothing: "a" is also the beginning of another database's "ab/".
    #[config(env = "CLEANUP_S3_PREFIX", default = "")]
    pub prefix: String,
    /// URL of MinIO, SeaweedFS, R2 and others, with http:// or https://. `AWS_ENDPOINT_URL_S3` and
    /// `AWS_ENDPOINT_URL` are read, too; the SDK also uses the latter for STS and SSO. Default: AWS.
    #[config(env = "CLEANUP_S3_ENDPOINT")]
    pub endpoint: Option<String>,
    /// Put the bucket in the path instead of the host name. Default: true if an endpoint is set.
    #[config(env = "CLEANUP_S3_PATH_STYLE")]
    pub path_style: Option<bool>,
    /// Whether to delete with DeleteObjects, up to 1000 objects in a request: "auto" (find out before
    /// anything is claimed), "always", or "never" (one by one, 64 requests at a time).
    #[config(env = "CLEANUP_S3_BULK_DELETE", default = "auto")]
    pub bulk_delete: BulkDelete,
    /// Checksum of DeleteObjects requests: "auto" (the SDK's CRC32), or "md5" for stores that answer
    /// MissingContentMD5.
    #[config(env = "CLEANUP_S3_CHECKSUM", default = "auto")]
    pub checksum: Checksum,
    /// How long a batch retries deleting its objects before its claim is released.
    #[config(env = "CLEANUP_S3_DEADLINE", default = "60s", deserialize_with = values::duration)]
    pub deadline: Duration,
    /// Maximum keys deleted per second and worker; S3 counts every key as a write.
    /// 0 = no limit; SlowDown answers slow a worker down in any case.
    #[config(env = "CLEANUP_S3_MAX_KEYS_PER_SECOND", default = 0)]
    pub max_keys_per_second: u32,
}

/// The section `[worker]`: batches, heartbeats and retries.
#[derive(Config, Debug, Clone)]
pub struct Worker {
    /// Pastes per claim, 1 to 10000.
    #[config(env = "CLEANUP_WORKER_BATCH_SIZE", default = 1000)]
    pub batch_size: u32,
    /// Batches in flight in one process, 1 to 64: some wait for S3 while others use Postgres.
    #[config(env = "CLEANUP_WORKER_CONCURRENCY", default = 16)]
    pub concurrency: usize,
    /// How often a worker sends a heartbeat for its open claims.
    #[config(
        env = "CLEANUP_WORKER_HEARTBEAT_INTERVAL",
        default = "10s",
        deserialize_with = values::duration
    )]
    pub heartbeat_interval: Duration,
    /// How long open batches may continue after SIGTERM before their claims are released.
    #[config(env = "CLEANUP_WORKER_GRACE_PERIOD", default = "20s", deserialize_with = values::duration)]
    pub grace_period: Duration,
    /// Failed attempts after which a paste becomes a dead letter, which needs an operator.
    #[config(env = "CLEANUP_WORKER_MAX_ATTEMPTS", default = 5)]
    pub max_attempts: u16,
    /// Longest wait before a retry: a failed paste waits attempts² seconds, but not longer. A paste
    /// that another transaction has locked is retried after exactly this time.
    #[config(env = "CLEANUP_WORKER_BACKOFF_CAP", default = "15m", deserialize_with = values::duration)]
    pub backoff_cap: Duration,
    /// Maximum time without a finished batch during an outage of Postgres, S3 or (with
    /// lock.when_unavailable = "wait") Redis; then the run exits with 1. Nothing is claimed
    /// meanwhile.
    #[config(env = "CLEANUP_WORKER_OUTAGE_TIMEOUT", default = "5m", deserialize_with = values::duration)]
    pub outage_timeout: Duration,
}

/// The section `[lock]`: the Redis lock around a claim.
#[derive(Config, Debug, Clone)]
pub struct Lock {
    /// Redis key; the name of the database is appended.
    #[config(env = "CLEANUP_LOCK_KEY", default = "paste-cleanup:claim")]
    pub key: String,
    /// Time after which the Redis lock expires, 3s to 1h. A claim that takes longer than two thirds
    /// of it is cancelled.
    #[config(env = "CLEANUP_LOCK_TTL", default = "30s", deserialize_with = values::duration)]
    pub ttl: Duration,
    /// While Redis is unavailable: "proceed" (claims stay correct, workers wait for each other in
    /// Postgres), or "wait" until it is available again.
    #[config(env = "CLEANUP_LOCK_WHEN_UNAVAILABLE", default = "proceed")]
    pub when_unavailable: WhenUnavailable,
}

/// The section `[cache]`: what is evicted from the paste service's read cache.
#[derive(Config, Debug, Clone)]
pub struct Cache {
    /// Cache key of a paste, for example "paste:{short_code}". Empty = evict nothing.
    #[config(env = "CLEANUP_CACHE_KEY_PATTERN", default = "")]
    pub key_pattern: String,
}

/// The section `[schedule]`: when `cleanup-worker schedule` starts a run.
#[derive(Config, Debug, Clone)]
pub struct Schedule {
    /// Cron expression with six fields: second minute hour day month weekday.
    #[config(env = "CLEANUP_SCHEDULE_CRON", default = "0 0 0 * * *")]
    pub cron: String,
    /// IANA time zone of the cron expression and of `--until`.
    /// A time of day that a clock change skips runs right after the gap; one that occurs twice runs
    /// the first time only. With `*` as the hour, every elapsed hour counts.
    #[config(env = "CLEANUP_SCHEDULE_TIMEZONE", default = "UTC")]
    pub timezone: chrono_tz::Tz,
}

/// The section `[watchdog]`: when claims are reset, and where metrics are served.
#[derive(Config, Debug, Clone)]
pub struct Watchdog {
    /// Age of the last heartbeat after which a claim is reset. Safe down to three heartbeat intervals;
    /// less is refused.
    #[config(env = "CLEANUP_WATCHDOG_STUCK_AFTER", default = "2h", deserialize_with = values::duration)]
    pub stuck_after: Duration,
    /// Interval between two sweeps.
    #[config(env = "CLEANUP_WATCHDOG_TICK", default = "60s", deserialize_with = values::duration)]
    pub tick: Duration,
    /// Address and port of /healthz, /readyz and /metrics.
    #[config(env = "CLEANUP_WATCHDOG_LISTEN", default = "127.0.0.1:9464")]
    pub listen: SocketAddr,
}

/// The section `[retention]`: how long tombstones, ended claims and runs are kept.
#[derive(Config, Debug, Clone)]
pub struct Retention {
    /// How long a deleted paste is kept as a tombstone: a DELETED row without content. 0s = the row is
    /// deleted at once.
    #[config(env = "CLEANUP_RETENTION_TOMBSTONES", default = "0s", deserialize_with = values::duration)]
    pub tombstones: Duration,
    /// How long ended claims (`deletion_claims`) and runs (`cleanup_runs`) are kept.
    #[config(env = "CLEANUP_RETENTION_HISTORY", default = "30d", deserialize_with = values::duration)]
    pub history: Duration,
}

/// The section `[brake]`: how much a run may delete.
#[derive(Config, Debug, Clone)]
pub struct Brake {
    /// Largest share of all pastes that may be due: more than 0, at most 1 (no limit). Checked only if
    /// 100,000 or more pastes are due; on a large table estimated from a random sample, to about one
    /// percent.
    #[config(env = "CLEANUP_BRAKE_MAX_SHARE", default = 0.5)]
    pub max_share: f64,
    /// Largest number of pastes that one run may delete, counted exactly. Default: no limit.
    #[config(env = "CLEANUP_BRAKE_MAX_ROWS")]
    pub max_rows: Option<u64>,
}

/// The section `[throttle]`: what makes a run wait before a claim.
#[derive(Config, Debug, Clone)]
pub struct Throttle {
    /// Maximum pastes claimed per second and worker, in whole batches: with a low rate, lower
    /// worker.batch_size, too. 0 = no limit.
    #[config(env = "CLEANUP_THROTTLE_MAX_RATE", default = 0)]
    pub max_rate: u32,
    /// Claim nothing while a streaming standby lags further behind than this
    /// (pg_stat_replication.replay_lag on the primary). The worker's login needs pg_monitor to read it;
    /// without, the worker logs a warning and continues. At least 100ms. Default: not checked.
    #[config(env = "CLEANUP_THROTTLE_MAX_REPLICA_LAG", deserialize_with = values::duration)]
    pub max_replica_lag: Option<Duration>,
    /// Claim nothing while this file exists, for example "/run/paste-cleanup.stop". Default: none.
    #[config(env = "CLEANUP_THROTTLE_FLAG_FILE")]
    pub flag_file: Option<PathBuf>,
}

/// The section `[log]`: what is logged to stderr, and how.
#[derive(Config, Debug, Clone)]
pub struct Log {
    /// "text", "json", or "auto": text on a terminal, JSON otherwise.
    #[config(env = "CLEANUP_LOG_FORMAT", default = "auto")]
    pub format: LogFormat,
    /// Log level, or filter directives such as "info,paste_cleanup::worker=debug".
    #[config(env = "CLEANUP_LOG_FILTER", default = "info,aws_config=error")]
    pub filter: String,
}
