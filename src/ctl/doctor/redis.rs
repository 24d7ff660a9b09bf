//! Checks Redis: that it answers, and that the claim lock can be taken, released and kept. Without Redis
//! claims stay correct.

use super::finding::{Outcome, failure, left_out, ok, warning};
use crate::{
    config::{Settings, WhenUnavailable},
    printable::printable,
    problem::Problem,
    redis::{Failure, Redis},
    worker::batch::Lock,
};

const OLDEST: u32 = 7;

/// Checks that Redis answers, and returns its pool for further checks if it does.
pub(super) async fn answers(settings: &Settings) -> (Outcome, Option<Redis>) {
    let pool = match crate::redis::pool(settings) {
        Ok(pool) => pool,
        Err(error) => return (Problem::from(error).into(), None),
    };
    match pool.ping().await {
        Ok(()) => (version(&pool).await, Some(pool)),
        Err(failure) => (unavailable(settings, &failure), None),
    }
}

fn unavailable(settings: &Settings, failure: &Failure) -> Outcome {
    let check = "check that it runs and that REDIS_URL or CLEANUP_REDIS_URL is right";
    no_lock(settings, format!("it is unavailable: {failure}"), check)
}

/// The outcome when workers cannot take the lock.
fn no_lock(settings: &Settings, found: String, check: &str) -> Outcome {
    match settings.lock.when_unavailable {
        WhenUnavailable::Proceed => {
            warning(found, format!("workers claim without the lock and evict nothing; {check}"))
        }
        WhenUnavailable::Wait => {
            failure(found, format!("workers wait for Redis (lock.when_unavailable); {check}"))
        }
    }
}

async fn version(pool: &Redis) -> Outcome {
    match pool.info("server").await {
        Ok(info) => judge_version(field(&info.concat(), "redis_version")),
        Err(reason) => ok(format!("available; cannot read its version: {reason}")),
    }
}

/// Lock and eviction use only commands that an old Redis has, too, hence no failure.
fn judge_version(version: &str) -> Outcome {
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match major {
        None => ok("available"),
        Some(OLDEST..) => ok(format!("available, version {version}")),
        Some(_) => warning(
            format!("version {version}; the fleet is tested with {OLDEST} and newer"),
            format!("upgrade it to Redis {OLDEST} or newer"),
        ),
    }
}

fn field<'a>(info: &'a str, name: &str) -> &'a str {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim()
}

/// Checks that workers can take the lock here, and release it with its token.
pub(super) async fn serves_the_lock(
    pool: &Redis,
    settings: &Settings,
    database: &str,
) -> Result<Outcome, Problem> {
    // Where INFO is not allowed, the probe below decides.
    if !pool.is_cluster() {
        let replication = pool.info("replication").await.unwrap_or_default().concat();
        let cluster = pool.info("cluster").await.unwrap_or_default().concat();
        if let Some((found, check)) = wrong_kind(&replication, &cluster) {
            return Ok(no_lock(settings, found, check));
        }
    }
    let lock = Lock::new(pool.clone(), &settings.lock, database);
    Ok(match lock.probe().await {
        Ok(true) => ok("can be taken and released"),
        Ok(false) => taken(&lock).await,
        Err(reason) => {
            let rights = "+evalsha +script|load +get +set +del";
            let grant = format!("ACL SETUSER your_login {rights} ~{}", printable(lock.key()));
            no_lock(settings, format!("cannot be taken and released: {reason}"), &grant)
        }
    })
}

/// The lock is taken. A worker's lock has a TTL; that of another program may stay forever.
async fn taken(lock: &Lock) -> Outcome {
    let key = printable(lock.key());
    match lock.never_expires().await {
        Ok(true) => warning(
            format!(
                "{key} is taken and has no TTL: every claim waits for it before it goes on without"
            ),
            format!("no worker has taken it; `redis-cli DEL {key}`"),
        ),
        Ok(false) => ok("taken by a worker right now"),
        Err(reason) => ok(format!("taken right now; cannot read its TTL: {reason}")),
    }
}

/// Why this kind of Redis cannot serve the lock, with the remedy.
fn wrong_kind(replication: &str, cluster: &str) -> Option<(String, &'static str)> {
    if field(replication, "role") == "slave" {
        let of = |name| field(replication, name);
        let writes = match of("slave_read_only") {
            "0" => "loses what is written to it when it reconnects to its master",
            _ => "takes no writes",
        };
        let (host, port) = (of("master_host"), of("master_port"));
        let found = format!("it is a replica of {}:{port} and {writes}", printable(host));
        return Some((found, "name its master in REDIS_URL or CLEANUP_REDIS_URL"));
    }
    let found = "it is a node of a Redis Cluster and refuses keys of other nodes (MOVED)";
    let check = "write redis+cluster://host1:6379,host2:6379 in REDIS_URL or CLEANUP_REDIS_URL";
    (field(cluster, "cluster_enabled") == "1").then(|| (found.into(), check))
}

/// Checks that Redis does not evict the claim lock when it runs out of memory.
pub(super) async fn keeps_the_lock(pool: &Redis) -> Result<Outcome, Problem> {
    Ok(match pool.info("memory").await {
        Ok(nodes) => judge_all(&nodes),
        Err(reason) => left_out(format!("cannot read its memory settings: {reason}")),
    })
}

/// Judges the node of a Cluster that comes off worst: each may have the lock one day.
fn judge_all(nodes: &[String]) -> Outcome {
    let outcomes = nodes.iter().map(|info| judge_memory(info));
    outcomes
        .reduce(|worst, other| if worst.is_ok() { other } else { worst })
        .unwrap_or_else(|| left_out("no node of the Cluster answered"))
}

fn judge_memory(info: &str) -> Outcome {
    let policy = field(info, "maxmemory_policy");
    match (field(info, "maxmemory"), policy) {
        ("" | "0", _) => ok("no memory limit"),
        (_, "noeviction") => ok("maxmemory-policy is noeviction"),
        _ => warning(
            format!("when memory is full it may evict the claim lock (maxmemory-policy {policy})"),
            "claims stay correct, but workers may claim at the same time and wait for each other in \
             Postgres: use a Redis with maxmemory-policy noeviction for the lock",
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
    fn a_redis_older_than_the_tested_versions_is_a_warning() {
        let verdict = |version: &str| format!("{:?}", judge_version(version));
        assert!(verdict("6.2.14").contains("Warning") && verdict("6.2.14").contains("upgrade"));
        assert!(verdict("7.0.15").contains("Ok") && verdict("7.0.15").contains("7.0.15"));
        assert!(verdict("10.1").contains("Ok") && verdict("").contains("Ok"));
    }
}
