//! The scenes: what is going on when a process comes by a failpoint, and which process that is.

use std::time::Duration;

use tokio_postgres::Client;

use super::{
    owners::{END_WAITING, LEAVE_WAITING, RELENT, owners_trigger},
    support::{
        faulty_s3::{FaultyS3, Mode},
        process::Running,
        *,
    },
};

/// Short times, so that a case takes seconds; rows that suffer often are not given up.
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

/// For whoever comes by the failpoint: as in a suspended machine, its own clock does not tell it
/// that it was away, so that nothing but the fence holds it back.
const TIMELESS: &[(&str, &str)] =
    &[("CLEANUP_WORKER_HEARTBEAT_INTERVAL", "1h"), ("CLEANUP_WATCHDOG_STUCK_AFTER", "3h")];

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scene {
    /// A worker drains.
    Drain,
    /// A worker waits for S3 while its heartbeat heartbeats.
    Heartbeat,
    /// A worker releases what it holds, after two signals.
    Release,
    /// S3 refuses the object of one paste.
    RefusedKey,
    /// The content row of one paste cannot be written.
    BadBody,
    /// The owner's trigger lets nobody claim one paste.
    Unclaimable,
    /// The owner's trigger lets nobody delete one paste.
    KeptRow,
    /// The owner's trigger swallows the DELETE of one paste.
    SwallowedRow,
    /// A worker died after its decrement; a watchdog resets its claim.
    DeadWorker,
    /// The same, but the owner's trigger does not let one paste come back.
    BlockedRow,
    /// The same, and no other row of its batch can take over the key of its object.
    KeptKey,
    /// Such a claim has ended, and the owner has relented; a watchdog resets the row with its key.
    KeyTaken,
    /// A worker died before its decrement; a watchdog resets its claim, while another transaction holds
    /// the content row of one paste.
    HeldContent,
    /// Something else left rows in progress; a watchdog resets them.
    NoClaim,
    /// Rows wait for their content rows, one of which another transaction still holds; a watchdog
    /// resets the others.
    Deferred,
    /// A finish left a row in progress, since the owner's trigger let nobody touch it; a watchdog
    /// resets it.
    Leftover,
    /// A watchdog prunes history and tombstones.
    Prune,
}

impl Scene {
    /// A watchdog comes by the failpoint, not a worker.
    pub fn is_a_watchdogs(self) -> bool {
        use Scene::*;
        matches!(
            self,
            DeadWorker
                | BlockedRow
                | KeptKey
                | KeyTaken
                | HeldContent
                | NoClaim
                | Deferred
                | Leftover
                | Prune
        )
    }
}

/// The scenes in which a failpoint is met.
pub fn scenes_of(point: &str) -> Vec<Scene> {
    match point.split_once('.').expect("step.point") {
        ("heartbeat", _) => vec![Scene::Heartbeat],
        ("release", _) => vec![Scene::Release],
        ("claim", "remembered") => vec![Scene::Unclaimable],
        ("claim", "marked" | "committed") => vec![Scene::Drain, Scene::Unclaimable],
        ("decrement", "failed") => vec![Scene::BadBody],
        ("decrement", "committed") => vec![Scene::Drain, Scene::BadBody],
        ("finish", "locked") => vec![Scene::KeptRow],
        ("finish", "leftovers") => vec![Scene::KeptRow, Scene::SwallowedRow],
        ("finish", "failed") => vec![Scene::RefusedKey],
        ("finish", "committed") => vec![Scene::Drain, Scene::RefusedKey, Scene::KeptRow],
        ("reset", "locked" | "good_reset") => vec![Scene::BlockedRow, Scene::KeptKey],
        ("reset", "pastes_reset") => vec![Scene::DeadWorker, Scene::Release, Scene::HeldContent],
        ("reset", _) => vec![Scene::DeadWorker, Scene::Release],
        ("sweep", "committed") => {
            vec![Scene::DeadWorker, Scene::BlockedRow, Scene::KeptKey, Scene::HeldContent]
        }
        ("sweep", _) => vec![Scene::DeadWorker],
        ("orphans", "reset" | "committed") => {
            vec![Scene::NoClaim, Scene::Deferred, Scene::Leftover, Scene::KeyTaken]
        }
        ("orphans", _) => vec![Scene::NoClaim],
        ("count" | "prune" | "purge", _) => vec![Scene::Prune],
        _ => vec![Scene::Drain],
    }
}

