//! Connects to one of several hosts: tries them in order, each for a few seconds, until one accepts
//! writes. That is how a run finds the new primary after a failover.

use std::{error::Error as _, io, pin::Pin, time::Duration};

use deadpool_postgres::{ClientWrapper, Connect, HookError};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinHandle,
    time::timeout,
};
use tokio_postgres::{
    Client, Config, Connection, Error, NoTls, SimpleQueryMessage,
    config::{Host, LoadBalanceHosts, TargetSessionAttrs},
    error::SqlState,
};
use tracing::info;

use super::{CONNECT_TIMEOUT, Target, acknowledged::run, server::Server, untried::not_tried};

const NO_TRANSACTION_TIMEOUT: &str = sql!("session/no_transaction_timeout");
const READ_ONLY: &str = sql!("session/read_only");

type Connected = (Client, JoinHandle<()>);

impl Target {
    /// Opens one connection outside the pool.
    pub async fn connect(&self) -> Result<Client, Error> {
        self.connect_to_any().await.map(|(client, _)| client)
    }

    /// Returns how long it may take to try every host.
    pub fn connect_timeout(&self) -> Duration {
        let each = CONNECT_TIMEOUT + self.password_timeout();
        each * u32::try_from(number(&self.server().config) + 1).unwrap_or(u32::MAX)
    }

    /// Tries the hosts one by one. tokio-postgres does so as well, but hangs with the first host that
    /// accepts a connection and never answers: a primary with a stuck disk would keep us from the new one.
    async fn connect_to_any(&self) -> Result<Connected, Error> {
        let server = match self.read_again() {
            Ok(server) => server,
            Err(error) => return Err(not_tried(error.into()).await),
        };
        let mut hosts = one_by_one(&server.config);
        if server.config.get_load_balance_hosts() == LoadBalanceHosts::Random {
            fastrand::shuffle(&mut hosts);
        }
        let last = hosts.pop().unwrap_or_else(|| server.config.clone());
        let mut read_only = None;
        for host in hosts {
            // As a host that is away: the next one may have a password.
            let Ok(host) = self.with_password(host).await else { continue };
            match timeout(CONNECT_TIMEOUT, self.connect_to(&server, &host)).await {
                Ok(Ok(connected)) => return Ok(connected),
                // More helpful than the errors of hosts that are unavailable.
                Ok(Err(error)) if is_read_only(&error) => read_only = Some(error),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        // The caller has its own timeout for the last host.
        let last = self.with_password(last).await?;
        self.connect_to(&server, &last).await.map_err(|error| read_only.unwrap_or(error))
    }

    /// Adds what is not in the URL.
    async fn with_password(&self, mut host: Config) -> Result<Config, Error> {
        if self.only_reads {
            host.target_session_attrs(TargetSessionAttrs::Any);
        }
        if host.get_password().is_none() {
            match self.password(&host).await {
                Ok(password) => password.map(|password| host.password(password)),
                Err(problem) => return Err(not_tried(problem).await),
            };
        }
        Ok(host)
    }

    async fn connect_to(&self, server: &Server, host: &Config) -> Result<Connected, Error> {
        match &server.tls {
            Some(tls) => begin(host.connect(tls.clone()).await?).await,
            None => begin(host.connect(NoTls).await?).await,
        }
    }

    /// Checks a pooled connection before it is used again: its server may have been demoted behind a
    /// pooler, or made read-only. The pool then drops it, and opens the next one on the host that accepts
    /// writes now.
    pub(super) async fn still_good(&self, client: &ClientWrapper) -> Result<(), HookError> {
        let answer = timeout(CONNECT_TIMEOUT, client.simple_query(READ_ONLY)).await;
        let answer = answer.map_err(|_| HookError::message("no answer"))?;
        let is_on = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("on"),
            _ => false,
        };
        let read_only = answer.map_err(HookError::Backend)?.iter().any(is_on);
        let attrs = self.server().config.get_target_session_attrs();
        if read_only && !self.only_reads && attrs == TargetSessionAttrs::ReadWrite {
            info!("dropping a connection: its server no longer accepts writes");
            return Err(HookError::message("the server no longer accepts writes"));
        }
        Ok(())
    }
}

/// Starts a session, and sets transaction_timeout, which only newer servers know: an older one would
/// refuse it in the startup options of a session.
async fn begin<S, T>((client, connection): (Client, Connection<S, T>)) -> Result<Connected, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let version = connection.parameter("server_version").unwrap_or_default();
    let major = version.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    let has_transaction_timeout = major.parse().is_ok_and(|major: u32| major >= 17);
    let task = tokio::spawn(run(connection));
    if has_transaction_timeout {
        client.batch_execute(NO_TRANSACTION_TIMEOUT).await?;
    }
    Ok((client, task))
}

impl Connect for Target {
    fn connect(
        &self,
        _: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<Connected, Error>> + Send + '_>> {
        Box::pin(self.connect_to_any())
    }
}

/// Returns whether the server accepts no writes: it is a standby, or was made read-only.
pub fn is_read_only(error: &Error) -> bool {
    // By the driver itself, for `target_session_attrs`; an error of the system has a number.
    let refused = |cause: &io::Error| {
        cause.kind() == io::ErrorKind::PermissionDenied && cause.raw_os_error().is_none()
    };
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) || cause.is_some_and(refused)
}

/// Returns a configuration for each host alone.
fn one_by_one(config: &Config) -> Vec<Config> {
    (0..number(config)).map(|place| for_host(config, place)).collect()
}

/// Returns the number of hosts.
fn number(config: &Config) -> usize {
    config.get_hosts().len().max(config.get_hostaddrs().len())
}

/// Copies the configuration with only the host at this place.
fn for_host(config: &Config, place: usize) -> Config {
    let mut one = Config::new();
    match config.get_hosts().get(place) {
        Some(Host::Tcp(name)) => drop(one.host(name)),
        Some(Host::Unix(path)) => drop(one.host_path(path)),
        None => {}
    }
    config.get_hostaddrs().get(place).map(|address| one.hostaddr(*address));
    let ports = config.get_ports();
    ports.get(place).or(ports.first()).map(|port| one.port(*port));
    config.get_user().map(|user| one.user(user));
    config.get_password().map(|password| one.password(password));
    config.get_dbname().map(|name| one.dbname(name));
    config.get_options().map(|options| one.options(options));
    config.get_application_name().map(|name| one.application_name(name));
    config.get_connect_timeout().map(|time| one.connect_timeout(*time));
    config.get_tcp_user_timeout().map(|time| one.tcp_user_timeout(*time));
    config.get_keepalives_interval().map(|time| one.keepalives_interval(time));
    config.get_keepalives_retries().map(|tries| one.keepalives_retries(tries));
    one.keepalives(config.get_keepalives()).keepalives_idle(config.get_keepalives_idle());
    one.ssl_mode(config.get_ssl_mode()).ssl_negotiation(config.get_ssl_negotiation());
    one.target_session_attrs(config.get_target_session_attrs());
    one.channel_binding(config.get_channel_binding());
    one
}
