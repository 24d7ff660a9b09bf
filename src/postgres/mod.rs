//! Connections to Postgres: how they are opened, which settings every session has, and how errors are
//! classified and described.

mod acknowledged;
pub mod bisect;
mod column;
mod error;
mod fault;
mod hosts;
mod passfile;
mod password;
pub mod planner;
mod pooler;
mod server;
mod session;
mod untried;

use std::{
    fmt::{Display, Write as _},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
pub use column::{Unreadable, read};
use deadpool_postgres::{Hook, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
pub use error::{PgError, answered, describe, is_permanent, is_row_security, remedy};
pub use fault::Fault;
pub use hosts::is_read_only;
use tokio_postgres::{Client, Config, config::Host};
use uuid::Uuid;

use self::server::Server;
use crate::{
    config::{self, ConfigError, Settings},
    mutex::Mutex,
    printable::printable,
    problem::Problem,
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
    settings: config::Postgres,
    /// The `application_name` in pg_stat_activity.
    name: String,
    /// The server as the settings and their files named it last.
    server: Arc<Mutex<Arc<Server>>>,
    /// Accepts a server that accepts no writes.
    only_reads: bool,
}

impl Target {
    /// Reads the settings. `program` and `worker` become the `application_name` in pg_stat_activity.
    pub fn new(
        settings: &Settings,
        program: &str,
        worker: Option<Uuid>,
    ) -> Result<Self, ConfigError> {
        let settings = settings.postgres.clone();
        let name = worker.map_or(program.to_string(), |id| format!("{program} {id}"));
        let server = Mutex::new(Server::read(&settings, &name)?.into()).into();
        Ok(Self { settings, name, server, only_reads: false })
    }

    /// Returns the server as it was read last.
    fn server(&self) -> Arc<Server> {
        Arc::clone(&self.server.lock())
    }

    /// Reads the files of the settings again, which may have been replaced.
    fn read_again(&self) -> Result<Arc<Server>, ConfigError> {
        if self.settings.has_files() {
            let server = Server::read(&self.settings, &self.name)?;
            server.check_replaces(&self.server())?;
            *self.server.lock() = server.into();
        }
        Ok(self.server())
    }

    /// For a program that only reads: accepts a server that accepts no writes.
    pub fn for_reading(mut self) -> Self {
        self.only_reads = true;
        self
    }

    /// Creates a pool of up to `size` connections.
    pub fn pool(&self, size: usize) -> Result<Pool> {
        let how = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(Config::new(), self.clone(), how);
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
            pooler::check_vendor(self, &client).await?;
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
        let (server, mut text) = (self.server(), String::new());
        let ports = server.config.get_ports();
        for (place, host) in server.config.get_hosts().iter().enumerate() {
            let port = ports.get(place).or(ports.first()).copied().unwrap_or(5432);
            let separator = if place == 0 { "" } else { "," };
            let _ = match host {
                Host::Tcp(name) => write!(text, "{separator}{name}:{port}"),
                Host::Unix(path) => {
                    write!(text, "{separator}{}:{port}", path.display())
                }
            };
        }
        let database =
            server.config.get_dbname().or(server.config.get_user()).unwrap_or("postgres");
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
                let problem = format!("{} refuses the session: {problem}", pooler.name());
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
