//! Databases whose tables existed before the fleet, and `cleanupctl migrate` on them.

use paste_cleanup::{config::defaults, objects::Objects};

use super::{World, empty_database, process::Ended};

/// The tables of a paste service that has never run the fleet: the status may be NULL, and the
/// fleet's own tables, columns and triggers do not exist.
pub(crate) const EXISTING_TABLES: &str = "
    CREATE TABLE content (content_hash bytea PRIMARY KEY, s3_key text NOT NULL,
                          size_bytes bigint, ref_count int NOT NULL);
    CREATE TABLE pastes (
        short_code text PRIMARY KEY, content_hash bytea, created_at timestamptz DEFAULT now(),
        expires_at timestamptz,
        deletion_status VARCHAR(20) DEFAULT 'NOT_EXPIRED'
            CHECK (deletion_status IN ('NOT_EXPIRED', 'DELETION_IN_PROGRESS', 'DELETED')),
        deletion_initiated_at TIMESTAMPTZ NULL)";

/// Creates a bucket and a database with these tables, without migrating it.
pub(crate) async fn world_with(tables: &str) -> World {
    let (database_url, db) = empty_database().await;
    db.batch_execute(tables).await.expect("tables");
    let name = database_url.rsplit('/').next().expect("a database").to_string();
    let mut settings = defaults();
    settings.postgres.url = Some(database_url.clone().into());
    settings.redis.url = std::env::var("PASTE_CLEANUP_TEST_REDIS_URL").ok().map(Into::into);
    settings.s3.endpoint = std::env::var("PASTE_CLEANUP_TEST_S3_ENDPOINT").ok();
    settings.s3.bucket = Some(name.clone());
    let s3 = Objects::new(&settings).await.expect("S3 client").client().clone();
    s3.create_bucket().bucket(&name).send().await.expect("create bucket");
    let (bucket, watchdog_url, seen) = (name.clone(), database_url.clone(), Default::default());
    World { name, database_url, watchdog_url, db, s3, bucket, settings, seen }
}

pub(crate) async fn migrate(world: &World, flags: &[&str]) -> Ended {
    let args = [&["migrate"], flags].concat();
    world.program("cleanupctl").args(&args).output().await
}

/// Migrates, and asserts that it succeeds.
pub(crate) async fn migrate_ok(world: &World, flags: &[&str]) -> Ended {
    let migrated = migrate(world, flags).await;
    assert_eq!(migrated.code(), 0, "{}", migrated.stderr());
    migrated
}

/// Stores a paste and its object by plain SQL and a plain upload.
pub(crate) async fn plain_put(world: &World, code: &str, expires_at: &str) {
    world.upload(&format!("objects/{code}"), code).await;
    world
        .run_sql(&format!(
            "INSERT INTO content (content_hash, s3_key, ref_count)
             VALUES (sha256('{code}'), 'objects/{code}', 1);
             INSERT INTO pastes (short_code, content_hash, expires_at)
             VALUES ('{code}', sha256('{code}'), {expires_at})"
        ))
        .await;
}
