//! The command line. Besides the soak's own flags it accepts those of Rust's test harness, because
//! `cargo test` passes its arguments to every test target.

/// Shown by `--help`.
pub(crate) const HELP: &str = "\
Runs a fleet, writers and readers under faults, then checks every guarantee.

Usage: ops/chaos [--minutes N] [--seed S] [--owner]

  --minutes N   Duration of the faults in minutes, fractions allowed (default 2). Starting the
                servers and the final checks take additional time.
  --seed S      Seed for the faults and their times (default 1). The same seed gives the same plan.
  --owner       Add a table owner: tables that reference pastes, triggers that refuse some deletes,
                forgotten and prepared transactions, renames, COPY, VACUUM FULL.

Exit codes: 0 no violations, and enough activity to prove it; 1 violations found, or the soak did
not complete; 2 invalid arguments.
Logs, the writers' journals and latest.json are in target/chaos.";

const DEFAULT_SEED: u64 = 1;
const DEFAULT_MINUTES: f64 = 2.0;
/// The duration of the second soak, with an owner, that `cargo test` adds.
const MINUTES_WITH_OWNER: f64 = 1.0;
/// Passed by ops/chaos: all arguments are meant for the soak.
const SOAK: &str = "--soak";
/// Flags of the test harness that are followed by a value.
const WITH_VALUE: [&str; 5] = ["--skip", "--format", "--test-threads", "--color", "--logfile"];
/// Flags that make the test harness do something other than run the tests.
const NO_RUN: [&str; 2] = ["--list", "--ignored"];

/// The parameters of one soak.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Soak {
    pub minutes: f64,
    pub seed: u64,
    pub owner: bool,
}

/// What the command line requests.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    /// Soaks to run one after the other.
    Soaks(Vec<Soak>),
    /// This process is a writer of a soak.
    Writer {
        name: String,
        seed: u64,
        journal: String,
    },
    Help,
    /// The arguments select other tests.
    OtherTests,
    Invalid(String),
}

impl Command {
    pub(crate) fn read(arguments: impl Iterator<Item = String>) -> Self {
        let arguments: Vec<String> = arguments.collect();
        if let [first, name, seed, journal] = &arguments[..]
            && first == "writer"
        {
            let (name, journal) = (name.clone(), journal.clone());
            let seed = seed.parse().unwrap_or_default();
            return Self::Writer { name, seed, journal };
        }
        soak(arguments.into_iter()).unwrap_or_else(|command| command)
    }
}

fn soak(mut arguments: impl Iterator<Item = String>) -> Result<Command, Command> {
    let (mut minutes, mut seed) = (DEFAULT_MINUTES, DEFAULT_SEED);
    let (mut owner, mut strict) = (false, false);
    while let Some(argument) = arguments.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_string())),
            None => (&*argument, None),
        };
        let mut value = || value.clone().or_else(|| arguments.next()).unwrap_or_default();
        match flag {
            "--minutes" => minutes = number(flag, &value())?,
            "--seed" => seed = number(flag, &value())?,
            "--owner" => owner = true,
            "--help" | "-h" => return Err(Command::Help),
            flag if NO_RUN.contains(&flag) => return Err(Command::OtherTests),
            flag if WITH_VALUE.contains(&flag) => drop(value()),
            SOAK => strict = true,
            other if strict => {
                return Err(Command::Invalid(format!("unknown argument {other:?}")));
            }
            flag if flag.starts_with('-') => {}
            "chaos" => {}
            _ => return Err(Command::OtherTests),
        }
    }
    let first = Soak { minutes, seed, owner };
    let with_owner = Soak { minutes: MINUTES_WITH_OWNER, seed, owner: true };
    match (0.0..=100_000.0).contains(&minutes) {
        true if strict || owner => Ok(Command::Soaks(vec![first])),
        true => Ok(Command::Soaks(vec![first, with_owner])),
        false => {
            Err(Command::Invalid(format!("--minutes must be between 0 and 100000, not {minutes}")))
        }
    }
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, Command> {
    text.parse().map_err(|_| Command::Invalid(format!("{flag} needs a number, not {text:?}")))
}
