//! Checks whether a program may work on this database: completely at every start, and in part at every
//! claim and sweep.

use tokio_postgres::{Client, Error, Row, error::SqlState};

use super::{MigrateError, SCHEMA_VERSION, SUBSCRIBER_REMEDY, SchemaError, preflight::TABLE_RULES};

use crate::problem::Problem;

const VERSION: &str = sql!("migrate/schema_version");
const ELSEWHERE: &str = sql!("migrate/schema_elsewhere");
const TRIGGER_RULES: &str = sql!("migrate/trigger_rules");

/// Returns an error unless the database has the schema this program was built for, and nothing else
/// about its tables makes working on them unsafe. Reads the catalog only.
pub async fn check(client: &Client) -> Result<(), SchemaError> {
    match schema_version(client).await?.as_ref().map_or(Err(SchemaError::NotMigrated), expect) {
        Err(SchemaError::NotMigrated) => return Err(not_migrated(client).await?),
        // The rules below name the tables.
        Err(SchemaError::Inherits) => (),
        outcome => outcome?,
    }
    let mut problems = tables(client).await?;
    // A missing table has no triggers either.
    if problems.is_empty() {
        problems = triggers(client).await?;
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(SchemaError::Unfit(problems)),
    }
}

/// Returns what about the migrated tables keeps the fleet from working on them.
async fn tables(client: &Client) -> Result<Vec<Problem>, Error> {
    let rows = client.query(TABLE_RULES, &[&true]).await?;
    Ok(rows.iter().map(Problem::from).collect())
}

/// Returns what is wrong with the triggers; `migrate` repairs it.
pub(super) async fn triggers(client: &Client) -> Result<Vec<Problem>, Error> {
    let rows = client.query(TRIGGER_RULES, &[]).await?;
    Ok(rows.iter().map(Problem::from).collect())
}

/// Returns an error unless, according to the columns `schema_version`, `subscription` and `inherits`, this
/// program may claim, reset and repair here.
pub fn expect(row: &Row) -> Result<(), SchemaError> {
    let needed = SCHEMA_VERSION;
    match row.try_get("schema_version")? {
        None => Err(SchemaError::NotMigrated),
        Some(found) if found < needed => Err(SchemaError::TooOld { found, needed }),
        Some(found) if found > needed => Err(SchemaError::TooNew { found, needed }),
        Some(_) => match (row.try_get("subscription")?, row.try_get("inherits")?) {
            (Some(subscription), _) => Err(SchemaError::Subscriber(subscription)),
            (None, true) => Err(SchemaError::Inherits),
            (None, false) => Ok(()),
        },
    }
}

/// Returns a warning if the database is a subscriber: a copy may be migrated, but the fleet will not work
/// on it.
pub(super) async fn subscription(client: &Client) -> Result<Option<String>, MigrateError> {
    let failed = MigrateError::while_doing("read the subscriptions");
    let row = schema_version(client).await.map_err(&failed)?;
    let found = row.map(|row| row.try_get::<_, Option<String>>("subscription")).transpose();
    let found = found.map_err(&failed)?.flatten();
    Ok(found.map(|found| {
        format!("{found}: no program will work on this database; {SUBSCRIBER_REMEDY}")
    }))
}

/// Returns the row of `migrate/schema_version.sql`; `None` if not even its table exists.
pub(super) async fn schema_version(client: &Client) -> Result<Option<Row>, Error> {
    match client.query_one(VERSION, &[]).await {
        Ok(row) => Ok(Some(row)),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns why no migration was found. "Run `cleanupctl migrate`" would be wrong advice if only
/// `search_path` is wrong.
async fn not_migrated(client: &Client) -> Result<SchemaError, SchemaError> {
    let rows = client.query(ELSEWHERE, &[]).await?;
    let schemas: Vec<String> = rows.iter().map(|row| row.get("schema")).collect();
    Ok(match schemas.is_empty() {
        true => SchemaError::NotMigrated,
        false => SchemaError::Elsewhere(schemas),
    })
}
