//! The command line of `cleanup-watchdog`.

use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use tokio_util::sync::CancellationToken;

use super::{Swept, Watchdog, http};
use crate::{
    cli::{Common, say},
    shutdown::Shutdown,
};

/// Resets the claims of workers that went silent, prunes history, serves health and metrics.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100, after_help = HELP)]
pub struct WatchdogCli {
    #[command(flatten)]
    common: Common,
    /// One sweep, then exit: for cron. Opens no port.
    #[arg(long)]
    once: bool,
}

const HELP: &str = "\
A claim is reset when its worker did not heartbeat for watchdog.stuck_after (default 2h). Live workers
heartbeat every 10 s, so a minute is safe, too; less than three heartbeats is refused.

It needs DATABASE_URL only. Serves /healthz, /readyz and /metrics on watchdog.listen
(default 127.0.0.1:9464). Exit codes: 0 stopped as asked; 1 failed, or (with --once) a claim could
not be reset; 2 usage or config.

Examples:
  cleanup-watchdog                                    the sidecar
  CLEANUP_WATCHDOG_STUCK_AFTER=5m cleanup-watchdog    recovers in minutes
  cleanup-watchdog --once                             one sweep, from cron";

impl WatchdogCli {
    /// Runs the watchdog; the answer is the exit code.
    pub async fn run(self) -> Result<u8> {
        let settings = Arc::new(self.common.settings()?);
        if self.once {
            let watchdog = Watchdog::start(settings).await?;
            watchdog.before_first_tick(&CancellationToken::new()).await;
            let ticked = watchdog.tick().await?;
            let Swept { reset, stranded, blocked, .. } = ticked.swept;
            let held = match (blocked, reset.left) {
                (0, 0) => String::new(),
                (claims, pastes) => format!(
                    "; {claims} claims could not be reset, and {pastes} pastes of others: the log \
                     says why; `cleanupctl doctor --long-transaction 1m` names transactions that \
                     hold rows"
                ),
            };
            say(&format!(
                "reset {} claims ({} pastes) and {stranded} pastes without an open claim{held}",
                reset.claims, reset.rows
            ));
            return Ok(u8::from(blocked + reset.left > 0));
        }
        let shutdown = Shutdown::on_signals()?;
        let listener = http::listen(settings.watchdog.listen).await?;
        let watchdog = Watchdog::start(settings).await?;
        tracing::info!("watching; health and metrics on http://{}", listener.local_addr()?);
        let server = http::serve(listener, Arc::clone(&watchdog), shutdown.clone());
        let server = tokio::spawn(server);
        let watched = watchdog.run(&shutdown).await;
        shutdown.stop.cancel();
        server.await?;
        watched?;
        Ok(0)
    }
}
