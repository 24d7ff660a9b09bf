//! Passwords are never printed, whatever is wrong with the settings.

use paste_cleanup::config::defaults;

use crate::{
    config::{File, worker},
    support::{process::Ended, *},
};

/// Asserts that the program printed something, but not this secret.
fn assert_hides(ended: &Ended, secret: &str) {
    let printed = format!("{}{}", ended.stdout(), ended.stderr());
    assert!(!printed.is_empty() && !printed.contains(secret), "{secret} is in: {printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_not_printed() {
    let world = World::new().await;
    let (head, rest) = world.database_url.split_once('@').expect("a password");
    let user = head.rsplit_once(':').expect("a password").0;
    let url = format!("{user}:hunter2hunter2@{rest}");
    for (program, args) in [
        ("cleanup-worker", &["run"][..]),
        ("cleanup-watchdog", &["--once"]),
        ("cleanupctl", &["status"]),
    ] {
        let ended = world.program(program).args(args).env("DATABASE_URL", &url).output().await;
        ended.assert_refused(1, &["password authentication failed"]);
        assert_hides(&ended, "hunter2");
    }
}

#[tokio::test]
async fn a_malformed_url_is_refused_without_its_password() {
    for url in [
        "postgres//u:hunter2@localhost/d",
        "postgres:/u:hunter2@localhost/d",
        "u:hunter2@localhost/d",
        "postgres://u:hunter2@localhost:port/d",
        "postgres://u:hunter2@localhost:99999/d",
        "postgres://u:hunter2#@localhost/d?connect_timeout=x",
        "postgres://u:hunter2%zz@localhost/d",
        "postgres://u:hunter2@/d?host=",
        "postgres://u:p@localhost/d?sslmode=hunter2",
        // Passwords that should have been percent-encoded or quoted.
        "postgres://u:p@ss?hunter2=@localhost/d",
        "postgres://u:p@hunter2@localhost:1/d",
        "postgres://u:p/hunter2@localhost:1/d",
        "postgres://u:p@127.0.0.1:1/hunter2@localhost:1/d",
        "host=localhost port=1 password=p hunter2=x",
        "mysql://u:hunter2@localhost/d",
        "host=localhost password='hunter2",
        "host=localhost port=hunter2",
        "password=hunter2 nonsense",
    ] {
        let ended = worker(&["run"]).env("DATABASE_URL", url).output().await;
        assert!(matches!(ended.code(), 1 | 2), "{url}: {}", ended.stderr());
        assert_eq!(ended.stderr().lines().count(), 1, "{url}: {}", ended.stderr());
        assert_hides(&ended, "hunter2");
    }
    for url in [
        "redis//:hunter2@localhost",
        "redis://:hunter2@localhost:port",
        "redis://:hunter2@localhost/notanumber",
        "http://:hunter2@localhost",
        ":hunter2@localhost",
    ] {
        let ended = worker(&["run"]).env("REDIS_URL", url).output().await;
        ended.assert_refused(2, &["redis.url", "REDIS_URL"]);
        assert_hides(&ended, "hunter2");
    }
}

#[tokio::test]
async fn a_syntax_error_on_the_line_with_the_password_does_not_quote_it() {
    for text in [
        "[postgres]\nurl = \"postgres://u:hunter2@localhost/d",
        "[postgres]\nurl = postgres://u:hunter2@localhost/d",
        "[postgres]\nurl = \"postgres://u:hunter2@localhost/d\" x",
        "[postgres]\nurl = [\"hunter2\"]",
        "[postgres]\nurl = { password = \"hunter2\" }",
        "[redis]\nurl = \"\"\"redis://:hunter2@localhost",
    ] {
        let file = File::new(text);
        let ended = worker(&["run", "--config", file.path()]).output().await;
        ended.assert_refused(2, &[file.path(), "line"]);
        assert_hides(&ended, "hunter2");
    }
}

#[test]
fn debug_of_the_settings_shows_no_password() {
    let mut settings = defaults();
    settings.postgres.url = Some("postgres://u:hunter2@localhost/d".into());
    settings.redis.url = Some("redis://:hunter2@localhost".into());
    let debug = format!("{settings:?} {settings:#?}");
    assert!(debug.contains("batch_size: 1000") && !debug.contains("hunter2"), "{debug}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_traces_everything_prints_no_secret() {
    let world = World::new().await;
    let redis = servers::Redis::start_with(&["--requirepass", "redis-hunter2"]).await;
    let url = format!("redis://:redis-hunter2@127.0.0.1:{}", redis.port());
    let (user, _) = world.database_url.split_once('@').expect("a password");
    let (_, password) = user.rsplit_once(':').expect("a password");
    let aws = std::env::var("AWS_SECRET_ACCESS_KEY").expect("credentials");
    for format in ["json", "text"] {
        world.put("p", "a", Ago(60.0)).await;
        let run = world.program("cleanup-worker").args(&["run"]).env("REDIS_URL", &url);
        let run = run.env("CLEANUP_LOG_FILTER", "trace").env("CLEANUP_LOG_FORMAT", format);
        let ended = run.env("RUST_LOG", "trace").output().await;
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        assert!(ended.stderr().contains("TRACE"), "it traces: {}", ended.stderr());
        for secret in [password, &aws, "redis-hunter2"] {
            assert_hides(&ended, secret);
        }
    }
}
