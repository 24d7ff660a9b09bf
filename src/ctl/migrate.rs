//! `cleanupctl migrate`: create the tables, or adopt existing ones online.

use anyhow::{Result, anyhow};
use clap::Args;

use crate::{config::Settings, migrate, postgres::describe};

const REBIND_BUCKET: &str = include_str!("../../sql/queries/rebind_bucket.sql");

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
        let options = migrate::Options { remove_blockers: self.remove_blockers, roles: self.roles };
        let report = migrate::migrate(&client, &options, &mut |line| eprintln!("{line}")).await?;
        if self.rebind_bucket {
            let bucket = settings.bucket()?;
            let rebound = client.execute(REBIND_BUCKET, &[&bucket, &settings.s3.prefix]).await;
            rebound.map_err(|error| anyhow!("cannot rebind the bucket: {}", describe(&error)))?;
        }
        let rebuilt = report.indexes_rebuilt.iter().map(|index| format!("rebuilt {index}"));
        let removed = report.blockers_removed.iter().map(|blocker| format!("removed {blocker}"));
        let done: Vec<String> =
            report.applied.iter().cloned().chain(rebuilt).chain(removed).collect();
        match done.is_empty() {
            true => println!("the schema is current"),
            false => println!("migrated: {}", done.join(", ")),
        }
        Ok(0)
    }
}
