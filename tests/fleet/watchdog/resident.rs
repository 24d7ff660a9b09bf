//! The watchdog as a long-running process.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::*;

async fn get(address: &str, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connect");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answer");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn the_resident_watchdog_resets_serves_metrics_and_stops_on_sigterm() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let worker = world.worker().await;
    claim_some(&worker, 10).await;
    world.expire_leases(7201.0).await;
    let mut watchdog = world
        .program("cleanup-watchdog")
        .env("CLEANUP_WATCHDOG_TICK", "200ms")
        .env("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0")
        .start();
    let line = watchdog.until_it_logs("health and metrics on").await;
    let address = line.split("http://").nth(1).expect("address");
    let address = address.split(['"', ' ']).next().expect("address");
    watchdog.until_it_logs("reset claim").await;
    world.until("all reset", "SELECT count(*) = 10 FROM pastes WHERE attempts = 1").await;
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
    // The tick that made the reset counts it when it ends.
    while !get(address, "/metrics")
        .await
        .contains("cleanup_claims_reset_total{reason=\"lease_expired\"} 1")
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    watchdog.signal(Signal::TERM);
    assert_eq!(watchdog.end().await.code(), 0);
}
