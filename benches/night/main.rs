//! Measures the rate of a nightly run, and compares it with its limit. One run measures, on the same
//! data: plain SQL without any safety (the limit), one worker and a fleet with an S3 that answers at
//! once and with one that takes 150 ms, one worker with a store without DeleteObjects (beside the limit of
//! that store) and with a real one, and a naive loop over the rows.
//! `--growth`: a million rows while another session keeps a transaction open.
//! `--audit`: memory and time of an audit with a hundred thousand objects and with a million.
//!
//! Started by `ops/bench`, which starts the servers.

mod audit;
mod fleet;
mod growth;
mod limit;
mod literal;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/support/memory_s3/mod.rs"]
mod memory_s3;
mod picture;
mod plans;
mod report;
mod results;
mod round_trips;
mod singles;
mod stage;
mod stub;
#[path = "../../tests/support/work.rs"]
mod work;

use std::time::Duration;

use results::{
    LIMIT, LITERAL, ONE, ONE_SLOW, Results, SEAWEEDFS, SINGLES, SINGLES_LIMIT, THREE, THREE_SLOW,
};
use round_trips::RoundTrips;
use stage::Stage;
use stub::Stub;

/// What can fail in a benchmark.
pub type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

const SLOW: Duration = Duration::from_millis(150);
const FLEET: usize = 3;

#[derive(clap::Parser)]
struct Args {
    /// Number of expired pastes, and of live ones
    #[arg(long)]
    rows: Option<u64>,
    /// Number of rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measure only variants whose name contains one of these words, separated by commas
    #[arg(long)]
    only: Option<String>,
    /// Instead, measure a million rows beside an open transaction
    #[arg(long)]
    growth: bool,
    /// Instead, measure memory and time of an audit
    #[arg(long)]
    audit: bool,
    /// Instead, print the cost of each statement of a batch
    #[arg(long)]
    plans: bool,
    /// Run everything with little data, to test the benchmark itself
    #[arg(long)]
    smoke: bool,
    /// Passed by cargo
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
    let mut results = Results { rows, settings: stage.settings().await?, ..Results::default() };
    let rounds = if args.smoke { 1 } else { args.rounds };
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        measure_round(&stage, &mut results, rows, args.only.as_deref()).await?;
    }
    if args.only.is_some() {
        return Ok(());
    }
    measure_once(&stage, &mut results).await?;
    if args.smoke {
        growth::measure(&stage, rows).await?;
        plans::measure(&stage, rows).await?;
        audit::measure(&stage, &[rows]).await?;
    }
    report::print(&results)
}

/// Measures all variants one after the other, so that a slower machine slows all of them.
async fn measure_round(
    stage: &Stage,
    results: &mut Results,
    rows: u64,
    only: Option<&str>,
) -> Result<()> {
    let wanted =
        |name: &str| only.is_none_or(|only| only.split(',').any(|part| name.contains(part)));
    let (instant, slow) = (Stub::start(Duration::ZERO).await?, Stub::start(SLOW).await?);
    if wanted(LIMIT) {
        let mut copy = stage.copy("bench_limit").await?;
        results.add(LIMIT, limit::measure(&mut copy).await?, None);
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
        results.add(name, drained.rows_per_second, Some(drained));
        stage.drop(copy).await?;
    }
    if wanted(LITERAL) {
        let copy = stage.copy("bench_literal").await?;
        let rate = literal::measure(&copy, &instant.url, (rows / 20).max(1000)).await?;
        results.add(LITERAL, rate, None);
        stage.drop(copy).await?;
    }
    if wanted(SINGLES) {
        let (limit, drained) = singles::measure(stage, rows / 20).await?;
        results.add(SINGLES_LIMIT, limit, None);
        results.add(SINGLES, drained.rows_per_second, Some(drained));
    }
    if wanted(SEAWEEDFS) {
        let drained = seaweedfs(stage, rows / 40).await?;
        results.add(SEAWEEDFS, drained.rows_per_second, Some(drained));
    }
    Ok(())
}

/// Drains fewer rows, with real objects.
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

/// Measures what does not vary between rounds: the memory of an idle worker, and the round trips to
/// Postgres per batch.
async fn measure_once(stage: &Stage, results: &mut Results) -> Result<()> {
    let stub = Stub::start(Duration::ZERO).await?;
    let copy = stage.empty("bench_idle").await?;
    let round_trips = RoundTrips::start(stage.address()).await?;
    let use_proxy = |copy: &mut stage::Copy| {
        copy.url = copy.url.replace(stage.address(), &format!("127.0.0.1:{}", round_trips.port));
    };
    results.idle_rss_mib = fleet::drain(stage, &copy, &stub.url, 1).await?.peak_rss_mib;
    let mut idle = copy;
    use_proxy(&mut idle);
    fleet::drain(stage, &idle, &stub.url, 1).await?;
    let idle_round_trips = round_trips.so_far();
    stage.drop(idle).await?;
    let mut copy = stage.copy("bench_round_trips").await?;
    use_proxy(&mut copy);
    fleet::drain(stage, &copy, &stub.url, 1).await?;
    let batches = copy.count("SELECT count(*) FROM deletion_claims").await?;
    results.round_trips_per_batch =
        (round_trips.so_far() - 2 * idle_round_trips) as f64 / batches.max(1) as f64;
    stage.drop(copy).await
}
