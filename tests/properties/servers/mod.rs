//! The real servers and workers on which scenarios run, one after the other.

pub(crate) mod observe;
mod owner;
mod perform;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use deadpool_postgres::Pool;
use futures_util::future::join_all;
use paste_cleanup::{
    claim::{Claim, Decremented},
    worker::{Worker, batch::delete_objects::ObjectsDeleted},
};
use tokio_postgres::{Client, types::ToSql};

use crate::{
    reference::{BACKOFF_CAP, BATCH_SIZE, LastError, MAX_ATTEMPTS, Reference, Status, When},
    scenario::{CONTENT_ROWS, WORKERS},
    support::{
        World, connect,
        faulty_s3::{FaultyS3, Mode},
        hash,
    },
};

/// The error message of the owner's trigger.
pub(crate) const TRIGGER_ERROR: &str = "keep this one";
/// The `last_error` of a row whose content row is locked.
pub(crate) const LOCKED: &str = "waits for its content row: another transaction has locked it";
/// The start of the scenario's clock: earlier than any time in a scenario.
const CLOCK_START: &str = "SELECT date_trunc('second', now()) - interval '12 hours'";
const DAY: Duration = Duration::from_secs(86_400);

/// Returns the body that is stored for this content.
pub(crate) fn text(content_id: u8) -> String {
    format!("body {content_id}. ").repeat(usize::from(content_id) + 1)
}

pub(crate) fn size_bytes(content_id: u8) -> i64 {
    i64::try_from(text(content_id).len()).expect("a short body")
}

/// What a worker knows about its claim.
#[derive(Clone)]
pub(crate) struct Batch {
    pub worker: Arc<Worker>,
    pub claim: Claim,
    pub decremented: Option<Decremented>,
    pub gone: Option<Arc<ObjectsDeleted>>,
}

/// How long the reset of a row waits for a locked content row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockWait {
    /// Up to two seconds, as in production.
    TwoSeconds,
    /// Not at all, so that scenarios are fast.
    NoWait,
}

/// The servers, workers and connections of all scenarios.
pub(crate) struct Environment {
    pub world: World,
    pub s3: FaultyS3,
    pub workers: Vec<Arc<Worker>>,
    /// Drains at the end of a scenario.
    pub drainer: Arc<Worker>,
    pub watchdog: Pool,
    /// Connections of writers, one for each concurrent step.
    pub writers: Vec<Client>,
    /// The connection of transactions that lock content rows.
    pub lock_holder: Client,
    pub batches: Mutex<BTreeMap<i64, Batch>>,
    hashes: BTreeMap<Vec<u8>, u8>,
    /// Second zero of the scenario's clock.
    clock_start: SystemTime,
}

impl Environment {
    pub(crate) async fn build(lock_wait: LockWait) -> Self {
        let mut world = World::new().await;
        if lock_wait == LockWait::NoWait {
            // Sessions begin as if they had already waited.
            let name = &world.name;
            let set = format!("ALTER DATABASE {name} SET paste_cleanup.waited_ms = '2000'");
            world.run_sql(&set).await;
        }
        let s3 = FaultyS3::start(&world, Mode::Normal).await;
        world.settings.s3.endpoint = Some(s3.url.clone());
        world.settings.worker.batch_size = BATCH_SIZE;
        world.settings.worker.max_attempts = MAX_ATTEMPTS.unsigned_abs();
        world.settings.worker.backoff_cap = Duration::from_secs(BACKOFF_CAP.unsigned_abs());
        let mut workers = Vec::new();
        for n in 1..=WORKERS {
            let tombstones = if n == WORKERS { DAY } else { Duration::ZERO };
            workers.push(world.worker_with(|s| s.retention.tombstones = tombstones).await);
        }
        let url = &world.database_url;
        Self {
            // A large batch size means fewer batches with the same result.
            drainer: world.worker_with(|s| s.worker.batch_size = 10_000).await,
            watchdog: world.watchdog_pool(),
            writers: join_all((0..3).map(|_| connect(url))).await,
            lock_holder: connect(url).await,
            batches: Mutex::default(),
            hashes: (0..CONTENT_ROWS)
                .map(|content_id| (hash(&text(content_id)), content_id))
                .collect(),
            clock_start: SystemTime::UNIX_EPOCH,
            world,
            s3,
            workers,
        }
    }

