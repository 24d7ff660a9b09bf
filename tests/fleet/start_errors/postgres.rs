//! A Postgres that cannot be reached, refuses the login, or lacks what the fleet needs is named
//! with the remedy.

use super::{PROGRAMS, WITHIN, assert_gives_up, assert_untouched, timed, world};

/// The same URL with another user, password or database.
fn with_password(url: &str, password: &str) -> String {
    let (head, rest) = url.split_once('@').expect("a password");
    let (user, _) = head.rsplit_once(':').expect("a password");
    format!("{user}:{password}@{rest}")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_postgres_is_named() {
    let world = world().await;
    let url = "postgres://u:p@127.0.0.1:1/pastes";
    for (program, args) in PROGRAMS {
        let process = world.program(program).args(args).env("DATABASE_URL", url);
        let words = ["127.0.0.1:1", "\"pastes\"", "DATABASE_URL", "CLEANUP_POSTGRES_URL"];
        assert_gives_up(process, &words).await;
    }
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_accepts_but_never_answers_fails_the_start() {
    let world = world().await;
    let unanswering = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let address = unanswering.local_addr().expect("address").to_string();
    let url = format!("postgres://u:p@{address}/pastes");
    let (worker, watchdog, status) = tokio::join!(
        timed(world.program("cleanup-worker").args(&["run"]).env("DATABASE_URL", &url)),
        timed(world.program("cleanup-watchdog").args(&["--once"]).env("DATABASE_URL", &url)),
        timed(world.program("cleanupctl").args(&["status"]).env("DATABASE_URL", &url)),
    );
    for (program, ended) in [("worker", worker), ("watchdog", watchdog), ("status", status)] {
        let ended = ended.unwrap_or_else(|| panic!("{program} still waits after {WITHIN:?}"));
        ended.assert_refused(1, &[&address]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_reported() {
    let world = world().await;
    let url = with_password(&world.database_url, "wrong");
    for (program, args) in PROGRAMS {
        let process = world.program(program).args(args).env("DATABASE_URL", &url);
        let words = ["password authentication failed", "28P01", "DATABASE_URL"];
        assert_gives_up(process, &words).await;
    }
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_database_is_named() {
    let world = world().await;
    let url = world.database_url.replace(&world.name, "no_such_database");
    for (program, args) in PROGRAMS {
        let process = world.program(program).args(args).env("DATABASE_URL", &url);
        assert_gives_up(process, &["no_such_database", "create the database"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_of_the_pool_is_reported_in_the_servers_words() {
    let world = world().await;
    world
        .run_sql(&format!(
            "CREATE ROLE {0} LOGIN PASSWORD 'one' CONNECTION LIMIT 1;
             GRANT cleanup_worker, cleanup_watchdog TO {0}",
            world.name
        ))
        .await;
    let (_, address) = world.database_url.split_once('@').expect("an address");
    let url = format!("postgres://{}:one@{address}", world.name);
    // The first put keeps the only connection, so the second put needs another one.
    let owner = crate::support::connect(&world.database_url).await;
    let lock = "BEGIN; LOCK TABLE pastes, content IN EXCLUSIVE MODE";
    owner.batch_execute(lock).await.expect("lock");
    let seed = world.program("cleanupctl").args(&["seed", "--pastes", "2"]);
    let ended = seed.env("DATABASE_URL", &url).output().await;
    ended.assert_refused(
        1,
        &["cannot connect to Postgres", "too many connections for role", "53300"],
    );
    for words in ["new object", "db error"] {
        assert!(!ended.stderr().contains(words), "{}", ended.stderr());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_unknown_to_the_server_is_named_with_the_version_that_has_it() {
    let world = world().await;
    let words = ["\"of_the_future\"", "upgrade it to Postgres 15 or newer", "DATABASE_URL"];
    for (program, args) in PROGRAMS {
        let url = format!("{}?options=-c%20of_the_future%3Don", world.database_url);
        let process = world.program(program).args(args).env("DATABASE_URL", &url);
        assert_gives_up(process, &words).await;
    }
    assert_untouched(&world).await;
}
