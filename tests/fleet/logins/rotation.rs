//! Passwords that are rotated while a run is going on, with all its connections cut each time.

use std::time::Duration;

use paste_cleanup::postgres::Fault;

use super::Login;
use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    process::{Ended, Running},
    redis_cluster::ask,
    servers::{Folder, Redis},
    *,
};

const ROTATIONS: i64 = 5;
const PASTES: i32 = 600;

/// Replaces the file as a secret manager does: never half written.
fn replace(folder: &Folder, name: &str, text: &str) {
    folder.write("next", text);
    std::fs::rename(folder.file("next"), folder.file(name)).expect("rename");
}

/// A slow run with files for its secrets.
async fn start(world: &World, folder: &Folder) -> (Running, FaultyS3) {
    world.put_many(PASTES, 200).await;
    let s3 = FaultyS3::start(world, Mode::Slow { by: Duration::from_millis(100) }).await;
    let run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let run = run.args(&["--batch-size", "10", "--concurrency", "2"]);
    let run = run.without("DATABASE_URL").without("REDIS_URL").env("AWS_ENDPOINT_URL", &s3.url);
    let run = run.env("DATABASE_URL_FILE", &folder.file("postgres"));
    let run = run.env("REDIS_URL_FILE", &folder.file("redis"));
    (run.env("CLEANUP_LOCK_WHEN_UNAVAILABLE", "wait").start(), s3)
}

/// Asserts that the run drained, and that no paste failed on the way.
fn assert_unharmed(ended: &Ended) {
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let failed = ended.stderr().lines().any(|line| line.contains("pastes failed"));
    assert!(!failed && ended.json()["rows_failed"] == 0, "{}", ended.stderr());
}

/// Waits until the run has erased some of its pastes.
async fn until_erased(world: &World, erased: i64) {
    let sql = format!("SELECT count(*) <= {} FROM pastes", i64::from(PASTES) - erased);
    world.until("some of the pastes are erased", &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_drains_without_a_failed_paste_while_the_password_of_postgres_is_rotated() {
    let (world, folder) = (World::new().await, Folder::new("rotation"));
    let login = Login::create(&world, "first").await;
    replace(&folder, "postgres", &login.url(&world, Some("first")));
    replace(&folder, "redis", &env("REDIS_URL"));
    let (worker, _s3) = start(&world, &folder).await;
    for n in 1..=ROTATIONS {
        until_erased(&world, 60 * n).await;
        let password = format!("password-{n}");
        // In between, the file has a password that is no longer valid.
        login.change(&world, &password).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        replace(&folder, "postgres", &login.url(&world, Some(&password)));
    }
    assert_unharmed(&worker.end().await);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_names_another_database_in_the_middle_of_a_run_is_not_followed() {
    let (world, other, folder) = (World::new().await, World::new().await, Folder::new("rotation"));
    other.put("p", "a", Ago(60.0)).await;
    let login = Login::create(&world, "first").await;
    replace(&folder, "postgres", &login.url(&world, Some("first")));
    replace(&folder, "redis", &env("REDIS_URL"));
    let (mut worker, _s3) = start(&world, &folder).await;
    until_erased(&world, 60).await;
    replace(&folder, "postgres", &login.url(&other, Some("second")));
    login.change(&world, "second").await;
    worker.until_it_logs("changed in more than user and password").await;
    replace(&folder, "postgres", &login.url(&world, Some("second")));
    assert_unharmed(&worker.end().await);
    world.assert_drained().await;
    assert_eq!(other.count("SELECT count(*) FROM cleanup_runs").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_claim_goes_without_the_lock_while_the_password_of_redis_is_rotated() {
    let (world, folder) = (World::new().await, Folder::new("rotation"));
    let redis = Redis::start().await;
    let set = async |password: &str| {
        let mut acl = redis::cmd("ACL");
        acl.arg("SETUSER").arg("night").arg("on").arg("resetpass").arg(format!(">{password}"));
        ask::<()>(&redis.url(), acl.arg("~*").arg("+@all")).await;
        replace(&folder, "redis", &redis.url().replace("//", &format!("//night:{password}@")));
        let mut kill = redis::cmd("CLIENT");
        ask::<i64>(&redis.url(), kill.arg("KILL").arg("USER").arg("night")).await;
    };
    set("first").await;
    replace(&folder, "postgres", &world.worker_url());
    let (worker, _s3) = start(&world, &folder).await;
    for n in 1..=ROTATIONS {
        until_erased(&world, 60 * n).await;
        set(&format!("password-{n}")).await;
    }
    let ended = worker.end().await;
    assert_unharmed(&ended);
    assert_eq!(ended.json()["claims_without_lock"], 0, "{}", ended.stderr());
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_login_proves_nothing_about_any_row() {
    let world = World::new().await;
    let login = Login::create(&world, "right").await;
    let url = login.url(&world, Some("wrong"));
    let refused = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
    let error = refused.err().expect("a wrong password");
    assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::INVALID_PASSWORD));
    assert_eq!(Fault::of(&error), Fault::Transient);
    // A trigger may raise the same code, for some row.
    let raise = "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '28000'; END $$";
    let error = world.db.batch_execute(raise).await.expect_err("raised");
    assert_eq!(Fault::of(&error), Fault::Unclear);
}
