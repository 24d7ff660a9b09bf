//! The operator CLI of the fleet.

use std::process::ExitCode;

use clap::Parser;
use paste_cleanup::{cli, ctl::CtlCli};

#[tokio::main]
async fn main() -> ExitCode {
    cli::exit("cleanupctl", CtlCli::parse().run()).await
}
