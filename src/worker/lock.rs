//! Step 1: the short Redis lock around a claim. It keeps workers from trampling each other; it is
//! not what makes a claim safe.

use std::time::Duration;

use deadpool_redis::Connection;
use redis::{RedisError, Script};
use tokio::time::Instant;
use tracing::{debug, warn};
use uuid::Uuid;

use crate::{
    backoff::jittered,
    config::{Lock as Settings, WhenUnavailable},
    failpoint,
    redis::Redis,
    shutdown::Shutdown,
};

/// Deletes the key only while it still holds our token: an expired lock may be another's by now.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// A lock that stays taken for longer than this many TTLs is not worth waiting for.
const MAX_WAIT_TTLS: u32 = 3;

/// The fleet's lock on one database.
#[derive(Clone)]
pub struct Lock {
    redis: Redis,
    key: String,
    ttl: Duration,
    when_unavailable: WhenUnavailable,
}

/// What became of the attempt to lock.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// We hold it, by this token.
    Held(String),
    /// Go on without it, for this reason.
    Without(String),
    /// Not without it (`lock.when_unavailable` is "wait"), and Redis stayed away.
    Unavailable(String),
    /// Asked to stop while waiting, or out of time.
    Stopped,
}

impl Lock {
    /// The key carries the database's name: fleets on several databases never wait for each other.
    pub fn new(redis: Redis, settings: &Settings, database: &str) -> Self {
        Self {
            redis,
            key: format!("{}:{database}", settings.key),
            ttl: settings.ttl,
            when_unavailable: settings.when_unavailable,
        }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// Waits for the lock, in jittered steps, never longer than a few TTLs.
    pub async fn acquire(&self, shutdown: &Shutdown, until: Option<Instant>) -> Turn {
        let token = Uuid::new_v4().to_string();
        let asked = Instant::now();
        let (mut pause, mut told) = (Duration::from_millis(5), false);
        loop {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Turn::Stopped;
            }
            let reason = match self.try_acquire(&token).await {
                Ok(true) => return Turn::Held(token),
                Ok(false) if asked.elapsed() >= self.ttl * MAX_WAIT_TTLS => {
                    return Turn::Without(format!("{:?} stayed taken", self.key));
                }
                Ok(false) => None,
                Err(reason) if self.when_unavailable == WhenUnavailable::Proceed => {
                    return Turn::Without(format!("Redis is unavailable: {reason}"));
                }
                // How long to go on like this is for the run to say.
                Err(reason) if asked.elapsed() >= self.ttl => return Turn::Unavailable(reason),
                Err(reason) => Some(reason),
            };
            if let Some(reason) = reason.filter(|_| !told) {
                warn!(reason, "Redis is unavailable and lock.when_unavailable is wait: waiting");
                told = true;
            }
            tokio::select! {
                () = tokio::time::sleep(jittered(pause)) => {}
                () = shutdown.stop.cancelled() => return Turn::Stopped,
            }
            pause = (pause * 2).min(Duration::from_millis(if told { 2000 } else { 80 }));
        }
    }

    async fn try_acquire(&self, token: &str) -> Result<bool, String> {
        let mut connection = self.redis.connection().await?;
        failpoint::reached("lock.before_taking");
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let answer: Option<String> = redis::cmd("SET")
            .arg(&self.key)
            .arg(token)
            .arg("NX")
            .arg("PX")
            .arg(ttl_ms)
            .query_async(&mut connection)
            .await
            .map_err(|error| self.redis.failed(&error))?;
        if answer.is_some() {
            failpoint::reached("lock.taken");
        }
        Ok(answer.is_some())
    }

    /// Releases the lock if it is still ours. Failing is harmless: the TTL ends it.
    pub async fn release(&self, token: &str) {
        let Ok(mut connection) = self.redis.connection_by_all_means().await else {
            return;
        };
        failpoint::reached("lock.before_releasing");
        let released = self.compare_and_delete(&mut connection, token).await;
        failpoint::reached("lock.released");
        match released {
            Ok(1) => {}
            Ok(_) => warn!("the claim lock had expired or was taken over before its release"),
            Err(error) => {
                let reason = self.redis.failed(&error);
                debug!(reason, "the claim lock was left to its TTL");
            }
        }
    }

    /// Checks that this login may run the script that releases the lock. Changes nothing: no worker
    /// has the token.
    pub async fn check_release(&self) -> Result<(), String> {
        let mut connection = self.redis.connection().await?;
        let checked = self.compare_and_delete(&mut connection, &Uuid::new_v4().to_string()).await;
        checked.map(drop).map_err(|error| self.redis.failed(&error))
    }

    /// Returns how many keys were deleted.
    async fn compare_and_delete(
        &self,
        connection: &mut Connection,
        token: &str,
    ) -> Result<i64, RedisError> {
        Script::new(COMPARE_AND_DELETE).key(&self.key).arg(token).invoke_async(connection).await
    }
}
