//! Connections to Postgres: how they are opened, which settings every session has, and how errors are
//! classified and described.

mod acknowledged;
pub mod bisect;
mod column;
mod fault;
mod hosts;
pub mod planner;
mod session;

use std::{fmt::Write as _, time::Duration};

use anyhow::{Result, anyhow};
pub use column::{Unreadable, read};
use deadpool_postgres::{
    Hook, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType,
};
pub use fault::Fault;
pub use hosts::is_read_only;
use secrecy::ExposeSecret;
use tokio_postgres::{
    Client, Config,
    config::{Host, SslMode, TargetSessionAttrs},
    error::SqlState,
};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

use crate::{
    config::Settings,
    printable::printable,
    tls::{self, Verify},
};

/// A server that neither answers nor closes the connection must not hang a worker forever. Longer than
/// the server's own timeout (60 s), so that no statement is abandoned while it is running. The connection
/// is tested before it is used again.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(75);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
    pub fn new(settings: &Settings, program: &str, worker: Option<Uuid>) -> Result<Self> {
        let (url, verify) = split_sslmode(settings.postgres_url()?.expose_secret())?;
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
            .wait_timeout(Some(Duration::from_secs(30)))
            .create_timeout(Some(self.connect_timeout()))
            .recycle_timeout(Some(CONNECT_TIMEOUT))
            .post_recycle(still_good)
            .build()?)
    }

    /// Opens a connection and checks its session, within seconds, or returns a one-line error. Every
    /// program starts with it.
    pub async fn open(&self) -> Result<Client> {
        let opening = async {
            let client = self.connect().await.map_err(|error| self.explain(&error))?;
            session::check_settings(self, &client).await?;
            Ok::<_, anyhow::Error>(client)
        };
        let opened = tokio::time::timeout(self.connect_timeout(), opening).await;
        let client = opened.map_err(|_| {
            anyhow!(
                "{}: no answer within {}; check that a Postgres server listens there and answers",
                self.describe(),
                humantime::format_duration(self.connect_timeout())
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

    /// Returns a one-line error: what failed, and what to do.
    pub fn explain(&self, error: &tokio_postgres::Error) -> anyhow::Error {
        anyhow!("{}: {}; {}", self.describe(), describe(error), remedy(error))
    }
}

/// Returns what to do about an error.
pub fn remedy(error: &tokio_postgres::Error) -> &'static str {
    match error.code() {
        _ if is_read_only(error) => {
            "it is a standby or was made read-only: name the primary, too, in DATABASE_URL or \
             CLEANUP_POSTGRES_URL (which may list several hosts), or switch \
             default_transaction_read_only off"
        }
        _ if session::is_refused_by_pooler(error) => session::POOLER_REMEDY,
        _ if is_row_security(error) => {
            "row-level security hides rows from this login: give it BYPASSRLS or a policy that \
             shows all rows"
        }
        Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
            "check user and password in DATABASE_URL or CLEANUP_POSTGRES_URL"
        }
        Some(&SqlState::UNDEFINED_OBJECT) if is_unknown_setting(error) => {
            "upgrade it to Postgres 15 or newer, or correct the options in DATABASE_URL or \
             CLEANUP_POSTGRES_URL"
        }
        Some(&SqlState::INVALID_CATALOG_NAME) => "create the database, or correct its name",
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            "grant cleanup_worker, cleanup_watchdog or cleanup_auditor to this login (`cleanupctl \
             migrate --roles` creates these roles)"
        }
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN) => {
            "run `cleanupctl migrate`; `cleanupctl doctor` lists what is missing"
        }
        Some(&SqlState::TOO_MANY_CONNECTIONS) => "raise max_connections, or run fewer workers",
        Some(_) => "see the server's log",
        None => "check that it runs, and that DATABASE_URL or CLEANUP_POSTGRES_URL is correct",
    }
}

