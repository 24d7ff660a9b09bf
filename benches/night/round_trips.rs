//! How often a worker waits for Postgres: a proxy counts the turns of the conversation.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::Result;

/// Something was sent after something was received.
pub struct Turns {
    pub port: u16,
    counted: Arc<AtomicU64>,
}

impl Turns {
    pub async fn count(server: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (server, counted) = (server.to_string(), Arc::new(AtomicU64::new(0)));
        let shared = Arc::clone(&counted);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server.clone(), Arc::clone(&shared)));
            }
        });
        Ok(Self { port, counted })
    }

    pub fn so_far(&self) -> u64 {
        self.counted.load(Relaxed)
    }
}

async fn carry(mut client: TcpStream, server: String, turns: Arc<AtomicU64>) -> Option<()> {
    let mut server = TcpStream::connect(server).await.ok()?;
    let (mut asked, mut answered) = (vec![0; 1 << 18], vec![0; 1 << 18]);
    let mut waits = false;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let read = read.ok().filter(|read| *read > 0)?;
                turns.fetch_add(u64::from(!waits), Relaxed);
                waits = true;
                server.write_all(&asked[..read]).await.ok()?;
            }
            read = server.read(&mut answered) => {
                let read = read.ok().filter(|read| *read > 0)?;
                waits = false;
                client.write_all(&answered[..read]).await.ok()?;
            }
        }
    }
}
