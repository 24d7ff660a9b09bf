//! Connections to Redis. Redis is a help, never a witness: whatever it answers, claims stay right.

use std::time::Duration;

use anyhow::{Context, Result};
use deadpool_redis::{Connection, Manager, Pool, Runtime};
use redis::{AsyncConnectionConfig, Client, TlsCertificates};
use secrecy::ExposeSecret;

use crate::config::{ConfigError, Settings};

const TIMEOUT: Duration = Duration::from_secs(2);

/// A pool that connects when it is first used, so that Redis may be away at start.
pub fn pool(settings: &Settings) -> Result<Pool> {
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
    Ok(Pool::builder(manager)
        .max_size(4)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(TIMEOUT))
        .create_timeout(Some(TIMEOUT * 2))
        .recycle_timeout(Some(TIMEOUT))
        .build()?)
}

/// A connection, or why there is none, as text without secrets.
pub async fn connection(pool: &Pool) -> Result<Connection, String> {
    pool.get().await.map_err(|error| error.to_string())
}
