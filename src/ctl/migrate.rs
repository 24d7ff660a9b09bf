//! `cleanupctl migrate`: create the tables, or adopt existing ones online.

use anyhow::{Result, anyhow};
use clap::Args;
use tokio_postgres::Client;

use crate::{
    cli::{remark, say},
    config::Settings,
    fleet, migrate,
    objects::Objects,
    postgres::describe,
};

const REBIND_BUCKET: &str = sql!("fleet/rebind_bucket");

#[derive(Args, Debug)]
pub(super) struct Migrate {
    /// Remove what would break the protocol: a foreign key from pastes to content, NOT NULL on
    /// pastes.content_hash.
    #[arg(long)]
    remove_blockers: bool,
    /// Also create the least-privilege roles of sql/roles.sql (needs CREATEROLE).
    #[arg(long)]
    roles: bool,
    /// The bodies were moved: let the database remember the bucket and prefix set now.
    #[arg(long)]
    rebind_bucket: bool,
}

impl Migrate {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let client = super::connect(settings).await?;
        let options = migrate::Options {
            remove_blockers: self.remove_blockers,
            schema_is_named: settings.postgres_schema().is_some(),
            roles: self.roles,
        };
        let report = migrate::migrate(&client, &options, &mut remark).await?;
        if self.rebind_bucket {
            rebind_bucket(&client, settings).await?;
        }
        let rebuilt = report.indexes_rebuilt.iter().map(|index| format!("rebuilt {index}"));
        let repaired = report.triggers_repaired.iter().map(|what| format!("repaired: {what}"));
        let removed = report.blockers_removed.iter().map(|blocker| format!("removed {blocker}"));
        let moved = report.claim_ids_moved.map(|highest| format!("moved claim ids past {highest}"));
        let roles = self.roles.then(|| "roles granted".to_string());
        let done: Vec<String> = report
            .applied
            .iter()
            .cloned()
            .chain(rebuilt)
            .chain(repaired)
            .chain(removed)
            .chain(moved)
            .chain(roles)
            .collect();
        say(&match done.is_empty() {
            true => "the schema is current".to_string(),
            false => format!("migrated: {}", done.join(", ")),
        });
        Ok(0)
    }
}

/// To one that can be deleted in: a mistyped bucket must not be remembered.
async fn rebind_bucket(client: &Client, settings: &Settings) -> Result<()> {
    let objects = Objects::new(settings).await?;
    objects.probe().await?;
    let before = fleet::read(client).await?.bucket.unwrap_or_else(|| "none".into());
    let (bucket, prefix) = (objects.bucket(), objects.prefix());
    let rebound = client.execute(REBIND_BUCKET, &[&bucket, &prefix]).await;
    rebound.map_err(|error| anyhow!("cannot rebind the bucket: {}", describe(&error)))?;
    remark(&format!("this database belonged to bucket {before:?}, and belongs to {bucket:?} now"));
    remark("workers with other settings finish the batches they hold where they were, and stop");
    Ok(())
}
