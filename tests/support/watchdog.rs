//! Time passes for the fleet: leases expire, backoffs end, and a watchdog sweeps.

use deadpool_postgres::Pool;
use paste_cleanup::{
    config::Settings,
    postgres::Target,
    watchdog::{Depth, Swept, sweep},
};
use secrecy::SecretString;

use super::{Ago, World, drain};

impl World {
    /// Moves the last heartbeat of every open claim this far into the past.
    pub(crate) async fn expire_leases(&self, seconds: f64) {
        let sql = "UPDATE deletion_claims SET heartbeat_at = now() - $1 * interval '1 second'
                   WHERE finished_at IS NULL AND reset_at IS NULL";
        self.db.execute(sql, &[&seconds]).await.expect("expire leases");
    }

    /// Makes every row that backs off due at once.
    pub(crate) async fn end_backoff(&self) {
        self.run_sql("UPDATE pastes SET retry_at = now() WHERE retry_at < 'infinity'").await;
    }

    /// Makes deferred rows, which wait for a lock on their content row, ready for the next sweep.
    pub(crate) async fn end_deferral(&self) {
        let sql = "UPDATE pastes SET deletion_initiated_at = now() - interval '1 hour',
                                     retry_at = now() - interval '1 second'
                   WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NULL
                     AND retry_at > deletion_initiated_at";
        self.run_sql(sql).await;
    }

    /// Sweeps as a watchdog does in a tick, with the default `stuck_after` of two hours.
    pub(crate) async fn sweep(&self) -> Swept {
        self.sweep_with(&self.settings).await
    }

    pub(crate) async fn sweep_with(&self, settings: &Settings) -> Swept {
        sweep(&self.watchdog_pool(), settings, Depth::Thorough).await.expect("sweep")
    }

    /// Lets the fleet erase a paste. An audit refuses to delete in a database without any erased
    /// paste: these may be the wrong tables.
    pub(crate) async fn erase_one(&self) {
        self.put("erased", "erased", Ago(60.0)).await;
        let worker = self.worker().await;
        assert_eq!(drain(&worker).await.rows_deleted, 1, "one was due");
    }

    /// A pool with the watchdog's login.
    pub(crate) fn watchdog_pool(&self) -> Pool {
        let mut settings = self.settings.clone();
        settings.postgres.url = Some(SecretString::from(self.watchdog_url.clone()));
        let target = Target::new(&settings, "test", None).expect("target");
        target.pool(3).expect("pool")
    }
}
