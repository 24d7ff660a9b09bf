//! `/healthz`, `/readyz` and `/metrics`: read-only, on a loopback address by default, and bounded in
//! size, time and connections.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{
    Router,
    http::{HeaderName, StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::{metrics::Metrics, shutdown::Shutdown, watchdog::Watchdog};

/// One more is closed at once: nobody waits in line behind silent clients.
const CONNECTIONS: usize = 32;
/// From its first moment to its last, whatever the client does. A scrape takes milliseconds.
const CONNECTION_LIFE: Duration = Duration::from_secs(5);
const LONGEST_HEAD_BYTES: usize = 16 * 1024;
/// How long answers that are on their way may hold up a stop.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Accepting fails for want of descriptors, say: neither the end nor a reason to spin.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Opens the port; an address that cannot be had is an error at start, not at the first scrape.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address} (watchdog.listen, CLEANUP_WATCHDOG_LISTEN)")
    })
}

/// Serves until asked to stop.
pub async fn serve(listener: TcpListener, watchdog: Arc<Watchdog>, shutdown: Shutdown) {
    let metrics = Arc::clone(watchdog.metrics());
    let (alive, ready) = (Arc::clone(&watchdog), watchdog);
    let routes = Router::new()
        .route("/healthz", get(move || async move { answer(alive.is_alive(), "wedged\n") }))
        .route("/readyz", get(move || async move { answer(ready.is_ready(), "no Postgres\n") }))
        .route("/metrics", get(move || async move { page(&metrics) }));
    let answers = TaskTracker::new();
    tokio::select! {
        () = accept(listener, routes, &answers) => {}
        () = shutdown.stop.cancelled() => {}
    }
    answers.close();
    let _ = timeout(LAST_ANSWERS, answers.wait()).await;
}

async fn accept(listener: TcpListener, routes: Router, answers: &TaskTracker) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("cannot accept a connection: {error}");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        if let Ok(seat) = Arc::clone(&seats).try_acquire_owned() {
            answers.spawn(answer_once(stream, routes.clone(), seat));
        }
    }
}

/// One request, one answer. What goes wrong on the way is the client's to notice.
async fn answer_once(stream: TcpStream, routes: Router, _seat: OwnedSemaphorePermit) {
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(LONGEST_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let _ = timeout(CONNECTION_LIFE, connection).await;
}

fn page(metrics: &Metrics) -> ([(HeaderName, &'static str); 1], String) {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render())
}

fn answer(good: bool, otherwise: &'static str) -> (StatusCode, &'static str) {
    match good {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, otherwise),
    }
}
