//! Tables with another name or in another schema: `cleanupctl migrate` names the tables it found, and
//! creates none beside them. `postgres.schema` selects the schema.

use crate::support::{
    adopted::{EXISTING_TABLES, migrate, migrate_ok, plain_put, world_with},
    database::url_as,
    process::Ended,
    *,
};

/// Lists all tables of the database, to see whether any was created.
async fn tables(world: &World) -> Option<String> {
    world
        .text(
            "SELECT string_agg(format('%I.%I', schemaname, tablename), ' ' ORDER BY 1)
             FROM pg_tables WHERE schemaname !~ '^pg_' AND schemaname <> 'information_schema'",
        )
        .await
}

/// Asserts that the migration refuses these tables with these words, and creates nothing.
async fn assert_refused(sql: &str, words: &[&str]) -> World {
    let world = world_with(sql).await;
    let before = tables(&world).await;
    assert_fails_with(&migrate(&world, &[]).await, words);
    assert_eq!(tables(&world).await, before, "nothing was created");
    world
}

#[track_caller]
fn assert_fails_with(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    for word in words {
        assert!(ended.stderr().contains(word), "{word:?} is not in: {}", ended.stderr());
    }
}

/// A program with `postgres.schema`.
fn in_schema(world: &World, program: &str, schema: &str) -> Process {
    world.program(program).env("CLEANUP_POSTGRES_SCHEMA", schema)
}

