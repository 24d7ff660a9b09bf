//! The environment of a case: a database, a bucket and a fleet, and how a scenario is set up in it.

use std::time::Duration;

use tokio_postgres::Client;

use super::{
    scenario::Scenario,
    sql::{
        DEFER_ROWS, DROP_OWNER_TRIGGER, END_DEFERRALS, INSERT_HISTORY, MARK_ROWS, REFUSE_CONTENT,
        owner_trigger,
    },
    support::{
        faulty_s3::{FaultyS3, Mode},
        process::Running,
        *,
    },
};

/// Short times, so that a case takes seconds; many attempts, so that no row becomes a dead letter.
const SETTINGS: &[(&str, &str)] = &[
    ("CLEANUP_WORKER_HEARTBEAT_INTERVAL", "300ms"),
    ("CLEANUP_WATCHDOG_STUCK_AFTER", "1500ms"),
    ("CLEANUP_WATCHDOG_TICK", "200ms"),
    ("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0"),
    ("CLEANUP_LOCK_TTL", "3s"),
    ("CLEANUP_WORKER_BATCH_SIZE", "6"),
    ("CLEANUP_WORKER_CONCURRENCY", "2"),
    ("CLEANUP_WORKER_BACKOFF_CAP", "200ms"),
    ("CLEANUP_WORKER_MAX_ATTEMPTS", "50"),
    ("CLEANUP_CACHE_KEY_PATTERN", "paste:{short_code}"),
];

/// Settings of the process that reaches the failpoint: as on a suspended machine, its own clock
/// does not show that its lease has expired, so only the fence stops it.
const NO_LEASE_CHECK: &[(&str, &str)] =
    &[("CLEANUP_WORKER_HEARTBEAT_INTERVAL", "1h"), ("CLEANUP_WATCHDOG_STUCK_AFTER", "3h")];

/// A database and a bucket, with a fleet in short settings behind an S3 proxy that checks deletes.
pub(crate) struct Environment {
    pub world: World,
    pub s3: FaultyS3,
    /// The connection of a transaction that locks a content row.
    lock_holder: Client,
}

impl Environment {
    pub(crate) async fn new() -> Self {
        let world = World::new().await;
        let s3 = FaultyS3::start(&world, Mode::Normal).await;
        let lock_holder = connect(&world.database_url).await;
        Self { world, s3, lock_holder }
    }

    /// Returns a program of the fleet.
    pub(crate) fn program(&self, name: &str) -> Process {
        let program = self.world.program(name).env("AWS_ENDPOINT_URL", &self.s3.url);
        with(program, SETTINGS)
    }

    pub(crate) fn worker(&self) -> Process {
        self.program("cleanup-worker").args(&["run", "--format", "json"])
    }

    /// Returns a program that was built with failpoints, one of which is armed.
    pub(crate) fn armed(&self, name: &str, failpoints: &str) -> Process {
        let folder = std::env::var("PASTE_CLEANUP_TEST_FAILPOINT_BIN")
            .expect("no programs with failpoints: use `ops/test --test crash_matrix`");
        let program = self.program(&format!("{folder}/{name}")).env("FAILPOINTS", failpoints);
        if name == "cleanup-worker" { program.args(&["run", "--format", "json"]) } else { program }
    }

    /// Starts the worker that will reach the failpoint.
    fn victim(&self, failpoint: &str) -> Running {
        let worker = self.armed("cleanup-worker", failpoint);
        with(worker, if failpoint.starts_with("heartbeat") { &[] } else { NO_LEASE_CHECK }).start()
    }

    /// Sets up the scenario and starts the program that will reach the failpoint.
    pub(crate) async fn start(&self, scenario: Scenario, failpoint: &str) -> Running {
        if scenario.is_watchdog() {
            self.prepare_for_watchdog(scenario).await;
            let watchdog = self.armed("cleanup-watchdog", failpoint);
            return match scenario {
                Scenario::Prune => watchdog.env("CLEANUP_RETENTION_TOMBSTONES", "1h").start(),
                _ => watchdog.start(),
            };
        }
        match scenario {
            Scenario::Heartbeat => self.s3.set_mode(Mode::Holding),
            Scenario::Release => return self.releasing_worker(failpoint).await,
            Scenario::RefusedKey => {
                let refused = self.world.put("refused", "refused", Ago(500.0)).await;
                self.s3.set_mode(Mode::Refusing { text: refused, code: "ObjectLocked" });
            }
            Scenario::ContentError => {
                self.world.put("bad", "bad", Ago(500.0)).await;
                self.world.run_sql(REFUSE_CONTENT).await;
            }
            Scenario::Unclaimable | Scenario::DeleteRefused | Scenario::DeleteSuppressed => {
                self.world.put("owners", "body 14", Ago(500.0)).await;
                self.world.run_sql(&owner_trigger(scenario)).await;
            }
            _ => {}
        }
        self.victim(failpoint)
    }

