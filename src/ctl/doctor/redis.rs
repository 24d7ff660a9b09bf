//! Redis: does it answer, take and release the claim lock, and keep it? Without it, claims stay right.

use anyhow::Result;

use super::finding::{Outcome, failure, left_out, ok, warning};
use crate::{
    config::{Settings, WhenUnavailable},
    printable::printable,
    redis::Redis,
    worker::batch::Lock,
};

const OLDEST: u32 = 7;

/// Its pool, as long as it answers.
pub(super) async fn answers(settings: &Settings) -> (Outcome, Option<Redis>) {
    let pool = match crate::redis::pool(settings) {
        Ok(pool) => pool,
        Err(error) => return (Outcome::failed(&error), None),
    };
    match pool.ping().await {
        Ok(()) => (version(&pool).await, Some(pool)),
        Err(reason) => (away(settings, &reason), None),
    }
}

fn away(settings: &Settings, reason: &str) -> Outcome {
    let check = "check that it runs and that REDIS_URL or CLEANUP_REDIS_URL is right";
    no_lock(settings, format!("it is unavailable: {reason}"), check)
}

/// What becomes of workers that cannot take the lock.
fn no_lock(settings: &Settings, found: String, check: &str) -> Outcome {
    match settings.lock.when_unavailable {
        WhenUnavailable::Proceed => {
            warning(found, format!("workers claim without their lock, and evict nothing; {check}"))
        }
        WhenUnavailable::Wait => {
            failure(found, format!("workers wait for it (lock.when_unavailable); {check}"))
        }
    }
}

async fn version(pool: &Redis) -> Outcome {
    match info(pool, "server").await {
        Ok(info) => judge_version(field(&info, "redis_version")),
        Err(reason) => ok(format!("it answers; its version cannot be seen: {reason}")),
    }
}

/// Lock and eviction ask for nothing that an old Redis would not know, hence no failure.
fn judge_version(version: &str) -> Outcome {
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match major {
        None => ok("it answers"),
        Some(OLDEST..) => ok(format!("it answers, version {version}")),
        Some(_) => warning(
            format!("it answers, version {version}; the fleet is tried with {OLDEST} and newer"),
            format!("upgrade it to Redis {OLDEST} or newer"),
        ),
    }
}

/// A section of what it says about itself, or why it does not.
async fn info(pool: &Redis, section: &str) -> Result<String, String> {
    let mut connection = pool.connection().await?;
    let info = redis::cmd("INFO").arg(section).query_async(&mut connection).await;
    info.map_err(|error| pool.failed(&error))
}

fn field<'a>(info: &'a str, name: &str) -> &'a str {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim()
}

/// Whether workers can take the lock here, and release it by its token.
pub(super) async fn serves_the_lock(
    pool: &Redis,
    settings: &Settings,
    database: &str,
) -> Result<Outcome> {
    // Where INFO is not allowed, the script below tells.
    let replication = info(pool, "replication").await.unwrap_or_default();
    let cluster = info(pool, "cluster").await.unwrap_or_default();
    if let Some((found, check)) = wrong_kind(&replication, &cluster) {
        return Ok(no_lock(settings, found, check));
    }
    let lock = Lock::new(pool.clone(), &settings.lock, database);
    Ok(match lock.probe().await {
        Ok(()) => ok("it can be taken and released"),
        Err(reason) => {
            let rights = "+evalsha +script|load +get +set +del";
            let grant = format!("ACL SETUSER your_login {rights} ~{}", printable(lock.key()));
            no_lock(settings, format!("it cannot be taken and released: {reason}"), &grant)
        }
    })
}

/// A Redis that cannot serve the lock, with what to do about it.
fn wrong_kind(replication: &str, cluster: &str) -> Option<(String, &'static str)> {
    if field(replication, "role") == "slave" {
        let of = |name| field(replication, name);
        let writes = match of("slave_read_only") {
            "0" => "forgets what is written to it when it follows its master again",
            _ => "takes no writes",
        };
        let (host, port) = (of("master_host"), of("master_port"));
        let found = format!("it is a replica of {}:{port}, and {writes}", printable(host));
        return Some((found, "name its master in REDIS_URL or CLEANUP_REDIS_URL"));
    }
    let found = "it is a node of a Redis Cluster, and refuses keys of other nodes (MOVED)";
    let check = "name a Redis without cluster mode in REDIS_URL or CLEANUP_REDIS_URL";
    (field(cluster, "cluster_enabled") == "1").then(|| (found.into(), check))
}

/// A cache that is short of memory may drop the claim lock with everything else.
pub(super) async fn keeps_the_lock(pool: &Redis) -> Result<Outcome> {
    Ok(match info(pool, "memory").await {
        Ok(info) => judge_memory(&info),
        Err(reason) => left_out(format!("its settings cannot be seen: {reason}")),
    })
}

fn judge_memory(info: &str) -> Outcome {
    let policy = field(info, "maxmemory_policy");
    match (field(info, "maxmemory"), policy) {
        ("" | "0", _) => ok("it has no memory limit"),
        (_, "noeviction") => ok("it evicts nothing"),
        _ => warning(
            format!("short of memory it evicts keys ({policy}), the claim lock among them"),
            "claims stay right, but workers can get into each other's way: give the lock a Redis \
             with maxmemory-policy noeviction",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_that_may_evict_the_lock_is_a_warning() {
        let info = |limit: u64, policy: &str| {
            format!("# Memory\r\nmaxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n")
        };
        let verdict = |info: &str| format!("{:?}", judge_memory(info));
        assert!(verdict(&info(1000, "allkeys-lru")).contains("Warning"));
        assert!(verdict(&info(1000, "volatile-ttl")).contains("volatile-ttl"));
        assert!(verdict(&info(1000, "noeviction")).contains("Ok"));
        assert!(verdict(&info(0, "allkeys-lru")).contains("Ok"));
    }

    #[test]
    fn a_redis_that_is_older_than_those_it_was_tried_with_is_a_warning() {
        let verdict = |version: &str| format!("{:?}", judge_version(version));
        assert!(verdict("6.2.14").contains("Warning") && verdict("6.2.14").contains("upgrade"));
        assert!(verdict("7.0.15").contains("Ok") && verdict("7.0.15").contains("7.0.15"));
        assert!(verdict("10.1").contains("Ok") && verdict("").contains("Ok"));
    }
}
