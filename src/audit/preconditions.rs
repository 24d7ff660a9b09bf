//! What an audit requires: a session, the schema, the bucket of this database, and a prefix that is
//! not shared.

use anyhow::{Result, bail};
use tokio_postgres::Client;

use super::AuditError;
use crate::{
    config::ConfigError,
    fleet, migrate,
    objects::{Objects, Start},
    postgres::Target,
};

/// Opens a session that finds rows by their keys, whatever statistics the planner has.
pub(super) async fn connect(target: &Target) -> Result<Client> {
    let db = target.open().await?;
    let by_key = db.batch_execute("SET enable_seqscan = off").await;
    by_key.map_err(|error| target.explain(error))?;
    Ok(db)
}

/// Checks that the schema is current and that the bucket is the one of this database.
pub(super) async fn check(db: &Client, objects: &Objects) -> Result<()> {
    migrate::check(db).await?;
    check_binding(db, objects).await
}

/// Returns a warning if the prefix may also match keys of another database.
pub(super) fn loose_prefix(prefix: &str) -> Option<String> {
    (!prefix.is_empty() && !prefix.ends_with('/')).then(|| {
        format!(
            "s3.prefix {prefix:?} does not end in '/', so it also matches the keys of other prefixes, \
             such as \"{prefix}-other/key\""
        )
    })
}

/// Refuses a repair under such a prefix: `a` also matches the live objects of another database with
/// the prefix `ab/`.
pub(super) fn refuse_loose_prefix(prefix: &str) -> Result<(), ConfigError> {
    match loose_prefix(prefix) {
        None => Ok(()),
        Some(reason) => Err(ConfigError::new(
            format!("{reason}, and --repair would delete their objects"),
            format!(
                "set s3.prefix to {:?} and run `cleanupctl migrate --rebind-bucket`, or pass \
                 --override-brake if no other keys begin with {prefix:?}",
                format!("{prefix}/")
            ),
        )),
    }
}

/// Checks the binding: in a wrong bucket every object would look like an orphan, and every content row
/// like one with a missing object.
async fn check_binding(db: &Client, objects: &Objects) -> Result<()> {
    let fleet = fleet::read(db).await?;
    if fleet.bucket.is_some() {
        return Ok(fleet.belongs_to(objects.bucket(), objects.prefix())?);
    }
    let first = objects.list(&Start::After(String::new()), 1).await?;
    let rows = db.query_opt("SELECT FROM content LIMIT 1", &[]).await.map_err(AuditError::from)?;
    if !first.objects.is_empty() || rows.is_some() {
        bail!(
            "this database is not bound to a bucket yet, so it is unknown which objects in {:?} \
             are its own; the first run of a worker binds it",
            objects.bucket()
        );
    }
    Ok(())
}
