//! Opens the connections of the pool: to one server, to a Cluster, or to the master that the Sentinels
//! name.

use std::sync::Arc;

use deadpool::managed::{Metrics, RecycleResult};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, IntoConnectionInfo, Pipeline, RedisError,
    RedisFuture, RedisResult, TlsCertificates, TlsMode, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};

use secrecy::ExposeSecret as _;

use super::{
    TIMEOUT,
    address::{Address, FORMS, Sentinels},
};
use crate::{
    config::{self, ConfigError},
    mutex::Mutex,
    printable::printable,
};

/// Opens and checks connections.
pub(crate) struct Manager {
    settings: config::Redis,
    /// The servers as the settings and their files named them last.
    servers: Mutex<Arc<Servers>>,
}

/// What connections are opened to.
enum Servers {
    Single(deadpool_redis::Manager),
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
    pub(super) fn new(settings: &config::Redis) -> Result<Self, ConfigError> {
        let servers = Mutex::new(Servers::read(settings)?.into());
        Ok(Self { settings: settings.clone(), servers })
    }

    fn servers(&self) -> Arc<Servers> {
        Arc::clone(&self.servers.lock())
    }

    /// Reads the files of the settings again, which may have been replaced.
    fn read_again(&self) -> Result<Arc<Servers>, ConfigError> {
        if self.settings.has_files() {
            *self.servers.lock() = Servers::read(&self.settings)?.into();
        }
        Ok(self.servers())
    }

    /// Returns whether the servers replace a master that has died.
    pub(super) fn fails_over(&self) -> bool {
        !matches!(*self.servers(), Servers::Single(_))
    }

    /// Returns whether the keys are spread over several servers.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(*self.servers(), Servers::Cluster(_))
    }
}

impl Servers {
    fn read(settings: &config::Redis) -> Result<Self, ConfigError> {
        let url = settings.current_url()?;
        let url = url.expose_secret();
        let address = Address::read(url).ok_or_else(invalid_url)?;
        let tls = certificates(settings, url)?;
        if address.urls().iter().any(|url| url.into_connection_info().is_err()) {
            return Err(invalid_url());
        }
        Self::at(&address, tls).map_err(|_| match has_certificates(settings) {
            true => ConfigError::new(
                "redis.ca_file, redis.client_cert_file or redis.client_key_file is not valid PEM",
                "correct it",
            ),
            false => invalid_url(),
        })
    }

    fn at(address: &Address, tls: Option<TlsCertificates>) -> RedisResult<Self> {
        Ok(match address {
            Address::Server(url) => {
                let client = match tls {
                    Some(tls) => Client::build_with_tls(url.as_str(), tls)?,
                    None => Client::open(url.as_str())?,
                };
                let info = client.get_connection_info().clone();
                Self::Single(deadpool_redis::Manager::new_with_config(info, timeouts())?)
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
            Address::Sentinel(sentinels) => {
                Self::Sentinel(tokio::sync::Mutex::new(sentinel(sentinels, tls)?))
            }
        })
    }

    async fn connect(&self) -> RedisResult<Connection> {
        Ok(match self {
            Self::Single(manager) => {
                Connection::Server(deadpool::managed::Manager::create(manager).await?)
            }
            Self::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
            Self::Sentinel(client) => {
                let mut client = client.lock().await;
                Connection::Server(client.get_async_connection_with_config(&timeouts()).await?)
            }
        })
    }
}

fn timeouts() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT))
}

fn sentinel(named: &Sentinels, tls: Option<TlsCertificates>) -> RedisResult<SentinelClient> {
    let addresses: RedisResult<Vec<_>> = named
        .urls
        .iter()
        .map(|url| Ok(url.as_str().into_connection_info()?.addr().clone()))
        .collect();
    let mut builder =
        SentinelClientBuilder::new(addresses?, &named.master, SentinelServerType::Master)?;
    let login = named.login.as_str().into_connection_info()?;
    let redis = login.redis_settings();
    builder = builder.set_client_to_redis_db(redis.db());
    if let Some(user) = redis.username() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = redis.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(user) = &named.own_user {
        builder = builder.set_client_to_sentinel_username(user);
    }
    if let Some(password) = &named.own_password {
        builder = builder.set_client_to_sentinel_password(password);
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

fn has_certificates(settings: &config::Redis) -> bool {
    settings.ca_file.is_some() || settings.client_cert_file.is_some()
}

/// Reads the CA and the client certificate.
fn certificates(
    settings: &config::Redis,
    url: &str,
) -> Result<Option<TlsCertificates>, ConfigError> {
    let files = [
        ("redis.ca_file", &settings.ca_file),
        ("redis.client_cert_file", &settings.client_cert_file),
        ("redis.client_key_file", &settings.client_key_file),
    ];
    let [ca, certificate, key] = files.map(|(key, path)| {
        let Some(path) = path else { return Ok(None) };
        if !url.starts_with("rediss") {
            let problem = format!("{key} is set, but redis.url does not start with rediss");
            return Err(ConfigError::invalid(problem));
        }
        std::fs::read(path).map(Some).map_err(|error| {
            let path = printable(&path.display().to_string());
            ConfigError::invalid(format!("{key} {path} cannot be read: {error}"))
        })
    });
    let (root_cert, certificate, key) = (ca?, certificate?, key?);
    let client_tls = certificate
        .zip(key)
        .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    let is_any = root_cert.is_some() || client_tls.is_some();
    Ok(is_any.then_some(TlsCertificates { client_tls, root_cert }))
}

/// Without the parser's own message, which may quote the URL and its password.
fn invalid_url() -> ConfigError {
    let problem = "redis.url (REDIS_URL, CLEANUP_REDIS_URL, or one of them with _FILE) is not a valid \
                   Redis URL";
    ConfigError::new(problem, FORMS)
}

impl deadpool::managed::Manager for Manager {
    type Type = Connection;
    type Error = RedisError;

    async fn create(&self) -> RedisResult<Connection> {
        let servers = self.read_again().map_err(|error| {
            let (kind, what) = (redis::ErrorKind::InvalidClientConfig, "cannot connect to Redis");
            RedisError::from((kind, what, error.to_string()))
        })?;
        servers.connect().await
    }

    async fn recycle(
        &self,
        connection: &mut Connection,
        metrics: &Metrics,
    ) -> RecycleResult<RedisError> {
        if let (Servers::Single(manager), Connection::Server(connection)) =
            (&*self.servers(), &mut *connection)
        {
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
