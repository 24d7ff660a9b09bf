//! A real PgBouncer: session pooling works when the roles have the settings; every other setup is
//! refused with one line, before anything is claimed.

use crate::support::{
    pgbouncer::PgBouncer,
    proxy::{Fault, Proxy, address_of},
    *,
};

const PROGRAMS: [(&str, &[&str]); 3] =
    [("cleanup-worker", &["run"]), ("cleanup-watchdog", &["--once"]), ("cleanupctl", &["migrate"])];
const SECURITY: &str = include_str!("../../ops/SECURITY.md");
/// Texts that occur only in the check for a shared session.
const SESSION_MARK: &str = "-- Marks this session";
const SESSION_MARKED: &str = "-- Does this session have the mark?";

async fn world() -> World {
    let world = World::new().await;
    for n in 0..30 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    world
}

/// Gives the logins the settings of ops/SECURITY.md, with the statements from there.
async fn set_by_role(world: &World) {
    let (_, rest) = SECURITY.split_once("   ALTER ROLE").expect("the statements");
    let (statements, _) = rest.split_once("```").expect("their end");
    for login in ["suite_worker", "suite_watchdog", "postgres"] {
        let statements = format!("ALTER ROLE{statements}")
            .replace("your_login", login)
            .replace("your_database", &world.name);
        world.run_sql(&statements).await;
    }
}

