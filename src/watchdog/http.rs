//! Serves `/healthz`, `/readyz` and `/metrics`: read-only, on a loopback address by default, and bounded
//! in size, time and connections.

mod slots;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{
    Router,
    http::{HeaderName, StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use hyper::{
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;
use tracing::warn;

use self::slots::{Slot, Slots};
use super::Watchdog;
use crate::{metrics::Metrics, shutdown::Shutdown};

/// Beyond this number, the oldest connection that has not sent its request is closed, so that idle
/// clients, however many, cannot keep out a probe.
const CONNECTIONS: usize = 32;
/// Pause between two connections while all slots are taken: 32 new clients take 160 ms to push out a
/// client that is about to send its request, and 64 idle clients that reconnect all the time delay it by
/// 320 ms.
const ACCEPT_PAUSE_WHEN_FULL: Duration = Duration::from_millis(5);
/// Maximum lifetime of a connection, whatever the client does. A scrape takes milliseconds.
const CONNECTION_LIFE: Duration = Duration::from_secs(5);
const LONGEST_HEAD_BYTES: usize = 16 * 1024;
/// How long responses that are being sent may delay a stop.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Pause after a failed accept, for example without free file descriptors: no reason to exit or to spin.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Opens the port. An address that is not available is an error at the start, not at the first scrape.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address} (watchdog.listen, CLEANUP_WATCHDOG_LISTEN)")
    })
}

/// Serves until the shutdown begins.
pub async fn serve(listener: TcpListener, watchdog: Arc<Watchdog>, shutdown: Shutdown) {
    let metrics = Arc::clone(watchdog.metrics());
    let (alive, ready) = (Arc::clone(&watchdog), watchdog);
    let routes =
        Router::new()
            .route(
                "/healthz",
                get(move || async move { answer(alive.is_alive(), "the tick loop is stuck\n") }),
            )
            .route(
                "/readyz",
                get(move || async move {
                    answer(ready.is_ready(), "the last tick failed; see the log\n")
                }),
            )
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
    let slots = Arc::new(Slots::new(CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("cannot accept a connection: {error}");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        if let Some(slot) = slots.take() {
            answers.spawn(answer_once(stream, routes.clone(), slot));
        }
        if slots.is_full() {
            sleep(ACCEPT_PAUSE_WHEN_FULL).await;
        }
    }
}

/// Serves one request. Errors of the connection are not logged: the client sees them.
async fn answer_once(stream: TcpStream, routes: Router, slot: Slot) {
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(|request| {
        slot.request_received();
        routes.call(request)
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(LONGEST_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // Biased: a request that has already arrived is answered.
        biased;
        _ = timeout(CONNECTION_LIFE, connection) => {}
        () = slot.evicted() => {}
    }
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
