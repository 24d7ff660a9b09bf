//! Starting: a program that cannot work prints one line with the remedy and exits within seconds, before
//! it claims anything.

use std::time::{Duration, Instant};

use crate::support::{process::Ended, proxy::address_of, servers::Redis, *};
use tokio::io::{AsyncBufReadExt, BufReader};

/// The programs that need a prepared database, as cron would start them.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("cleanup-worker", &["run"]),
    ("cleanup-watchdog", &["--once"]),
    ("cleanupctl", &["status"]),
    ("cleanupctl", &["seed", "--pastes", "1"]),
];
/// Those that need the bucket, too.
const BUCKET_PROGRAMS: [(&str, &[&str]); 2] = [PROGRAMS[0], PROGRAMS[3]];
const WITHIN: Duration = Duration::from_secs(60);

/// A world with something to claim.
async fn world() -> World {
    let world = World::new().await;
    world.put("due", "a", Ago(60.0)).await;
    world
}

/// Runs a program that must fail within seconds, with one line that contains these words.
async fn assert_gives_up(process: Process, words: &[&str]) {
    let started = Instant::now();
    let ended = process.output().await;
    ended.assert_refused(1, words);
    assert_eq!(ended.stdout(), "");
    assert!(started.elapsed() < WITHIN, "took {:?}", started.elapsed());
}

/// Asserts that nothing was claimed or deleted, and that no bucket was bound.
async fn assert_untouched(world: &World) {
    let claims = world.count("SELECT count(*) FROM deletion_claims").await;
    let due = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED' AND attempts = 0";
    assert_eq!((claims, world.count(due).await), (0, 1));
    let bound = "SELECT count(*) FROM cleanup_fleet WHERE bucket IS NOT NULL";
    assert_eq!(world.count(bound).await, 0, "no bucket is bound");
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

async fn timed(process: Process) -> Option<Ended> {
    tokio::time::timeout(WITHIN, process.output()).await.ok()
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
async fn a_database_that_was_not_migrated_is_refused_with_the_command() {
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
async fn an_s3_that_accepts_but_never_answers_fails_the_start() {
    let world = world().await;
    let unanswering = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let endpoint = format!("http://{}", unanswering.local_addr().expect("address"));
    let run = world.program("cleanup-worker").args(&["run"]).env("AWS_ENDPOINT_URL", &endpoint);
    let ended = timed(run).await.expect("it gives up");
    ended.assert_refused(1, &["S3"]);
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_named_and_not_bound() {
    let world = world().await;
    let run = world.program("cleanup-worker").args(&["run"]).env("S3_BUCKET", "no-such-bucket");
    let words = ["\"no-such-bucket\" does not exist", "S3_BUCKET", "CLEANUP_S3_BUCKET"];
    assert_gives_up(run, &words).await;
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_seed_cannot_create_is_named_with_the_reason() {
    let world = world().await;
    // S3 allows no name of one letter.
    let seed = world.program("cleanupctl").args(&["seed", "--pastes", "1"]).env("S3_BUCKET", "b");
    let words = ["cannot create bucket \"b\"", "InvalidBucketName", "CLEANUP_S3_BUCKET"];
    assert_gives_up(seed, &words).await;
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_access_to_s3_is_reported() {
    let world = world().await;
    for (variable, value) in
        [("AWS_SECRET_ACCESS_KEY", "wrong-wrong"), ("AWS_ACCESS_KEY_ID", "unknown")]
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
async fn missing_credentials_are_one_line_that_names_them_and_the_remedy() {
    let world = world().await;
    for (program, args) in BUCKET_PROGRAMS {
        let process = world.program(program).args(args);
        let process = process.without("AWS_ACCESS_KEY_ID").without("AWS_SECRET_ACCESS_KEY");
        let process = process.env("AWS_EC2_METADATA_DISABLED", "true");
        let process = process
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
        let ended = process.output().await;
        let words = ["no AWS credentials found", &world.bucket, "AWS_ACCESS_KEY_ID", "AWS_PROFILE"];
        ended.assert_refused(1, &words);
        let line = ended.stderr();
        for dump in ["dispatch", "provider", "Attempted", "AWS_ENDPOINT_URL"] {
            assert!(!line.contains(dump), "{line}");
        }
    }
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_of_credentials_that_fails_is_reported_as_such() {
    let world = world().await;
    // As on a container platform whose credential service is down.
    let process = world.program("cleanup-worker").args(&["run"]);
    let process = process.without("AWS_ACCESS_KEY_ID").without("AWS_SECRET_ACCESS_KEY");
    let process = process
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .env("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/credentials");
    let ended = process.output().await;
    ended.assert_refused(1, &["cannot load AWS credentials", "AWS_ACCESS_KEY_ID"]);
    assert!(!ended.stderr().contains("AWS_ENDPOINT_URL"), "{}", ended.stderr());
    assert_untouched(&world).await;
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
async fn a_seed_that_takes_long_prints_its_progress() {
    let world = world().await;
    // Its first INSERT waits, without a time limit, until the test lets it continue.
    world
        .run_sql(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
             BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
             CREATE TRIGGER wait BEFORE INSERT ON pastes EXECUTE FUNCTION wait()",
        )
        .await;
    let mut other = connect(&world.database_url).await;
    let lock = other.transaction().await.expect("begin");
    lock.batch_execute("SELECT pg_advisory_xact_lock(1)").await.expect("lock");
    let seed = world.program("cleanupctl").args(&["seed", "--pastes", "1200"]);
    let mut seeding = seed.into_command().spawn().expect("seed");
    let mut lines = BufReader::new(seeding.stderr.take().expect("stderr")).lines();
    let line = lines.next_line().await.expect("a line");
    assert_eq!(line.as_deref(), Some("seeded 0 of 1,200 pastes"));
    lock.rollback().await.expect("rollback");
    let ended = seeding.wait_with_output().await.expect("its end");
    let printed = String::from_utf8(ended.stdout).expect("text");
    assert!(ended.status.success() && printed.starts_with("seeded 1,200 pastes ("), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_bucket_than_the_bound_one_is_refused() {
    let world = world().await;
    let bind = "UPDATE cleanup_fleet SET bucket = 'the-right-one', prefix = ''";
    world.run_sql(bind).await;
    for (program, args) in BUCKET_PROGRAMS {
        let process = world.program(program).args(args);
        assert_gives_up(process, &["\"the-right-one\"", &world.bucket, "--rebind-bucket"]).await;
    }
    world.run_sql("UPDATE cleanup_fleet SET bucket = NULL, prefix = NULL").await;
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_prefix_than_the_bound_one_is_refused() {
    let world = world().await;
    world
        .run_sql(&format!("UPDATE cleanup_fleet SET bucket = '{}', prefix = 'a/'", world.bucket))
        .await;
    let run = world.program("cleanup-worker").args(&["run"]).env("CLEANUP_S3_PREFIX", "b/");
    assert_gives_up(run, &["\"a/\"", "\"b/\"", "--rebind-bucket"]).await;
}

/// Asserts a complete drain that logs a warning about the lock.
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
async fn a_redis_that_never_answers_does_not_keep_a_run_from_draining() {
    let unanswering = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("redis://{}", unanswering.local_addr().expect("address"));
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
