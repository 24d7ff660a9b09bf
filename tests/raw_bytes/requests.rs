//! HTTP requests to the port of the watchdog.

use std::time::Duration;

use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Runtime,
};

use crate::{
    bytes::*,
    support::{Signal, World},
    try_all,
};

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n";

/// Sends bytes and returns the answer up to the end of the connection. `last`: closes the sending side
/// after them.
async fn send(address: &str, bytes: &[u8], last: bool) -> Result<String, String> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let _ = stream.write_all(bytes).await;
    if last {
        let _ = stream.shutdown().await;
    }
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await;
    let _ = read.map_err(|_| "never closed".to_string())?;
    Ok(text(&answer))
}

#[test]
fn after_any_request_the_watchdog_answers_the_next_one() {
    let requests = prop_oneof![
        1 => noise(300),
        3 => edited("GET /healthz HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n\r\n"),
        2 => edited("POST /metrics HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        1 => edited("GET http://h/readyz HTTP/1.0\r\nContent-Length: 3\r\nUpgrade: h2c\r\n\r\nabcGET / HTTP/1.1\r\n\r\n"),
        1 => edited("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"),
    ];
    let runtime = Runtime::new().expect("runtime");
    runtime.block_on(async {
        let world = World::new().await;
        let watchdog =
            world.program("cleanup-watchdog").env("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0");
        let mut watchdog = watchdog.start();
        let line = watchdog.until_it_logs("health and metrics on").await;
        let address = line.split("http://").nth(1).expect("address");
        let address = address.split(['"', ' ']).next().expect("address");
        let handle = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| {
            try_all(400, &requests, |request| {
                handle.block_on(async {
                    send(address, request, true).await?;
                    let health = send(address, HEALTH, false).await?;
                    if health.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(health) }
                })
            });
        });
        watchdog.signal(Signal::TERM);
        let ended = watchdog.end().await;
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        assert!(!ended.stderr().contains("panicked"), "{}", ended.stderr());
    });
}
