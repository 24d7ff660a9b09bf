//! Logs to stderr, as text or JSON, above the progress bar if there is one.

use std::io::{IsTerminal, Write, stderr};

use indicatif::ProgressBar;
use tracing_subscriber::EnvFilter;

use crate::{
    config::{Log, LogFormat},
    mutex::Mutex,
    printable::one_line,
};

static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Starts logging.
pub fn start(log: &Log) {
    let mut filter = EnvFilter::try_new(&log.filter).unwrap_or_else(|_| EnvFilter::new("info"));
    // The library logs "Uninited" at every start.
    if !log.filter.contains("tokio_cron_scheduler")
        && let Ok(quiet) = "tokio_cron_scheduler=warn".parse()
    {
        filter = filter.add_directive(quiet);
    }
    let text = match log.format {
        LogFormat::Text => true,
        LogFormat::Json => false,
        LogFormat::Auto => stderr().is_terminal(),
    };
    // Errors of the log itself (a full disk, a closed pipe) are ignored: the work continues.
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_writer(|| AroundBar);
    // A second call, as in tests, is not an error.
    let _ = if text {
        lines.with_ansi(stderr().is_terminal()).with_target(false).try_init()
    } else {
        lines.json().flatten_event(true).try_init()
    };
}

/// Prints all later log lines above this progress bar.
pub fn show_bar(bar: ProgressBar) -> ProgressBar {
    *BAR.lock() = Some(bar.clone());
    bar
}

/// Returns whether a progress bar is shown, which makes some log lines redundant.
pub fn bar_is_shown() -> bool {
    BAR.lock().is_some()
}

/// Removes the progress bar.
pub fn hide_bar() {
    if let Some(bar) = BAR.lock().take() {
        bar.finish_and_clear();
    }
}

/// Writes to stderr without tearing the progress bar.
struct AroundBar;

impl Write for AroundBar {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let shown = one_line(&String::from_utf8_lossy(line));
        let bar = BAR.lock().clone();
        match bar {
            Some(bar) => bar.suspend(|| stderr().write_all(shown.as_bytes()))?,
            None => stderr().write_all(shown.as_bytes())?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        stderr().flush()
    }
}