    /// Converts a second of the scenario's clock to a time.
    pub(crate) fn at(&self, when: When) -> Option<SystemTime> {
        match when {
            When::Unset => None,
            When::Past(second) => {
                Some(self.clock_start + Duration::from_secs(second.unsigned_abs()))
            }
            When::Later(_) => Some(SystemTime::now() + DAY),
            When::Infinity => panic!("a scenario has no initial dead letters"),
        }
    }

    pub(crate) fn content_id_of(&self, hash: &[u8]) -> u8 {
        *self.hashes.get(hash).expect("a hash of the scenario")
    }

    pub(crate) fn batch(&self, claim: i64) -> Batch {
        self.batches.lock().expect("batches")[&claim].clone()
    }

    /// Removes everything of the scenario before, and inserts the initial state of this one.
    pub(crate) async fn set(&mut self, initial: &Reference) {
        self.s3.set_mode(Mode::Normal);
        self.batches.lock().expect("batches").clear();
        self.world.seen.lock().expect("seen").clear();
        self.set_owner(initial.owner).await;
        let old_keys = self.world.keys().await;
        let s3 = &self.world.s3;
        join_all(old_keys.into_iter().map(async |key| {
            s3.delete_object().bucket(&self.world.bucket).key(key).send().await.expect("clean");
        }))
        .await;
        self.clock_start = self.world.db.query_one(CLOCK_START, &[]).await.expect("dawn").get(0);
        let uploads = initial.objects.iter().map(async |key| {
            let content_id = initial.content.iter().find(|(_, content)| content.key == *key);
            let content_id =
                content_id.map_or_else(|| "pending".into(), |(content_id, _)| text(*content_id));
            self.world.upload(key, &content_id).await;
        });
        join_all(uploads).await;
        self.insert_content(initial).await;
        self.insert_pastes(initial).await;
    }

    async fn insert_content(&self, initial: &Reference) {
        let (mut hashes, mut keys, mut sizes, mut counts) = (vec![], vec![], vec![], vec![]);
        for (content_id, content) in &initial.content {
            hashes.push(hash(&text(*content_id)));
            keys.push(&content.key);
            sizes.push(size_bytes(*content_id));
            counts.push(content.ref_count);
        }
        let insert = "INSERT INTO content (content_hash, s3_key, size_bytes, ref_count)
                     SELECT * FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::int[])";
        self.world.db.execute(insert, &[&hashes, &keys, &sizes, &counts]).await.expect("content");
    }

    async fn insert_pastes(&self, initial: &Reference) {
        let insert = "INSERT INTO pastes (short_code, content_hash, expires_at, deletion_status,
                                         deletion_initiated_at, attempts, retry_at, pending_s3_key,
                                         last_error, claim_id)
                     VALUES ($1, $2, $3, $4::text,
                             CASE $4 WHEN 'NOT_EXPIRED' THEN NULL
                                     ELSE now() - interval '3 hours' END,
                             $5, $6, $7, $8, $9)";
        let insert = self.world.db.prepare(insert).await.expect("prepare");
        for (code, paste) in &initial.pastes {
            let hash = paste.content_id.map(|content_id| hash(&text(content_id)));
            let status = match paste.status {
                Status::NotExpired => "NOT_EXPIRED",
                Status::InProgress(_) | Status::UnknownClaim(_) => "DELETION_IN_PROGRESS",
                Status::Deleted => "DELETED",
            };
            let (expires, retry) = (self.at(paste.expires), self.at(paste.retry));
            let error = match paste.last_error {
                LastError::None => None,
                LastError::Worker => Some("worker lease expired"),
                LastError::S3 => Some("S3 ObjectLocked: no"),
                LastError::OwnerTrigger => Some(TRIGGER_ERROR),
                LastError::Locked => Some(LOCKED),
            };
            let claim = match paste.status {
                Status::InProgress(claim) => claim,
                Status::UnknownClaim(claim) => Some(claim),
                Status::NotExpired | Status::Deleted => None,
            };
            let (attempts, pending) = (paste.attempts, &paste.pending_s3_key);
            let row: [&(dyn ToSql + Sync); 9] =
                [code, &hash, &expires, &status, &attempts, &retry, pending, &error, &claim];
            self.world.db.execute(&insert, &row).await.expect("paste");
        }
    }
}
