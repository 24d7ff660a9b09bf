//! Erases expired pastes: `run` drains the backlog once, `schedule` on a cron expression.

use std::process::ExitCode;

use clap::Parser;
use paste_cleanup::{cli, worker::cli::WorkerCli};

#[tokio::main]
async fn main() -> ExitCode {
    cli::exit("cleanup-worker", WorkerCli::parse().run()).await
}
