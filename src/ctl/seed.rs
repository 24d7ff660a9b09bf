//! `cleanupctl seed`: writes test pastes with real objects, by the contract that a paste service keeps:
//! upload under a fresh key, then one transaction, then delete the upload if it was not needed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use aws_sdk_s3::{
    error::{ProvideErrorMetadata, SdkError},
    primitives::ByteStream,
};
use clap::Args;
use deadpool_postgres::Pool;
use futures_util::{TryStreamExt, stream};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, interval_at};
use uuid::Uuid;

use crate::{
    backoff::Retries,
    cli::{Format, print, print_note},
    config::{ConfigError, Settings},
    fleet,
    format::{bytes, counted, thousands},
    migrate,
    objects::{Objects, ObjectsError},
    postgres::{PgError, Target, describe},
    printable::printable,
};

const PUT: &str = sql!("ctl/put_paste");
const WRITERS: usize = 16;
const DAY_S: f64 = 86_400.0;
/// 20,000 pastes take half a minute.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// An upload that fails is retried for this long; longer than a request that is not answered.
const UPLOAD_WITHIN: Duration = Duration::from_secs(60);

#[derive(Args, Debug)]
pub(super) struct Seed {
    /// Number of pastes to write.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pastes: u64,
    /// Share of pastes that have already expired, 0 to 1; a tenth of the others never expires.
    #[arg(long, default_value_t = 0.5, value_name = "SHARE")]
    expired_share: f64,
    /// Share of pastes with a body of their own, 0 to 1; the others share one of those.
    #[arg(long, default_value_t = 0.6, value_name = "SHARE")]
    distinct_share: f64,
    /// Size of each body in bytes.
    #[arg(long, default_value_t = 256, value_name = "N")]
    body_bytes: usize,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Default, Serialize)]
struct Seeded {
    pastes: u64,
    expired: u64,
    bodies: u64,
    bytes: u64,
}

/// One body and the pastes that share it.
struct Group {
    pastes: u64,
}

struct Writer {
    pool: Pool,
    objects: Objects,
    expired_share: f64,
    body_bytes: usize,
    written: AtomicU64,
    expired: AtomicU64,
}

impl Seed {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        for (name, share) in
            [("--expired-share", self.expired_share), ("--distinct-share", self.distinct_share)]
        {
            if !(0.0..=1.0).contains(&share) {
                let problem = format!("{name} is {share}, but must be 0 to 1");
                return Err(ConfigError::new(problem, "see `cleanupctl seed --help`").into());
            }
        }
        let writer = self.writer(settings).await?;
        let groups = self.groups();
        let bodies = groups.len() as u64;
        self.write(&writer, groups).await?;
        let seeded = Seeded {
            pastes: self.pastes,
            expired: writer.expired.load(Ordering::Relaxed),
            bodies,
            bytes: bodies * self.body_bytes as u64,
        };
        print(self.format, &seeded, |seeded| {
            format!(
                "seeded {} ({} expired) with {} objects ({})",
                counted(seeded.pastes, "paste"),
                thousands(seeded.expired),
                thousands(seeded.bodies),
                bytes(seeded.bytes),
            )
        });
        Ok(0)
    }

    /// Connects, creates the bucket if it does not exist, and binds the database to it.
    async fn writer(&self, settings: &Settings) -> Result<Arc<Writer>> {
        let objects = Objects::new(settings).await?;
        let client = super::connect(settings).await?;
        migrate::check(&client).await?;
        create_bucket(&objects).await?;
        fleet::bind_bucket(&client, objects.bucket(), objects.prefix()).await?;
        let target = Target::new(settings, "cleanupctl seed", None)?;
        Ok(Arc::new(Writer {
            pool: target.pool(WRITERS)?,
            objects,
            expired_share: self.expired_share,
            body_bytes: self.body_bytes,
            written: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        }))
    }

    /// Writes all pastes, and prints a line of progress every five seconds.
    async fn write(&self, writer: &Arc<Writer>, groups: Vec<Group>) -> Result<()> {
        let mut writing = stream::iter(groups.into_iter().map(Ok))
            .try_for_each_concurrent(WRITERS, |group| Arc::clone(writer).put_group(group));
        let mut ticks = interval_at(Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
        loop {
            tokio::select! {
                written = &mut writing => return written,
                _ = ticks.tick() => {
                    let (written, all) = (writer.written.load(Ordering::Relaxed), self.pastes);
                    print_note(&format!("seeded {} of {}", thousands(written), counted(all, "paste")));
                }
            }
        }
    }

    /// Spreads the pastes over the bodies: one each, the rest at random.
    fn groups(&self) -> Vec<Group> {
        let bodies =
            ((self.pastes as f64 * self.distinct_share).ceil() as u64).clamp(1, self.pastes.max(1));
        let mut groups: Vec<Group> =
            (0..bodies.min(self.pastes)).map(|_| Group { pastes: 1 }).collect();
        for _ in bodies..self.pastes {
            let chosen = fastrand::usize(..groups.len());
            groups[chosen].pastes += 1;
        }
        groups
    }
}

