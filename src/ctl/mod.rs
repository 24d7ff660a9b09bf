//! `cleanupctl`, the operator's operator CLI: one subcommand per file.

mod audit;
mod config;
mod dead_letters;
mod doctor;
mod explain;
mod migrate;
mod pause;
mod reset;
mod seed;
mod status;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tokio_postgres::Client;

use crate::{cli::Common, config::Settings, postgres::Target};

/// The operator's operator CLI for the paste cleanup fleet.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100, after_help = HELP)]
pub struct CtlCli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = "\
Exit codes: 0 done; 1 failed; 2 usage or config.

Examples:
  cleanupctl migrate                 create or adopt the tables, online
  cleanupctl doctor                  is everything as it should be?
  cleanupctl seed --pastes 20000     make test data, with real objects
  cleanupctl status                  how is the fleet doing?
  cleanupctl explain SHORT_CODE      why is this paste still there?
  cleanupctl audit                   do bucket and tables agree?
  cleanupctl dead-letters            what failed for good, and why
  cleanupctl pause --reason TEXT     stop the whole fleet
  cleanupctl config > cleanup.toml   every setting, explained";

#[derive(Subcommand, Debug)]
enum Command {
    /// Create the tables, or adopt existing ones online; safe to repeat.
    Migrate(migrate::Migrate),
    /// Look whether everything around the fleet is as its promises need it.
    Doctor(doctor::Doctor),
    /// Fill database and bucket with test pastes, by the writer's contract.
    Seed(seed::Seed),
    /// Show backlog, open claims, failures.
    Status(status::Status),
    /// Say where one paste stands, and what happens to it next.
    Explain(explain::Explain),
    /// Compare bucket and tables in both directions, and repair what can be repaired.
    Audit(audit::Audit),
    /// List the pastes that failed for good.
    DeadLetters(dead_letters::DeadLetters),
    /// Give dead letters another attempt.
    Requeue(dead_letters::Requeue),
    /// Reset a claim whose worker is known to be dead.
    Reset(reset::Reset),
    /// Stop the whole fleet, with a reason.
    Pause(pause::Pause),
    /// End the pause.
    Resume(pause::Resume),
    /// Print the documented default settings.
    Config,
}

impl CtlCli {
    /// Runs the command; the answer is the exit code.
    pub async fn run(self) -> Result<u8> {
        if matches!(self.command, Command::Config) {
            config::print();
            return Ok(0);
        }
        let settings = self.common.settings()?;
        match self.command {
            Command::Migrate(command) => command.run(&settings).await,
            Command::Doctor(command) => command.run(&settings).await,
            Command::Seed(command) => command.run(&settings).await,
            Command::Status(command) => command.run(&settings).await,
            Command::Explain(command) => command.run(&settings).await,
            Command::Audit(command) => command.run(&settings).await,
            Command::DeadLetters(command) => command.run(&settings).await,
            Command::Requeue(command) => command.run(&settings).await,
            Command::Reset(command) => command.run(&settings).await,
            Command::Pause(command) => command.run(&settings).await,
            Command::Resume(command) => command.run(&settings).await,
            Command::Config => Ok(0),
        }
    }
}

async fn connect(settings: &Settings) -> Result<Client> {
    let target = Target::new(settings, "cleanupctl", None)?;
    target.open().await
}
