//! Connections to Redis. Redis makes the fleet faster, but correctness never depends on it: claims stay
//! correct whatever it answers.

pub mod address;
mod manager;

use std::{sync::Arc, time::Duration};

use deadpool::{Runtime, managed};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use self::manager::Manager;
use crate::{
    config::{ConfigError, Settings},
    mutex::Mutex,
    printable::printable,
};

const TIMEOUT: Duration = Duration::from_secs(2);
/// After Redis did not answer, it is not used for this long: if it hangs, every claim and every eviction
/// would otherwise wait for its timeout.
const COOLDOWN: Duration = Duration::from_secs(5);

type Pool = managed::Pool<Manager>;
type PoolError = managed::PoolError<RedisError>;
/// A connection of the pool.
pub(crate) type Connection = managed::Object<Manager>;

/// A pool of connections, with a cooldown after Redis did not answer.
#[derive(Clone)]
pub struct Redis {
    pool: Pool,
    cooldown_until: Arc<Mutex<Option<Instant>>>,
}

/// Why Redis did not do what it was asked to do. Prints no secrets.
#[derive(thiserror::Error, Debug)]
pub enum Failure {
    /// Nothing was sent, because Redis did not answer a moment ago.
    #[error("Redis did not answer within the last {COOLDOWN:?}, and is tried again after that")]
    CoolingDown,
    /// No connection could be opened, or none of the pool was free.
    #[error("{}", no_connection(.0))]
    NoConnection(PoolError),
    /// Redis refused the command, or did not answer it.
    #[error("{}", printable(&.0.to_string()))]
    Command(RedisError),
}

/// Returns the cause without the words of the pool.
fn no_connection(error: &PoolError) -> String {
    match error {
        PoolError::Backend(error) => printable(&error.to_string()),
        PoolError::Timeout(_) => format!("no answer within {TIMEOUT:?}"),
        error => printable(&error.to_string()),
    }
}

impl Failure {
    /// Returns whether Redis answered with an error: about the rights of the login, or about the kind of
    /// server.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Command(error) => {
                matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
            }
            Self::CoolingDown | Self::NoConnection(_) => false,
        }
    }

    /// Returns whether Redis refused the login, or lacks a right of it: waiting does not help.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Command(error) | Self::NoConnection(PoolError::Backend(error)) => matches!(
                error.kind(),
                ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm)
            ),
            Self::CoolingDown | Self::NoConnection(_) => false,
        }
    }
}

impl Redis {
    /// Returns a connection, except during the cooldown.
    pub(crate) async fn connection(&self) -> Result<Connection, Failure> {
        if self.cooldown_until().is_some_and(|until| Instant::now() < until) {
            return Err(Failure::CoolingDown);
        }
        self.connection_without_cooldown().await
    }

    /// Returns a connection even during the cooldown, for commands that must be tried.
    pub(crate) async fn connection_without_cooldown(&self) -> Result<Connection, Failure> {
        self.pool.get().await.map_err(|error| {
            let failure = Failure::NoConnection(error);
            if !failure.is_denied() {
                self.start_cooldown();
            }
            failure
        })
    }

    /// Returns why a command failed, and starts the cooldown if Redis did not answer.
    pub fn failed(&self, error: RedisError) -> Failure {
        if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() {
            self.start_cooldown();
        }
        Failure::Command(error)
    }

    /// Returns whether another server takes over when the master dies: Sentinels or a Cluster see to it.
    pub fn fails_over(&self) -> bool {
        self.pool.manager().fails_over()
    }

    /// Returns whether this is a Cluster, which spreads the keys over its nodes.
    pub fn is_cluster(&self) -> bool {
        self.pool.manager().is_cluster()
    }

    /// Deletes the keys that exist.
    pub async fn unlink(&self, keys: &[String]) -> Result<(), Failure> {
        let mut connection = self.connection().await?;
        let unlinked = redis::cmd("UNLINK").arg(keys).query_async::<()>(&mut *connection).await;
        unlinked.map_err(|error| self.failed(error))
    }

    /// Reads a section of INFO from the server, or from each node of a Cluster.
    pub async fn info(&self, section: &str) -> Result<Vec<String>, Failure> {
        let mut connection = self.connection().await?;
        let info = redis::cmd("INFO").arg(section).query_async::<Value>(&mut *connection).await;
        Ok(match info.map_err(|error| self.failed(error))? {
            Value::Map(nodes) => nodes.into_iter().map(|(_, info)| text(info)).collect(),
            info => vec![text(info)],
        })
    }

    /// Returns an error if Redis does not answer.
    pub async fn ping(&self) -> Result<(), Failure> {
        let mut connection = self.connection().await?;
        let answer = redis::cmd("PING").query_async(&mut *connection).await;
        answer.map_err(|error| self.failed(error))
    }

    fn start_cooldown(&self) {
        *self.cooldown_until.lock() = Some(Instant::now() + COOLDOWN);
    }

    fn cooldown_until(&self) -> Option<Instant> {
        *self.cooldown_until.lock()
    }
}

fn text(value: Value) -> String {
    redis::from_redis_value(value).unwrap_or_default()
}

/// Creates the pool. It connects when it is first used, so that Redis may be unavailable at the start.
pub fn pool(settings: &Settings) -> Result<Redis, ConfigError> {
    crate::tls::install_provider();
    let manager = Manager::new(&settings.redis)?;
    let pool = Pool::builder(manager)
        .max_size(4)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(TIMEOUT))
        .create_timeout(Some(TIMEOUT * 2))
        .recycle_timeout(Some(TIMEOUT))
        .build()
        .map_err(|error| ConfigError::invalid(error.to_string()))?;
    Ok(Redis { pool, cooldown_until: Arc::default() })
}
