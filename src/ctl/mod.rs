//! `cleanupctl`, the operator CLI: one subcommand per file.

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

/// Operates the paste cleanup fleet: set up, inspect, repair, pause.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100, after_help = HELP)]
pub struct CtlCli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = "\
Exit codes: 0 done; 1 failed; 2 usage or config error.

Examples:
  cleanupctl migrate                 create the tables, or adopt existing ones
  cleanupctl doctor                  check servers, bucket, settings, stuck work
  cleanupctl seed --pastes 20000     write test pastes with real objects
  cleanupctl status                  show backlog, workers, last runs
  cleanupctl explain SHORT_CODE      show why a paste still exists
  cleanupctl audit                   compare bucket and tables
  cleanupctl dead-letters            list the pastes that failed permanently
  cleanupctl pause --reason TEXT     stop the whole fleet
  cleanupctl config > cleanup.toml   write a commented settings file";

#[derive(Subcommand, Debug)]
enum Command {
    /// Create the tables, or adopt existing ones online; safe to repeat.
    Migrate(migrate::Migrate),
    /// Check servers, bucket, settings and stuck work.
    Doctor(doctor::Doctor),
    /// Write test pastes to database and bucket.
    Seed(seed::Seed),
    /// Show backlog, workers, last runs, and what needs an operator.
    Status(status::Status),
    /// Show the state of one paste and what happens to it next.
    Explain(explain::Explain),
    /// Compare bucket and tables; repair what can be repaired.
    Audit(audit::Audit),
    /// List the pastes that failed permanently.
    DeadLetters(dead_letters::DeadLetters),
    /// Give dead letters and unclaimable pastes another attempt.
    Requeue(dead_letters::Requeue),
    /// Reset the claims of a worker that is known to be dead.
    Reset(reset::Reset),
    /// Stop the whole fleet, with a reason.
    Pause(pause::Pause),
    /// End the pause.
    Resume(pause::Resume),
    /// Print every setting with its default and variable.
    Config,
}

impl CtlCli {
    /// Runs the command and returns the exit code.
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

/// Opens one connection for a command.
async fn connect(settings: &Settings) -> Result<Client> {
    let target = Target::new(settings, "cleanupctl", None)?;
    Ok(target.open().await?)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// clap wraps at the width of the terminal: a line that is longer wraps a second time.
    #[test]
    fn the_help_fits_a_terminal_of_80_columns() {
        let ctl = CtlCli::command();
        let texts = ctl.get_subcommands().filter(|command| command.get_name() != "audit");
        let texts = texts.chain([&ctl]).filter_map(clap::Command::get_after_help);
        for line in texts.map(ToString::to_string).collect::<Vec<_>>().join("\n").lines() {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
    }
}
