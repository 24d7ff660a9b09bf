//! The server's upkeep: indexes, vacuum and what keeps it from its work, clocks, encryption.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use tokio_postgres::{Client, Row};

use super::{
    finding::{Outcome, failure, ok, warning},
    postgres::failed,
};
use crate::{migrate, printable::printable};

const TRANSACTIONS: &str = include_str!("../../../sql/queries/doctor_transactions.sql");
const UPKEEP: &str = include_str!("../../../sql/queries/doctor_upkeep.sql");
/// A batch takes a second; a dump of a large table may take its while.
const LONG: Duration = Duration::from_secs(15 * 60);
const FAR_APART: f64 = 5.0;

pub(super) async fn indexes(client: &Client) -> Result<Outcome> {
    let missing = migrate::missing_indexes(client).await.map_err(failed)?;
    Ok(match missing.is_empty() {
        true => ok("all there and valid"),
        false => failure(
            format!("missing or invalid: {}", missing.join(", ")),
            "run `cleanupctl migrate`, which builds them while everybody works",
        ),
    })
}

pub(super) async fn transactions(client: &Client) -> Result<Outcome> {
    let row = client.query_one(TRANSACTIONS, &[&LONG.as_secs_f64()]).await.map_err(failed)?;
    let who: Option<String> = row.get("who");
    Ok(judge_transactions(row.get("open"), row.get("oldest_s"), who))
}

fn judge_transactions(open: i64, oldest_s: f64, who: Option<String>) -> Outcome {
    let Some(who) = who.filter(|_| open > 0) else {
        return ok("none is open for long");
    };
    let age = Duration::try_from_secs_f64(oldest_s.round()).unwrap_or_default();
    let age = humantime::format_duration(age);
    warning(
        format!("{open} open for long, the oldest for {age}: {}", printable(&who)),
        "vacuum cannot remove what the nights have deleted: end it if nobody needs it \
         (pg_terminate_backend, ROLLBACK PREPARED)",
    )
}

async fn upkeep(client: &Client) -> Result<Row> {
    client.query_one(UPKEEP, &[]).await.map_err(failed)
}

pub(super) async fn autovacuum(client: &Client) -> Result<Outcome> {
    let row = upkeep(client).await?;
    let neglected: Option<String> = row.get("neglected");
    Ok(match (row.get("autovacuum"), neglected) {
        (false, _) => warning("it is off", "set autovacuum = on: every night leaves dead rows"),
        (true, Some(tables)) => warning(
            format!("switched off for {tables}"),
            "ALTER TABLE … RESET (autovacuum_enabled): every night leaves dead rows",
        ),
        (true, None) => ok("it looks after the tables"),
    })
}

pub(super) async fn clock(client: &Client) -> Result<Outcome> {
    let there: f64 = upkeep(client).await?.get("clock");
    let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    Ok(judge_clock(here - there))
}

fn judge_clock(apart: f64) -> Outcome {
    match apart.abs() < FAR_APART {
        true => ok("this host and Postgres agree"),
        false => warning(
            format!("this host and Postgres are {:.0} s apart", apart.abs()),
            "keep both by NTP: rows are judged by Postgres' clock alone, but --until, schedules \
             and logs go by this one's",
        ),
    }
}

pub(super) async fn encryption(client: &Client) -> Result<Outcome> {
    let row = upkeep(client).await?;
    Ok(match (row.get("tls"), row.get("is_local")) {
        (true, _) => ok("the session is encrypted"),
        (false, true) => ok("not encrypted, on this machine"),
        (false, false) => warning(
            "the session is not encrypted",
            "say sslmode=verify-full in the URL, and postgres.ca_file",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_that_is_open_for_an_hour_is_named_with_its_age() {
        let said = format!("{:?}", judge_transactions(2, 3600.4, Some("pid 7 (pg_dump)".into())));
        assert!(said.contains("Warning") && said.contains("1h: pid 7 (pg_dump)"), "{said}");
        assert!(said.contains("pg_terminate_backend"), "{said}");
        assert!(format!("{:?}", judge_transactions(0, 0.0, None)).contains("Ok"));
    }

    #[test]
    fn clocks_may_differ_by_seconds_in_either_direction_and_no_more() {
        for (apart, verdict) in [(4.9, "Ok"), (-4.9, "Ok"), (5.1, "Warning"), (-90.0, "Warning")] {
            assert!(format!("{:?}", judge_clock(apart)).contains(verdict), "{apart}");
        }
    }
}
