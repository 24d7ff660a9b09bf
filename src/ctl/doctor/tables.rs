//! The tables, which belong to somebody else: what their owner added, and whether content fits pastes.

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
        true => ok("none that runs inside the cleanup's statements"),
        false => warning(printable(&found.join(", ")), OWNER_TRIGGERS_MEAN),
    })
}

pub(super) async fn warnings(client: &Client) -> Result<Outcome> {
    let found = migrate::table_warnings(client).await.map_err(failed)?;
    Ok(match found.is_empty() {
        true => ok("each survives a crash, and each foreign key to them has an index"),
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
