//! Step 1: the short Redis lock around a claim. It keeps workers from competing for the same rows; it is
//! not what makes a claim safe.
//!
//! In: nothing. Out: a [`LockOutcome`]. A crash while the lock is held leaves it to its TTL.

use std::{
    sync::{Arc, MutexGuard},
    time::Duration,
};

use redis::{RedisError, Script};
use tokio::time::Instant;
use tracing::warn;
use uuid::Uuid;

use crate::{
    backoff::jittered,
    config::{Lock as Settings, WhenUnavailable},
    failpoint,
    mutex::Mutex,
    redis::{Failure, Redis},
    shutdown::Shutdown,
    worker::report::Tally,
};

/// Takes the lock for a millisecond and deletes it before taking it for real: a Redis that would refuse the
/// release (no right to run scripts or to delete, a replica) refuses here, before other workers wait for
/// the TTL. Also deletes the lock that this process could not release before.
/// ARGV: the token, the token left behind (empty: none), the TTL in ms (0: only try).
const TAKE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[2] then redis.call('DEL', KEYS[1]) end
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 1) then return 0 end
redis.call('DEL', KEYS[1])
if ARGV[3] ~= '0' then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3]) end
return 1";
/// Deletes the key only while it has our token: an expired lock may be another worker's by now.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// A lock that stays taken for longer than this many TTLs is not worth waiting for.
const MAX_WAIT_TTLS: u32 = 3;
/// What PTTL returns for a key that has none.
const NO_TTL: i64 = -1;

/// The fleet's lock on one database.
#[derive(Clone)]
pub struct Lock {
    redis: Redis,
    key: String,
    ttl: Duration,
    when_unavailable: WhenUnavailable,
    /// The token of a lock that could not be released; the next acquisition deletes that lock
    /// first.
    left_behind: Arc<Mutex<String>>,
    /// Where waits are counted.
    tally: Arc<Tally>,
}

/// Why the lock cannot be taken or released.
#[derive(thiserror::Error, Debug)]
pub enum LockError {
    /// Redis answers with an error: a missing right, or a server that accepts no writes.
    #[error(
        "{failure}; the lock needs a primary, and the rights to GET, SET, DEL, EVALSHA and SCRIPT \
         LOAD on {key:?}"
    )]
    Refused {
        /// What Redis answered.
        failure: Failure,
        /// The key of the lock, as the rights must name it.
        key: String,
    },
    /// Redis does not answer. The lock may have been taken nevertheless.
    #[error("{0}")]
    Unavailable(#[from] Failure),
}

/// Why a claim goes on without the lock.
#[derive(thiserror::Error, Debug)]
pub enum WithoutLock {
    /// Other workers had it all the time, or it has no TTL.
    #[error(
        "the lock {key:?} was not free for {}; `cleanupctl doctor` checks whether it expires",
        humantime::format_duration(*.waited)
    )]
    NotFree {
        /// The key of the lock.
        key: String,
        /// The longest wait for it: three times `lock.ttl`.
        waited: Duration,
    },
    /// Redis does not answer or refuses, and `lock.when_unavailable` is "proceed".
    #[error("Redis is unavailable: {0}")]
    NoRedis(LockError),
}

