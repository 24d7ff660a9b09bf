//! `cleanupctl seed`: test pastes with real objects, written by the contract that a paste service
//! keeps: upload under a fresh key, then one transaction, then drop an upload that nobody uses.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result, anyhow, bail};
use aws_sdk_s3::primitives::ByteStream;
use clap::Args;
use deadpool_postgres::Pool;
use futures_util::{TryStreamExt, stream};
use serde::Serialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{
    cli::{Format, print},
    config::Settings,
    fleet,
    format::{bytes, thousands},
    migrate,
    objects::Objects,
    postgres::{Target, describe},
};

const PUT: &str = sql!("ctl/put_paste");
const WRITERS: usize = 16;
const DAY_S: f64 = 86_400.0;

#[derive(Args, Debug)]
pub(super) struct Seed {
    /// How many pastes.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pastes: u64,
    /// How many of them have expired, 0 to 1; a tenth of the others never expires.
    #[arg(long, default_value_t = 0.5, value_name = "SHARE")]
    expired_share: f64,
    /// Distinct bodies per paste, 0 to 1; the rest share a body.
    #[arg(long, default_value_t = 0.6, value_name = "SHARE")]
    distinct_share: f64,
    /// Size of a body.
    #[arg(long, default_value_t = 256, value_name = "N")]
    body_bytes: usize,
    /// How the result is printed.
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
    expired: AtomicU64,
}

impl Seed {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        for (name, share) in
            [("--expired-share", self.expired_share), ("--distinct-share", self.distinct_share)]
        {
            if !(0.0..=1.0).contains(&share) {
                bail!(crate::config::ConfigError::Invalid(format!("{name} {share} is not 0 to 1")));
            }
        }
        let objects = Objects::new(settings).await?;
        let client = super::connect(settings).await?;
        migrate::check(&client).await?;
        create_bucket(&objects).await?;
        fleet::bind_bucket(&client, objects.bucket(), objects.prefix()).await?;
        let target = Target::new(settings, "cleanupctl seed", None)?;
        let writer = Arc::new(Writer {
            pool: target.pool(WRITERS)?,
            objects,
            expired_share: self.expired_share,
            body_bytes: self.body_bytes,
            expired: AtomicU64::new(0),
        });
        let groups = self.groups();
        let bodies = groups.len() as u64;
        stream::iter(groups.into_iter().map(Ok))
            .try_for_each_concurrent(WRITERS, |group| Arc::clone(&writer).put_group(group))
            .await?;
        let seeded = Seeded {
            pastes: self.pastes,
            expired: writer.expired.load(Ordering::Relaxed),
            bodies,
            bytes: bodies * self.body_bytes as u64,
        };
        print(self.format, &seeded, |seeded| {
            format!(
                "seeded {} pastes, {} of them expired, sharing {} bodies ({})",
                thousands(seeded.pastes),
                thousands(seeded.expired),
                thousands(seeded.bodies),
                bytes(seeded.bytes),
            )
        });
        Ok(0)
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
    match created {
        Ok(_) => Ok(()),
        // Somebody else was faster, or S3 is away: the probe tells.
        Err(_) => Ok(objects.probe().await?),
    }
}

impl Writer {
    async fn put_group(self: Arc<Self>, group: Group) -> Result<()> {
        let body: Vec<u8> =
            std::iter::repeat_with(|| fastrand::u8(..)).take(self.body_bytes).collect();
        let hash = Sha256::digest(&body).to_vec();
        for _ in 0..group.pastes {
            self.put(&hash, &body).await?;
        }
        Ok(())
    }

    /// The writer's contract, step by step.
    async fn put(&self, hash: &[u8], body: &[u8]) -> Result<()> {
        let short_code = Uuid::new_v4().simple().to_string()[..12].to_string();
        let expires_in = self.expires_in_s();
        // First without an upload: most shared bodies are there already.
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
        let client = self.pool.get().await.context("no connection to Postgres")?;
        let put = client.prepare_cached(PUT).await?;
        let size = i64::try_from(size)?;
        let row = client
            .query_one(&put, &[&short_code, &hash, &key, &size, &expires_in])
            .await
            .map_err(|error| anyhow!("paste_put: {}", describe(&error)))?;
        Ok((row.get("outcome"), row.get("drop_upload")))
    }

    async fn upload(&self, key: &str, body: &[u8]) -> Result<()> {
        let (client, bucket) = (self.objects.client(), self.objects.bucket());
        for tries in 0.. {
            let put = client.put_object().bucket(bucket).key(key);
            match put.body(ByteStream::from(body.to_vec())).send().await {
                Ok(_) => break,
                Err(error) if tries >= 5 => return Err(error).context("cannot upload a body"),
                Err(_) => tokio::time::sleep(crate::backoff::backoff(tries)).await,
            }
        }
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
