//! Each batch logs one event, and its numbers add up.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn each_batch_logs_exactly_one_event_with_all_its_numbers() {
    let world = World::new().await;
    let mut bytes = 0;
    for n in 0..25 {
        let body = format!("body {n}");
        bytes += body.len() as u64;
        world.put(&format!("p{n}"), &body, Ago(60.0)).await;
    }
    let worker = world.program("cleanup-worker").args(&["run", "--batch-size", "10"]);
    let ended = worker.env("CLEANUP_LOG_FORMAT", "json").output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let stderr = ended.stderr();
    let events = stderr.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    let batches: Vec<Value> = events
        .filter(|event| event["message"].as_str().is_some_and(|m| m.starts_with("finished claim")))
        .collect();
    let logged: BTreeSet<i64> =
        batches.iter().map(|event| event["claim"].as_i64().expect("claim")).collect();
    let claims = world.db.query("SELECT id FROM deletion_claims", &[]).await.expect("claims");
    assert_eq!(logged, claims.iter().map(|row| row.get(0)).collect());
    assert_eq!(batches.len(), logged.len(), "{stderr}");
    let sum =
        |field: &str| batches.iter().map(|event| event[field].as_u64().expect(field)).sum::<u64>();
    assert_eq!((sum("rows"), sum("objects"), sum("bytes")), (25, 25, bytes));
    for event in &batches {
        let ms = |field: &str| event[field].as_u64().unwrap_or_else(|| panic!("{field}: {event}"));
        let steps = ["decrement_ms", "delete_ms", "evict_ms", "finish_ms"].map(ms);
        // Each duration is rounded down.
        assert!((0..=4).contains(&(ms("elapsed_ms") - steps.iter().sum::<u64>())), "{event}");
    }
}
