//! Checks the Postgres server: that it answers, accepts writes, has the schema, and keeps acknowledged
//! commits.

use tokio_postgres::Client;

use super::finding::{Outcome, failure, ok, warning};
use crate::{
    config::Settings,
    migrate::{self, SCHEMA_VERSION},
    postgres::Target,
    problem::Problem,
};

const SERVER: &str = sql!("doctor/server");
const DURABILITY: &str = sql!("doctor/durability");
const OLDEST: i32 = 15;

/// Connects as the programs do. If only a read-only server answers, that one is checked.
pub(super) async fn answers(settings: &Settings) -> (Outcome, Option<Client>) {
    match connect(settings).await {
        Ok((target, client)) => {
            let outcome = version(&target, &client).await;
            (outcome.unwrap_or_else(Outcome::from), Some(client))
        }
        Err(problem) => (problem.into(), None),
    }
}

async fn connect(settings: &Settings) -> Result<(Target, Client), Problem> {
    let target = Target::new(settings, "cleanupctl doctor", None)?;
    let client = match target.open().await {
        Ok(client) => client,
        Err(error) => target.clone().for_reading().open().await.map_err(|_| error)?,
    };
    Ok((target, client))
}

async fn version(target: &Target, client: &Client) -> Result<Outcome, Problem> {
    let row = client.query_one(SERVER, &[]).await.map_err(|error| target.explain(error))?;
    let found = format!("{}, version {}", target.describe(), row.get::<_, String>("version"));
    Ok(match row.get::<_, i32>("version_num") / 10_000 {
        OLDEST.. => ok(found),
        _ => failure(found, format!("upgrade it to Postgres {OLDEST} or newer")),
    })
}

pub(super) async fn writes(client: &Client) -> Result<Outcome, Problem> {
    let row = client.query_one(SERVER, &[]).await?;
    let (standby, read_only): (bool, bool) = (row.get("standby"), row.get("read_only"));
    Ok(match (standby, read_only) {
        (true, _) => failure(
            "the server is a standby",
            "name the primary, too, in DATABASE_URL or CLEANUP_POSTGRES_URL",
        ),
        (false, true) => failure(
            "transactions are read-only",
            "turn default_transaction_read_only off, for the server, the database or the role",
        ),
        (false, false) => ok("the server accepts writes"),
    })
}

pub(super) async fn schema(client: &Client) -> Result<Outcome, Problem> {
    match migrate::check(client).await {
        Ok(()) => Ok(ok(format!("version {SCHEMA_VERSION}, current"))),
        Err(error) => Err(Problem::from(&error)),
    }
}

/// Checks that an acknowledged commit survives a crash: an object is deleted once its decrement is
/// acknowledged.
pub(super) async fn durability(client: &Client) -> Result<Outcome, Problem> {
    let row = client.query_one(DURABILITY, &[]).await?;
    let value = |name| row.get::<_, String>(name);
    let [fsync, pages, commit] = ["fsync", "full_page_writes", "synchronous_commit"].map(value);
    Ok(judge(&fsync, &pages, &commit))
}

fn judge(fsync: &str, full_page_writes: &str, synchronous_commit: &str) -> Outcome {
    let found = format!(
        "fsync {fsync}, full_page_writes {full_page_writes}, synchronous_commit {synchronous_commit}"
    );
    if !matches!(synchronous_commit, "on" | "remote_apply") {
        // Every session of the fleet sets it when it connects.
        let remedy = "a pooler or proxy drops the options of our sessions: let them pass";
        return failure(found, remedy);
    }
    match (fsync, full_page_writes) {
        ("on", "on") => ok(found),
        _ => warning(
            found,
            "a crash of the machine can undo a decrement whose objects are already deleted: turn both on",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_does_not_wait_for_its_commits_is_a_failure() {
        for value in ["off", "local", "remote_write"] {
            assert!(format!("{:?}", judge("on", "on", value)).contains("Failure"), "{value}");
        }
    }
}
