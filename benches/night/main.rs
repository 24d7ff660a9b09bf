//! How fast is a night, and how fast could it be? Measures, in one run and on the same data: plain
//! SQL without any safety (the limit), one worker and a fleet with an S3 that answers at once and
//! one that takes 150 ms, one worker with a real store, and the flow that people write first.
//! `--growth`: a million rows while another session keeps a transaction open all night.
//! `--audit`: the audit's memory and time with a hundred thousand objects and with a million.
//!
//! Started by `ops/bench`, which has the servers.

mod audit;
mod figures;
mod fleet;
mod growth;
mod limit;
mod literal;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/support/memory_s3.rs"]
mod memory_s3;
mod picture;
mod plans;
mod report;
mod round_trips;
mod stage;
mod stub;
#[path = "../../tests/support/work.rs"]
mod work;

use std::time::Duration;

use figures::{Figures, LIMIT, LITERAL, ONE, ONE_SLOW, SEAWEEDFS, THREE, THREE_SLOW};
use round_trips::Turns;
use stage::Stage;
use stub::Stub;

pub type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

const SLOW: Duration = Duration::from_millis(150);
const FLEET: usize = 3;

#[derive(clap::Parser)]
struct Args {
    /// Expired pastes; as many live ones beside them.
    #[arg(long)]
    rows: Option<u64>,
    /// How often each variant is measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only the variants whose name contains one of these, separated by commas: to measure a change.
    #[arg(long)]
    only: Option<String>,
    /// A million rows beside a transaction that stays open, instead.
    #[arg(long)]
    growth: bool,
    /// What an audit needs, instead.
    #[arg(long)]
    audit: bool,
    /// What the server does for one batch, statement by statement, instead.
    #[arg(long)]
    plans: bool,
    /// Small enough for a test: does it work at all?
    #[arg(long)]
    smoke: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = <Args as clap::Parser>::parse();
    let rows = match args {
        Args { rows: Some(rows), .. } => rows,
        Args { smoke: true, .. } | Args { audit: true, .. } => 3000,
        Args { growth: true, .. } => 1_000_000,
        _ => 200_000,
    };
    eprintln!("filling {rows} expired and as many live pastes");
    let stage = Stage::fill(rows).await?;
    if args.audit {
        return audit::measure(&stage, &[100_000, 1_000_000]).await;
    }
    if args.growth {
        return growth::measure(&stage, rows).await;
    }
    if args.plans {
        return plans::measure(&stage, rows).await;
    }
    let mut figures = Figures { rows, settings: stage.settings().await?, ..Figures::default() };
    let rounds = if args.smoke { 1 } else { args.rounds };
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        measure_round(&stage, &mut figures, rows, args.only.as_deref()).await?;
    }
    if args.only.is_some() {
        return Ok(());
    }
    measure_once(&stage, &mut figures).await?;
    if args.smoke {
        growth::measure(&stage, rows).await?;
        plans::measure(&stage, rows).await?;
        audit::measure(&stage, &[rows]).await?;
    }
    report::tell(&figures)
}

/// All variants, one after the other, so that whatever slows the machine down slows all of them.
async fn measure_round(
    stage: &Stage,
    figures: &mut Figures,
    rows: u64,
    only: Option<&str>,
) -> Result<()> {
    let wanted =
        |name: &str| only.is_none_or(|only| only.split(',').any(|part| name.contains(part)));
    let (instant, slow) = (Stub::start(Duration::ZERO).await?, Stub::start(SLOW).await?);
    if wanted(LIMIT) {
        let mut copy = stage.copy("bench_limit").await?;
        figures.add(LIMIT, limit::measure(&mut copy).await?, None);
        stage.drop(copy).await?;
    }
    for (name, workers, stub) in [
        (ONE, 1, &instant),
        (THREE, FLEET, &instant),
        (ONE_SLOW, 1, &slow),
        (THREE_SLOW, FLEET, &slow),
    ] {
        if !wanted(name) {
            continue;
        }
        let copy = stage.copy("bench_fleet").await?;
        let drained = fleet::checked(stage, &copy, stub, workers).await?;
        figures.add(name, drained.rows_per_second, Some(drained));
        stage.drop(copy).await?;
    }
    if wanted(LITERAL) {
        let copy = stage.copy("bench_literal").await?;
        let rate = literal::measure(&copy, &instant.url, (rows / 20).max(1000)).await?;
        figures.add(LITERAL, rate, None);
        stage.drop(copy).await?;
    }
    if wanted(SEAWEEDFS) {
        let drained = seaweedfs(stage, rows / 40).await?;
        figures.add(SEAWEEDFS, drained.rows_per_second, Some(drained));
    }
    Ok(())
}

/// A smaller sample with real objects.
async fn seaweedfs(stage: &Stage, rows: u64) -> Result<fleet::Drained> {
    let s3 = std::env::var("PASTE_CLEANUP_TEST_S3_ENDPOINT")?;
    let copy = stage.empty("bench_seaweedfs").await?;
    let mut seed = fleet::program(env!("CARGO_BIN_EXE_cleanupctl"), &copy, &s3)?;
    seed.args(["seed", "--expired-share", "1", "--pastes"]).arg(rows.to_string());
    if !seed.output().await?.status.success() {
        return Err("cleanupctl seed failed".into());
    }
    let drained = fleet::drain(stage, &copy, &s3, 1).await?;
    stage.drop(copy).await?;
    Ok(drained)
}

/// What does not vary: the memory of a worker with nothing to do, and its talks with Postgres.
async fn measure_once(stage: &Stage, figures: &mut Figures) -> Result<()> {
    let stub = Stub::start(Duration::ZERO).await?;
    let copy = stage.empty("bench_idle").await?;
    let turns = Turns::count(stage.address()).await?;
    let through = |copy: &mut stage::Copy| {
        copy.url = copy.url.replace(stage.address(), &format!("127.0.0.1:{}", turns.port));
    };
    figures.idle_rss_mib = fleet::drain(stage, &copy, &stub.url, 1).await?.peak_rss_mib;
    let mut idle = copy;
    through(&mut idle);
    fleet::drain(stage, &idle, &stub.url, 1).await?;
    let of_idle = turns.so_far();
    stage.drop(idle).await?;
    let mut copy = stage.copy("bench_turns").await?;
    through(&mut copy);
    fleet::drain(stage, &copy, &stub.url, 1).await?;
    let batches = copy.count("SELECT count(*) FROM deletion_claims").await?;
    figures.round_trips_per_batch = (turns.so_far() - 2 * of_idle) as f64 / batches.max(1) as f64;
    stage.drop(copy).await
}