/// Returns an error with its cause, on one line. `tokio_postgres` itself prints just "db error".
pub fn describe(error: &tokio_postgres::Error) -> String {
    use std::error::Error as _;
    if let Some(db) = error.as_db_error() {
        let place = db.where_().and_then(function).map(|name| format!(" in the function {name}"));
        let place = place.unwrap_or_default();
        return format!("{} (SQLSTATE {}){place}", printable(db.message()), db.code().code());
    }
    match error.source() {
        Some(cause) => printable(&format!("{error}: {cause}")),
        None => error.to_string(),
    }
}

/// Returns the innermost function that raised an error, for example a trigger's: "relation content does
/// not exist" has another cause there than in a statement of the fleet.
fn function(context: &str) -> Option<String> {
    let (_, rest) = context.split_once("PL/pgSQL function ")?;
    rest.split_once(" line ").map(|(name, _)| printable(name))
}

/// Returns an error of the pool, or of Postgres behind it, on one line.
pub fn describe_pool(error: &PoolError) -> String {
    match error {
        PoolError::Backend(error) => describe(error),
        PoolError::Timeout(TimeoutType::Wait) => {
            "no free Postgres connection within 30 s (postgres.pool_size)".into()
        }
        PoolError::Timeout(TimeoutType::Create) => "could not connect to Postgres in time".into(),
        PoolError::Timeout(TimeoutType::Recycle) => "Postgres did not answer in time".into(),
        error => printable(&error.to_string()),
    }
}

/// Waits for an attempt, up to [`ANSWER_WITHIN`]. Nothing is cancelled on the server: after that time,
/// the answer counts as lost.
pub async fn answered<T, E: From<PoolError>>(
    attempt: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match tokio::time::timeout(ANSWER_WITHIN, attempt).await {
        Ok(answer) => answer,
        Err(_) => Err(E::from(PoolError::Timeout(TimeoutType::Recycle))),
    }
}

/// Makes every connection prepare its statements again. After an ALTER of a column, a statement that was
/// prepared before fails with 0A000 until then.
pub fn forget_statements(pool: &Pool) {
    pool.manager().statement_caches.clear();
}

/// The server does not know a setting that the session was to be started with.
fn is_unknown_setting(error: &tokio_postgres::Error) -> bool {
    // By the routine that raises it: the message may be translated.
    let routine = error.as_db_error().and_then(|refusal| refusal.routine());
    matches!(routine, Some("find_option" | "set_config_option"))
}

/// Returns whether Postgres refused a query because a policy would have hidden rows.
pub fn is_row_security(error: &tokio_postgres::Error) -> bool {
    // By the routine that raises it: the message may be translated.
    error.as_db_error().is_some_and(|refusal| {
        refusal.code() == &SqlState::INSUFFICIENT_PRIVILEGE
            && refusal.routine() == Some("check_enable_rls")
    })
}

/// Returns whether an error is permanent: SQLSTATE class 42, a missing privilege, table or column, needs
/// an operator.
pub fn is_permanent(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("42"))
}

/// Splits off `sslmode=verify-…`, which tokio-postgres does not know: both are `require` plus a verifier.
fn split_sslmode(url: &str) -> Result<(String, Option<Verify>)> {
    for (mode, verify) in [("verify-full", Verify::Full), ("verify-ca", Verify::Chain)] {
        let option = format!("sslmode={mode}");
        if url.contains(&option) {
            return Ok((url.replace(&option, "sslmode=require"), Some(verify)));
        }
    }
    Ok((url.to_string(), None))
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
fn bad_url(error: &tokio_postgres::Error) -> anyhow::Error {
    use std::error::Error as _;
    let reason = error.source().map(ToString::to_string).unwrap_or_default();
    let known = reason.starts_with("invalid value for option");
    let reason = if known { format!(": {reason}") } else { String::new() };
    invalid_url(&reason)
}

fn invalid_url(reason: &str) -> anyhow::Error {
    anyhow::Error::new(crate::config::ConfigError::Invalid(format!(
        "postgres.url (DATABASE_URL or CLEANUP_POSTGRES_URL) is not a valid Postgres URL{reason}; \
         write postgres://user:password@host:5432/database"
    )))
}