async fn migrate_in(world: &World, schema: &str) {
    let migrated = in_schema(world, "cleanupctl", schema).args(&["migrate"]).output().await;
    assert_eq!(migrated.code(), 0, "{}", migrated.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_in_a_schema_that_the_login_may_not_use_are_named_and_none_are_created() {
    let world = world_with("CREATE SCHEMA app").await;
    world.run_sql("CREATE TABLE app.pastes (); CREATE TABLE app.content ()").await;
    let login = format!("migrator_{}", world.name);
    let create = format!(
        "CREATE ROLE {login} LOGIN PASSWORD 'suite'; GRANT CREATE, USAGE ON SCHEMA public TO {login}"
    );
    world.run_sql(&create).await;
    let before = tables(&world).await;
    let url = url_as(&login, &world.database_url);
    let migrated =
        world.program("cleanupctl").env("DATABASE_URL", &url).args(&["migrate"]).output().await;
    assert_fails_with(&migrated, &["app.pastes", "app.content", "postgres.schema"]);
    assert_eq!(tables(&world).await, before, "nothing was created");
}

#[tokio::test(flavor = "multi_thread")]
async fn pastes_are_not_created_beside_existing_content() {
    let renamed = format!("{EXISTING_TABLES}; ALTER TABLE pastes RENAME TO snippets");
    let words = ["content exists in schema public, but pastes does not", "found public.snippets"];
    let world = assert_refused(&renamed, &words).await;
    plain_put_into_snippets(&world).await;
    world.run_sql("ALTER TABLE snippets RENAME TO pastes").await;
    migrate_ok(&world, &[]).await;
}

/// Inserts a row: the migration must not depend on an empty table.
async fn plain_put_into_snippets(world: &World) {
    world.run_sql("INSERT INTO snippets (short_code, expires_at) VALUES ('a', now())").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_not_created_beside_existing_pastes() {
    let renamed = format!("{EXISTING_TABLES}; ALTER TABLE content RENAME TO blobs");
    let words = ["pastes exists in schema public, but content does not", "found public.blobs"];
    assert_refused(&renamed, &words).await;
    let dropped = format!("{EXISTING_TABLES}; DROP TABLE content");
    assert_refused(&dropped, &["content does not", "create content yourself"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_in_another_schema_are_named_and_adopted_once_the_schema_is_set() {
    let elsewhere = format!("CREATE SCHEMA app; SET search_path = app; {EXISTING_TABLES}");
    let words = ["app.content, app.pastes", "CLEANUP_POSTGRES_SCHEMA", "for a new set"];
    let world = assert_refused(&elsewhere, &words).await;
    plain_put(&world, "expired", "now() - interval '1 hour'").await;
    plain_put(&world, "live", "now() + interval '1 hour'").await;
    migrate_in(&world, "app").await;
    assert!(!tables(&world).await.unwrap_or_default().contains("public."), "one set of tables");
    let run = in_schema(&world, "cleanup-worker", "app").args(&["run", "--format", "json"]);
    let ran = run.output().await;
    assert_eq!((ran.code(), &ran.json()["rows_deleted"]), (0, &1.into()), "{}", ran.stderr());
    let once = in_schema(&world, "cleanup-watchdog", "app").args(&["--once"]).output().await;
    assert_eq!(once.code(), 0, "{}", once.stderr());
    assert_eq!(world.keys().await, ["objects/live"]);
    let lost = world.program("cleanup-worker").args(&["run"]).output().await;
    lost.assert_refused(1, &["in schema app", "CLEANUP_POSTGRES_SCHEMA"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_whose_name_has_capitals_is_named_with_the_statement_that_renames_it() {
    let quoted = format!(
        "{EXISTING_TABLES}; ALTER TABLE pastes RENAME TO \"Pastes\";
         ALTER TABLE content RENAME TO \"Content\""
    );
    let rename = "ALTER TABLE public.\"Pastes\" RENAME TO pastes";
    let world = assert_refused(&quoted, &["public.\"Content\"", "public.\"Pastes\"", rename]).await;
    // Setting the schema does not change that.
    let named = in_schema(&world, "cleanupctl", "public").args(&["migrate"]).output().await;
    assert_fails_with(&named, &[rename]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_set_in_another_schema_is_created_when_the_schema_is_named() {
    let world = world_with(&format!("CREATE SCHEMA \"Other app\"; {EXISTING_TABLES}")).await;
    plain_put(&world, "theirs", "now() - interval '1 hour'").await;
    migrate_in(&world, "Other app").await;
    let fresh = "SELECT count(*) FROM \"Other app\".pastes";
    assert_eq!(world.count(fresh).await, 0, "a set of its own");
    let run = in_schema(&world, "cleanup-worker", "Other app").args(&["run"]).output().await;
    assert_eq!(run.code(), 0, "{}", run.stderr());
    assert_eq!(world.count("SELECT count(*) FROM public.pastes").await, 1, "theirs is untouched");
    assert_eq!(world.text("SELECT to_regclass('public.deletion_claims')::text").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_program_reports_a_missing_or_forbidden_schema_in_one_line() {
    let world = World::new().await;
    for (program, args) in [
        ("cleanup-worker", &["run"][..]),
        ("cleanup-watchdog", &["--once"]),
        ("cleanupctl", &["migrate"]),
        ("cleanupctl", &["status"]),
    ] {
        let ended = in_schema(&world, program, "nowhere").args(args).output().await;
        let words = ["\"nowhere\" does not exist", "create it", "CLEANUP_POSTGRES_SCHEMA"];
        ended.assert_refused(1, &words);
    }
    world.run_sql("CREATE SCHEMA locked").await;
    let locked = in_schema(&world, "cleanup-worker", "locked").args(&["run"]).output().await;
    locked.assert_refused(1, &["GRANT USAGE ON SCHEMA locked TO suite_worker"]);
    let system = in_schema(&world, "cleanupctl", "pg_catalog").args(&["migrate"]).output().await;
    system.assert_refused(2, &["postgres.schema", "pg_catalog"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_fails_halfway_does_not_leave_one_of_the_two_tables() {
    let world = world_with("CREATE TYPE pastes AS ENUM ('in the way')").await;
    assert_fails_with(&migrate(&world, &[]).await, &["\"pastes\" already exists"]);
    assert_eq!(tables(&world).await.as_deref(), Some("public.cleanup_migrations"));
    world.run_sql("DROP TYPE pastes").await;
    migrate_ok(&world, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_interrupted_first_migration_programs_ask_to_run_it_again() {
    let list = "CREATE TABLE cleanup_migrations (version int PRIMARY KEY, name text NOT NULL,
                                                 applied_at timestamptz NOT NULL DEFAULT now())";
    let world = world_with(&format!("{EXISTING_TABLES}; {list}")).await;
    let ended = world.program("cleanup-worker").args(&["run"]).output().await;
    ended.assert_refused(1, &["is not prepared for the cleanup", "run `cleanupctl migrate`"]);
    migrate_ok(&world, &[]).await;
    let ended = world.program("cleanup-worker").args(&["run"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
}
