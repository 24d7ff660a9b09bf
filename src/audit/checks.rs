//! What must hold before an audit: a session, our schema, the bucket of this database, and a prefix
//! that is its own.

use anyhow::{Result, bail};
use tokio_postgres::Client;

use super::AuditError;
use crate::{
    config::ConfigError,
    fleet, migrate,
    objects::{Objects, Start},
    postgres::Target,
};

/// A session that finds rows by their keys, however little the planner knows about the tables.
pub(super) async fn connect(target: &Target) -> Result<Client> {
    let db = target.open().await?;
    let by_key = db.batch_execute("SET enable_seqscan = off").await;
    by_key.map_err(|error| target.explain(&error))?;
    Ok(db)
}

/// The schema is ours, and the bucket is this database's.
pub(super) async fn check(db: &Client, objects: &Objects) -> Result<()> {
    migrate::check(db).await?;
    check_binding(db, objects).await
}

/// Keys of others may begin alike.
pub(super) fn loose_prefix(prefix: &str) -> Option<String> {
    (!prefix.is_empty() && !prefix.ends_with('/')).then(|| {
        format!(
            "s3.prefix {prefix:?} does not end in '/': whatever begins with it is taken for ours, \
             such as \"{prefix}-of-others/key\""
        )
    })
}

/// Under the prefix `a` are also the live bodies of another database with the prefix `ab/`.
pub(super) fn refuse_loose_prefix(prefix: &str) -> Result<(), ConfigError> {
    match loose_prefix(prefix) {
        None => Ok(()),
        Some(reason) => Err(ConfigError::Invalid(format!(
            "{reason}. --repair would delete it: set s3.prefix to {:?} and run `cleanupctl migrate \
             --rebind-bucket`, or pass --override-brake if nothing else begins with {prefix:?}",
            format!("{prefix}/")
        ))),
    }
}

/// To a wrong bucket everything in it would look like an orphan, and every body like missing.
async fn check_binding(db: &Client, objects: &Objects) -> Result<()> {
    let fleet = fleet::read(db).await?;
    if fleet.bucket.is_some() {
        return Ok(fleet.belongs_to(objects.bucket(), objects.prefix())?);
    }
    let first = objects.list(&Start::After(String::new()), 1).await?;
    let rows = db.query_opt("SELECT FROM content LIMIT 1", &[]).await.map_err(AuditError::from)?;
    if !first.objects.is_empty() || rows.is_some() {
        bail!(
            "this database is not bound to a bucket yet, so nobody can say what in {:?} is its \
             own; the first run of a worker binds it",
            objects.bucket()
        );
    }
    Ok(())
}
