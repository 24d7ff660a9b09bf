//! Connections to Postgres: how they are made, what every session promises, whose fault an error is.

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

pub use session::STATEMENT_TIMEOUT;

use crate::{
    config::Settings,
    printable::printable,
    tls::{self, Verify},
};

/// A server that neither answers nor closes must not hang a worker for good. Longer than the
/// server's own timeout (60 s): nothing that is still going on is given up. The connection is
/// tested before it is used again.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(75);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where and how to connect; keeps the password to itself.
#[derive(Clone)]
pub struct Target {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    /// What `search_path` is set to, if the settings name a schema.
    schema: Option<String>,
}

impl Target {
    /// From the settings. `program` and `worker` end up in `application_name`, for pg_stat_activity.
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
        // All programs write, so a standby among the hosts is passed by.
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

    /// For who only looks: a server that takes no writes will do.
    pub fn for_reading(mut self) -> Self {
        self.config.target_session_attrs(TargetSessionAttrs::Any);
        self
    }

    /// A pool of up to `size` connections.
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

    /// A connection that is what we need within seconds, or one line that says why not. Every
    /// program begins with it.
    pub async fn open(&self) -> Result<Client> {
        let opening = async {
            let client = self.connect().await.map_err(|error| self.explain(&error))?;
            session::check(self, &client).await?;
            Ok(client)
        };
        match tokio::time::timeout(self.connect_timeout(), opening).await {
            Ok(opened) => opened,
            Err(_) => Err(anyhow!(
                "{}: no answer within {:?}; check that it is Postgres, and not frozen",
                self.describe(),
                self.connect_timeout()
            )),
        }
    }

    /// Host, port and database for messages; never user or password.
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

    /// One line that says what failed and what to do about it.
    pub fn explain(&self, error: &tokio_postgres::Error) -> anyhow::Error {
        anyhow!("{}: {}; {}", self.describe(), describe(error), remedy(error))
    }
}

/// What to do about an error.
pub fn remedy(error: &tokio_postgres::Error) -> &'static str {
    match error.code() {
        _ if is_read_only(error) => {
            "it is a standby or was made read-only: name the primary, too, in DATABASE_URL or \
             CLEANUP_POSTGRES_URL (several hosts are fine), or switch \
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
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => "grant the role of sql/roles.sql",
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN) => {
            "run `cleanupctl migrate`; `cleanupctl doctor` says what is missing"
        }
        Some(&SqlState::TOO_MANY_CONNECTIONS) => "raise max_connections, or run fewer workers",
        Some(_) => "see the server's log",
        None => "check that it runs and that DATABASE_URL or CLEANUP_POSTGRES_URL is right",
    }
}

/// The error with its cause, on one line. `tokio_postgres` alone says just "db error".
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

/// The innermost function that an error was raised in, a trigger's for instance: "relation content does
/// not exist" means something else there than in a statement of ours.
fn function(context: &str) -> Option<String> {
    let (_, rest) = context.split_once("PL/pgSQL function ")?;
    rest.split_once(" line ").map(|(name, _)| printable(name))
}

/// One line for an error of the pool or of Postgres behind it.
pub fn describe_pool(error: &PoolError) -> String {
    match error {
        PoolError::Backend(error) => describe(error),
        PoolError::Timeout(TimeoutType::Wait) => "no free connection within 30 s".into(),
        PoolError::Timeout(TimeoutType::Create) => "no connection in time".into(),
        PoolError::Timeout(TimeoutType::Recycle) => "no answer in time".into(),
        error => printable(&error.to_string()),
    }
}

/// Waits for an attempt, but not for ever. Nothing is cancelled on the server: when the time is up,
/// the answer counts as lost.
pub async fn answered<T, E: From<PoolError>>(
    attempt: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match tokio::time::timeout(ANSWER_WITHIN, attempt).await {
        Ok(answer) => answer,
        Err(_) => Err(E::from(PoolError::Timeout(TimeoutType::Recycle))),
    }
}

/// The server does not know a setting that the session was to be started with.
fn is_unknown_setting(error: &tokio_postgres::Error) -> bool {
    // By the place that raises it: the message comes in the server's language.
    let routine = error.as_db_error().and_then(|refusal| refusal.routine());
    matches!(routine, Some("find_option" | "set_config_option"))
}

/// Postgres refused to answer, because a policy would have left rows out of the answer.
pub fn is_row_security(error: &tokio_postgres::Error) -> bool {
    // By the place that raises it: the message comes in the server's language.
    error.as_db_error().is_some_and(|refusal| {
        refusal.code() == &SqlState::INSUFFICIENT_PRIVILEGE
            && refusal.routine() == Some("check_enable_rls")
    })
}

/// SQLSTATE class 42 (a missing privilege, table or column) does not heal by waiting.
pub fn is_permanent(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("42"))
}

/// tokio-postgres knows no `verify-…`; both are `require` plus a verifier.
fn split_sslmode(url: &str) -> Result<(String, Option<Verify>)> {
    for (mode, verify) in [("verify-full", Verify::Full), ("verify-ca", Verify::Chain)] {
        let asked = format!("sslmode={mode}");
        if url.contains(&asked) {
            return Ok((url.replace(&asked, "sslmode=require"), Some(verify)));
        }
    }
    Ok((url.to_string(), None))
}

/// A password with an `@` in it ends up in the "host" or in the "database", which would be printed.
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

/// The parser's message can quote a piece of the URL, so only what is known to be harmless is kept.
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
