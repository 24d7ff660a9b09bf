//! Connections to Postgres: how they are opened, which settings every session has, and how errors are
//! classified and described.

mod acknowledged;
pub mod bisect;
mod column;
mod error;
mod fault;
mod hosts;
pub mod planner;
mod pooler;
mod session;

use std::{
    fmt::{Display, Write as _},
    time::Duration,
};

use anyhow::Result;
pub use column::{Unreadable, read};
use deadpool_postgres::{Hook, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
pub use error::{PgError, answered, describe, is_permanent, is_row_security, remedy};
pub use fault::Fault;
pub use hosts::is_read_only;
use secrecy::ExposeSecret;
use tokio_postgres::{
    Client, Config,
    config::{Host, SslMode, TargetSessionAttrs},
};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

use crate::{
    config::{ConfigError, Settings},
    printable::printable,
    problem::Problem,
    tls::{self, Verify},
};

/// A server that neither answers nor closes the connection must not hang a worker forever. Longer than
/// the server's own timeout (60 s), so that no statement is abandoned while it is running. The connection
/// is tested before it is used again.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(75);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for a connection that another task of the process uses.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Where and how to connect. Never prints the password.
#[derive(Clone)]
pub struct Target {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    /// The schema that `search_path` is set to, if the settings name one.
    schema: Option<String>,
}

impl Target {
    /// Reads the settings. `program` and `worker` become the `application_name` in pg_stat_activity.
    pub fn new(
        settings: &Settings,
        program: &str,
        worker: Option<Uuid>,
    ) -> Result<Self, ConfigError> {
        let (url, verify) = split_sslmode(settings.postgres_url()?.expose_secret());
        let mut config: Config = url.parse().map_err(|error| bad_url(&error))?;
        if has_loose_at(&url) || !config.get_hosts().iter().all(is_host) {
            return Err(invalid_url(": percent-encode special characters in user and password"));
        }
        let name = worker.map_or(program.to_string(), |id| format!("{program} {id}"));
        config.application_name(name).connect_timeout(CONNECT_TIMEOUT);
        config.keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(5)).keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(20));
        // All programs write, so a standby among the hosts is skipped.
        if !url.contains("target_session_attrs") {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly {
            return Err(invalid_url(": all programs write; remove target_session_attrs=read-only"));
        }
        let schema = settings.postgres_schema().map(str::to_string);
        let options = session::options(config.get_options(), schema.as_deref());
        config.options(options);
        let verify = match verify {
            Some(verify) => {
                config.ssl_mode(SslMode::Require);
                verify
            }
            None if settings.postgres.ca_file.is_some() => Verify::Chain,
            None => Verify::Nothing,
        };
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => Some(tls::client_config(verify, settings.postgres.ca_file.as_deref())?),
        };
        Ok(Self { config, tls: tls.map(MakeRustlsConnect::new), schema })
    }

    /// For a program that only reads: accepts a server that accepts no writes.
    pub fn for_reading(mut self) -> Self {
        self.config.target_session_attrs(TargetSessionAttrs::Any);
        self
    }

    /// Creates a pool of up to `size` connections.
    pub fn pool(&self, size: usize) -> Result<Pool> {
        let how = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(self.config.clone(), self.clone(), how);
        let target = self.clone();
        let still_good = Hook::async_fn(move |client, _| {
            let target = target.clone();
            Box::pin(async move { target.still_good(client).await })
        });
        Ok(Pool::builder(manager)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT_TIMEOUT))
            .create_timeout(Some(self.connect_timeout()))
            .recycle_timeout(Some(CONNECT_TIMEOUT))
            .post_recycle(still_good)
            .build()?)
    }

    /// Opens a connection and checks its session, within seconds. Every program starts with it.
    pub async fn open(&self) -> Result<Client, Problem> {
        let opening = async {
            let client = self.connect().await.map_err(|error| self.explain(error))?;
            pooler::check_maker(self, &client).await?;
            session::check_settings(self, &client).await?;
            Ok::<_, Problem>(client)
        };
        let opened = tokio::time::timeout(self.connect_timeout(), opening).await;
        let client = opened.map_err(|_| {
            let within = humantime::format_duration(self.connect_timeout());
            self.problem(
                format!("no answer within {within}"),
                "check that a Postgres server listens there and answers",
            )
        })??;
        session::check_unshared(self, &client).await?;
        Ok(client)
    }

    /// Returns host, port and database for messages; never user or password.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let ports = self.config.get_ports();
        for (place, host) in self.config.get_hosts().iter().enumerate() {
            let port = ports.get(place).or(ports.first()).copied().unwrap_or(5432);
            let separator = if place == 0 { "" } else { "," };
            let _ = match host {
                Host::Tcp(name) => write!(text, "{separator}{name}:{port}"),
                Host::Unix(path) => {
                    write!(text, "{separator}{}:{port}", path.display())
                }
            };
        }
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or("postgres");
        format!("Postgres at {}, database {database:?}", printable(&text))
    }

    /// Names the server in a problem.
    fn problem(&self, problem: impl Display, remedy: impl Into<String>) -> Problem {
        Problem::new(format!("{}: {problem}", self.describe()), remedy)
    }

    /// Returns what failed on which server, and what to do.
    pub fn explain(&self, error: tokio_postgres::Error) -> Problem {
        let refused_by = self.refused_by(&error);
        let Problem { problem, remedy } = error.into();
        match refused_by {
            Some(pooler) => {
                let problem = format!("{} refuses our sessions: {problem}", pooler.name());
                self.problem(problem, pooler.remedy())
            }
            None => self.problem(problem, remedy),
        }
    }
}

/// Makes every connection prepare its statements again. After an ALTER of a column, a statement that was
/// prepared before fails with 0A000 until then.
pub fn forget_statements(pool: &Pool) {
    pool.manager().statement_caches.clear();
}

/// Splits off `sslmode=verify-…`, which tokio-postgres does not know: both are `require` plus a verifier.
fn split_sslmode(url: &str) -> (String, Option<Verify>) {
    for (mode, verify) in [("verify-full", Verify::Full), ("verify-ca", Verify::Chain)] {
        let option = format!("sslmode={mode}");
        if url.contains(&option) {
            return (url.replace(&option, "sslmode=require"), Some(verify));
        }
    }
    (url.to_string(), None)
}

/// Returns whether the URL has an unescaped `@`: a part of the password would be taken for the host or
/// the database, and printed.
fn has_loose_at(url: &str) -> bool {
    let address = url.split('?').next().unwrap_or_default();
    address.starts_with("postgres") && address.matches('@').count() > 1
}

fn is_host(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => name.chars().all(|c| c.is_alphanumeric() || "-._:".contains(c)),
        Host::Unix(_) => true,
    }
}

/// Describes an invalid URL. The parser's message may quote a part of the URL, so only messages without
/// secrets are kept.
fn bad_url(error: &tokio_postgres::Error) -> ConfigError {
    use std::error::Error as _;
    let reason = error.source().map(ToString::to_string).unwrap_or_default();
    // The parser has no type for this one.
    let known = reason.starts_with("invalid value for option");
    let reason = if known { format!(": {reason}") } else { String::new() };
    invalid_url(&reason)
}

fn invalid_url(reason: &str) -> ConfigError {
    ConfigError::new(
        format!(
            "postgres.url (DATABASE_URL or CLEANUP_POSTGRES_URL) is not a valid Postgres URL{reason}"
        ),
        "write postgres://user:password@host:5432/database",
    )
}