/// A world with a fleet in short settings, behind an S3 that is watched.
pub struct Stage {
    pub world: World,
    pub s3: FaultyS3,
    /// A forgotten transaction.
    holder: Client,
}

impl Stage {
    pub async fn new() -> Self {
        let world = World::new().await;
        let s3 = FaultyS3::start(&world, Mode::Normal).await;
        let holder = connect(&world.database_url).await;
        Self { world, s3, holder }
    }

    /// A program of the fleet.
    pub fn program(&self, name: &str) -> Process {
        let program = self.world.program(name).env("AWS_ENDPOINT_URL", &self.s3.url);
        with(program, SETTINGS)
    }

    pub fn worker(&self) -> Process {
        self.program("cleanup-worker").args(&["run", "--format", "json"])
    }

    /// A program that was built with failpoints, one of which is armed.
    pub fn armed(&self, name: &str, failpoints: &str) -> Process {
        let folder = std::env::var("PASTE_CLEANUP_TEST_FAILPOINT_BIN")
            .expect("no PASTE_CLEANUP_TEST_FAILPOINT_BIN: run the tests with ops/test");
        let program = self.program(&format!("{folder}/{name}")).env("FAILPOINTS", failpoints);
        if name == "cleanup-worker" { program.args(&["run", "--format", "json"]) } else { program }
    }

    /// The worker that will come by the failpoint.
    fn victim(&self, failpoint: &str) -> Running {
        let worker = self.armed("cleanup-worker", failpoint);
        with(worker, if failpoint.starts_with("heartbeat") { &[] } else { TIMELESS }).start()
    }

    /// Sets the scene and starts the program that will come by the failpoint.
    pub async fn begin(&self, scene: Scene, failpoint: &str) -> Running {
        match scene {
            Scene::Drain => self.victim(failpoint),
            Scene::Heartbeat => {
                self.s3.set_mode(Mode::Holding);
                self.victim(failpoint)
            }
            Scene::Release => {
                let worker = self.held_worker(failpoint).await;
                worker.signal(Signal::TERM);
                tokio::time::sleep(Duration::from_millis(50)).await;
                worker.signal(Signal::TERM);
                worker
            }
            Scene::RefusedKey => {
                let refused = self.world.put("refused", "refused", Ago(500.0)).await;
                self.s3.set_mode(Mode::Refusing { text: refused, code: "ObjectLocked" });
                self.victim(failpoint)
            }
            Scene::BadBody => {
                self.world.put("bad", "bad", Ago(500.0)).await;
                self.world.run_sql(SPOIL).await;
                self.victim(failpoint)
            }
            Scene::Unclaimable | Scene::KeptRow | Scene::SwallowedRow => {
                self.world.put("owners", "body 14", Ago(500.0)).await;
                self.world.run_sql(&owners_trigger(scene)).await;
                self.victim(failpoint)
            }
            Scene::DeadWorker | Scene::BlockedRow => {
                self.world.put("owners", "body 14", Ago(500.0)).await;
                self.dies_at("objects.before_call").await;
                self.world.run_sql(&owners_trigger(scene)).await;
                self.armed("cleanup-watchdog", failpoint).start()
            }
            Scene::KeptKey | Scene::KeyTaken => {
                for code in ["owners", "own 1", "own 2", "own 3", "own 4", "own 5"] {
                    self.world.put(code, code, Ago(500.0)).await;
                }
                // With one batch, lest another one come there first.
                let worker = self.armed("cleanup-worker", "objects.before_call=return(abort)");
                worker.env("CLEANUP_WORKER_CONCURRENCY", "1").start().end().await;
                self.world.run_sql(&owners_trigger(scene)).await;
                if scene == Scene::KeyTaken {
                    self.until_it_is_reset().await;
                    self.world.run_sql(RELENT).await;
                }
                self.armed("cleanup-watchdog", failpoint).start()
            }
            Scene::HeldContent => {
                self.world.put("held", "held", Ago(500.0)).await;
                self.dies_at("decrement.before").await;
                self.hold_content().await;
                self.armed("cleanup-watchdog", failpoint).start()
            }
            Scene::Deferred => {
                self.world.put("held", "held", Ago(500.0)).await;
                self.world.run_sql(LEAVE_WAITING).await;
                self.hold_content().await;
                self.armed("cleanup-watchdog", failpoint).start()
            }
            Scene::Leftover => {
                self.world.put("owners", "body 14", Ago(500.0)).await;
                self.world.run_sql(&owners_trigger(scene)).await;
                self.worker().output().await;
                self.world.run_sql(RELENT).await;
                self.armed("cleanup-watchdog", failpoint).start()
            }
            Scene::NoClaim => {
                self.world.run_sql(LEAVE_IN_PROGRESS).await;
                self.armed("cleanup-watchdog", failpoint).start()
            }
            Scene::Prune => {
                self.world.run_sql(LEAVE_HISTORY).await;
                let watchdog = self.armed("cleanup-watchdog", failpoint);
                watchdog.env("CLEANUP_RETENTION_TOMBSTONES", "1h").start()
            }
        }
    }

