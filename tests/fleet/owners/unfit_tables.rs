//! Tables that the fleet's statements cannot work on: `cleanupctl migrate` refuses to adopt them, and
//! programs refuse to start on tables that were altered later, with the same line.

use crate::support::{
    adopted::{EXISTING_TABLES, migrate, migrate_ok, plain_put, world_with},
    findings::diagnose,
    mid_run::run_with_change,
    process::Ended,
    *,
};

#[track_caller]
fn assert_fails_with(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    for word in words {
        assert!(ended.stderr().contains(word), "{word:?} is not in: {}", ended.stderr());
    }
}

/// Asserts that `migrate` does not adopt tables with this change, and that no program works on tables
/// that are changed later.
async fn assert_refused(change: &str, words: &[&str]) {
    let before = world_with(&format!("{EXISTING_TABLES}; {change}")).await;
    assert_fails_with(&migrate(&before, &[]).await, words);
    assert_eq!(before.text("SELECT to_regclass('deletion_claims')::text").await, None);
    assert_refused_later(change, words).await;
}

/// Asserts that no program works on migrated tables after this change.
async fn assert_refused_later(change: &str, words: &[&str]) -> World {
    let world = World::new().await;
    world.put("due", "a", Ago(60.0)).await;
    world.run_sql(change).await;
    for (program, args) in [
        ("cleanup-worker", &["run"][..]),
        ("cleanup-watchdog", &["--once"]),
        ("cleanupctl", &["audit"]),
    ] {
        world.program(program).args(args).output().await.assert_refused(1, words);
    }
    diagnose(world.program("cleanupctl")).await.assert_says("schema", "failure", words);
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0, "nothing claimed");
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_inherits_from_pastes_or_content_is_refused_by_name() {
    let child = "CREATE TABLE pastes_old () INHERITS (pastes)";
    assert_refused(
        child,
        &["pastes_old inherits from pastes", "ALTER TABLE pastes_old NO INHERIT"],
    )
    .await;
    let child = "CREATE TABLE content_old () INHERITS (content)";
    assert_refused(child, &["content_old inherits from content"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pastes_that_inherit_or_are_a_partition_are_refused_by_name() {
    let parent = "CREATE TABLE everything (); ALTER TABLE pastes INHERIT everything";
    let words = ["pastes inherits from everything", "ALTER TABLE pastes NO INHERIT everything"];
    assert_refused(parent, &words).await;
    let partition = "CREATE TABLE everything (LIKE pastes) PARTITION BY LIST (short_code);
                     ALTER TABLE everything ATTACH PARTITION pastes DEFAULT";
    let words = ["pastes inherits from everything", "DETACH PARTITION pastes"];
    assert_refused_later(partition, &words).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_claims_no_more_once_a_table_inherits_from_pastes() {
    let child = "CREATE TABLE pastes_old () INHERITS (pastes)";
    let (world, ended) = run_with_change(child).await;
    ended.assert_refused(1, &["inherits", "`cleanupctl doctor` names the tables"]);
    let words = ["pastes_old inherits from pastes", "NO INHERIT"];
    diagnose(world.program("cleanupctl")).await.assert_says("schema", "failure", &words);
}

#[tokio::test(flavor = "multi_thread")]
async fn once_the_child_table_no_longer_inherits_the_live_paste_of_the_same_code_stays() {
    let child = "CREATE TABLE pastes_old () INHERITS (pastes)";
    let world = world_with(&format!("{EXISTING_TABLES}; {child}")).await;
    plain_put(&world, "same", "now() + interval '1 hour'").await;
    world
        .run_sql(
            "INSERT INTO pastes_old (short_code, content_hash, expires_at)
             SELECT short_code, content_hash, now() - interval '1 hour' FROM ONLY pastes",
        )
        .await;
    assert_fails_with(&migrate(&world, &[]).await, &["pastes_old inherits from pastes"]);
    world.run_sql("ALTER TABLE pastes_old NO INHERIT pastes").await;
    migrate_ok(&world, &[]).await;
    let ran = world.program("cleanup-worker").args(&["run"]).output().await;
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    assert_eq!(world.read("same").await.as_deref(), Some("same"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_created_at_that_is_not_timestamptz_is_refused() {
    let words = ["content.created_at is bigint", "timestamp with time zone is needed"];
    let tables = format!("{EXISTING_TABLES}; ALTER TABLE content ADD created_at bigint");
    assert_fails_with(&migrate(&world_with(&tables).await, &[]).await, &words);
    let change = "ALTER TABLE content DROP created_at, ADD created_at bigint";
    assert_refused_later(change, &words).await;
    let local = "ALTER TABLE content ALTER created_at TYPE timestamp";
    assert_refused_later(local, &["content.created_at is timestamp without time zone"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rounded_timestamps_are_refused_where_they_are_compared() {
    let rounded = "ALTER TABLE pastes ALTER deletion_initiated_at TYPE timestamptz(0)";
    let words = ["pastes.deletion_initiated_at is timestamp(0) with time zone", "TYPE timestamptz"];
    assert_refused(rounded, &words).await;
    let rounded = "ALTER TABLE content ALTER created_at TYPE timestamptz(3)";
    assert_refused_later(rounded, &["content.created_at is timestamp(3) with time zone"]).await;
    let whole = "ALTER TABLE pastes ALTER deletion_initiated_at TYPE timestamptz(6),
                 ALTER expires_at TYPE timestamptz(0)";
    let world = world_with(&format!("{EXISTING_TABLES}; {whole}")).await;
    migrate_ok(&world, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nullable_columns_are_refused_where_statements_rely_on_a_value() {
    let nullable = "ALTER TABLE pastes DROP CONSTRAINT pastes_pkey, ADD UNIQUE (short_code),
                    ALTER short_code DROP NOT NULL";
    let words = ["pastes.short_code is nullable", "ALTER COLUMN short_code SET NOT NULL"];
    assert_refused(nullable, &words).await;
    for column in
        ["pastes.deletion_status", "pastes.attempts", "content.ref_count", "content.s3_key"]
    {
        let (table, name) = column.split_once('.').expect("a column");
        let change = format!("ALTER TABLE {table} ALTER {name} DROP NOT NULL");
        assert_refused_later(&change, &[&format!("{column} is nullable")]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deferrable_key_is_refused_with_the_index_to_create() {
    let deferrable = "ALTER TABLE pastes DROP CONSTRAINT pastes_pkey,
                      ADD CONSTRAINT late PRIMARY KEY (short_code) DEFERRABLE";
    let words = [
        "pastes.short_code is unique only through late, which is DEFERRABLE",
        "CREATE UNIQUE INDEX",
    ];
    assert_refused(deferrable, &words).await;
    let world = world_with(&format!("{EXISTING_TABLES}; {deferrable}")).await;
    world.run_sql("CREATE UNIQUE INDEX CONCURRENTLY ON pastes (short_code)").await;
    migrate_ok(&world, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_or_table_that_is_dropped_later_is_named() {
    assert_refused_later("ALTER TABLE pastes DROP retry_at", &["pastes.retry_at is missing"]).await;
    let gone = "ALTER TABLE content RENAME TO blobs";
    assert_refused_later(gone, &["the table content is missing", "rename it back"]).await;
    let shadowed = "CREATE SCHEMA suite_worker; CREATE TABLE suite_worker.pastes (LIKE pastes);
                    GRANT USAGE ON SCHEMA suite_worker TO PUBLIC";
    let world = World::new().await;
    world.run_sql(shadowed).await;
    let ended = world.program("cleanup-worker").args(&["run"]).output().await;
    ended.assert_refused(1, &["pastes is in schema suite_worker, but", "CLEANUP_POSTGRES_SCHEMA"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_of_any_numeric_type_are_adopted_and_counted() {
    let numeric = "ALTER TABLE content ALTER size_bytes TYPE numeric";
    let world = world_with(&format!("{EXISTING_TABLES}; {numeric}")).await;
    plain_put(&world, "expired", "now() - interval '1 hour'").await;
    world.run_sql("UPDATE content SET size_bytes = 7").await;
    migrate_ok(&world, &[]).await;
    let ran = world.program("cleanup-worker").args(&["run", "--format", "json"]).output().await;
    assert_eq!((ran.code(), &ran.json()["bytes_freed"]), (0, &7.into()), "{}", ran.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_non_deterministic_collation_is_refused_by_name() {
    let blur = "CREATE COLLATION blur (provider = icu, locale = 'und-u-ks-level2',
                                       deterministic = false)";
    for (table, column) in [("content", "s3_key"), ("pastes", "short_code")] {
        let change = format!("{blur}; ALTER TABLE {table} ALTER {column} TYPE text COLLATE blur");
        let name = format!("{table}.{column} has the non-deterministic collation");
        let before = world_with(&format!("{EXISTING_TABLES}; {change}")).await;
        assert_fails_with(&migrate(&before, &[]).await, &[&name, "COLLATE"]);
    }
    // The trigger must be dropped before the column can be altered.
    let later = format!(
        "{blur}; DROP TRIGGER pastes_guard ON pastes;
                         ALTER TABLE pastes ALTER short_code TYPE text COLLATE blur"
    );
    let name = "pastes.short_code has the non-deterministic collation blur";
    assert_refused_later(&later, &[name, "COLLATE"]).await;
}
