//! What the three programs have in common: `--config`, `--format`, exit codes, one line of error.

use std::{
    io::{ErrorKind, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::config::{ConfigError, Settings};

/// Options that every program has.
#[derive(Args, Debug, Clone)]
pub struct Common {
    /// Settings file (TOML); `cleanupctl config` prints one with every key explained.
    #[arg(long, global = true, value_name = "FILE", env = "CLEANUP_CONFIG")]
    pub config: Option<PathBuf>,
}

impl Common {
    /// The settings, with logging started as they say.
    pub fn settings(&self) -> Result<Settings, ConfigError> {
        let settings = crate::config::load(self.config.as_deref())?;
        crate::telemetry::start(&settings.log);
        Ok(settings)
    }
}

/// How results are printed on stdout.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For eyes.
    #[default]
    Text,
    /// One JSON object, and nothing else on stdout.
    Json,
}

/// Prints a result: as text by `show`, or as one JSON object.
/// False: nobody listens any more.
pub fn print<T: Serialize>(format: Format, value: &T, show: impl FnOnce(&T) -> String) -> bool {
    match format {
        Format::Text => say(&show(value)),
        Format::Json => match serde_json::to_string(value) {
            Ok(json) => say(&json),
            Err(error) => untold(&error.to_string()),
        },
    }
}

/// A result could not be printed: the work is done, and the exit code says that nobody was told.
static UNTOLD: AtomicBool = AtomicBool::new(false);

/// A line of the result. Whoever reads no further (`| head -1`) has heard enough. False: nobody
/// listens any more.
pub fn say(line: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    let said = stdout.write_all(format!("{line}\n").as_bytes()).and_then(|()| stdout.flush());
    match said {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => false,
        Err(error) => untold(&error.to_string()),
    }
}

fn untold(reason: &str) -> bool {
    UNTOLD.store(true, Ordering::Release);
    complain("stdout", &format!("the result cannot be printed: {reason}"));
    false
}

/// Runs a program's `main`: one line on stderr when it fails, 2 for config, 1 for the rest.
pub async fn exit(program: &str, run: impl Future<Output = anyhow::Result<u8>>) -> ExitCode {
    crate::failpoint::arm();
    match run.await {
        Ok(0) if UNTOLD.load(Ordering::Acquire) => ExitCode::from(1),
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain(program, &format!("{error:#}"));
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
        }
    }
}

/// One line of error.
pub fn complain(program: &str, error: &str) {
    remark(&format!("{program}: {error}"));
}

/// A line on stderr, in one piece: several processes may share a log. If it cannot be written, the
/// work goes on all the same.
pub fn remark(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
