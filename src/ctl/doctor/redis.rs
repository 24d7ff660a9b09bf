//! Redis: does it answer, and keep the claim lock? Without it, claims stay right.

use super::finding::{Outcome, failure, left_out, ok, warning};
use crate::config::{Settings, WhenUnavailable};

pub(super) async fn answers(settings: &Settings) -> Outcome {
    let pool = match crate::redis::pool(settings) {
        Ok(pool) => pool,
        Err(error) => return Outcome::failed(&error),
    };
    let reason = match pool.ping().await {
        Ok(()) => return ok("it answers"),
        Err(reason) => reason,
    };
    let found = format!("it does not answer: {reason}");
    let check = "check that it runs and that REDIS_URL or CLEANUP_REDIS_URL is right";
    match settings.lock.when_unavailable {
        WhenUnavailable::Proceed => {
            warning(found, format!("workers claim without their lock, and evict nothing; {check}"))
        }
        WhenUnavailable::Wait => {
            failure(found, format!("workers wait for it (lock.when_unavailable); {check}"))
        }
    }
}

/// A cache that is short of memory may drop the claim lock with everything else.
pub(super) async fn keeps_the_lock(settings: &Settings) -> Outcome {
    let memory = async {
        let pool = crate::redis::pool(settings).map_err(|error| error.to_string())?;
        let mut connection = pool.connection().await?;
        let info = redis::cmd("INFO").arg("memory").query_async::<String>(&mut connection).await;
        info.map_err(|error| pool.failed(&error))
    };
    match memory.await {
        Ok(info) => judge_memory(&info),
        Err(reason) => left_out(format!("its settings cannot be seen: {reason}")),
    }
}

fn judge_memory(info: &str) -> Outcome {
    let value = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_string()
    };
    let (limit, policy) = (value("maxmemory"), value("maxmemory_policy"));
    match (limit.as_str(), policy.as_str()) {
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
}