/// Asserts that every program refuses this pooler, with one line and the remedy.
async fn assert_refused(world: &World, pooler: &PgBouncer, words: &[&str]) {
    for (name, args) in PROGRAMS {
        let url = match name {
            "cleanup-worker" => world.worker_url(),
            "cleanup-watchdog" => world.watchdog_url.clone(),
            _ => world.database_url.clone(),
        };
        let ended = world
            .program(name)
            .args(args)
            .env("DATABASE_URL", &pooler.through(&url))
            .output()
            .await;
        ended.assert_refused(1, words);
        ended.assert_refused(
            1,
            &["connect to Postgres itself", "pool_mode = session", "ops/SECURITY.md"],
        );
    }
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_refuses_our_settings_is_reported() {
    for mode in ["session", "transaction"] {
        let world = world().await;
        let pooler = PgBouncer::start(&world, &[&format!("pool_mode = {mode}")]).await;
        assert_refused(&world, &pooler, &["unsupported startup parameter", "08P01"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_drops_our_settings_is_refused() {
    for mode in ["session", "transaction"] {
        let world = world().await;
        let settings = [&format!("pool_mode = {mode}"), "ignore_startup_parameters = options"];
        let pooler = PgBouncer::start(&world, &settings).await;
        let words = ["statement_timeout is \"0\"", "\"60000\"", "a pooler drops"];
        assert_refused(&world, &pooler, &words).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pooling_by_transaction_is_refused_even_when_the_roles_carry_our_settings() {
    let world = world().await;
    set_by_role(&world).await;
    let mode = ["pool_mode = transaction", "ignore_startup_parameters = options"];
    for more in [
        &[][..],
        // A pool of one connection, where two transactions cannot be open at once.
        &["default_pool_size = 1"],
        // Session state is reset after every transaction.
        &["server_reset_query_always = 1"],
        // The connection that was idle longest is used next.
        &["server_round_robin = 1"],
    ] {
        let pooler = PgBouncer::start(&world, &[&mode, more].concat()).await;
        assert_refused(&world, &pooler, &["between transactions"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_cannot_be_checked_for_other_clients_is_refused() {
    let world = world().await;
    for (fault, words) in [
        (Fault::CutBefore(SESSION_MARKED), &["Postgres at", "closed"][..]),
        (Fault::Swallow(SESSION_MARK), &["within 10 s", "between transactions"]),
    ] {
        let proxy = Proxy::start(&address_of(&world.database_url)).await;
        proxy.arm(fault);
        let worker = world.program("cleanup-worker").args(&["run"]);
        let worker = worker.env("DATABASE_URL", &proxy.through(&world.worker_url()));
        worker.output().await.assert_refused(1, words);
        assert_eq!(proxy.fired(), 1);
    }
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn pooling_by_statement_is_refused() {
    let world = world().await;
    set_by_role(&world).await;
    let settings = ["pool_mode = statement", "ignore_startup_parameters = options"];
    let pooler = PgBouncer::start(&world, &settings).await;
    assert_refused(&world, &pooler, &["statement pooling"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pooling_by_session_drains_a_night_when_the_roles_carry_our_settings() {
    let world = world().await;
    set_by_role(&world).await;
    let settings = ["pool_mode = session", "ignore_startup_parameters = options"];
    let pooler = PgBouncer::start(&world, &settings).await;
    world.put("live", "kept", In(3600.0)).await;
    let run = |name: &str, url: &str| world.program(name).env("DATABASE_URL", &pooler.through(url));
    // The second run gets server sessions that the first has used.
    for deleted in [30, 1] {
        let worker = run("cleanup-worker", &world.worker_url());
        let worker = worker.env("CLEANUP_WORKER_BATCH_SIZE", "4");
        let ended = worker.args(&["run", "--format", "json"]).output().await;
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        assert_eq!(ended.json()["rows_deleted"], deleted);
        world.put("late", "late", Ago(60.0)).await;
    }
    let watchdog = run("cleanup-watchdog", &world.watchdog_url).args(&["--once"]).output().await;
    assert_eq!(watchdog.code(), 0, "{}", watchdog.stderr());
    let migrated = run("cleanupctl", &world.database_url).args(&["migrate"]).output().await;
    assert_eq!(migrated.code(), 0, "{}", migrated.stderr());
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_schema_works_through_a_pooler_once_the_role_carries_it() {
    let world = world().await;
    set_by_role(&world).await;
    world.run_sql("ALTER SCHEMA public RENAME TO \"App\"; CREATE SCHEMA public").await;
    let settings = ["pool_mode = session", "ignore_startup_parameters = options"];
    let status = async || {
        // Server sessions keep the settings that they were started with.
        let pooler = PgBouncer::start(&world, &settings).await;
        let url = pooler.through(&world.database_url);
        let status = world.program("cleanupctl").args(&["migrate"]).env("DATABASE_URL", &url);
        status.env("CLEANUP_POSTGRES_SCHEMA", "App").output().await
    };
    let words = ["search_path is", "postgres.schema \"App\"", "a pooler drops", "ops/SECURITY.md"];
    status().await.assert_refused(1, &words);
    let role = format!("ALTER ROLE postgres IN DATABASE {} SET search_path", world.name);
    world.run_sql(&format!("{role} = \"App\", public")).await;
    status().await.assert_refused(1, &words);
    world.run_sql(&format!("{role} = \"App\"")).await;
    let pooled = status().await;
    assert_eq!(pooled.code(), 0, "{}", pooled.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_limited_to_one_connection_works() {
    let world = world().await;
    let login = format!("t{}", uuid::Uuid::new_v4().simple());
    let create = format!(
        "CREATE ROLE {login} LOGIN PASSWORD 'suite' CONNECTION LIMIT 1 IN ROLE cleanup_auditor"
    );
    world.run_sql(&create).await;
    let url = world.worker_url().replace("suite_worker", &login);
    let direct = world.program("cleanupctl").args(&["status"]).env("DATABASE_URL", &url);
    let direct = direct.output().await;
    assert_eq!((direct.code(), direct.stderr().as_str()), (0, ""), "{}", direct.stdout());
    world.run_sql(&format!("DROP ROLE {login}")).await;

    set_by_role(&world).await;
    let settings =
        ["pool_mode = session", "ignore_startup_parameters = options", "default_pool_size = 1"];
    let pooler = PgBouncer::start(&world, &settings).await;
    let pooled = world.program("cleanupctl").args(&["status"]);
    let pooled = pooled.env("DATABASE_URL", &pooler.through(&world.database_url)).output().await;
    assert_eq!((pooled.code(), pooled.stderr().as_str()), (0, ""), "{}", pooled.stdout());
}
