//! The chaos soak: a fleet, writers and readers under faults that a seed decides; at its end every
//! promise is checked. `ops/chaos --minutes 30 --seed 7` runs it for long, `ops/test` for two
//! minutes.

mod args;
mod end;
mod faults;
mod fleet;
mod journal;
mod owner;
mod plan;
mod progress;
mod reader;
mod report;
mod stage;
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

use args::{Asked, Soak};
use faults::Done;
use fleet::{Fleet, Role};
use plan::Plan;
use progress::Progress;
use reader::Looked;
use report::{Report, Told};
use rustix::process::Signal;
use stage::Stage;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};

const START_WITHIN: Duration = Duration::from_secs(120);
/// After the last fault; usually it takes seconds.
const END_WITHIN: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    match Asked::read(std::env::args().skip(1)) {
        Asked::Soaks(soaks) => {
            let all_good = |soak: &Soak| runtime.block_on(soak_or_signal(*soak));
            ExitCode::from(u8::from(!soaks.iter().all(all_good)))
        }
        Asked::Writer { name, seed, journal } => {
            runtime.block_on(writer::write(name, seed, &journal))
        }
        Asked::Help => {
            println!("{}", args::HELP);
            ExitCode::SUCCESS
        }
        Asked::Nothing => ExitCode::SUCCESS,
        Asked::Wrong(reason) => {
            eprintln!("chaos: {reason}; see --help");
            ExitCode::from(2)
        }
    }
}

/// Ends early, with all its servers and processes, when it is asked to. True: every promise was kept.
async fn soak_or_signal(asked: Soak) -> bool {
    let kept = empty_folder();
    let set_up = tokio::time::timeout(START_WITHIN, Stage::set_up(&kept, asked.owner)).await;
    let stage = set_up.expect("the servers start");
    let mut interrupt = signal(SignalKind::interrupt()).expect("SIGINT");
    let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM");
    let longest = Duration::from_secs_f64(asked.minutes * 60.0) + END_WITHIN;
    let soaked = tokio::select! {
        report = soak(&stage, asked) => Ok(report),
        () = tokio::time::sleep(longest) => Err("it does not come to an end"),
        _ = interrupt.recv() => Err("asked to stop"),
        _ = terminate.recv() => Err("asked to stop"),
    };
    stage.clear().await;
    let report = match soaked {
        Ok(report) => report,
        Err(reason) => {
            eprintln!("chaos: {reason}");
            return false;
        }
    };
    println!("{}", report.show());
    let text = serde_json::to_string_pretty(&report.json()).expect("JSON");
    fs::write(kept.join("latest.json"), text).expect("latest.json");
    report.violations.is_empty()
}

/// The soak of before makes room.
fn empty_folder() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target");
    let kept = target.join("chaos");
    let _ = fs::remove_dir_all(&kept);
    fs::create_dir_all(&kept).expect("folder for logs");
    kept
}

async fn soak(stage: &Arc<Stage>, Soak { minutes, seed, owner }: Soak) -> Report {
    let length = Duration::from_secs_f64(minutes * 60.0);
    plan::assert_reproducible(seed, length, owner);
    let plan = Plan::new(seed, length, owner);
    let (count, foreign) = (plan.faults.len(), if owner { ", a foreign owner" } else { "" });
    println!(
        "chaos: seed {seed}, {minutes} minutes{foreign}, plan {} of {count} faults",
        plan.digest()
    );
    let (mut fleet, done, looked) =
        (Fleet::new(Arc::clone(stage)), Done::default(), Arc::default());
    fleet.start_watchdogs();
    fleet.start_writers(plan.writers_seed);
    fleet.start_workers();
    let _watching = watch(stage, &looked, plan.readers_seed);
    let progress = Progress::start(Arc::clone(stage), Arc::clone(&done), length);
    faults::carry_out(stage, &fleet, &plan, &done).await;

    fleet.end(Role::Writer, Signal::KILL).await;
    fleet.end(Role::Worker, Signal::TERM).await;
    stage.faulty.resolved().await;
    if owner {
        end::erase_the_innocent(stage).await;
        owner::relent(stage).await;
    }
    let dead_letters = end::drain(stage).await;
    fleet.end(Role::Watchdog, Signal::TERM).await;
    let beliefs = end::beliefs(&stage.kept);
    let findings = end::check(stage, &beliefs).await;
    progress.end();
    let told = Told {
        seed,
        minutes,
        plan: &plan,
        stage,
        fleet: &fleet,
        done: &done,
        looked: &looked,
        beliefs: &beliefs,
        dead_letters,
        findings: &findings,
    };
    Report::new(&told).await
}

/// Readers and the auditor; they end with the soak.
fn watch(stage: &Arc<Stage>, looked: &Arc<Looked>, seed: u64) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for place in 0..2 {
        tasks.spawn(reader::read(Arc::clone(stage), Arc::clone(looked), seed.wrapping_add(place)));
    }
    tasks.spawn(reader::audit(Arc::clone(stage), Arc::clone(looked)));
    tasks
}
