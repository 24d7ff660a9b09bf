//! Migrates a database to the schema that the fleet needs, and checks whether it has that schema.
//!
//! `cleanupctl migrate` calls [`migrate`]; every program calls [`check()`] before it touches a row.
//! The schema itself is in `sql/migrations/`. Each file is a list of steps that run one by one,
//! without a transaction around them: a large `pastes` is adopted while its service keeps writing, and
//! the next run continues where a killed one stopped.
//!
//! ```text
//! lock ─▶ preflight (changes nothing) ─▶ blockers ─▶ steps of each new migration ─▶ indexes ─▶ roles
//! ```

mod check;
mod claim_ids;
mod error;
mod owner_warnings;
mod preflight;
mod runner;
mod script;

pub use check::{check, expect};
pub use claim_ids::advance_claim_ids;
pub use error::{MigrateError, SUBSCRIBER_REMEDY, SchemaError};

pub use owner_warnings::{
    MISSING_CONTENT_REMEDY, OWNER_TRIGGERS_MEAN, owner_triggers, sample_content, table_warnings,
};

use preflight::Findings;
use runner::Runner;
use script::{Migration, StepKind, steps};
use tokio_postgres::Client;

use crate::{postgres::describe, problem::Problem};

const ROLES: &str = include_str!("../../sql/roles.sql");

const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "tables",
        sql: include_str!("../../sql/migrations/V1__tables.sql"),
    },
    Migration {
        version: 2,
        name: "indexes",
        sql: include_str!("../../sql/migrations/V2__indexes.sql"),
    },
    Migration {
        version: 3,
        name: "writer_contract",
        sql: include_str!("../../sql/migrations/V3__writer_contract.sql"),
    },
    Migration {
        version: 4,
        name: "history",
        sql: include_str!("../../sql/migrations/V4__history.sql"),
    },
];

/// The newest migration: the schema that this build of the programs works with.
pub const SCHEMA_VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// What a migration may do beyond adding what is missing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Remove what would break the protocol instead of refusing to migrate: a foreign key from `pastes`
    /// to `content` (content is deleted while expired pastes still reference it, so every decrement would
    /// fail, or CASCADE would delete rows), and NOT NULL on `pastes.content_hash` (NULL marks a row
    /// without a reference).
    pub remove_blockers: bool,
    /// `postgres.schema` is set: tables with the same names in other schemas are not ours.
    pub schema_is_named: bool,
    /// Also create the group roles of `sql/roles.sql` and grant their privileges.
    pub roles: bool,
}

/// The result of a migration.
#[derive(Debug, Default)]
pub struct Report {
    /// Migrations completed in this run, as `V1 tables`.
    pub applied: Vec<String>,
    /// Tables that existed before the first migration and are now used by the fleet, too.
    pub adopted: Vec<String>,
    /// Constraints removed because of [`Options::remove_blockers`].
    pub blockers_removed: Vec<String>,
    /// Indexes of earlier migrations that were invalid or missing, and were rebuilt.
    pub indexes_rebuilt: Vec<String>,
    /// The highest claim id in use, if the sequence was moved past it.
    pub claim_ids_moved: Option<i64>,
    /// Problems of the triggers that were repaired.
    pub triggers_repaired: Vec<String>,
    /// Problems that do not stop the migration.
    pub warnings: Vec<String>,
}

impl Report {
    /// Returns whether nothing had to be changed.
    pub fn nothing_done(&self) -> bool {
        self.applied.is_empty()
            && self.blockers_removed.is_empty()
            && self.indexes_rebuilt.is_empty()
            && self.triggers_repaired.is_empty()
            && self.claim_ids_moved.is_none()
    }
}

/// Migrates the database that `client` is connected to, and passes lines about its progress to `print`.
///
/// Give it a connection of its own, not through a transaction pooler: it holds a session lock,
/// changes the session's timeouts and leaves helper functions in its temporary schema.
pub async fn migrate(
    client: &Client,
    options: &Options,
    print: &mut dyn FnMut(&str),
) -> Result<Report, MigrateError> {
    let mut runner = Runner::new(client, print);
    runner.lock().await?;
    let outcome = migrate_locked(&mut runner, options).await;
    runner.unlock().await;
    outcome
}

async fn migrate_locked(
    runner: &mut Runner<'_>,
    options: &Options,
) -> Result<Report, MigrateError> {
    let found = known_version(runner.client).await?;
    let mut report = prepare(runner, found, options).await?;
    for migration in MIGRATIONS {
        if found >= Some(migration.version) {
            report.indexes_rebuilt.extend(runner.rebuild_indexes(migration).await?);
            runner.repair(migration).await?;
        } else {
            runner.apply(migration).await?;
            report.applied.push(format!("V{} {}", migration.version, migration.name));
        }
    }
    report.warnings.extend(warn_owner(runner).await?);
    report.claim_ids_moved = claim_ids::advance(runner).await?;
    if options.roles {
        for step in steps(ROLES) {
            runner.run_step(&step).await?;
        }
    } else if found.is_some() && !report.applied.is_empty() && has_roles(runner.client).await? {
        let warning = "the group roles of sql/roles.sql may lack rights on new tables and columns: \
                       run `cleanupctl migrate --roles`";
        runner.print(&format!("warning: {warning}"));
        report.warnings.push(warning.to_string());
    }
    Ok(report)
}

