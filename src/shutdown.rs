//! Shutdown in two steps: the first signal stops claiming, the second releases open claims.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// The two steps of a shutdown.
#[derive(Clone, Default, Debug)]
pub struct Shutdown {
    /// Stop claiming, and finish open claims within the grace period.
    pub stop: CancellationToken,
    /// Release open claims now.
    pub abandon: CancellationToken,
}

impl Shutdown {
    /// Listens for SIGTERM and SIGINT until the process ends.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let signalled = shutdown.clone();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = term.recv() => "SIGTERM",
                    _ = int.recv() => "SIGINT",
                };
                if signalled.stop.is_cancelled() {
                    warn!("received {name} again: stopping at once");
                    signalled.abandon.cancel();
                } else {
                    warn!(
                        "received {name}: finishing what is in progress; a second signal stops at once"
                    );
                    signalled.stop.cancel();
                }
            }
        });
        Ok(shutdown)
    }
}
