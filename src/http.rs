//! `/healthz`, `/readyz` and `/metrics`: read-only, on a loopback address by default.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use axum::{Router, http::StatusCode, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::{shutdown::Shutdown, watchdog::Watchdog};

/// Opens the port; an address that cannot be had is an error at start, not at the first scrape.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address} (watchdog.listen, CLEANUP_WATCHDOG_LISTEN)")
    })
}

/// Serves until asked to stop.
pub async fn serve(
    listener: TcpListener,
    watchdog: Arc<Watchdog>,
    metrics: PrometheusHandle,
    shutdown: Shutdown,
) -> std::io::Result<()> {
    let (alive, ready) = (Arc::clone(&watchdog), watchdog);
    let routes = Router::new()
        .route("/healthz", get(move || async move { answer(alive.is_alive(), "wedged") }))
        .route("/readyz", get(move || async move { answer(ready.is_ready(), "no Postgres") }))
        .route("/metrics", get(move || async move { metrics.render() }));
    axum::serve(listener, routes)
        .with_graceful_shutdown(async move { shutdown.stop.cancelled().await })
        .await
}

fn answer(good: bool, otherwise: &'static str) -> (StatusCode, &'static str) {
    match good {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, otherwise),
    }
}
