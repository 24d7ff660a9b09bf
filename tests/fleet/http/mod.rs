//! The watchdog's HTTP server: read-only, limited in size, time and connections, and never a delay
//! for the sweeps.

mod connections;
mod ports;
mod requests;

use std::{io::ErrorKind, net::TcpStream as Idle, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{process::Running, sockets::connections_to, *};

const CONNECTIONS: usize = 32;

/// A resident watchdog and its HTTP address.
struct Sidecar {
    running: Running,
    address: String,
}

impl Sidecar {
    async fn start(world: &World) -> Self {
        Self::of(world.program("cleanup-watchdog")).await
    }

    async fn of(program: Process) -> Self {
        let program = program.env("CLEANUP_WATCHDOG_TICK", "200ms");
        let mut running = program.env("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0").start();
        let line = running.until_it_logs("health and metrics on").await;
        let address = line.split("http://").nth(1).expect("address");
        let address = address.split(['"', ' ']).next().expect("address").to_string();
        Self { running, address }
    }

    fn port(&self) -> u16 {
        self.address.rsplit(':').next().expect("port").parse().expect("a number")
    }

    /// Sends these bytes and reads until the server closes.
    async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.address).await.expect("connect");
        let _ = stream.write_all(bytes).await;
        until_closed(&mut stream).await
    }

    async fn request(&self, method: &str, path: &str) -> String {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).as_bytes())
            .await
    }

    /// Sends requests until one is answered: all connections may be taken.
    async fn answers_again(&self) {
        for _ in 0..600 {
            if self.request("GET", "/healthz").await.starts_with("HTTP/1.1 200") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("never answered again");
    }

    /// Waits until the watchdog's number of connections satisfies the condition.
    async fn until_connections(&self, enough: impl Fn(usize) -> bool) {
        for _ in 0..3000 {
            if enough(connections_to(self.running.pid(), self.port())) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{} connections", connections_to(self.running.pid(), self.port()));
    }

    async fn stops(self) {
        self.running.signal(Signal::TERM);
        let ended = tokio::time::timeout(Duration::from_secs(60), self.running.end()).await;
        assert_eq!(ended.expect("never stopped").code(), 0);
    }

    /// Opens connections without sending anything until all are taken: each lives for some seconds.
    async fn full_crowd(&self) -> Vec<Idle> {
        let mut crowd = Vec::new();
        for _ in 0..3000 {
            crowd.retain(is_open);
            crowd.resize_with(CONNECTIONS, || Idle::connect(&self.address).expect("connect"));
            tokio::time::sleep(Duration::from_millis(20)).await;
            let all_open = crowd.iter().all(is_open);
            if all_open && connections_to(self.running.pid(), self.port()) == CONNECTIONS {
                return crowd;
            }
        }
        panic!("{} connections", connections_to(self.running.pid(), self.port()));
    }

    /// Opens all connections without sending anything.
    fn crowd(&self) -> Vec<Idle> {
        (0..CONNECTIONS).map(|_| Idle::connect(&self.address).expect("connect")).collect()
    }
}

/// Reads until the connection ends, however it ends.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_secs(60), read).await.expect("never closed");
    String::from_utf8_lossy(&answer).into_owned()
}

fn is_open(stream: &Idle) -> bool {
    stream.set_nonblocking(true).expect("nonblocking");
    matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}
