//! Counts the round trips between a worker and Postgres with a proxy.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::Result;

/// A proxy that counts round trips: requests that follow an answer.
pub(crate) struct RoundTrips {
    pub port: u16,
    counted: Arc<AtomicU64>,
}

impl RoundTrips {
    pub(crate) async fn start(server: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (server, counted) = (server.to_string(), Arc::new(AtomicU64::new(0)));
        let shared = Arc::clone(&counted);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server.clone(), Arc::clone(&shared)));
            }
        });
        Ok(Self { port, counted })
    }

    pub(crate) fn so_far(&self) -> u64 {
        self.counted.load(Relaxed)
    }
}

async fn forward(mut client: TcpStream, server: String, round_trips: Arc<AtomicU64>) -> Option<()> {
    let mut server = TcpStream::connect(server).await.ok()?;
    let (mut request, mut answer) = (vec![0; 1 << 18], vec![0; 1 << 18]);
    let mut is_waiting = false;
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let read = read.ok().filter(|read| *read > 0)?;
                round_trips.fetch_add(u64::from(!is_waiting), Relaxed);
                is_waiting = true;
                server.write_all(&request[..read]).await.ok()?;
            }
            read = server.read(&mut answer) => {
                let read = read.ok().filter(|read| *read > 0)?;
                is_waiting = false;
                client.write_all(&answer[..read]).await.ok()?;
            }
        }
    }
}
