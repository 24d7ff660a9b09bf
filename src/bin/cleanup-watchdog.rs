//! Resets the claims of dead workers, and serves health and metrics.

use std::process::ExitCode;

use clap::Parser;
use paste_cleanup::{cli, watchdog::cli::WatchdogCli};

#[tokio::main]
async fn main() -> ExitCode {
    cli::exit("cleanup-watchdog", WatchdogCli::parse().run()).await
}
