//! Brings a database to the schema the fleet needs, and tells whether it has it.
//!
//! `cleanupctl migrate` calls [`migrate`]; every program calls [`check`] before it touches a row.
//! The schema itself is in `sql/migrations/`. Each file is a list of steps that run one by one,
//! without a transaction around them: a large and busy `pastes` is adopted while its service goes
//! on, and a run that was killed is continued by the next one.
//!
//! ```text
//! lock ─▶ preflight (changes nothing) ─▶ blockers ─▶ steps of each new migration ─▶ indexes ─▶ roles
//! ```

mod check;
mod claim_ids;
mod error;
mod others;
mod preflight;
mod runner;
mod script;

pub use check::{check, expect};
pub use claim_ids::advance_claim_ids;
pub use error::{MigrateError, Problem, SUBSCRIBER_REMEDY, SchemaError, join};

pub use others::{
    MISSING_CONTENT_REMEDY, OWNER_TRIGGERS_MEAN, owner_triggers, sample_content, table_warnings,
};

use preflight::Findings;
use runner::Runner;
use script::{Migration, StepKind, steps};
use tokio_postgres::Client;

use crate::postgres::describe;

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
    /// Remove what would break the protocol instead of refusing: a foreign key from `pastes` to
    /// `content` (a body goes while expired pastes still name it, so every decrement would fail, and
    /// CASCADE would destroy rows), and NOT NULL on `pastes.content_hash` (NULL is how a row says
    /// that it gave up its reference).
    pub remove_blockers: bool,
    /// `postgres.schema` is set: tables of the same names in other schemas are somebody else's.
    pub schema_is_named: bool,
    /// Also create the group roles of `sql/roles.sql` and grant them what they need.
    pub roles: bool,
}

/// What a migration did.
#[derive(Debug, Default)]
pub struct Report {
    /// Migrations completed in this run, as `V1 tables`.
    pub applied: Vec<String>,
    /// Tables that were there before the first migration and are now the fleet's too.
    pub adopted: Vec<String>,
    /// Constraints removed because [`Options::remove_blockers`] allowed it.
    pub blockers_removed: Vec<String>,
    /// Indexes of earlier migrations that were invalid or gone, and were built again.
    pub indexes_rebuilt: Vec<String>,
    /// The highest claim id in use, if ids were about to start again below it.
    pub claim_ids_moved: Option<i64>,
    /// What was wrong with the triggers, and is not any more.
    pub triggers_repaired: Vec<String>,
    /// What does not stop the migration but will be in somebody's way.
    pub warnings: Vec<String>,
}

impl Report {
    /// Whether the database already was as it should be.
    pub fn nothing_done(&self) -> bool {
        self.applied.is_empty()
            && self.blockers_removed.is_empty()
            && self.indexes_rebuilt.is_empty()
            && self.triggers_repaired.is_empty()
            && self.claim_ids_moved.is_none()
    }
}

/// Migrates the database `client` is connected to, and says to `say` what it does and waits for.
///
/// Give it a connection of its own, not through a transaction pooler: it holds a session lock,
/// changes the session's timeouts and leaves helper functions in its temporary schema.
pub async fn migrate(
    client: &Client,
    options: &Options,
    say: &mut dyn FnMut(&str),
) -> Result<Report, MigrateError> {
    let mut runner = Runner::new(client, say);
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
    report.warnings.extend(warn_of_others(runner).await?);
    report.claim_ids_moved = claim_ids::advance(runner).await?;
    if options.roles {
        for step in steps(ROLES) {
            runner.run_step(&step).await?;
        }
    } else if found.is_some() && !report.applied.is_empty() && has_roles(runner.client).await? {
        let warning = "the groups of sql/roles.sql are there and may lack rights on what is new: \
                       run `cleanupctl migrate --roles`";
        runner.say(&format!("warning: {warning}"));
        report.warnings.push(warning.to_string());
    }
    Ok(report)
}

/// Names what the owner of the tables should look at before the first run.
async fn warn_of_others(runner: &mut Runner<'_>) -> Result<Vec<String>, MigrateError> {
    let failed = MigrateError::while_doing("look at the triggers of the tables");
    let triggers = owner_triggers(runner.client).await.map_err(&failed)?;
    let mut warnings = Vec::new();
    if !triggers.is_empty() {
        warnings.push(format!("{}: {OWNER_TRIGGERS_MEAN}", triggers.join(", ")));
    }
    let failed = MigrateError::while_doing("look at the tables");
    let found = table_warnings(runner.client).await.map_err(failed)?;
    warnings.extend(found.iter().map(Problem::to_string));
    match sample_content(runner.client).await {
        Ok(sampled) if sampled.is_suspicious() => {
            warnings.push(format!("{sampled}: {MISSING_CONTENT_REMEDY}"));
        }
        Ok(_) => {}
        // A policy that hides rows from the owner, too, is no reason not to migrate.
        Err(error) => warnings.push(format!("could not sample pastes: {}", describe(&error))),
    }
    warnings.iter().for_each(|warning| runner.say(&format!("warning: {warning}")));
    Ok(warnings)
}

async fn has_roles(client: &Client) -> Result<bool, MigrateError> {
    let failed = MigrateError::while_doing("look for the groups");
    let row = client.query_one("SELECT to_regrole('cleanup_worker') IS NOT NULL", &[]).await;
    Ok(row.map_err(failed)?.get(0))
}

/// Looks for everything that is in the way before the first change, then clears it.
async fn prepare(
    runner: &mut Runner<'_>,
    found: Option<i32>,
    options: &Options,
) -> Result<Report, MigrateError> {
    let Findings { existing, blockers, mut warnings } =
        preflight::look(runner.client, found == Some(SCHEMA_VERSION), options).await?;
    warnings.extend(check::subscription(runner.client).await?);
    for warning in &warnings {
        runner.say(&format!("warning: {warning}"));
    }
    let failed = MigrateError::while_doing("look at the triggers");
    let blockers_removed = preflight::clear(runner, blockers, options.remove_blockers).await?;
    let mut triggers_repaired = Vec::new();
    if found == Some(SCHEMA_VERSION) {
        for Problem { problem, .. } in check::triggers(runner.client).await.map_err(failed)? {
            runner.say(&format!("repairing: {problem}"));
            triggers_repaired.push(problem);
        }
    }
    let adopted = if found.is_none() { existing } else { Vec::new() };
    for table in &adopted {
        runner.say(&format!("adopting the existing table {table}"));
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

/// What would break the protocol and was not there, or was removed, when the database was migrated.
pub async fn blockers(client: &Client) -> Result<Vec<String>, tokio_postgres::Error> {
    preflight::blockers(client).await
}

/// The indexes that are not there, or not valid, and have no stand-in of the owner's.
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
