//! The stage: the real servers and workers on which stories are played, one after the other.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use deadpool_postgres::Pool;
use futures_util::future::join_all;
use paste_cleanup::{
    claim::{Claim, Decremented},
    worker::{Worker, batch::delete_objects::ObjectsGone},
};
use tokio_postgres::{Client, types::ToSql};

use super::{
    reference::{BACKOFF_CAP, BATCH_SIZE, Blame, MAX_ATTEMPTS, Reference, Status, When},
    story::{BODIES, WORKERS},
    support::{
        World, connect,
        faulty_s3::{FaultyS3, Mode},
        hash,
    },
};

/// What the owner's trigger says.
pub const KEPT: &str = "keep this one";
/// What is said of a row whose content somebody holds.
pub const LOCKED: &str = "another transaction holds its content row locked";
/// Sooner than any time of a story, for the story's own clock to start at.
const BEFORE: &str = "SELECT date_trunc('second', now()) - interval '12 hours'";
const DAY: Duration = Duration::from_secs(86_400);

/// The text of a body.
pub fn text(body: u8) -> String {
    format!("body {body}. ").repeat(usize::from(body) + 1)
}

pub fn size_bytes(body: u8) -> i64 {
    i64::try_from(text(body).len()).expect("a short body")
}

/// What a worker has in hand of a claim.
#[derive(Clone)]
pub struct Held {
    pub worker: Arc<Worker>,
    pub claim: Claim,
    pub decremented: Option<Decremented>,
    pub gone: Option<Arc<ObjectsGone>>,
}

/// What a row does that comes back while somebody holds its content row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Haste {
    /// Waits for up to two seconds, as ever.
    WaitsForLocks,
    /// Gives up at once, so that a story need not wait.
    DefersAtOnce,
}

pub struct Stage {
    pub world: World,
    pub s3: FaultyS3,
    pub workers: Vec<Arc<Worker>>,
    /// Drains when the story is over.
    pub drainer: Arc<Worker>,
    pub watchdog: Pool,
    /// Connections of writers, one for each thing that can happen at the same time.
    pub writers: Vec<Client>,
    /// A forgotten transaction's.
    pub holder: Client,
    pub held: Mutex<BTreeMap<i64, Held>>,
    hashes: BTreeMap<Vec<u8>, u8>,
    /// Second zero of the story's own clock.
    dawn: SystemTime,
}

impl Stage {
    pub async fn build(haste: Haste) -> Self {
        let mut world = World::new().await;
        if haste == Haste::DefersAtOnce {
            // Sessions begin as if they had waited already.
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
            // Shares of a large batch are large: fewer batches, the same result.
            drainer: world.worker_with(|s| s.worker.batch_size = 10_000).await,
            watchdog: world.watchdog_pool(),
            writers: join_all((0..3).map(|_| connect(url))).await,
            holder: connect(url).await,
            held: Mutex::default(),
            hashes: (0..BODIES).map(|body| (hash(&text(body)), body)).collect(),
            dawn: SystemTime::UNIX_EPOCH,
            world,
            s3,
            workers,
        }
    }

    /// A second of the story's clock, as a time.
    pub fn at(&self, when: When) -> Option<SystemTime> {
        match when {
            When::Unset => None,
            When::Past(second) => Some(self.dawn + Duration::from_secs(second.unsigned_abs())),
            When::Later(_) => Some(SystemTime::now() + DAY),
            When::Infinity => panic!("a story plants no dead letters"),
        }
    }

    pub fn body_of(&self, hash: &[u8]) -> u8 {
        *self.hashes.get(hash).expect("a hash of the story")
    }

    pub fn held(&self, claim: i64) -> Held {
        self.held.lock().expect("held")[&claim].clone()
    }

    /// Sets the stage anew: nothing is left of the story before, all of this one's graph is there.
    pub async fn set(&mut self, scene: &Reference) {
        self.s3.set_mode(Mode::Normal);
        self.held.lock().expect("held").clear();
        self.world.seen.lock().expect("seen").clear();
        self.set_owner(scene.owner).await;
        let leftovers = self.world.keys().await;
        let s3 = &self.world.s3;
        join_all(leftovers.into_iter().map(async |key| {
            s3.delete_object().bucket(&self.world.bucket).key(key).send().await.expect("clean");
        }))
        .await;
        self.dawn = self.world.db.query_one(BEFORE, &[]).await.expect("dawn").get(0);
        let uploads = scene.objects.iter().map(async |key| {
            let body = scene.content.iter().find(|(_, content)| content.key == *key);
            let body = body.map_or_else(|| "owed".into(), |(body, _)| text(*body));
            self.world.upload(key, &body).await;
        });
        join_all(uploads).await;
        self.plant_content(scene).await;
        self.plant_pastes(scene).await;
    }

    async fn plant_content(&self, scene: &Reference) {
        let (mut hashes, mut keys, mut sizes, mut counts) = (vec![], vec![], vec![], vec![]);
        for (body, content) in &scene.content {
            hashes.push(hash(&text(*body)));
            keys.push(&content.key);
            sizes.push(size_bytes(*body));
            counts.push(content.ref_count);
        }
        let plant = "INSERT INTO content (content_hash, s3_key, size_bytes, ref_count)
                     SELECT * FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::int[])";
        self.world.db.execute(plant, &[&hashes, &keys, &sizes, &counts]).await.expect("content");
    }

    async fn plant_pastes(&self, scene: &Reference) {
        let plant = "INSERT INTO pastes (short_code, content_hash, expires_at, deletion_status,
                                         deletion_initiated_at, attempts, retry_at, pending_s3_key,
                                         last_error, claim_id)
                     VALUES ($1, $2, $3, $4::text,
                             CASE $4 WHEN 'NOT_EXPIRED' THEN NULL
                                     ELSE now() - interval '3 hours' END,
                             $5, $6, $7, $8, $9)";
        let plant = self.world.db.prepare(plant).await.expect("prepare");
        for (code, paste) in &scene.pastes {
            let hash = paste.body.map(|body| hash(&text(body)));
            let status = match paste.status {
                Status::NotExpired => "NOT_EXPIRED",
                Status::InProgress(_) | Status::Stale(_) => "DELETION_IN_PROGRESS",
                Status::Deleted => "DELETED",
            };
            let (expires, retry) = (self.at(paste.expires), self.at(paste.retry));
            let error = match paste.blame {
                Blame::Nobody => None,
                Blame::Worker => Some("worker lease expired"),
                Blame::S3 => Some("S3 ObjectLocked: no"),
                Blame::Owner => Some(KEPT),
                Blame::Locked => Some(LOCKED),
            };
            let claim = match paste.status {
                Status::InProgress(claim) => claim,
                Status::Stale(claim) => Some(claim),
                Status::NotExpired | Status::Deleted => None,
            };
            let (attempts, owed) = (paste.attempts, &paste.pending_s3_key);
            let row: [&(dyn ToSql + Sync); 9] =
                [code, &hash, &expires, &status, &attempts, &retry, owed, &error, &claim];
            self.world.db.execute(&plant, &row).await.expect("paste");
        }
    }
}
