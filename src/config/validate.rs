//! Refuses settings that cannot work, before a program does anything.

use std::{path::Path, time::Duration};

use axum::http::Uri;

use super::{ConfigError, Schedule, Settings, values::parse_cron};
use crate::printable::printable;

/// A rule: whether it holds, and the message if it does not.
type Rule = (bool, String);

impl super::Worker {
    /// Three heartbeat intervals: a live worker sends a heartbeat within this time.
    pub fn three_heartbeats(&self) -> Duration {
        self.heartbeat_interval.saturating_mul(3)
    }

    /// The longest time for which a paste backs off: at least a day, for programs whose settings differ.
    pub fn longest_backoff(&self) -> Duration {
        self.backoff_cap.max(Duration::from_secs(24 * 3600))
    }
}

impl Settings {
    /// Refuses settings that cannot work. Also called after flags were applied.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let rules = self.numbers().into_iter().chain(self.times()).chain(self.names());
        if let Some((_, reason)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(ConfigError::invalid(reason));
        }
        self.check_secrets()?;
        check_endpoint(self.s3.endpoint.as_deref())?;
        check_cron(&self.schedule)?;
        tracing_subscriber::EnvFilter::try_new(&self.log.filter).map_err(|error| {
            let reason = printable(&error.to_string());
            ConfigError::invalid(format!("log.filter {:?} is invalid: {reason}", self.log.filter))
        })?;
        Ok(())
    }

    fn numbers(&self) -> Vec<Rule> {
        let (worker, postgres) = (&self.worker, &self.postgres);
        vec![
            (
                (1..=10_000).contains(&worker.batch_size),
                format!("worker.batch_size is {}, but must be 1 to 10000", worker.batch_size),
            ),
            (
                (1..=64).contains(&worker.concurrency),
                format!("worker.concurrency is {}, but must be 1 to 64", worker.concurrency),
            ),
            (
                (2..=1000).contains(&postgres.pool_size),
                format!("postgres.pool_size is {}, but must be 2 to 1000", postgres.pool_size),
            ),
            (
                (1..=1000).contains(&worker.max_attempts),
                format!("worker.max_attempts is {}, but must be 1 to 1000", worker.max_attempts),
            ),
            (
                self.brake.max_share > 0.0 && self.brake.max_share <= 1.0,
                format!(
                    "brake.max_share is {}, but must be more than 0 and at most 1",
                    self.brake.max_share
                ),
            ),
        ]
    }

    fn times(&self) -> Vec<Rule> {
        let (least, tenth) = (self.worker.three_heartbeats(), Duration::from_millis(100));
        let lag = self.throttle.max_replica_lag;
        vec![
            (
                self.watchdog.stuck_after >= least,
                format!(
                    "watchdog.stuck_after ({}) is shorter than three heartbeat intervals ({}): \
                     live workers would be reset; raise it, or lower worker.heartbeat_interval",
                    humantime::format_duration(self.watchdog.stuck_after),
                    humantime::format_duration(least),
                ),
            ),
            at_least("worker.heartbeat_interval", self.worker.heartbeat_interval, tenth),
            (
                // Two thirds of it become a statement_timeout, which Postgres keeps in 31 bits.
                (Duration::from_secs(3)..=Duration::from_secs(3600)).contains(&self.lock.ttl),
                format!(
                    "lock.ttl is {}, but must be 3s to 1h",
                    humantime::format_duration(self.lock.ttl)
                ),
            ),
            at_least("watchdog.tick", self.watchdog.tick, tenth),
            at_least("s3.deadline", self.s3.deadline, Duration::from_secs(1)),
            at_least("throttle.max_replica_lag", lag.unwrap_or(tenth), tenth),
        ]
    }

    fn names(&self) -> Vec<Rule> {
        let (schema, pattern) = (self.postgres.schema(), &self.cache.key_pattern);
        vec![
            (
                schema.is_none_or(is_schema_name),
                format!(
                    "postgres.schema {:?} is not a valid schema name (at most 63 bytes, no system \
                     schema)",
                    schema.unwrap_or_default()
                ),
            ),
            (!self.lock.key.is_empty(), "lock.key is empty".into()),
            (
                self.throttle.flag_file.as_ref().is_none_or(|path| path.is_absolute()),
                format!(
                    "throttle.flag_file {:?} is not an absolute path; write \
                     /run/paste-cleanup.stop, for example",
                    self.throttle.flag_file.as_deref().unwrap_or(Path::new(""))
                ),
            ),
            (
                pattern.is_empty() || pattern.contains("{short_code}"),
                format!("cache.key_pattern {pattern:?} does not contain {{short_code}}"),
            ),
        ]
    }
}

fn at_least(key: &str, value: Duration, least: Duration) -> Rule {
    let [is, must_be] = [value, least].map(humantime::format_duration);
    (value >= least, format!("{key} is {is}, but must be at least {must_be}"))
}

/// Postgres truncates longer names, reserves `pg_…`, and replaces `$user`.
fn is_schema_name(name: &str) -> bool {
    let is_system = name.starts_with("pg_") || name == "information_schema" || name == "$user";
    name.len() <= 63 && !is_system && !name.chars().any(char::is_control)
}

/// Refuses an endpoint without scheme or host: the SDK would report it as an unavailable S3.
fn check_endpoint(endpoint: Option<&str>) -> Result<(), ConfigError> {
    let Some(endpoint) = endpoint else {
        return Ok(());
    };
    let uri = endpoint.parse::<Uri>().ok();
    let scheme = uri.as_ref().filter(|uri| uri.host().is_some()).and_then(Uri::scheme_str);
    match scheme {
        Some("http" | "https") => Ok(()),
        _ => Err(ConfigError::new(
            format!("s3.endpoint {endpoint:?} is not a URL with http:// or https://"),
            "correct AWS_ENDPOINT_URL or CLEANUP_S3_ENDPOINT, for example http://localhost:9000",
        )),
    }
}

fn check_cron(schedule: &Schedule) -> Result<(), ConfigError> {
    let expression = &schedule.cron;
    let invalid = |reason: String| {
        ConfigError::new(
            format!("schedule.cron {expression:?}: {reason}"),
            "six fields are needed, for example \"0 0 0 * * *\" (second minute hour day month weekday)",
        )
    };
    if expression.split_whitespace().count() != 6 {
        return Err(invalid("not six fields".into()));
    }
    let cron = parse_cron(expression).map_err(|error| invalid(printable(&error.to_string())))?;
    // 31 February, for example: the scheduler would wait for it without a message.
    let now = chrono::Utc::now().with_timezone(&schedule.timezone);
    match cron.find_next_occurrence(&now, false) {
        Ok(_) => Ok(()),
        Err(_) => {
            let problem = format!("schedule.cron {expression:?} matches no date");
            Err(ConfigError::new(problem, "correct it"))
        }
    }
}
