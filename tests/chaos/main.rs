//! The chaos soak: a fleet, writers and readers run under faults that a seed determines; at the end
//! every guarantee is checked. `ops/chaos --minutes 30 --seed 7` runs it for long, `ops/test` for
//! two minutes.

mod activity;
mod args;
mod end;
mod environment;
mod faults;
mod fleet;
mod journal;
mod owner;
mod plan;
mod progress;
mod reader;
mod report;
#[path = "../support/mod.rs"]
mod support;
mod transact;
mod writer;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use activity::Counted;
use args::{Command, Soak};
use environment::Environment;
use faults::Done;
use fleet::{Fleet, Role};
use plan::Plan;
use progress::Progress;
use reader::Checks;
use report::{Report, Results};
use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};

const START_WITHIN: Duration = Duration::from_secs(120);
/// The time limit for what comes after the plan, which usually takes seconds.
const END_WITHIN: Duration = Duration::from_secs(1800);

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    match Command::read(std::env::args().skip(1)) {
        Command::Soaks(soaks) => {
            let passed = |soak: &Soak| runtime.block_on(soak_until_signal(*soak));
            ExitCode::from(u8::from(!soaks.iter().all(passed)))
        }
        Command::Writer { name, seed, journal } => {
            runtime.block_on(writer::write(name, seed, &journal))
        }
        Command::Help => {
            println!("{}", args::HELP);
            ExitCode::SUCCESS
        }
        Command::OtherTests => ExitCode::SUCCESS,
        Command::Invalid(reason) => {
            eprintln!("chaos: {reason}; see --help");
            ExitCode::from(2)
        }
    }
}

/// Runs one soak and prints its report; SIGINT and SIGTERM end it early, with all its servers and
/// processes. Returns true if no violation was found.
async fn soak_until_signal(planned: Soak) -> bool {
    let output_dir = empty_output_dir();
    let set_up =
        tokio::time::timeout(START_WITHIN, Environment::set_up(&output_dir, planned.owner)).await;
    let env = set_up.expect("the servers start");
    let mut interrupt = signal(SignalKind::interrupt()).expect("SIGINT");
    let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM");
    let longest = Duration::from_secs_f64(planned.minutes * 60.0) + END_WITHIN;
    let soaked = tokio::select! {
        report = soak(&env, planned) => Ok(report),
        () = tokio::time::sleep(longest) => Err("no end within the time limit; see the logs in target/chaos"),
        _ = interrupt.recv() => Err("interrupted by a signal"),
        _ = terminate.recv() => Err("interrupted by a signal"),
    };
    env.clear().await;
    let report = match soaked {
        Ok(report) => report,
        Err(reason) => {
            eprintln!("chaos: {reason}");
            for violation in env.store.seen.lock().expect("seen").iter().take(40) {
                eprintln!("  {violation}");
            }
            return false;
        }
    };
    println!("{}", report.show());
    let text = serde_json::to_string_pretty(&report.json()).expect("JSON");
    fs::write(output_dir.join("latest.json"), text).expect("latest.json");
    report.violations.is_empty()
}

/// Empties the folder for logs and journals, which earlier soaks have used.
fn empty_output_dir() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target");
    let output_dir = target.join("chaos");
    let _ = fs::remove_dir_all(&output_dir);
    fs::create_dir_all(&output_dir).expect("folder for logs");
    output_dir
}

async fn soak(env: &Arc<Environment>, Soak { minutes, seed, owner }: Soak) -> Report {
    let length = Duration::from_secs_f64(minutes * 60.0);
    plan::assert_reproducible(seed, length, owner);
    let plan = Plan::new(seed, length, owner);
    let (count, foreign) = (plan.faults.len(), if owner { ", with a table owner" } else { "" });
    println!(
        "chaos: seed {seed}, {minutes} minutes{foreign}, plan {} of {count} faults",
        plan.digest()
    );
    let (mut fleet, done, checks) = (Fleet::new(Arc::clone(env)), Done::default(), Arc::default());
    fleet.start_watchdogs();
    fleet.start_writers(plan.writers_seed);
    fleet.start_workers();
    let _watching = watch(env, &checks, plan.readers_seed);
    let progress = Progress::start(Arc::clone(env), Arc::clone(&done), length);
    faults::carry_out(env, &fleet, &plan, &done).await;
    let counted = Counted { env, plan: &plan, done: &done, checks: &checks };
    activity::complete(&counted, &fleet, minutes).await;

    fleet.end(Role::Writer, Signal::KILL).await;
    fleet.end(Role::Worker, Signal::TERM).await;
    env.faulty.resolved().await;
    if owner {
        end::drain_deletable(env).await;
        owner::stop_refusing(env).await;
    }
    let dead_letters = end::drain(env).await;
    fleet.end(Role::Watchdog, Signal::TERM).await;
    let journals = end::journals(&env.output_dir);
    let findings = end::check(env, &journals).await;
    progress.end();
    let results = Results {
        seed,
        minutes,
        counted,
        fleet: &fleet,
        journals: &journals,
        dead_letters,
        findings: &findings,
    };
    Report::new(&results).await
}

/// Starts the readers and the auditor; they end with the soak.
fn watch(env: &Arc<Environment>, checks: &Arc<Checks>, seed: u64) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for reader in 0..2 {
        tasks.spawn(reader::read(Arc::clone(env), Arc::clone(checks), seed.wrapping_add(reader)));
    }
    tasks.spawn(reader::audit(Arc::clone(env), Arc::clone(checks)));
    tasks
}
