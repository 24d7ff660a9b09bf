//! The password of a connection whose URL has none: from a command, or from where libpq would take it.

use std::{
    process::{ExitStatus, Output, Stdio},
    time::Duration,
};

use tokio::{process::Command, time::timeout};
use tokio_postgres::{Config, config::Host};

use super::{Target, passfile};
use crate::{printable::printable, problem::Problem};

/// Time limit of `postgres.password_command`.
const COMMAND_WITHIN: Duration = Duration::from_secs(10);
const REMEDY: &str = "run the command by hand, as the user of this program, to see why";

impl Target {
    /// Returns how much longer a connection may take because of its password.
    pub(super) fn password_timeout(&self) -> Duration {
        match self.settings.password_command() {
            Some(_) => COMMAND_WITHIN,
            None => Duration::ZERO,
        }
    }

    /// Returns the password for this host, if there is one.
    pub(super) async fn password(&self, host: &Config) -> Result<Option<Vec<u8>>, Problem> {
        if let Some(command) = self.settings.password_command() {
            return run(command, host).await.map(Some);
        }
        let variable = std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty());
        Ok(variable.map(String::into_bytes).or_else(|| passfile::password(host)))
    }
}

async fn run(command: &str, host: &Config) -> Result<Vec<u8>, Problem> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).kill_on_drop(true);
    for (variable, value) in ["PGHOST", "PGPORT", "PGDATABASE", "PGUSER"].iter().zip(address(host))
    {
        shell.env(variable, value);
    }
    let problem = |text: String| Problem::new(format!("postgres.password_command {text}"), REMEDY);
    let Ok(ended) = timeout(COMMAND_WITHIN, shell.output()).await else {
        return Err(problem(format!("did not end within {COMMAND_WITHIN:?}")));
    };
    let Output { status, mut stdout, stderr } =
        ended.map_err(|error| problem(format!("cannot be started: {error}")))?;
    while stdout.last().is_some_and(u8::is_ascii_whitespace) {
        stdout.pop();
    }
    match status.success() {
        true if !stdout.is_empty() => Ok(stdout),
        true => Err(problem(format!("printed no password ({})", how(status, &stderr)))),
        false => Err(problem(format!("failed ({})", how(status, &stderr)))),
    }
}

/// Returns the exit code and the first line of stderr. Never what the command printed on stdout: it may
/// be the password.
fn how(status: ExitStatus, stderr: &[u8]) -> String {
    let ended = match status.code() {
        // The shell's own message quotes the command, which may have been a password by mistake.
        Some(code @ (126 | 127)) => return format!("exit code {code}: the shell cannot run it"),
        Some(code) => format!("exit code {code}"),
        None => "killed by a signal".into(),
    };
    match String::from_utf8_lossy(stderr).lines().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{ended}: {}", printable(line.trim())),
        None => ended,
    }
}

/// Returns host, port, database and user, with the defaults of libpq.
pub(super) fn address(host: &Config) -> [String; 4] {
    let name = match (host.get_hosts().first(), host.get_hostaddrs().first()) {
        (Some(Host::Tcp(name)), _) => name.clone(),
        (Some(Host::Unix(path)), _) => path.display().to_string(),
        (None, Some(address)) => address.to_string(),
        (None, None) => String::new(),
    };
    let port = host.get_ports().first().copied().unwrap_or(5432);
    let user = host.get_user().map(str::to_string).or_else(|| std::env::var("USER").ok());
    let user = user.unwrap_or_default();
    let database = host.get_dbname().unwrap_or(&user).to_string();
    [name, port.to_string(), database, user]
}