    async fn dies_at(&self, point: &str) {
        let died = format!("{point}=return(abort)");
        self.armed("cleanup-worker", &died).start().end().await;
    }

    /// Another watchdog resets what the dead worker held.
    async fn until_it_is_reset(&self) {
        let watchdog = self.program("cleanup-watchdog").start();
        let reset = "SELECT count(*) = 0 FROM deletion_claims
                     WHERE finished_at IS NULL AND reset_at IS NULL";
        self.world.until("the dead worker's claims are reset", reset).await;
        watchdog.signal(Signal::TERM);
        watchdog.end().await;
        let kept = "SELECT count(*) FROM deletion_claims WHERE cardinality(pending_s3_keys) = 1";
        assert_eq!(self.world.count(kept).await, 1, "the claim keeps the key of its stuck paste");
    }

    async fn hold_content(&self) {
        let hold = "BEGIN; SELECT FROM content WHERE content_hash = sha256('held') FOR UPDATE";
        self.holder.batch_execute(hold).await.expect("hold");
    }

    /// A worker whose first call to S3 was carried out but is not answered.
    async fn held_worker(&self, failpoint: &str) -> Running {
        self.s3.set_mode(Mode::Holding);
        let calls = self.s3.calls();
        let worker = self.victim(failpoint);
        self.s3.called(calls + 1).await;
        worker
    }

    /// What made the scene is over.
    pub async fn end_scene(&self) {
        self.s3.let_go();
        self.holder.batch_execute("ROLLBACK").await.expect("let go");
        self.world.run_sql("DROP TRIGGER IF EXISTS spoil ON content").await;
        self.world.run_sql(RELENT).await;
    }

    /// Time passes: what waits for its content row is tried again, and so is what could not be
    /// claimed.
    pub async fn end_waiting(&self) {
        self.world.run_sql(END_WAITING).await;
    }
}

fn with(program: Process, settings: &[(&str, &str)]) -> Process {
    settings.iter().fold(program, |program, (name, value)| program.env(name, value))
}

/// One content row can be neither counted down nor removed.
const SPOIL: &str = "
    CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'told to' USING ERRCODE = '23514'; END $$;
    CREATE TRIGGER spoil BEFORE UPDATE OR DELETE ON content FOR EACH ROW
    WHEN (OLD.content_hash = sha256('bad'::bytea)) EXECUTE FUNCTION spoil()";

/// By another system, some of them without a word about when.
const LEAVE_IN_PROGRESS: &str = "
    UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
           deletion_initiated_at = CASE WHEN short_code < 'expired 6' THEN now() - interval '3 h' END
    WHERE expires_at <= now()";

const LEAVE_HISTORY: &str = "
    INSERT INTO deletion_claims (worker, rows_claimed, claimed_at, decremented_at, finished_at)
    SELECT gen_random_uuid(), 1, now() - interval '90 d', now() - interval '90 d',
           now() - interval '90 d' FROM generate_series(1, 20);
    INSERT INTO pastes (short_code, expires_at, deletion_status, deletion_initiated_at)
    SELECT 'buried ' || n, now() - interval '9 h', 'DELETED', now() - interval '8 h'
    FROM generate_series(1, 20) n";
