//! What the command line asks for. Beside the soak's own flags it knows those of Rust's test
//! harness, because `cargo test` hands its arguments to every test target.

/// Shown by `--help`.
pub const HELP: &str = "\
A fleet, writers and readers under faults, for a while; then every promise is checked.

Usage: ops/chaos [--minutes N] [--seed S] [--owner]

  --minutes N   how long faults happen (default 2; fractions are fine); start and end come on top
  --seed S      which faults happen, and when (default 1); the same seed, the same choices
  --owner       the tables have an owner with habits: tables that refer to pastes, triggers that
                refuse some rows, forgotten locks, prepared transactions, renames, COPY, VACUUM FULL

Exit codes: 0 every promise was kept and the soak did something; 1 not so: says what.
Logs, the writers' journals and latest.json are left in target/chaos.";

const DEFAULT_SEED: u64 = 1;
const DEFAULT_MINUTES: f64 = 2.0;
/// What `cargo test` adds to the soak without an owner.
const MINUTES_WITH_OWNER: f64 = 1.0;
/// Said by ops/chaos: what follows is meant for the soak.
const SOAK: &str = "--soak";
/// Flags of the test harness that are followed by a value.
const WITH_VALUE: [&str; 5] = ["--skip", "--format", "--test-threads", "--color", "--logfile"];
/// Flags that ask the test harness for something else than a run.
const NO_RUN: [&str; 2] = ["--list", "--ignored"];

/// How long, with which faults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Soak {
    pub minutes: f64,
    pub seed: u64,
    pub owner: bool,
}

/// One thing to do.
#[derive(Debug, PartialEq)]
pub enum Asked {
    /// One after the other.
    Soaks(Vec<Soak>),
    /// The program is a writer of the soak.
    Writer {
        name: String,
        seed: u64,
        journal: String,
    },
    Help,
    /// The arguments are about other tests.
    Nothing,
    Wrong(String),
}

impl Asked {
    pub fn read(arguments: impl Iterator<Item = String>) -> Self {
        let arguments: Vec<String> = arguments.collect();
        if let [first, name, seed, journal] = &arguments[..]
            && first == "writer"
        {
            let (name, journal) = (name.clone(), journal.clone());
            let seed = seed.parse().unwrap_or_default();
            return Self::Writer { name, seed, journal };
        }
        soak(arguments.into_iter()).unwrap_or_else(|asked| asked)
    }
}

fn soak(mut arguments: impl Iterator<Item = String>) -> Result<Asked, Asked> {
    let (mut minutes, mut seed) = (DEFAULT_MINUTES, DEFAULT_SEED);
    let (mut owner, mut nothing_else) = (false, false);
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
            "--help" | "-h" => return Err(Asked::Help),
            flag if NO_RUN.contains(&flag) => return Err(Asked::Nothing),
            flag if WITH_VALUE.contains(&flag) => drop(value()),
            SOAK => nothing_else = true,
            other if nothing_else => {
                return Err(Asked::Wrong(format!("unknown argument {other:?}")));
            }
            flag if flag.starts_with('-') => {}
            "chaos" => {}
            _ => return Err(Asked::Nothing),
        }
    }
    let asked = Soak { minutes, seed, owner };
    let with_owner = Soak { minutes: MINUTES_WITH_OWNER, seed, owner: true };
    match (0.0..=100_000.0).contains(&minutes) {
        true if nothing_else || owner => Ok(Asked::Soaks(vec![asked])),
        true => Ok(Asked::Soaks(vec![asked, with_owner])),
        false => Err(Asked::Wrong(format!("--minutes {minutes} is no length of time"))),
    }
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, Asked> {
    text.parse().map_err(|_| Asked::Wrong(format!("{flag} needs a number, not {text:?}")))
}
