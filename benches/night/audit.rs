//! Measures an audit: its memory must not grow with the bucket, and no transaction may stay open.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    Result,
    fleet::{BUCKET, program, rss_mib},
    memory_s3::MemoryS3,
    stage::{Copy, Stage},
};

const AGE: Duration = Duration::from_secs(3 * 24 * 3600);
const LONGEST: &str = "
    SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
    FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'cleanupctl audit'
      AND xact_start IS NOT NULL";

/// Audits buckets of these sizes, one after the other.
pub(crate) async fn measure(stage: &Stage, sizes: &[u64]) -> Result<()> {
    let mut peaks = Vec::new();
    for &size in sizes {
        let copy = stage.empty("bench_audit").await?;
        let store = fill(&copy, size).await?;
        peaks.push(audit(&copy, &store, size).await?);
        stage.drop(copy).await?;
    }
    if let [first, .., last] = &peaks[..] {
        println!("ratio of the memory peaks: {:.2}", last / first);
    }
    Ok(())
}

/// Inserts `size` live pastes, content rows and objects, and one orphan.
async fn fill(copy: &Copy, size: u64) -> Result<MemoryS3> {
    let fill = format!(
        "INSERT INTO content (content_hash, s3_key, size_bytes, ref_count)
         SELECT sha256(n::text::bytea),
                encode(sha256(n::text::bytea), 'hex') || '/' || md5(n::text), 10, 1
         FROM generate_series(1, {size}) n;
         INSERT INTO pastes (short_code, content_hash)
         SELECT 'p' || n, sha256(n::text::bytea) FROM generate_series(1, {size}) n;
         UPDATE cleanup_fleet SET bucket = '{BUCKET}', prefix = '';"
    );
    copy.db.batch_execute(&fill).await?;
    copy.db.batch_execute("VACUUM (ANALYZE) content").await?;
    copy.db.batch_execute("VACUUM (ANALYZE) pastes").await?;
    let store = MemoryS3::start().await;
    copy.keys().await?.iter().for_each(|key| store.put(key, 10, AGE));
    store.put("orphan", 10, AGE);
    Ok(store)
}

/// Runs an audit. Returns its peak memory in MiB.
async fn audit(copy: &Copy, store: &MemoryS3, size: u64) -> Result<f64> {
    let mut command = program(env!("CARGO_BIN_EXE_cleanupctl"), copy, &store.url)?;
    command.args(["audit", "--format", "json"]);
    let started = Instant::now();
    let mut running = command.spawn()?;
    let (mut peak, mut longest): (f64, f64) = (0.0, 0.0);
    while running.try_wait()?.is_none() {
        peak = peak.max(running.id().map_or(0.0, rss_mib));
        longest = longest.max(copy.db.query_one(LONGEST, &[]).await?.get(0));
        sleep(Duration::from_millis(20)).await;
    }
    let elapsed = started.elapsed().as_secs_f64();
    let report: Value = serde_json::from_slice(&running.wait_with_output().await?.stdout)?;
    if report["objects"] != size + 1 || report["orphans"] != 1 || report["content_rows"] != size {
        return Err(format!("the audit reported other numbers than expected: {report:#}").into());
    }
    println!(
        "{size} objects: {elapsed:.1} s, {:.0} objects/s, peak {peak:.1} MiB, longest transaction {longest:.2} s",
        size as f64 / elapsed
    );
    Ok(peak)
}
