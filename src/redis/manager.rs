//! Opens the connections of the pool: to one server, to a Cluster, or to the master that the Sentinels
//! name.

use deadpool::managed::{Metrics, RecycleResult};
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Pipeline, RedisError, RedisFuture,
    RedisResult, TlsCertificates, TlsMode, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};

use super::{TIMEOUT, address::Address};

/// Opens and checks connections.
pub(crate) enum Manager {
    Server(deadpool_redis::Manager),
    Cluster(Box<ClusterClient>),
    Sentinel(tokio::sync::Mutex<SentinelClient>),
}

/// A connection to a server, or to all nodes of a Cluster.
pub(crate) enum Connection {
    /// To one server.
    Server(MultiplexedConnection),
    /// To a Cluster. A command goes to the node that has its keys; one with several keys is split.
    Cluster(ClusterConnection),
}

impl Manager {
    pub(super) fn new(address: &Address, tls: Option<TlsCertificates>) -> RedisResult<Self> {
        Ok(match address {
            Address::Server(url) => {
                let client = match tls {
                    Some(tls) => Client::build_with_tls(url.as_str(), tls)?,
                    None => Client::open(url.as_str())?,
                };
                let info = client.get_connection_info().clone();
                Self::Server(deadpool_redis::Manager::new_with_config(info, config())?)
            }
            Address::Cluster(urls) => {
                let mut builder = ClusterClientBuilder::new(urls.iter().map(String::as_str))
                    .connection_timeout(TIMEOUT)
                    .response_timeout(TIMEOUT)
                    .overall_response_timeout(Some(TIMEOUT * 2));
                if let Some(tls) = tls {
                    builder = builder.certs(tls);
                }
                Self::Cluster(Box::new(builder.build()?))
            }
            Address::Sentinel { sentinels, master, login } => {
                Self::Sentinel(tokio::sync::Mutex::new(sentinel(sentinels, master, login, tls)?))
            }
        })
    }

    /// Returns whether the servers replace a master that has died.
    pub(super) fn fails_over(&self) -> bool {
        !matches!(self, Self::Server(_))
    }

    /// Returns whether the keys are spread over several servers.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT))
}

fn sentinel(
    sentinels: &[String],
    master: &str,
    login: &str,
    tls: Option<TlsCertificates>,
) -> RedisResult<SentinelClient> {
    let addresses: RedisResult<Vec<_>> = sentinels
        .iter()
        .map(|url| Ok(url.as_str().into_connection_info()?.addr().clone()))
        .collect();
    let mut builder = SentinelClientBuilder::new(addresses?, master, SentinelServerType::Master)?;
    let login = login.into_connection_info()?;
    let redis = login.redis_settings();
    builder = builder.set_client_to_redis_db(redis.db());
    if let Some(user) = redis.username() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = redis.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    if matches!(login.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        if let Some(tls) = tls {
            builder = builder
                .set_client_to_redis_certificates(tls.clone())
                .set_client_to_sentinel_certificates(tls);
        }
    }
    builder.build()
}

impl deadpool::managed::Manager for Manager {
    type Type = Connection;
    type Error = RedisError;

    async fn create(&self) -> RedisResult<Connection> {
        Ok(match self {
            Self::Server(manager) => {
                Connection::Server(deadpool::managed::Manager::create(manager).await?)
            }
            Self::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
            Self::Sentinel(client) => {
                let mut client = client.lock().await;
                Connection::Server(client.get_async_connection_with_config(&config()).await?)
            }
        })
    }

    async fn recycle(
        &self,
        connection: &mut Connection,
        metrics: &Metrics,
    ) -> RecycleResult<RedisError> {
        if let (Self::Server(manager), Connection::Server(connection)) = (self, &mut *connection) {
            return deadpool::managed::Manager::recycle(manager, connection, metrics).await;
        }
        redis::cmd("PING").query_async::<()>(connection).await?;
        Ok(())
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Server(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Server(connection) => connection.req_packed_commands(cmd, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(cmd, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Server(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
