//! Least privilege: `cleanupctl migrate --roles` creates groups, and a login in each group may do
//! what its program needs and nothing else.

mod exactly;

use crate::support::*;
use exactly::{EXPECTED_RIGHTS, rights};
use tokio_postgres::{Client, error::SqlState};
use uuid::Uuid;

/// Creates a world whose database has the roles.
async fn world() -> World {
    let world = World::new().await;
    let migrated = world.program("cleanupctl").args(&["migrate", "--roles"]).output().await;
    assert_eq!(migrated.code(), 0, "{}", migrated.stderr());
    world
}

/// A login that is a member of one group. Roles belong to the whole server, so its name is unique;
/// it is dropped with the test.
struct Login {
    name: String,
    url: String,
    maintenance: Client,
    runtime: tokio::runtime::Handle,
}

impl Login {
    async fn member_of(world: &World, group: &str) -> Self {
        let maintenance = connect(&world.database_url).await;
        let name = format!("t{}", Uuid::new_v4().simple());
        let create = format!("CREATE ROLE {name} LOGIN PASSWORD 'p' IN ROLE {group}");
        maintenance.batch_execute(&create).await.expect("create a login");
        let (_, server) = world.database_url.split_once('@').expect("a server");
        let url = format!("postgres://{name}:p@{server}");
        Self { name, url, maintenance, runtime: tokio::runtime::Handle::current() }
    }

    /// One of the programs, with this login.
    fn program(&self, world: &World, name: &str) -> Process {
        world.program(name).env("DATABASE_URL", &self.url)
    }

