//! The server's upkeep: indexes, vacuum and what keeps it from its work.

use std::time::Duration;

use anyhow::Result;
use tokio_postgres::{Client, Row};

use super::{
    finding::{Outcome, failure, ok, warning},
    postgres::failed,
};
use crate::{migrate, printable::printable};

const TRANSACTIONS: &str = sql!("doctor/transactions");
const UPKEEP: &str = sql!("doctor/upkeep");

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

/// What somebody has added to the tables since they were migrated.
pub(super) async fn blockers(client: &Client) -> Result<Outcome> {
    let blockers = migrate::blockers(client).await.map_err(failed)?;
    Ok(match blockers.is_empty() {
        true => ok("nothing in the tables is in the way"),
        false => {
            failure(printable(&blockers.join("; ")), "run `cleanupctl migrate --remove-blockers`")
        }
    })
}

pub(super) async fn transactions(client: &Client, long: Duration) -> Result<Outcome> {
    let row = client.query_one(TRANSACTIONS, &[&long.as_secs_f64()]).await.map_err(failed)?;
    let oldest = row.get::<_, Option<String>>("who").zip(row.get("end_it"));
    Ok(judge_transactions(row.get("open"), row.get("oldest_s"), oldest))
}

/// The oldest: whose it is, and what would end it.
fn judge_transactions(open: i64, oldest_s: f64, oldest: Option<(String, String)>) -> Outcome {
    let Some((who, end_it)) = oldest.filter(|_| open > 0) else {
        return ok("none is open for long");
    };
    let age = Duration::try_from_secs_f64(oldest_s.round()).unwrap_or_default();
    let age = humantime::format_duration(age);
    warning(
        format!("{open} open for long, the oldest for {age}: {}", printable(&who)),
        format!(
            "vacuum cannot remove what the nights have deleted; if nobody needs it: {}",
            printable(&end_it)
        ),
    )
}

/// Some of it is for other checks.
pub(super) async fn upkeep(client: &Client) -> Result<Row> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_that_is_open_for_an_hour_is_named_with_its_age() {
        let oldest = ("pid 7 (pg_dump)".into(), "SELECT pg_terminate_backend(7)".into());
        let said = format!("{:?}", judge_transactions(2, 3600.4, Some(oldest)));
        assert!(said.contains("Warning") && said.contains("1h: pid 7 (pg_dump)"), "{said}");
        assert!(said.contains("pg_terminate_backend(7)"), "{said}");
        assert!(format!("{:?}", judge_transactions(0, 0.0, None)).contains("Ok"));
    }
}
