//! Adoption: `cleanupctl migrate` on existing databases of a paste service that keeps writing.

mod bucket_binding;
mod existing_tables;
mod refusals;
mod repeated;

use crate::support::*;

/// Drains the world with a worker process.
async fn run_worker(world: &World) -> serde_json::Value {
    let ended = world.program("cleanup-worker").args(&["run", "--format", "json"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    ended.json()
}

/// Describes columns and constraints, to see whether anything was changed.
async fn schema(world: &World) -> Option<String> {
    world
        .text(
            "SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
                 SELECT format('%s %s %s %s', attrelid::regclass, attname, atttypid::regtype,
                               attnotnull) AS line
                 FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
                 WHERE c.relnamespace = 'public'::regnamespace AND attnum > 0
                 UNION ALL
                 SELECT format('%s %s', conrelid::regclass, pg_get_constraintdef(oid))
                 FROM pg_constraint WHERE connamespace = 'public'::regnamespace) AS lines",
        )
        .await
}

/// Twenty thousand expired pastes, a third of them without a status.
const BULK: &str = "
    INSERT INTO pastes (short_code, content_hash, expires_at, deletion_status)
    SELECT 'bulk-' || n, sha256(('bulk' || n % 300)::bytea), now() - interval '1 day',
           CASE WHEN n % 3 > 0 THEN 'NOT_EXPIRED' END
    FROM generate_series(1, 20000) n;
    INSERT INTO content (content_hash, s3_key, ref_count)
    SELECT content_hash, 'objects/' || encode(content_hash, 'hex'), count(*)
    FROM pastes WHERE short_code LIKE 'bulk-%' GROUP BY content_hash";