    /// Asserts that each statement is refused because of a missing right.
    async fn assert_may_not(&self, statements: &[&str]) {
        let db = connect(&self.url).await;
        for sql in statements {
            let refused = db.batch_execute(sql).await.expect_err(sql);
            assert_eq!(
                refused.code(),
                Some(&SqlState::INSUFFICIENT_PRIVILEGE),
                "{sql}: {refused:?}"
            );
        }
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        let drop = format!("DROP ROLE {}", self.name);
        let dropped = tokio::task::block_in_place(|| {
            self.runtime.block_on(self.maintenance.batch_execute(&drop))
        });
        assert!(dropped.is_ok() || std::thread::panicking(), "{dropped:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_cannot_read_columns_it_does_not_use() {
    let world = world().await;
    world
        .run_sql(
            "ALTER TABLE pastes ADD COLUMN author text DEFAULT 'author';
             ALTER TABLE content ADD COLUMN preview text DEFAULT 'secret'",
        )
        .await;
    for group in ["cleanup_worker", "cleanup_watchdog"] {
        let login = Login::member_of(&world, group).await;
        login
            .assert_may_not(&[
                "SELECT author FROM pastes",
                "SELECT * FROM pastes",
                "SELECT preview FROM content",
                "DELETE FROM pastes RETURNING author",
                "UPDATE pastes SET author = ''",
            ])
            .await;
    }
    world.put("expired", "a", Ago(60.0)).await;
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_needs_no_default_rights_of_public() {
    let world = world().await;
    // The rights that ops/SECURITY.md recommends to revoke.
    world
        .run_sql(&format!(
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC;
             REVOKE TEMPORARY ON DATABASE {} FROM PUBLIC",
            world.name
        ))
        .await;
    let login = Login::member_of(&world, "cleanup_worker").await;
    login.assert_may_not(&["CREATE TEMPORARY TABLE mine ()", "CREATE TABLE mine ()"]).await;
    world.put("expired", "a", Ago(60.0)).await;
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 1);
    let once = world.program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(once.code(), 0, "{}", once.stderr());
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_cleanup_worker_can_drain() {
    let world = world().await;
    let login = Login::member_of(&world, "cleanup_worker").await;
    for n in 0..30 {
        world.put(&format!("p{n}"), &format!("body {}", n % 20), Ago(60.0)).await;
    }
    world.put("live", "body 1", In(3600.0)).await;
    // A claim of a dead worker, for the sweep at the start.
    let dead = world.worker().await;
    let claim = claim_some(&dead, 5).await;
    dead.decrement(&claim).await.expect("decrement");
    world.expire_leases(7201.0).await;
    let ran = login.program(&world, "cleanup-worker").args(&["run", "--format", "json"]);
    let ran = ran.output().await;
    assert_eq!((ran.code(), &ran.json()["rows_deleted"]), (0, &30.into()), "{}", ran.stderr());
    assert_eq!(ran.json()["claims_reset_at_start"], 1);
    world.assert_drained().await;
    assert_eq!(world.read("live").await.as_deref(), Some("body 1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_cleanup_worker_leaves_tombstones_and_repairs_drift() {
    let world = world().await;
    let login = Login::member_of(&world, "cleanup_worker").await;
    world.put("expired", "a", Ago(60.0)).await;
    world.put("live", "a", In(3600.0)).await;
    world.run_sql("UPDATE content SET ref_count = 1").await;
    let ran = login.program(&world, "cleanup-worker").args(&["run", "--format", "json"]);
    let ran = ran.env("CLEANUP_RETENTION_TOMBSTONES", "1h").output().await;
    assert_eq!((ran.code(), &ran.json()["drift_repaired"]), (0, &1.into()), "{}", ran.stderr());
    let tombstones = "SELECT count(*) FROM pastes WHERE deletion_status = 'DELETED'";
    assert_eq!(world.count(tombstones).await, 1);
    assert_eq!(world.read("live").await.as_deref(), Some("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_cleanup_worker_may_do_nothing_else() {
    let world = world().await;
    world.run_sql("CREATE TABLE accounts (name text)").await;
    let login = Login::member_of(&world, "cleanup_worker").await;
    login
        .assert_may_not(&[
            "SELECT * FROM accounts",
            "INSERT INTO accounts VALUES ('x')",
            "CREATE TABLE mine ()",
            "CREATE SCHEMA mine",
            "CREATE ROLE mine",
            "SELECT * FROM pg_authid",
            "SELECT * FROM pg_shadow",
            "SET ROLE cleanup_watchdog",
            "SET ROLE cleanup_auditor",
            "SET ROLE cleanup_writer",
            "GRANT cleanup_writer TO cleanup_worker",
            "GRANT SELECT ON accounts TO cleanup_worker",
            "COPY pastes (short_code) TO PROGRAM 'true'",
            "SELECT pg_read_file('PG_VERSION')",
            "SELECT paste_put('x', 'x', 'x', 1, NULL)",
            "TRUNCATE pastes",
            "DROP TABLE pastes",
            "INSERT INTO pastes (short_code) VALUES ('x')",
            "UPDATE pastes SET expires_at = now()",
            "INSERT INTO content (content_hash, s3_key) VALUES ('x', 'x')",
            "UPDATE content SET s3_key = 'x'",
            "DELETE FROM deletion_claims",
            "ALTER SEQUENCE deletion_claims_id_seq RESTART",
            "INSERT INTO cleanup_migrations VALUES (9, 'x')",
            "UPDATE cleanup_fleet SET paused_at = now()",
            "ALTER TABLE pastes DISABLE TRIGGER pastes_guard",
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_cleanup_watchdog_resets_and_prunes() {
    let world = world().await;
    let login = Login::member_of(&world, "cleanup_watchdog").await;
    for code in ["decremented", "claimed", "stranded"] {
        world.put(code, code, Ago(60.0)).await;
    }
    let worker = world.worker().await;
    let decremented = claim_some(&worker, 1).await;
    worker.decrement(&decremented).await.expect("decrement");
    claim_some(&worker, 1).await;
    world.expire_leases(7201.0).await;
    world
        .run_sql(
            "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                    deletion_initiated_at = now() - interval '3 hours' WHERE short_code = 'stranded';
             INSERT INTO deletion_claims (worker, rows_claimed, claimed_at, finished_at)
             VALUES (gen_random_uuid(), 1, now() - interval '40 days', now() - interval '40 days');
             INSERT INTO pastes (short_code, expires_at, deletion_status, deletion_initiated_at)
             VALUES ('tombstone', now(), 'DELETED', now() - interval '1 day')",
        )
        .await;
    let ended = login.program(&world, "cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let said = "reset 2 claims (2 pastes) and 1 stranded paste\n";
    assert_eq!(ended.stdout(), said);
    let reset =
        "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED' AND attempts = 1";
    assert_eq!(world.count(reset).await, 3);
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 2, "one was pruned");
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 3, "the tombstone was pruned");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_cleanup_watchdog_may_do_nothing_else() {
    let world = world().await;
    world.run_sql("CREATE TABLE accounts (name text)").await;
    let login = Login::member_of(&world, "cleanup_watchdog").await;
    login
        .assert_may_not(&[
            "SELECT * FROM accounts",
            "CREATE TABLE mine ()",
            "SELECT * FROM content",
            "UPDATE content SET ref_count = 0",
            "DELETE FROM content",
            "INSERT INTO pastes (short_code) VALUES ('x')",
            "UPDATE pastes SET expires_at = now()",
            "INSERT INTO deletion_claims (worker, rows_claimed) VALUES (gen_random_uuid(), 1)",
            "UPDATE cleanup_fleet SET bucket = 'x'",
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_cleanup_writer_keeps_the_contract_and_may_do_nothing_else() {
    let world = world().await;
    let login = Login::member_of(&world, "cleanup_writer").await;
    let db = connect(&login.url).await;
    for sql in [
        "SELECT * FROM paste_put('p', 'hash', 'key', 1, now() + interval '1 hour')",
        "SELECT * FROM paste_put('q', 'hash', NULL, 1, NULL)",
        "SELECT * FROM paste_put('q', 'hash', 'again', 1, NULL)",
        "SELECT paste_extend('p', NULL)",
        "SELECT paste_expire_now('q')",
    ] {
        db.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    let kept = "SELECT count(*) FROM content WHERE ref_count = 2";
    assert_eq!(world.count(kept).await, 1);
    login
        .assert_may_not(&[
            "DELETE FROM pastes",
            "UPDATE pastes SET deletion_status = 'DELETED'",
            "DELETE FROM content",
            "SELECT * FROM deletion_claims",
            "CREATE TABLE mine ()",
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_can_be_granted_again_and_by_several_migrations_at_once() {
    let (one, two) = tokio::join!(world(), world());
    let again = one.program("cleanupctl").args(&["migrate", "--roles"]).output().await;
    assert_eq!(again.code(), 0, "{}", again.stderr());
    for world in [one, two] {
        assert_eq!(rights(&world).await, EXPECTED_RIGHTS);
    }
}
