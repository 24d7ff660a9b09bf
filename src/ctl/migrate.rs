//! `cleanupctl migrate`: creates the tables, or adopts existing ones online.

use anyhow::{Result, anyhow};
use clap::Args;
use tokio_postgres::Client;

use crate::{
    cli::{print_note, say},
    config::Settings,
    fleet, migrate,
    objects::Objects,
    postgres::describe,
};

const REBIND_BUCKET: &str = sql!("fleet/rebind_bucket");

#[derive(Args, Debug)]
pub(super) struct Migrate {
    /// Remove the constraints that the cleanup cannot work with: a foreign key from pastes to
    /// content, NOT NULL on pastes.content_hash.
    #[arg(long)]
    remove_blockers: bool,
    /// Also create the least-privilege roles of sql/roles.sql; needs CREATEROLE.
    #[arg(long)]
    roles: bool,
    /// Bind the database to the bucket and prefix of the current settings, after the objects were
    /// moved there.
    #[arg(long)]
    rebind_bucket: bool,
}

impl Migrate {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let client = super::connect(settings).await?;
        let options = migrate::Options {
            remove_blockers: self.remove_blockers,
            schema_is_named: settings.postgres.schema().is_some(),
            roles: self.roles,
        };
        let report = migrate::migrate(&client, &options, &mut print_note).await?;
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

/// Binds the database to the bucket of the settings. Checks first that it exists: a mistyped bucket must
/// not be bound.
async fn rebind_bucket(client: &Client, settings: &Settings) -> Result<()> {
    let objects = Objects::new(settings).await?;
    if let Some(doubt) = objects.check().await? {
        print_note(&format!("warning: {doubt}"));
    }
    let before = fleet::read(client).await?.bucket.unwrap_or_else(|| "none".into());
    let (bucket, prefix) = (objects.bucket(), objects.prefix());
    let rebound = client.execute(REBIND_BUCKET, &[&bucket, &prefix]).await;
    rebound.map_err(|error| anyhow!("cannot rebind the bucket: {}", describe(&error)))?;
    print_note(&format!("bound this database to bucket {bucket:?} (before: {before:?})"));
    print_note(
        "workers with other settings finish their open batches in the old bucket, then stop",
    );
    Ok(())
}
