//! The command line of `cleanup-watchdog`.

use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use tokio_util::sync::CancellationToken;

use super::{Swept, Watchdog, http};
use crate::{
    cli::{Common, say},
    config::Settings,
    format::counted,
    shutdown::Shutdown,
};

/// Resets claims whose worker stopped sending heartbeats, prunes history, serves health and metrics.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100, after_help = HELP)]
pub struct WatchdogCli {
    #[command(flatten)]
    common: Common,
    /// Sweep once and exit, for cron. Opens no port.
    #[arg(long)]
    once: bool,
}

const HELP: &str = "\
A claim is reset when its worker has sent no heartbeat for watchdog.stuck_after
(default 2h). Live workers send one every 10 s, so 1m is safe as well; less than
three heartbeats is refused.

Needs only DATABASE_URL, or DATABASE_URL_FILE. Serves /healthz, /readyz and
/metrics on watchdog.listen (default 127.0.0.1:9464).

Exit codes:
  0  stopped by a signal, or the sweep of --once is complete
  1  failed, or --once could not reset a claim or a paste
  2  wrong usage or settings

Examples:
  cleanup-watchdog                                    run as a sidecar
  CLEANUP_WATCHDOG_STUCK_AFTER=5m cleanup-watchdog    reset after 5 minutes
  cleanup-watchdog --once                             sweep once, from cron";

impl WatchdogCli {
    /// Runs the watchdog and returns the exit code.
    pub async fn run(self) -> Result<u8> {
        let settings = Arc::new(self.common.settings()?);
        if self.once {
            return sweep_once(settings).await;
        }
        let shutdown = Shutdown::on_signals()?;
        let listener = http::listen(settings.watchdog.listen).await?;
        let watchdog = Watchdog::start(settings).await?;
        tracing::info!("started; health and metrics on http://{}", listener.local_addr()?);
        let server = http::serve(listener, Arc::clone(&watchdog), shutdown.clone());
        let server = tokio::spawn(server);
        let watched = watchdog.run(&shutdown).await;
        shutdown.stop.cancel();
        server.await?;
        watched?;
        Ok(0)
    }
}

async fn sweep_once(settings: Arc<Settings>) -> Result<u8> {
    let watchdog = Watchdog::start(settings).await?;
    watchdog.before_first_tick(&CancellationToken::new()).await;
    let Swept { reset, stranded, blocked, .. } = watchdog.tick().await?.swept;
    say(&format!(
        "reset {} ({}) and {}",
        counted(reset.claims, "claim"),
        counted(reset.rows, "paste"),
        counted(stranded, "stranded paste"),
    ));
    let found = watchdog.stranded().await?.map_or(0, |stranded| stranded.pastes);
    let left = [(blocked, "claim"), (usize::try_from(found).unwrap_or_default(), "stranded paste")];
    let left = left.into_iter().filter(|(number, _)| *number > 0);
    let left: Vec<String> = left.map(|(number, noun)| counted(number, noun)).collect();
    if left.is_empty() {
        return Ok(0);
    }
    say(&format!(
        "could not reset {}: see the log for the reason; `cleanupctl doctor --long-transaction 1m` \
         names transactions that lock rows",
        left.join(" and ")
    ));
    Ok(1)
}
