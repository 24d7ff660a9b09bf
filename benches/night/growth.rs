//! A long run: a million rows, while another session keeps a transaction open, as a nightly pg_dump
//! does. Claims must not slow down, memory must not grow, and the watchdog and `status` must stay
//! cheap.

use std::time::Duration;

use paste_cleanup::{
    config::defaults,
    postgres::Target,
    watchdog::{self, Depth},
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    Result, fleet, picture, report,
    results::{deciles, median},
    stage::{Copy, Stage, connect},
    stub::Stub,
};

const TIMES: usize = 21;

pub(crate) async fn measure(stage: &Stage, rows: u64) -> Result<()> {
    let stub = Stub::start(Duration::ZERO).await?;
    let copy = stage.copy("bench_growth").await?;
    let (tick_before, status_before) =
        (tick_ms(&copy, Depth::Quick).await?, status_ms(&copy, &stub).await?);
    let dump = connect(&copy.url).await?;
    dump.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM content")
        .await?;
    let drained = fleet::checked(stage, &copy, &stub, 1).await?;
    let (tick_after, status_after) =
        (tick_ms(&copy, Depth::Quick).await?, status_ms(&copy, &stub).await?);
    let thorough = tick_ms(&copy, Depth::Thorough).await?;
    drop(dump);
    let tenths = deciles(&drained.claim_ms);
    let (first, last) = (tenths.first().copied(), tenths.last().copied());
    let ratio = last.unwrap_or_default() / first.unwrap_or(1.0);
    let results = json!({
        "rows": rows,
        "settings": stage.settings().await?,
        "rows_per_second": drained.rows_per_second,
        "claim_ms_by_decile": tenths,
        "claim_last_to_first": ratio,
        "peak_rss_mib": drained.peak_rss_mib,
        "watchdog_tick_ms": tick_before.max(tick_after),
        "watchdog_thorough_ms": thorough,
        "status_ms": { "before": status_before, "after": status_after },
    });
    println!("{results:#}");
    report::write("growth.json", &format!("{results:#}\n"))?;
    let title = format!("Claim time over {rows} rows, beside an open transaction");
    report::write("growth.svg", &picture::line(&title, "ms", &smooth(&drained.claim_ms)))?;
    stage.drop(copy).await
}

/// Returns the median of each hundredth.
fn smooth(values: &[f64]) -> Vec<f64> {
    values.chunks(values.len().div_ceil(100).max(1)).map(median).collect()
}

/// Returns the median time of a sweep that has nothing to reset.
async fn tick_ms(copy: &Copy, depth: Depth) -> Result<f64> {
    let mut settings = defaults();
    settings.postgres.url = Some(copy.url.clone().into());
    let pool = Target::new(&settings, "bench", None)?.pool(2)?;
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let started = Instant::now();
        watchdog::sweep(&pool, &settings, depth).await?;
        watchdog::prune::prune(&pool, &settings).await?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(median(&times))
}

/// Returns the time of `cleanupctl status`, with its connection.
async fn status_ms(copy: &Copy, stub: &Stub) -> Result<f64> {
    let started = Instant::now();
    let mut status = fleet::program(env!("CARGO_BIN_EXE_cleanupctl"), copy, &stub.url)?;
    let ended = status.args(["status", "--format", "json"]).output().await?;
    match ended.status.success() {
        true => Ok(started.elapsed().as_secs_f64() * 1000.0),
        false => Err("cleanupctl status failed".into()),
    }
}
