//! Starting: what cannot work says so in one line, within seconds, before anything is claimed.

mod support;

use std::time::{Duration, Instant};

use support::{process::Ended, proxy::address_of, servers::Redis, *};

/// The programs that need a prepared database, as cron would start them.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("cleanup-worker", &["run"]),
    ("cleanup-watchdog", &["--once"]),
    ("cleanupctl", &["status"]),
    ("cleanupctl", &["seed", "--pastes", "1"]),
];
/// Those of them that need the bucket, too.
const BUCKET_PROGRAMS: [(&str, &[&str]); 2] = [PROGRAMS[0], PROGRAMS[3]];
const WITHIN: Duration = Duration::from_secs(15);

/// A world with something to claim.
async fn world() -> World {
    let world = World::new().await;
    world.put("due", "a", Ago(60.0)).await;
    world
}

/// Runs a program that must give up soon with one line that contains these words.
async fn assert_gives_up(process: Process, words: &[&str]) {
    let started = Instant::now();
    let ended = process.output().await;
    ended.assert_refused(1, words);
    assert_eq!(ended.stdout(), "");
    assert!(started.elapsed() < WITHIN, "took {:?}", started.elapsed());
}

/// Nothing was claimed, deleted or remembered.
async fn assert_untouched(world: &World) {
    let claims = world.count("SELECT count(*) FROM deletion_claims").await;
    let due = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED' AND attempts = 0";
    assert_eq!((claims, world.count(due).await), (0, 1));
    let bound = "SELECT count(*) FROM cleanup_fleet WHERE bucket IS NOT NULL";
    assert_eq!(world.count(bound).await, 0, "no bucket is remembered");
    assert_eq!(world.read("due").await.as_deref(), Some("a"));
}

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
async fn a_postgres_that_accepts_but_never_answers_is_given_up() {
    let world = world().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let address = silent.local_addr().expect("address").to_string();
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

async fn timed(process: Process) -> Option<Ended> {
    tokio::time::timeout(WITHIN, process.output()).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_said_to_be_wrong() {
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
async fn a_database_that_was_not_migrated_says_how_to() {
    let world = world().await;
    let (url, empty) = empty_database().await;
    for (program, args) in PROGRAMS {
        let process = world.program(program).args(args).env("DATABASE_URL", &url);
        assert_gives_up(process, &["run `cleanupctl migrate`"]).await;
    }
    let dry_run = world.program("cleanup-worker").args(&["run", "--dry-run"]);
    assert_gives_up(dry_run.env("DATABASE_URL", &url), &["run `cleanupctl migrate`"]).await;
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    let made: i64 = empty.query_one(tables, &[]).await.expect("count").get(0);
    assert_eq!(made, 0, "nothing was created");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_version_is_refused_with_the_remedy() {
    let world = world().await;
    let newer = "INSERT INTO cleanup_migrations (version, name) VALUES (999, 'future')";
    world.run_sql(newer).await;
    for (program, args) in PROGRAMS {
        assert_gives_up(world.program(program).args(args), &["999", "upgrade"]).await;
    }
    world.run_sql("DELETE FROM cleanup_migrations WHERE version > 1").await;
    for (program, args) in PROGRAMS {
        let process = world.program(program).args(args);
        assert_gives_up(process, &["version 1", "run `cleanupctl migrate`"]).await;
    }
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_s3_is_named() {
    let world = world().await;
    for (program, args) in BUCKET_PROGRAMS {
        let process = world.program(program).args(args);
        let process = process.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
        assert_gives_up(process, &["S3 is unavailable", &world.bucket, "AWS_ENDPOINT_URL"]).await;
    }
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_that_accepts_but_never_answers_is_given_up() {
    let world = world().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let endpoint = format!("http://{}", silent.local_addr().expect("address"));
    let run = world.program("cleanup-worker").args(&["run"]).env("AWS_ENDPOINT_URL", &endpoint);
    let ended = timed(run).await.expect("it gives up");
    ended.assert_refused(1, &["S3"]);
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_named_and_not_remembered() {
    let world = world().await;
    let run = world.program("cleanup-worker").args(&["run"]).env("S3_BUCKET", "no-such-bucket");
    let words = ["\"no-such-bucket\" does not exist", "S3_BUCKET", "CLEANUP_S3_BUCKET"];
    assert_gives_up(run, &words).await;
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_access_is_said_to_be_denied() {
    let world = world().await;
    for (variable, value) in
        [("AWS_SECRET_ACCESS_KEY", "wrong-wrong"), ("AWS_ACCESS_KEY_ID", "nobody")]
    {
        for (program, args) in BUCKET_PROGRAMS {
            let process = world.program(program).args(args).env(variable, value);
            let words = ["S3 refuses", &world.bucket, "credentials"];
            assert_gives_up(process, &words).await;
        }
    }
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_credentials_are_said_to_be_missing() {
    let world = world().await;
    let run = world.program("cleanup-worker").args(&["run"]);
    let run = run.without("AWS_ACCESS_KEY_ID").without("AWS_SECRET_ACCESS_KEY");
    let run =
        run.env("AWS_CONFIG_FILE", "/dev/null").env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    assert_gives_up(run, &["redentials"]).await;
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_bucket_than_the_remembered_one_is_refused() {
    let world = world().await;
    let remember = "UPDATE cleanup_fleet SET bucket = 'the-right-one', prefix = ''";
    world.run_sql(remember).await;
    for (program, args) in BUCKET_PROGRAMS {
        let process = world.program(program).args(args);
        assert_gives_up(process, &["\"the-right-one\"", &world.bucket, "--rebind-bucket"]).await;
    }
    world.run_sql("UPDATE cleanup_fleet SET bucket = NULL, prefix = NULL").await;
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_prefix_than_the_remembered_one_is_refused() {
    let world = world().await;
    world
        .run_sql(&format!("UPDATE cleanup_fleet SET bucket = '{}', prefix = 'a/'", world.bucket))
        .await;
    let run = world.program("cleanup-worker").args(&["run"]).env("CLEANUP_S3_PREFIX", "b/");
    assert_gives_up(run, &["\"a/\"", "\"b/\"", "--rebind-bucket"]).await;
}

/// Insists on a whole drain that warns about the lock.
async fn assert_drains_with_a_warning(world: &World, redis_url: &str) -> Ended {
    let run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let ended = run.env("REDIS_URL", redis_url).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let summary = ended.json();
    assert_eq!(
        (&summary["rows_deleted"], &summary["stopped_because"]),
        (&1.into(), &"drained".into())
    );
    assert!(summary["claims_without_lock"].as_u64() > Some(0), "{summary}");
    let warned = |line: &str| line.contains("WARN") && line.contains("without the Redis lock");
    assert!(ended.stderr().lines().any(warned), "{}", ended.stderr());
    world.assert_drained().await;
    ended
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_the_server_does_not_know_is_named_with_the_version_that_is_needed() {
    let world = world().await;
    let words = ["\"of_the_future\"", "upgrade it to Postgres 15 or newer", "DATABASE_URL"];
    for (program, args) in PROGRAMS {
        let url = format!("{}?options=-c%20of_the_future%3Don", world.database_url);
        let process = world.program(program).args(args).env("DATABASE_URL", &url);
        assert_gives_up(process, &words).await;
    }
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_a_run_drains_anyway_and_warns() {
    assert_drains_with_a_warning(&world().await, "redis://127.0.0.1:1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_wrong_redis_password_a_run_drains_anyway_and_does_not_print_it() {
    let redis = Redis::start_with(&["--requirepass", "right"]).await;
    let url = format!("redis://:hunter2@127.0.0.1:{}", redis.port());
    let ended = assert_drains_with_a_warning(&world().await, &url).await;
    assert!(!ended.stderr().contains("hunter2"), "{}", ended.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_redis_does_not_keep_a_run_from_draining() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("redis://{}", silent.local_addr().expect("address"));
    assert_drains_with_a_warning(&world().await, &url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_run_prints_exactly_one_object_on_stdout() {
    let world = world().await;
    world.put("live", "b", In(60.0)).await;
    let run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let ended = run.env("CLEANUP_LOG_FILTER", "debug").output().await;
    assert_eq!(ended.code(), 0);
    assert_eq!(ended.stdout().trim_end().lines().count(), 1, "{}", ended.stdout());
    let summary = ended.json();
    for (key, value) in
        [("rows_deleted", 1), ("objects_deleted", 1), ("bytes_freed", 1), ("batches", 1)]
    {
        assert_eq!(summary[key], value, "{key}");
    }
    assert!(summary["elapsed_ms"].is_u64());
    assert_eq!(summary["stopped_because"], "drained");
    assert!(!ended.stderr().is_empty(), "logs go to stderr");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_start_prints_nothing_on_stdout() {
    let world = world().await;
    let run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let ended = run.env("DATABASE_URL", "postgres://u@127.0.0.1:1/d").output().await;
    assert_eq!((ended.code(), ended.stdout().as_str()), (1, ""));
    let nowhere = address_of("postgres://u@127.0.0.1:1/d");
    assert!(ended.stderr().contains(&nowhere));
}