    /// Leaves what the watchdog of this scenario will reset or prune.
    async fn prepare_for_watchdog(&self, scenario: Scenario) {
        match scenario {
            Scenario::DeadWorker | Scenario::ResetRefused => {
                self.world.put("owners", "body 14", Ago(500.0)).await;
                self.dies_at("objects.before_call").await;
                self.world.run_sql(&owner_trigger(scenario)).await;
            }
            Scenario::PendingKeyKept | Scenario::PendingKeyReset => {
                self.leave_pending_key(scenario).await;
            }
            Scenario::LockedContent => {
                self.world.put("held", "held", Ago(500.0)).await;
                self.dies_at("decrement.before").await;
                self.lock_content().await;
            }
            Scenario::Deferred => {
                self.world.put("held", "held", Ago(500.0)).await;
                self.world.run_sql(DEFER_ROWS).await;
                self.lock_content().await;
            }
            Scenario::StrandedRow => {
                self.world.put("owners", "body 14", Ago(500.0)).await;
                self.world.run_sql(&owner_trigger(scenario)).await;
                self.worker().output().await;
                self.world.run_sql(DROP_OWNER_TRIGGER).await;
            }
            Scenario::MarkedRows => self.world.run_sql(MARK_ROWS).await,
            Scenario::Prune => self.world.run_sql(INSERT_HISTORY).await,
            _ => {}
        }
    }

    /// A worker that gets two signals while it waits for S3, and so releases its claim.
    async fn releasing_worker(&self, failpoint: &str) -> Running {
        let worker = self.worker_waiting_for_s3(failpoint).await;
        worker.signal(Signal::TERM);
        tokio::time::sleep(Duration::from_millis(50)).await;
        worker.signal(Signal::TERM);
        worker
    }

    /// A worker dies in a batch of pastes that all have pending keys, so that no other row can take
    /// over the key of the row that the owner's trigger blocks.
    async fn leave_pending_key(&self, scenario: Scenario) {
        for code in ["owners", "own 1", "own 2", "own 3", "own 4", "own 5"] {
            self.world.put(code, code, Ago(500.0)).await;
        }
        // With one batch in flight, so that no other batch reaches the failpoint first.
        let worker = self.armed("cleanup-worker", "objects.before_call=return(abort)");
        worker.env("CLEANUP_WORKER_CONCURRENCY", "1").start().end().await;
        self.world.run_sql(&owner_trigger(scenario)).await;
        if scenario == Scenario::PendingKeyReset {
            self.wait_for_reset().await;
            self.world.run_sql(DROP_OWNER_TRIGGER).await;
        }
    }

    async fn dies_at(&self, point: &str) {
        let died = format!("{point}=return(abort)");
        self.armed("cleanup-worker", &died).start().end().await;
    }

    /// Runs another watchdog until it has reset the dead worker's claims.
    async fn wait_for_reset(&self) {
        let watchdog = self.program("cleanup-watchdog").start();
        let reset = "SELECT count(*) = 0 FROM deletion_claims
                     WHERE finished_at IS NULL AND reset_at IS NULL";
        self.world.until("the dead worker's claims are reset", reset).await;
        watchdog.signal(Signal::TERM);
        watchdog.end().await;
        let kept = "SELECT count(*) FROM deletion_claims WHERE cardinality(pending_s3_keys) = 1";
        assert_eq!(
            self.world.count(kept).await,
            1,
            "the claim keeps the pending key of its blocked row"
        );
    }

    async fn lock_content(&self) {
        let hold = "BEGIN; SELECT FROM content WHERE content_hash = sha256('held') FOR UPDATE";
        self.lock_holder.batch_execute(hold).await.expect("lock content");
    }

    /// Starts a worker whose first call to S3 is carried out but not answered.
    async fn worker_waiting_for_s3(&self, failpoint: &str) -> Running {
        self.s3.set_mode(Mode::Holding);
        let calls = self.s3.calls();
        let worker = self.victim(failpoint);
        self.s3.called(calls + 1).await;
        worker
    }

    /// Ends the faults of the scenario.
    pub(crate) async fn end_faults(&self) {
        self.s3.let_go();
        self.lock_holder.batch_execute("ROLLBACK").await.expect("rollback");
        self.world.run_sql("DROP TRIGGER IF EXISTS refuse_content ON content").await;
        self.world.run_sql(DROP_OWNER_TRIGGER).await;
    }

    /// Makes deferred and unclaimable rows due at once, instead of waiting for their retry.
    pub(crate) async fn end_deferrals(&self) {
        self.world.run_sql(END_DEFERRALS).await;
    }
}

fn with(program: Process, settings: &[(&str, &str)]) -> Process {
    settings.iter().fold(program, |program, (name, value)| program.env(name, value))
}