/// What became of the attempt to lock.
#[derive(Debug)]
pub enum LockOutcome {
    /// We hold it, by this token.
    Held(String),
    /// Go on without it, for this reason.
    Without(WithoutLock),
    /// Redis is unavailable, and `lock.when_unavailable` is "wait".
    Unavailable(LockError),
    /// The run must stop, or its deadline is over.
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
            left_behind: Arc::default(),
            tally: Arc::default(),
        }
    }

    /// Counts waits in this tally.
    pub(in crate::worker) fn counted_in(self, tally: Arc<Tally>) -> Self {
        Self { tally, ..self }
    }

    /// Returns the Redis key: `lock.key`, a colon, and the name of the database.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Waits for the lock, never longer than a few TTLs. From the first refusal on, the run shows that
    /// it waits.
    pub async fn acquire(&self, shutdown: &Shutdown, until: Option<Instant>) -> LockOutcome {
        let mut waiting = None;
        let outcome = self.acquire_in_steps(shutdown, until, &mut waiting).await;
        if let Some(since) = waiting {
            self.tally.waited("lock", since);
        }
        outcome
    }

    /// Tries to take the lock, in jittered steps.
    async fn acquire_in_steps(
        &self,
        shutdown: &Shutdown,
        until: Option<Instant>,
        waiting: &mut Option<Instant>,
    ) -> LockOutcome {
        let token = Uuid::new_v4().to_string();
        let started = Instant::now();
        let (mut pause, mut logged) = (Duration::from_millis(5), false);
        loop {
            if until.is_some_and(|until| Instant::now() >= until) {
                return LockOutcome::Stopped;
            }
            let reason = match self.try_acquire(&token).await {
                Ok(true) => return LockOutcome::Held(token),
                Ok(false) if started.elapsed() >= self.ttl * MAX_WAIT_TTLS => {
                    let (key, waited) = (self.key.clone(), self.ttl * MAX_WAIT_TTLS);
                    return LockOutcome::Without(WithoutLock::NotFree { key, waited });
                }
                Ok(false) => None,
                Err(reason) if self.when_unavailable == WhenUnavailable::Proceed => {
                    return LockOutcome::Without(WithoutLock::NoRedis(reason));
                }
                // The run decides how long to go on like this.
                Err(reason) if started.elapsed() >= self.ttl => {
                    return LockOutcome::Unavailable(reason);
                }
                Err(reason) => Some(reason),
            };
            waiting
                .get_or_insert_with(|| self.tally.wait_for(&format!("Redis lock {:?}", self.key)));
            if let Some(reason) = reason.filter(|_| !logged) {
                warn!("waiting for Redis (lock.when_unavailable is \"wait\"): {reason}");
                logged = true;
            }
            tokio::select! {
                () = tokio::time::sleep(jittered(pause)) => {}
                () = shutdown.stop.cancelled() => return LockOutcome::Stopped,
            }
            pause = (pause * 2).min(Duration::from_millis(if logged { 2000 } else { 80 }));
        }
    }

    /// Checks that Redis would grant and release the lock, and returns whether it is free. Leaves nothing
    /// behind.
    pub async fn probe(&self) -> Result<bool, LockError> {
        self.take(&Uuid::new_v4().to_string(), Duration::ZERO).await
    }

    /// Returns whether the lock is taken and has no TTL: then no worker has taken it, and it stays.
    pub async fn never_expires(&self) -> Result<bool, Failure> {
        let mut connection = self.redis.connection().await?;
        let ttl = redis::cmd("PTTL").arg(&self.key).query_async::<i64>(&mut *connection).await;
        ttl.map(|ttl| ttl == NO_TTL).map_err(|error| self.redis.failed(error))
    }

    async fn try_acquire(&self, token: &str) -> Result<bool, LockError> {
        let taken = self.take(token, self.ttl).await?;
        if taken {
            failpoint::reached("lock.taken");
        }
        Ok(taken)
    }

    async fn take(&self, token: &str, ttl: Duration) -> Result<bool, LockError> {
        let mut connection = self.redis.connection().await?;
        failpoint::reached("lock.before_taking");
        let left_behind = self.left_behind().clone();
        let taken = Script::new(TAKE)
            .key(&self.key)
            .arg(token)
            .arg(&left_behind)
            .arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
            .invoke_async::<bool>(&mut *connection)
            .await;
        // Without an answer it may have been taken nevertheless.
        *self.left_behind() = match taken {
            Ok(_) => String::new(),
            Err(_) if left_behind.is_empty() => token.to_string(),
            Err(_) => left_behind,
        };
        taken.map_err(|error| self.failed(error))
    }

    fn left_behind(&self) -> MutexGuard<'_, String> {
        self.left_behind.lock()
    }

    fn failed(&self, error: RedisError) -> LockError {
        let failure = self.redis.failed(error);
        match failure.is_refusal() {
            true => LockError::Refused { failure, key: self.key.clone() },
            false => LockError::Unavailable(failure),
        }
    }

    /// Releases the lock if it is still ours. Failing is harmless: the next claim of this process
    /// takes it back, and its TTL ends it for others.
    pub async fn release(&self, token: &str) {
        let mut connection = match self.redis.connection_without_cooldown().await {
            Ok(connection) => connection,
            Err(failure) => return self.leave_behind(token, failure.into()),
        };
        failpoint::reached("lock.before_releasing");
        let released = Script::new(COMPARE_AND_DELETE)
            .key(&self.key)
            .arg(token)
            .invoke_async::<i64>(&mut *connection)
            .await;
        failpoint::reached("lock.released");
        match released {
            Ok(1) => {}
            Ok(_) => warn!(
                "the Redis lock {:?} expired before the claim ended; if this repeats, raise \
                 lock.ttl ({})",
                self.key,
                humantime::format_duration(self.ttl)
            ),
            Err(error) => self.leave_behind(token, self.failed(error)),
        }
    }

    fn leave_behind(&self, token: &str, reason: LockError) {
        *self.left_behind() = token.to_string();
        let (key, ttl) = (&self.key, self.ttl);
        warn!("could not release the claim lock {key:?}, which expires within {ttl:?}: {reason}");
    }
}