/// Prints warnings about what the tables' owner should check before the first run.
async fn warn_owner(runner: &mut Runner<'_>) -> Result<Vec<String>, MigrateError> {
    let failed = MigrateError::while_doing("read the triggers of the tables");
    let triggers = owner_triggers(runner.client).await.map_err(&failed)?;
    let mut warnings = Vec::new();
    if !triggers.is_empty() {
        warnings.push(format!("{}: {OWNER_TRIGGERS_MEAN}", triggers.join(", ")));
    }
    let failed = MigrateError::while_doing("check the tables");
    let found = table_warnings(runner.client).await.map_err(failed)?;
    warnings.extend(found.iter().map(Problem::to_string));
    match sample_content(runner.client).await {
        Ok(sampled) if sampled.is_suspicious() => {
            warnings.push(format!("{sampled}: {MISSING_CONTENT_REMEDY}"));
        }
        Ok(_) => {}
        // A policy that hides rows even from the owner does not prevent the migration.
        Err(error) => warnings.push(format!("could not sample pastes: {}", describe(&error))),
    }
    warnings.iter().for_each(|warning| runner.print(&format!("warning: {warning}")));
    Ok(warnings)
}

async fn has_roles(client: &Client) -> Result<bool, MigrateError> {
    let failed = MigrateError::while_doing("read the group roles");
    let row = client.query_one("SELECT to_regrole('cleanup_worker') IS NOT NULL", &[]).await;
    Ok(row.map_err(failed)?.get(0))
}

/// Checks for everything that prevents the migration, before the first change, and removes blockers.
async fn prepare(
    runner: &mut Runner<'_>,
    found: Option<i32>,
    options: &Options,
) -> Result<Report, MigrateError> {
    let Findings { existing, blockers, mut warnings } =
        preflight::inspect(runner.client, found == Some(SCHEMA_VERSION), options).await?;
    warnings.extend(check::subscription(runner.client).await?);
    for warning in &warnings {
        runner.print(&format!("warning: {warning}"));
    }
    let failed = MigrateError::while_doing("check the triggers");
    let blockers_removed =
        preflight::remove_blockers(runner, blockers, options.remove_blockers).await?;
    let mut triggers_repaired = Vec::new();
    if found == Some(SCHEMA_VERSION) {
        for Problem { problem, .. } in check::triggers(runner.client).await.map_err(failed)? {
            runner.print(&format!("repairing: {problem}"));
            triggers_repaired.push(problem);
        }
    }
    let adopted = if found.is_none() { existing } else { Vec::new() };
    for table in &adopted {
        runner.print(&format!("adopting the existing table {table}"));
    }
    Ok(Report { adopted, blockers_removed, triggers_repaired, warnings, ..Report::default() })
}

async fn known_version(client: &Client) -> Result<Option<i32>, MigrateError> {
    let failed = MigrateError::while_doing("read the schema version");
    let row = check::schema_version(client).await.map_err(&failed)?;
    let found = row.map(|row| row.try_get("schema_version")).transpose().map_err(&failed)?;
    match found.flatten() {
        Some(found) if found > SCHEMA_VERSION => {
            Err(MigrateError::TooNew { found, needed: SCHEMA_VERSION })
        }
        found => Ok(found),
    }
}

/// Returns blockers that were added after the database was migrated.
pub async fn blockers(client: &Client) -> Result<Vec<String>, tokio_postgres::Error> {
    preflight::blockers(client).await
}

/// Returns the indexes that are missing or invalid, and without an equivalent index of the owner.
pub async fn missing_indexes(client: &Client) -> Result<Vec<&'static str>, tokio_postgres::Error> {
    let mut missing = Vec::new();
    for step in MIGRATIONS.iter().flat_map(|migration| steps(migration.sql)) {
        if let StepKind::Index(name) = step.kind
            && !runner::index_state(client, name).await?.ready
        {
            missing.push(name);
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_migration_file_is_embedded_under_its_own_version_and_name() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql/migrations");
        let files = std::fs::read_dir(folder).map(Iterator::count).unwrap_or_default();
        assert_eq!(files, MIGRATIONS.len());
        for (position, Migration { version, name, sql }) in MIGRATIONS.iter().enumerate() {
            assert_eq!(*version as usize, position + 1);
            let file = format!("{folder}/V{version}__{name}.sql");
            assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), Some(*sql), "{file}");
        }
    }
}
