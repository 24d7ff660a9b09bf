//! Whether a program may work on this database: checked at every start, and in part at every claim
//! and sweep.

use tokio_postgres::Client;

use super::{SCHEMA_VERSION, SchemaError, version};

const ELSEWHERE: &str = include_str!("../../sql/queries/schema_elsewhere.sql");
const DISABLED_TRIGGER: &str = include_str!("../../sql/queries/disabled_trigger.sql");

/// Returns an error unless the database has the schema this program was built for, and nothing else
/// about its tables makes working on them unsafe. Reads the catalog only.
pub async fn check(client: &Client) -> Result<(), SchemaError> {
    match expect(version(client).await?) {
        Err(SchemaError::NotMigrated) => return Err(not_migrated(client).await?),
        outcome => outcome?,
    }
    let disabled = client.query_opt(DISABLED_TRIGGER, &[]).await?;
    disabled.map_or(Ok(()), |row| Err(SchemaError::NoTrigger(row.get("trigger"))))
}

/// Returns an error unless this is the schema version this program was built for. `None`: not
/// migrated at all.
pub fn expect(found: Option<i32>) -> Result<(), SchemaError> {
    let needed = SCHEMA_VERSION;
    match found {
        None => Err(SchemaError::NotMigrated),
        Some(found) if found < needed => Err(SchemaError::TooOld { found, needed }),
        Some(found) if found > needed => Err(SchemaError::TooNew { found, needed }),
        Some(_) => Ok(()),
    }
}

/// "Run `cleanupctl migrate`" would be the wrong advice where only `search_path` is wrong.
async fn not_migrated(client: &Client) -> Result<SchemaError, SchemaError> {
    let rows = client.query(ELSEWHERE, &[]).await?;
    let schemas: Vec<String> = rows.iter().map(|row| row.get("schema")).collect();
    Ok(match schemas.is_empty() {
        true => SchemaError::NotMigrated,
        false => SchemaError::Elsewhere(schemas),
    })
}
