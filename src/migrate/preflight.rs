//! Checks, before anything is changed, whether this database can be migrated and what prevents it.

use super::Options;
use super::error::MigrateError;
use super::runner::Runner;
use super::script::{Step, StepKind};
use tokio_postgres::{Client, Row};

use crate::problem::Problem;

const PREFLIGHT: &str = sql!("migrate/preflight");
const DATA_CHECKS: &str = sql!("migrate/data_checks");
const ELSEWHERE: &str = sql!("migrate/elsewhere");
pub(super) const TABLE_RULES: &str = sql!("migrate/table_rules");
const EXISTING: &str = sql!("migrate/existing");

/// What was found, if nothing prevents the migration.
pub(super) struct Findings {
    /// `pastes` and `content`, if they exist.
    pub existing: Vec<String>,
    pub blockers: Vec<Blocker>,
    pub warnings: Vec<String>,
}

/// Something that would break the protocol and can be removed.
pub(super) struct Blocker {
    finding: String,
    removal: String,
}

/// Reads the catalog and, for rules that no constraint proves yet, the data. `migrated`: the newest
/// migration is complete, so that nothing that it adds may be missing.
pub(super) async fn inspect(
    client: &Client,
    migrated: bool,
    options: &Options,
) -> Result<Findings, MigrateError> {
    let failed = MigrateError::while_doing("check the existing tables");
    let mut findings =
        Findings { existing: Vec::new(), blockers: Vec::new(), warnings: Vec::new() };
    let elsewhere = client.query(ELSEWHERE, &[&options.schema_is_named]).await.map_err(&failed)?;
    let unfit = client.query(TABLE_RULES, &[&migrated]).await.map_err(&failed)?;
    let found = elsewhere.iter().chain(&unfit).map(Problem::from);
    let mut problems: Vec<String> = found.map(|found| found.to_string()).collect();
    for row in client.query(PREFLIGHT, &[]).await.map_err(&failed)? {
        let (verdict, finding) = (text(&row, 0)?, text(&row, 1)?);
        match verdict.as_str() {
            "blocker" => findings.blockers.push(Blocker { finding, removal: text(&row, 2)? }),
            "warning" => findings.warnings.push(finding),
            _ => problems.push(finding),
        }
    }
    // With a column of the wrong type, the statements below could not even be parsed.
    if problems.is_empty() {
        problems = count_violations(client).await?;
    }
    if !problems.is_empty() {
        return Err(MigrateError::Refused { problems });
    }
    for row in client.query(EXISTING, &[]).await.map_err(&failed)? {
        findings.existing.push(text(&row, 0)?);
    }
    Ok(findings)
}

/// Returns only what would break the protocol.
pub(super) async fn blockers(client: &Client) -> Result<Vec<String>, tokio_postgres::Error> {
    let rows = client.query(PREFLIGHT, &[]).await?;
    let blockers = rows.iter().filter(|row| row.get::<_, String>(0) == "blocker");
    Ok(blockers.map(|row| row.get(1)).collect())
}

async fn count_violations(client: &Client) -> Result<Vec<String>, MigrateError> {
    let failed = MigrateError::while_doing("check the data of the existing tables");
    let mut problems = Vec::new();
    for row in client.query(DATA_CHECKS, &[]).await.map_err(&failed)? {
        let counting = text(&row, 3)?;
        let counted = client.query_one(&counting, &[]).await.map_err(&failed)?;
        let rows: i64 = counted.try_get(0).map_err(&failed)?;
        if rows > 0 {
            let (subject, problem, remedy) = (text(&row, 0)?, text(&row, 1)?, text(&row, 2)?);
            problems.push(format!("{subject}: {rows} {problem}; {remedy}"));
        }
    }
    Ok(problems)
}

/// Removes the blockers if that is allowed, and returns what was removed.
pub(super) async fn remove_blockers(
    runner: &mut Runner<'_>,
    blockers: Vec<Blocker>,
    allowed: bool,
) -> Result<Vec<String>, MigrateError> {
    if !allowed && !blockers.is_empty() {
        let blockers = blockers.into_iter().map(|blocker| blocker.finding).collect();
        return Err(MigrateError::Blocked { blockers });
    }
    let mut removed = Vec::new();
    for Blocker { finding, removal } in blockers {
        let title = format!("remove {finding}");
        runner.run_step(&Step { title: &title, kind: StepKind::Locking, sql: &removal }).await?;
        removed.push(finding);
    }
    Ok(removed)
}

fn text(row: &Row, column: usize) -> Result<String, MigrateError> {
    row.try_get(column).map_err(MigrateError::while_doing("read a finding about the tables"))
}