async fn create_bucket(objects: &Objects) -> Result<()> {
    let (client, bucket) = (objects.client(), objects.bucket());
    if client.head_bucket().bucket(bucket).send().await.is_ok() {
        return Ok(());
    }
    let created = client.create_bucket().bucket(bucket).send().await;
    let Err(error) = created else {
        return Ok(());
    };
    // Another process was faster, or S3 is unavailable or refuses: the probe tells them apart.
    match objects.probe().await {
        Err(ObjectsError::NoBucket { .. }) => bail!(
            "cannot create bucket {bucket:?}: {}; create it with other credentials, or correct \
             S3_BUCKET or CLEANUP_S3_BUCKET",
            reason(error)
        ),
        probed => Ok(probed?),
    }
}

impl Writer {
    async fn put_group(self: Arc<Self>, group: Group) -> Result<()> {
        let body: Vec<u8> =
            std::iter::repeat_with(|| fastrand::u8(..)).take(self.body_bytes).collect();
        let hash = Sha256::digest(&body).to_vec();
        for _ in 0..group.pastes {
            self.put(&hash, &body).await?;
            self.written.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Stores one paste, by the writer's contract.
    async fn put(&self, hash: &[u8], body: &[u8]) -> Result<()> {
        let short_code = Uuid::new_v4().simple().to_string()[..12].to_string();
        let expires_in = self.expires_in_s();
        // First without an upload: most shared bodies are already stored.
        let (outcome, _) = self.put_row(&short_code, hash, None, body.len(), expires_in).await?;
        if outcome == "stored" {
            return Ok(());
        }
        let key = format!("{}{}/{}", self.objects.prefix(), hex(hash), Uuid::new_v4().simple());
        self.upload(&key, body).await?;
        let (_, drop_upload) =
            self.put_row(&short_code, hash, Some(&key), body.len(), expires_in).await?;
        if drop_upload {
            self.objects.delete(&[key], || {}).await?;
        }
        Ok(())
    }

    fn expires_in_s(&self) -> Option<f64> {
        if fastrand::f64() < self.expired_share {
            self.expired.fetch_add(1, Ordering::Relaxed);
            return Some(-fastrand::f64() * DAY_S - 1.0);
        }
        (fastrand::f64() >= 0.1).then(|| (fastrand::f64() * 29.0 + 1.0) * DAY_S)
    }

    async fn put_row(
        &self,
        short_code: &str,
        hash: &[u8],
        key: Option<&str>,
        size: usize,
        expires_in: Option<f64>,
    ) -> Result<(String, bool)> {
        let client =
            self.pool.get().await.map_err(PgError::from).context("cannot connect to Postgres")?;
        let failed = |error| anyhow!("cannot store a paste: {}", describe(&error));
        let put = client.prepare_cached(PUT).await.map_err(failed)?;
        let size = i64::try_from(size)?;
        let row = client.query_one(&put, &[&short_code, &hash, &key, &size, &expires_in]).await;
        let row = row.map_err(failed)?;
        Ok((row.get("outcome"), row.get("drop_upload")))
    }

    async fn upload(&self, key: &str, body: &[u8]) -> Result<()> {
        let (client, bucket) = (self.objects.client(), self.objects.bucket());
        let mut retries = Retries::within(UPLOAD_WITHIN);
        loop {
            let put = client.put_object().bucket(bucket).key(key);
            match put.body(ByteStream::from(body.to_vec())).send().await {
                Ok(_) => return Ok(()),
                Err(error) if retries.are_over() => {
                    bail!("cannot upload an object to S3: {}", reason(error));
                }
                Err(_) => retries.pause().await,
            }
        }
    }
}

/// What S3 answered, else the cause: the SDK's own text is a dump of the response.
fn reason<E>(error: SdkError<E>) -> String
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let text = match error.code() {
        Some(code) => format!("{code}: {}", error.message().unwrap_or("no message")),
        None => anyhow::Error::from(error).root_cause().to_string(),
    };
    printable(text.trim_end_matches('.'))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
