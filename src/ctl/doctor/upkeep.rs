//! Checks the maintenance of the tables: indexes, blocking constraints, vacuum, and the transactions that
//! hold vacuum back.

use std::time::Duration;

use tokio_postgres::{Client, Row};

use super::finding::{Outcome, failure, ok, warning};
use crate::{migrate, printable::printable, problem::Problem};

const TRANSACTIONS: &str = sql!("doctor/transactions");
const UPKEEP: &str = sql!("doctor/upkeep");

pub(super) async fn indexes(client: &Client) -> Result<Outcome, Problem> {
    let missing = migrate::missing_indexes(client).await?;
    Ok(match missing.is_empty() {
        true => ok("all exist and are valid"),
        false => failure(
            format!("missing or invalid: {}", missing.join(", ")),
            "run `cleanupctl migrate`, which builds them without blocking writes",
        ),
    })
}

/// Checks for constraints that the tables' owner added after the migration and that block the cleanup.
pub(super) async fn blockers(client: &Client) -> Result<Outcome, Problem> {
    let blockers = migrate::blockers(client).await?;
    Ok(match blockers.is_empty() {
        true => ok("no constraint blocks the cleanup"),
        false => {
            failure(printable(&blockers.join("; ")), "run `cleanupctl migrate --remove-blockers`")
        }
    })
}

pub(super) async fn transactions(client: &Client, long: Duration) -> Result<Outcome, Problem> {
    let row = client.query_one(TRANSACTIONS, &[&long.as_secs_f64()]).await?;
    let oldest = row.get::<_, Option<String>>("who").zip(row.get("end_it"));
    Ok(judge_transactions(row.get("open"), row.get("oldest_s"), oldest, long))
}

/// `oldest`: who opened the oldest transaction, and the statement that ends it.
fn judge_transactions(
    open: i64,
    oldest_s: f64,
    oldest: Option<(String, String)>,
    long: Duration,
) -> Outcome {
    let long = humantime::format_duration(long);
    let Some((who, end_it)) = oldest.filter(|_| open > 0) else {
        return ok(format!("none is open for longer than {long}"));
    };
    let age = Duration::try_from_secs_f64(oldest_s.round()).unwrap_or_default();
    let age = humantime::format_duration(age);
    warning(
        format!("{open} open for longer than {long}, the oldest for {age} by {}", printable(&who)),
        format!("it blocks vacuum and may lock pastes; to end it: {}", printable(&end_it)),
    )
}

/// Reads the values that several checks use.
pub(super) async fn upkeep(client: &Client) -> Result<Row, Problem> {
    Ok(client.query_one(UPKEEP, &[]).await?)
}

pub(super) async fn autovacuum(client: &Client) -> Result<Outcome, Problem> {
    let row = upkeep(client).await?;
    let neglected: Option<String> = row.get("neglected");
    Ok(match (row.get("autovacuum"), neglected) {
        (false, _) => {
            warning("off for the whole server", "set autovacuum = on: every night leaves dead rows")
        }
        (true, Some(tables)) => warning(
            format!("turned off for {tables}"),
            "ALTER TABLE … RESET (autovacuum_enabled): every night leaves dead rows",
        ),
        (true, None) => ok("on for all tables"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_that_is_open_for_an_hour_is_named_with_its_age() {
        let long = Duration::from_secs(900);
        let oldest = ("pid 7 (pg_dump)".into(), "SELECT pg_terminate_backend(7)".into());
        let text = format!("{:?}", judge_transactions(2, 3600.4, Some(oldest), long));
        assert!(text.contains("Warning") && text.contains("1h by pid 7 (pg_dump)"), "{text}");
        assert!(text.contains("pg_terminate_backend(7)"), "{text}");
        let none = format!("{:?}", judge_transactions(0, 0.0, None, long));
        assert!(none.contains("Ok") && none.contains("15m"), "{none}");
    }
}
