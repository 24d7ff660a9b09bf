//! The clocks. Rows are judged by Postgres' alone; the others matter for less, but they do.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use tokio_postgres::Client;

use super::{
    finding::{Outcome, left_out, ok, warning},
    upkeep::upkeep,
};
use crate::redis::Redis;

const FAR_APART: f64 = 5.0;

pub(super) async fn postgres(client: &Client) -> Result<Outcome> {
    let there: f64 = upkeep(client).await?.get("clock");
    Ok(judge_postgres(now() - there))
}

fn judge_postgres(apart: f64) -> Outcome {
    match apart.abs() < FAR_APART {
        true => ok("this host and Postgres agree"),
        false => warning(
            format!("this host and Postgres are {:.0} s apart", apart.abs()),
            "keep both by NTP: rows are judged by Postgres' clock alone, but --until, schedules \
             and logs go by this one's",
        ),
    }
}

pub(super) async fn redis(redis: &Redis) -> Result<Outcome> {
    let there = async {
        let mut connection = redis.connection().await?;
        let time = redis::cmd("TIME").query_async::<(f64, f64)>(&mut connection).await;
        time.map_err(|error| redis.failed(&error))
    };
    Ok(match there.await {
        Ok((seconds, micros)) => judge_redis(now() - seconds - micros / 1e6),
        Err(reason) => left_out(format!("its time cannot be seen: {reason}")),
    })
}

/// Redis counts a TTL from when it was set, so the claim lock lives as long as it should.
fn judge_redis(apart: f64) -> Outcome {
    match apart.abs() < FAR_APART {
        true => ok("this host and Redis agree"),
        false => warning(
            format!("this host and Redis are {:.0} s apart", apart.abs()),
            "keep both by NTP: lock and claims do not mind, but cache entries that were told a \
             moment to expire at (EXPIREAT, EXAT) go by Redis' clock",
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
