//! Stopping: the first signal asks, the second insists.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// The two steps of a stop.
#[derive(Clone, Default, Debug)]
pub struct Shutdown {
    /// Claim no more; finish what is open within the grace period.
    pub stop: CancellationToken,
    /// Release what is open, now.
    pub abandon: CancellationToken,
}

impl Shutdown {
    /// Listens for SIGTERM and SIGINT for the rest of the process.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let asked = shutdown.clone();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = term.recv() => "SIGTERM",
                    _ = int.recv() => "SIGINT",
                };
                if asked.stop.is_cancelled() {
                    warn!("{name} again: releasing what is open");
                    asked.abandon.cancel();
                } else {
                    warn!("{name}: claiming no more, finishing what is open");
                    asked.stop.cancel();
                }
            }
        });
        Ok(shutdown)
    }
}
