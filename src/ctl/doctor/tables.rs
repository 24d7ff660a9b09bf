//! Checks the tables, which belong to the paste service: what their owner added, and whether content
//! matches pastes and has plain keys.

use tokio_postgres::Client;

use super::finding::{Outcome, ok, warning};
use crate::{
    format::counted,
    migrate::{self, MISSING_CONTENT_REMEDY, OWNER_TRIGGERS_MEAN},
    printable::printable,
    problem::Problem,
};

const ODD_KEYS: &str = sql!("doctor/odd_keys");
/// Keys are counted up to this.
const COUNTED: i64 = 1000;

pub(super) async fn owner_triggers(client: &Client) -> Result<Outcome, Problem> {
    let found = migrate::owner_triggers(client).await?;
    Ok(match found.is_empty() {
        true => ok("no trigger or rule of the owner fires in the fleet's statements"),
        false => warning(printable(&found.join(", ")), OWNER_TRIGGERS_MEAN),
    })
}

pub(super) async fn warnings(client: &Client) -> Result<Outcome, Problem> {
    let found = migrate::table_warnings(client).await?;
    Ok(match found.is_empty() {
        true => ok("no table is UNLOGGED, and every foreign key to them has an index"),
        false => {
            let Problem { problem, remedy } = Problem::join(&found);
            warning(problem, remedy)
        }
    })
}

pub(super) async fn content(client: &Client) -> Result<Outcome, Problem> {
    let sampled = migrate::sample_content(client).await?;
    if sampled.is_suspicious() {
        return Ok(warning(sampled.to_string(), MISSING_CONTENT_REMEDY));
    }
    let row = client.query_one(ODD_KEYS, &[&COUNTED]).await?;
    Ok(match row.get::<_, Option<String>>("first") {
        None => ok(sampled.to_string()),
        Some(first) => warning(
            format!(
                "{} not in canonical form, such as {:?}",
                counted(row.get::<_, i64>("keys"), "S3 key"),
                printable(&first)
            ),
            "some stores treat all spellings of a key as one object, so such an object is not deleted \
             while other content has another spelling of its key: store content under plain keys",
        ),
    })
}
