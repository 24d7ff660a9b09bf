//! The fleet: real worker processes on a copy, with a stub or a real store.

use std::{collections::HashSet, process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use crate::{
    Result,
    stage::{Copy, Stage},
    stub::Stub,
};

pub(crate) const BUCKET: &str = "bench";

/// The results of a drain.
#[derive(Debug, Default, Clone)]
pub(crate) struct Drained {
    pub rows_per_second: f64,
    /// The peak of the process with the highest one.
    pub peak_rss_mib: f64,
    pub wal_bytes_per_row: f64,
    /// The time of each claim, in order.
    pub claim_ms: Vec<f64>,
}

/// Drains a copy, and checks that the deleted keys are those that left the tables.
pub(crate) async fn checked(
    stage: &Stage,
    copy: &Copy,
    stub: &Stub,
    workers: usize,
) -> Result<Drained> {
    let before = copy.keys().await?;
    stub.take();
    let drained = drain(stage, copy, &stub.url, workers).await?;
    let after = copy.keys().await?;
    let gone: HashSet<String> = before.difference(&after).cloned().collect();
    if stub.take() != gone {
        return Err("the keys deleted in S3 differ from those that left the tables".into());
    }
    Ok(drained)
}

/// Drains a copy with this many workers and this S3 endpoint.
pub(crate) async fn drain(stage: &Stage, copy: &Copy, s3: &str, workers: usize) -> Result<Drained> {
    let (wal, started) = (stage.wal().await?, Instant::now());
    let mut fleet = (0..workers).map(|_| start(copy, s3)).collect::<Result<Vec<_>>>()?;
    let peak_rss_mib = wait_for(&mut fleet).await?;
    let elapsed = started.elapsed();
    let mut rows = 0;
    for worker in fleet {
        let output = worker.wait_with_output().await?;
        let summary: Value = serde_json::from_slice(&output.stdout)?;
        if summary["stopped_because"] != "drained" {
            return Err(format!("a worker did not drain: {summary}").into());
        }
        rows += summary["rows_deleted"].as_u64().unwrap_or_default();
    }
    let left = "SELECT count(*) FROM pastes WHERE expires_at <= now()";
    if copy.count(left).await? > 0 {
        return Err(format!("{rows} rows were deleted, but expired pastes are left").into());
    }
    let claims = "SELECT claim_ms FROM deletion_claims WHERE claim_ms IS NOT NULL ORDER BY id";
    let claims = copy.db.query(claims, &[]).await?;
    Ok(Drained {
        rows_per_second: rows as f64 / elapsed.as_secs_f64(),
        peak_rss_mib,
        wal_bytes_per_row: (stage.wal().await? - wal) as f64 / rows.max(1) as f64,
        claim_ms: claims.iter().map(|row| f64::from(row.get::<_, i32>(0))).collect(),
    })
}

/// Deletes this many rows of a copy with one worker.
pub(crate) async fn some(copy: &Copy, s3: &str, rows: u64) -> Result<()> {
    let mut command = worker(copy, s3)?;
    let ended = command.args(["--limit", &rows.to_string()]).output().await?;
    // Drained, or stopped at its limit.
    match ended.status.code() {
        Some(0 | 3) => Ok(()),
        _ => Err("a worker with a limit failed".into()),
    }
}

fn start(copy: &Copy, s3: &str) -> Result<Child> {
    Ok(worker(copy, s3)?.spawn()?)
}

fn worker(copy: &Copy, s3: &str) -> Result<Command> {
    let mut command = program(env!("CARGO_BIN_EXE_cleanup-worker"), copy, s3)?;
    command.args(["run", "--format", "json"]);
    // Half of the table is due, on purpose.
    command.env("CLEANUP_BRAKE_MAX_SHARE", "1").env("CLEANUP_LOG_FILTER", "warn");
    Ok(command)
}

/// Returns the command of a program for a copy.
pub(crate) fn program(path: &str, copy: &Copy, s3: &str) -> Result<Command> {
    let mut command = Command::new(path);
    command.env("DATABASE_URL", &copy.url).env("S3_BUCKET", BUCKET).env("AWS_ENDPOINT_URL", s3);
    command.env("REDIS_URL", std::env::var("PASTE_CLEANUP_TEST_REDIS_URL")?);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    Ok(command)
}

/// Waits until all have ended. Returns the highest peak of memory.
async fn wait_for(fleet: &mut [Child]) -> Result<f64> {
    let mut peak: f64 = 0.0;
    loop {
        let mut running = false;
        for worker in fleet.iter_mut() {
            if worker.try_wait()?.is_none() {
                running = true;
                peak = peak.max(worker.id().map_or(0.0, rss_mib));
            }
        }
        if !running {
            return Ok(peak);
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the peak memory of a process.
pub(crate) fn rss_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}
