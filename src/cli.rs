//! What the three programs share: `--config`, `--format`, exit codes, and the one line that an error
//! prints.

use std::{
    io::{ErrorKind, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::{
    config::{ConfigError, Settings},
    postgres::describe,
};

/// The options of every program.
#[derive(Args, Debug, Clone)]
pub struct Common {
    /// Settings file (TOML); `cleanupctl config` prints a commented one.
    #[arg(long, global = true, value_name = "FILE", env = "CLEANUP_CONFIG")]
    pub config: Option<PathBuf>,
}

impl Common {
    /// Loads the settings and starts logging as configured.
    pub fn settings(&self) -> Result<Settings, ConfigError> {
        let settings = crate::config::load(self.config.as_deref())?;
        crate::telemetry::start(&settings.log);
        for exposed in settings.exposed_secrets() {
            tracing::warn!("{exposed}");
        }
        Ok(settings)
    }
}

/// The format of results on stdout.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object, and nothing else on stdout.
    Json,
}

/// Prints a result, as text by `show` or as one JSON object. Returns false if stdout is closed.
pub fn print<T: Serialize>(format: Format, value: &T, show: impl FnOnce(&T) -> String) -> bool {
    match format {
        Format::Text => say(&show(value)),
        Format::Json => match serde_json::to_string(value) {
            Ok(json) => say(&json),
            Err(error) => output_failed(&error.to_string()),
        },
    }
}

/// Set when a result could not be printed: the work is done, but the exit code must not be 0.
static OUTPUT_FAILED: AtomicBool = AtomicBool::new(false);

/// Prints a line of the result on stdout. Returns false if stdout is closed. A reader that stops
/// reading (`| head -1`) is no error.
pub fn say(line: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(format!("{line}\n").as_bytes()).and_then(|()| stdout.flush());
    match written {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => false,
        Err(error) => output_failed(&error.to_string()),
    }
}

fn output_failed(reason: &str) -> bool {
    OUTPUT_FAILED.store(true, Ordering::Release);
    complain("stdout", &format!("cannot print the result: {reason}"));
    false
}

/// Runs a program and returns its exit code. A failure prints one line on stderr; the code is 2 for a
/// config error, else 1.
pub async fn exit(program: &str, run: impl Future<Output = anyhow::Result<u8>>) -> ExitCode {
    crate::failpoint::arm();
    match run.await {
        Ok(0) if OUTPUT_FAILED.load(Ordering::Acquire) => ExitCode::from(1),
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain(program, &one_line(&error));
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
        }
    }
}

/// Formats an error with its causes on one line.
fn one_line(error: &anyhow::Error) -> String {
    let mut parts = Vec::new();
    for cause in error.chain() {
        // The driver itself prints just "db error", and its cause again.
        if let Some(error) = cause.downcast_ref() {
            parts.push(describe(error));
            break;
        }
        parts.push(cause.to_string());
    }
    parts.join(": ")
}

/// Prints one line of error on stderr.
pub fn complain(program: &str, error: &str) {
    print_note(&format!("{program}: {error}"));
}

/// Prints a line on stderr with one write, because several processes may share a log. If it cannot be
/// written, the work goes on.
pub fn print_note(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};
    use deadpool_postgres::PoolError;

    use super::*;
    use crate::postgres::PgError;

    fn postgres_error() -> tokio_postgres::Error {
        "host=a port=b".parse::<tokio_postgres::Config>().expect_err("not a port")
    }

    #[test]
    fn an_error_of_the_pool_is_printed_without_the_words_of_the_pool() {
        let pool = || PgError::from(PoolError::Backend(postgres_error()));
        let bare = anyhow::Error::from(pool());
        let with_context = Err::<(), _>(pool()).context("seed");
        for error in [bare, with_context.expect_err("an error")] {
            let line = one_line(&error);
            assert!(line.contains("invalid value for option `port`"), "{line}");
            assert!(!line.contains("new object"), "{line}");
        }
    }

    #[test]
    fn other_errors_are_printed_with_all_their_causes() {
        let error = anyhow!("no such file").context("cannot read a.toml").context("start");
        assert_eq!(one_line(&error), format!("{error:#}"));
    }
}
