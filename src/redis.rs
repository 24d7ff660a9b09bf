//! Connections to Redis. Redis is a help, never a witness: whatever it answers, claims stay right.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use deadpool_redis::{Connection, Manager, Pool, Runtime};
use redis::{AsyncConnectionConfig, Client, RedisError, TlsCertificates};
use secrecy::ExposeSecret;
use tokio::time::Instant;

use crate::{
    config::{ConfigError, Settings},
    printable::printable,
};

const TIMEOUT: Duration = Duration::from_secs(2);
/// A Redis that did not answer is left alone for this long: one that hangs would otherwise cost
/// every claim and every eviction its timeout.
const AWAY_FOR: Duration = Duration::from_secs(5);

/// Redis, as long as it answers.
#[derive(Clone)]
pub struct Redis {
    pool: Pool,
    away_until: Arc<Mutex<Option<Instant>>>,
}

impl Redis {
    /// A connection, or why there is none, as text without secrets.
    pub async fn connection(&self) -> Result<Connection, String> {
        if self.away_until().is_some_and(|until| Instant::now() < until) {
            return Err("it did not answer a moment ago".into());
        }
        self.connection_by_all_means().await
    }

    /// The same for what must be tried even if Redis did not answer somebody a moment ago.
    pub async fn connection_by_all_means(&self) -> Result<Connection, String> {
        self.pool.get().await.map_err(|error| {
            self.rest();
            printable(&error.to_string())
        })
    }

    /// A command failed: says why, and remembers it if Redis did not answer.
    pub fn failed(&self, error: &RedisError) -> String {
        if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() {
            self.rest();
        }
        printable(&error.to_string())
    }

    /// Does it answer?
    pub async fn ping(&self) -> Result<(), String> {
        let mut connection = self.connection().await?;
        let answer = redis::cmd("PING").query_async(&mut connection).await;
        answer.map_err(|error| self.failed(&error))
    }

    fn rest(&self) {
        *self.away_until.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Instant::now() + AWAY_FOR);
    }

    fn away_until(&self) -> Option<Instant> {
        *self.away_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects when it is first used, so that Redis may be away at start.
pub fn pool(settings: &Settings) -> Result<Redis> {
    crate::tls::install_provider();
    let url = settings.redis_url()?.expose_secret();
    // The parser's own message is left out: it can quote the URL with its password.
    let client = match &settings.redis.ca_file {
        None => Client::open(url),
        Some(_) if !url.starts_with("rediss://") => {
            let reason = "redis.ca_file is set, but redis.url does not begin with rediss://";
            return Err(ConfigError::Invalid(reason.into()).into());
        }
        Some(path) => {
            let ca = std::fs::read(path)
                .with_context(|| format!("cannot read redis.ca_file {}", path.display()))?;
            Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert: Some(ca) })
        }
    }
    .map_err(|_| {
        ConfigError::Invalid(
            "redis.url (REDIS_URL or CLEANUP_REDIS_URL) or its CA file is not valid; \
             write redis://:password@host:6379 or rediss://… for TLS"
                .into(),
        )
    })?;
    let how = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT));
    let manager = Manager::new_with_config(client.get_connection_info().clone(), how)?;
    let pool = Pool::builder(manager)
        .max_size(4)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(TIMEOUT))
        .create_timeout(Some(TIMEOUT * 2))
        .recycle_timeout(Some(TIMEOUT))
        .build()?;
    Ok(Redis { pool, away_until: Arc::default() })
}
