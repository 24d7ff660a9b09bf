//! Checks the tables, which belong to the paste service: what their owner added, and whether content
//! matches pastes.

use anyhow::Result;
use tokio_postgres::Client;

use super::{
    finding::{Outcome, ok, warning},
    postgres::failed,
};
use crate::{
    migrate::{self, MISSING_CONTENT_REMEDY, OWNER_TRIGGERS_MEAN},
    printable::printable,
};

pub(super) async fn owner_triggers(client: &Client) -> Result<Outcome> {
    let found = migrate::owner_triggers(client).await.map_err(failed)?;
    Ok(match found.is_empty() {
        true => ok("no trigger or rule of the owner fires in the fleet's statements"),
        false => warning(printable(&found.join(", ")), OWNER_TRIGGERS_MEAN),
    })
}

pub(super) async fn warnings(client: &Client) -> Result<Outcome> {
    let found = migrate::table_warnings(client).await.map_err(failed)?;
    Ok(match found.is_empty() {
        true => ok("no table is UNLOGGED, and every foreign key to them has an index"),
        false => warning(
            migrate::join(&found, |found| found.problem.clone()),
            migrate::join(&found, |found| found.remedy.clone()),
        ),
    })
}

pub(super) async fn content(client: &Client) -> Result<Outcome> {
    let sampled = migrate::sample_content(client).await.map_err(failed)?;
    Ok(match sampled.is_suspicious() {
        false => ok(sampled.to_string()),
        true => warning(sampled.to_string(), MISSING_CONTENT_REMEDY),
    })
}
