//! Reads the settings from all their places, and refuses what cannot work.

use std::{path::Path, time::Duration};

use confique::{
    Config, Layer,
    meta::{FieldKind, Meta},
};
use secrecy::SecretString;

use super::{Schedule, Settings};
use crate::printable::printable;

/// A setting that cannot work. The message names the key, both its variables and the remedy.
#[derive(thiserror::Error, Debug)]
pub enum ConfigError {
    #[error("cannot read the config file {}: {}", printable(.path), printable(.reason))]
    File { path: String, reason: String },
    #[error("unknown key `{}` in {}; `cleanupctl config` prints all keys", printable(.key), printable(.path))]
    UnknownKey { key: String, path: String },
    #[error("unknown variable {}; `cleanupctl config` prints all settings and their variables", printable(.0))]
    UnknownVariable(String),
    #[error("{0}")]
    Invalid(String),
    #[error("no {key}: set {well_known} or {variable}, or `{key}` in a file named by --config")]
    Missing { key: &'static str, well_known: &'static str, variable: &'static str },
}

/// The settings by file (if one is named), environment and defaults.
pub fn load(file: Option<&Path>) -> Result<Settings, ConfigError> {
    refuse_unknown_variables()?;
    let from_file = match file {
        Some(path) => read_file(path)?,
        None => <Settings as Config>::Layer::empty(),
    };
    let settings = Settings::builder()
        .env()
        .preloaded(well_known_variables())
        .preloaded(from_file)
        .load()
        .map_err(|error| ConfigError::Invalid(one_line(&error)))?;
    settings.validate()?;
    Ok(settings)
}

/// The defaults alone: neither file nor environment.
pub fn defaults() -> Settings {
    let defaults = <Settings as Config>::Layer::default_values();
    Settings::from_layer(defaults).unwrap_or_else(|error| unreachable!("defaults: {error}"))
}

/// The documented default file.
pub fn default_toml() -> String {
    let mut options = confique::toml::FormatOptions::default();
    options.general.comments = true;
    let body = confique::toml::template::<Settings>(options);
    body.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// confique prints a chain of causes on several lines; cron mails want one.
fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    printable(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn read_file(path: &Path) -> Result<<Settings as Config>::Layer, ConfigError> {
    let failed = |reason: String| ConfigError::File { path: path.display().to_string(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let table: toml::Table =
        toml::from_str(&text).map_err(|error| failed(toml_reason(&error, &text)))?;
    if let Some(key) = unknown_key(&table, &Settings::META, "") {
        return Err(ConfigError::UnknownKey { key, path: path.display().to_string() });
    }
    toml::from_str(&text).map_err(|error| failed(toml_reason(&error, &text)))
}

/// The parser's own rendering quotes the offending line, which may hold a password.
fn toml_reason(error: &toml::de::Error, text: &str) -> String {
    let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count());
    format!("line {}: {}", line.max(1), error.message())
}

fn unknown_key(table: &toml::Table, meta: &Meta, path: &str) -> Option<String> {
    table.iter().find_map(|(name, value)| {
        let here = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let Some(field) = meta.fields.iter().find(|field| field.name == name) else {
            return Some(here);
        };
        match (field.kind, value) {
            (FieldKind::Nested { meta }, toml::Value::Table(inner)) => {
                unknown_key(inner, meta, &here)
            }
            _ => None,
        }
    })
}

fn refuse_unknown_variables() -> Result<(), ConfigError> {
    let known = variables(&Settings::META);
    let unknown = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .find(|name| name.starts_with("CLEANUP_") && !known.contains(&name.as_str()));
    unknown.map_or(Ok(()), |name| Err(ConfigError::UnknownVariable(name)))
}

fn variables(meta: &'static Meta) -> Vec<&'static str> {
    let of_field = |kind: FieldKind| match kind {
        FieldKind::Leaf { env, .. } => env.into_iter().collect(),
        FieldKind::Nested { meta } => variables(meta),
    };
    let mut names: Vec<_> = meta.fields.iter().flat_map(|field| of_field(field.kind)).collect();
    names.push("CLEANUP_CONFIG");
    names
}

/// The names that other tools use too. They lose against `CLEANUP_…` and win against the file.
fn well_known_variables() -> <Settings as Config>::Layer {
    let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut layer = <Settings as Config>::Layer::empty();
    layer.postgres.url = read("DATABASE_URL").map(SecretString::from);
    layer.redis.url = read("REDIS_URL").map(SecretString::from);
    layer.s3.bucket = read("S3_BUCKET");
    layer.s3.endpoint = read("AWS_ENDPOINT_URL");
    layer
}

impl super::Worker {
    /// How long a worker that is alive can be silent.
    pub fn three_heartbeats(&self) -> Duration {
        self.heartbeat_interval.saturating_mul(3)
    }

    /// The longest time for which a paste backs off. At least a day, for programs whose settings differ.
    pub fn longest_backoff(&self) -> Duration {
        self.backoff_cap.max(Duration::from_secs(24 * 3600))
    }
}

impl Settings {
    /// Refuses what cannot work. Called after flags were applied, too.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let least = self.worker.three_heartbeats();
        let rules = [
            (
                self.watchdog.stuck_after >= least,
                format!(
                    "watchdog.stuck_after ({}) is shorter than three heartbeats ({}): \
                     healthy workers would be reset",
                    humantime::format_duration(self.watchdog.stuck_after),
                    humantime::format_duration(least),
                ),
            ),
            (
                (1..=10_000).contains(&self.worker.batch_size),
                format!("worker.batch_size is {}, not 1 to 10000", self.worker.batch_size),
            ),
            (
                (1..=64).contains(&self.worker.concurrency),
                format!("worker.concurrency is {}, not 1 to 64", self.worker.concurrency),
            ),
            (
                (2..=1000).contains(&self.postgres.pool_size),
                format!("postgres.pool_size is {}, not 2 to 1000", self.postgres.pool_size),
            ),
            (
                self.postgres_schema().is_none_or(is_schema_name),
                format!(
                    "postgres.schema {:?} cannot be the name of a schema of yours",
                    self.postgres_schema().unwrap_or_default()
                ),
            ),
            (
                (1..=1000).contains(&self.worker.max_attempts),
                format!("worker.max_attempts is {}, not 1 to 1000", self.worker.max_attempts),
            ),
            (
                self.worker.heartbeat_interval >= Duration::from_millis(100),
                "worker.heartbeat_interval is shorter than 100ms".into(),
            ),
            (self.lock.ttl >= Duration::from_secs(3), "lock.ttl is shorter than 3s".into()),
            // Two thirds of it become a statement_timeout, which Postgres keeps in 31 bits.
            (self.lock.ttl <= Duration::from_secs(3600), "lock.ttl is longer than 1h".into()),
            (!self.lock.key.is_empty(), "lock.key is empty".into()),
            (
                self.watchdog.tick >= Duration::from_millis(100),
                "watchdog.tick is shorter than 100ms".into(),
            ),
            (self.s3.deadline >= Duration::from_secs(1), "s3.deadline is shorter than 1s".into()),
            (
                self.brake.max_share > 0.0 && self.brake.max_share <= 1.0,
                format!("brake.max_share is {}, not more than 0 to 1", self.brake.max_share),
            ),
            (
                self.throttle.max_replica_lag.is_none_or(|lag| lag >= Duration::from_millis(100)),
                "throttle.max_replica_lag is shorter than 100ms".into(),
            ),
            (
                self.throttle.flag_file.as_ref().is_none_or(|path| path.is_absolute()),
                "throttle.flag_file is not an absolute path".into(),
            ),
            (
                self.cache.key_pattern.is_empty()
                    || self.cache.key_pattern.contains("{short_code}"),
                format!(
                    "cache.key_pattern {:?} does not contain {{short_code}}",
                    self.cache.key_pattern
                ),
            ),
        ];
        if let Some((_, reason)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(ConfigError::Invalid(reason));
        }
        check_cron(&self.schedule)?;
        tracing_subscriber::EnvFilter::try_new(&self.log.filter).map_err(|error| {
            let reason = printable(&error.to_string());
            ConfigError::Invalid(format!("log.filter {:?}: {reason}", self.log.filter))
        })?;
        Ok(())
    }

    pub fn postgres_url(&self) -> Result<&SecretString, ConfigError> {
        self.postgres.url.as_ref().ok_or(ConfigError::Missing {
            key: "postgres.url",
            well_known: "DATABASE_URL",
            variable: "CLEANUP_POSTGRES_URL",
        })
    }

    /// The schema that holds the tables; `None`: the first one of `search_path`.
    pub fn postgres_schema(&self) -> Option<&str> {
        self.postgres.schema.as_deref().filter(|name| !name.is_empty())
    }

    pub fn redis_url(&self) -> Result<&SecretString, ConfigError> {
        self.redis.url.as_ref().ok_or(ConfigError::Missing {
            key: "redis.url",
            well_known: "REDIS_URL",
            variable: "CLEANUP_REDIS_URL",
        })
    }

    pub fn bucket(&self) -> Result<&str, ConfigError> {
        self.s3.bucket.as_deref().filter(|name| !name.is_empty()).ok_or(ConfigError::Missing {
            key: "s3.bucket",
            well_known: "S3_BUCKET",
            variable: "CLEANUP_S3_BUCKET",
        })
    }
}

/// Postgres truncates longer names, keeps `pg_…` to itself, and replaces `$user`.
fn is_schema_name(name: &str) -> bool {
    let is_system = name.starts_with("pg_") || name == "information_schema" || name == "$user";
    name.len() <= 63 && !is_system && !name.chars().any(char::is_control)
}

fn check_cron(schedule: &Schedule) -> Result<(), ConfigError> {
    let expression = &schedule.cron;
    let invalid = |reason: String| {
        ConfigError::Invalid(format!(
            "schedule.cron {expression:?}: {reason}; six fields are needed, \
             for example \"0 0 0 * * *\" (second minute hour day month weekday)"
        ))
    };
    if expression.split_whitespace().count() != 6 {
        return Err(invalid("not six fields".into()));
    }
    let parser = croner::parser::CronParser::builder();
    let parser = parser.seconds(croner::parser::Seconds::Required).build();
    let cron = parser.parse(expression).map_err(|error| invalid(printable(&error.to_string())))?;
    // 31 February, say. The scheduler would wait for it without a word.
    let now = chrono::Utc::now().with_timezone(&schedule.timezone);
    match cron.find_next_occurrence(&now, false) {
        Ok(_) => Ok(()),
        Err(_) => Err(invalid("there is no such moment".into())),
    }
}
