//! Compares the clocks of this host, Postgres and Redis. Only Postgres' clock decides about rows; the
//! others matter for schedules, logs and cache entries.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio_postgres::Client;

use super::{
    finding::{Outcome, left_out, ok, warning},
    upkeep::upkeep,
};
use crate::{config::Settings, format::counted, problem::Problem, redis::Redis};

const TIMES: &str = sql!("doctor/times");
const FAR_APART: f64 = 5.0;
/// There may be millions, and the remedy is the same for all.
const COUNTED: i64 = 10_000;

pub(super) async fn postgres(client: &Client) -> Result<Outcome, Problem> {
    let server: f64 = upkeep(client).await?.get("clock");
    Ok(judge_postgres(now() - server))
}

fn judge_postgres(apart: f64) -> Outcome {
    match apart.abs() < FAR_APART {
        true => ok("the clocks of this host and Postgres agree"),
        false => warning(
            format!("this host and Postgres are {:.0} s apart", apart.abs()),
            "synchronize both with NTP: Postgres' clock decides about rows, but --until, schedules \
             and logs use this host's clock",
        ),
    }
}

/// Counts times in the future, which hide claims and rows until a sweep has corrected them.
pub(super) async fn times(client: &Client, settings: &Settings) -> Result<Outcome, Problem> {
    let longest = settings.worker.longest_backoff().as_secs_f64();
    let row = client.query_one(TIMES, &[&longest, &COUNTED]).await?;
    let count = |(name, noun, column): (&str, &str, &str)| {
        let count = row.get::<_, i64>(name).unsigned_abs();
        (count > 0).then(|| format!("{} ({column})", counted(count, noun)))
    };
    let swept: Vec<String> = [
        ("claims", "claim", "heartbeat_at"),
        ("in_progress", "claimed row", "deletion_initiated_at"),
        ("tombstones", "tombstone", "deletion_initiated_at"),
        ("retries", "retry time", "retry_at"),
    ]
    .into_iter()
    .filter_map(count)
    .collect();
    let unclaimable = count(("unclaimable", "unclaimable paste", "retry_at"));
    let content = count(("content", "sampled content row", "created_at"));
    let all: Vec<&str> =
        swept.iter().chain(&unclaimable).chain(&content).map(String::as_str).collect();
    if all.is_empty() {
        return Ok(ok("no time is in the future"));
    }
    let mut remedies = vec!["synchronize Postgres' host with NTP"];
    if !swept.is_empty() {
        remedies.push("the watchdog's next sweep corrects claims and pastes; to do it now: `cleanup-watchdog --once`");
    }
    if unclaimable.is_some() {
        remedies.push("the next run tries the unclaimable pastes again");
    }
    if content.is_some() {
        remedies.push("the next decrement of such content recounts it and corrects its created_at");
    }
    Ok(warning(
        format!("in the future, because Postgres' clock was ahead: {}", all.join(", ")),
        remedies.join("; "),
    ))
}

pub(super) async fn redis(redis: &Redis) -> Result<Outcome, Problem> {
    let time = async {
        let mut connection = redis.connection().await?;
        let answer = redis::cmd("TIME").query_async::<(f64, f64)>(&mut *connection).await;
        answer.map_err(|error| redis.failed(error))
    };
    Ok(match time.await {
        Ok((seconds, micros)) => judge_redis(now() - seconds - micros / 1e6),
        Err(reason) => left_out(format!("cannot read the time of Redis: {reason}")),
    })
}

/// The claim lock has a relative TTL, which Redis counts by itself, so a wrong clock does not harm it.
fn judge_redis(apart: f64) -> Outcome {
    match apart.abs() < FAR_APART {
        true => ok("the clocks of this host and Redis agree"),
        false => warning(
            format!("this host and Redis are {:.0} s apart", apart.abs()),
            "synchronize both with NTP: lock and claims are not affected, but cache entries with an \
             absolute expiry (EXPIREAT, EXAT) use Redis' clock",
        ),
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_differ_by_seconds_in_either_direction_and_no_more() {
        for (apart, verdict) in [(4.9, "Ok"), (-4.9, "Ok"), (5.1, "Warning"), (-90.0, "Warning")] {
            assert!(format!("{:?}", judge_postgres(apart)).contains(verdict), "{apart}");
            assert!(format!("{:?}", judge_redis(apart)).contains(verdict), "{apart}");
        }
    }
}
