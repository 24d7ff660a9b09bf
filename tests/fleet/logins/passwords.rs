//! Passwords that are not in the URL.

use std::{fs, os::unix::fs::PermissionsExt as _};

use super::Login;
use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    servers::Folder,
    *,
};

/// A worker whose URL has no password.
fn run(world: &World, login: &Login) -> Process {
    let run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let run = run.env("DATABASE_URL", &login.url(world, None));
    // Not those of whoever runs the tests.
    run.without("PGPASSWORD").env("PGPASSFILE", "/dev/null")
}

#[tokio::test(flavor = "multi_thread")]
async fn pgpassword_is_used_if_the_url_has_no_password() {
    let world = World::new().await;
    let login = Login::create(&world, "right").await;
    world.put("p", "a", Ago(60.0)).await;
    run(&world, &login).output().await.assert_refused(1, &["password"]);
    let url = login.url(&world, Some("wrong"));
    let wrong = run(&world, &login).env("DATABASE_URL", &url).env("PGPASSWORD", "right");
    wrong.output().await.assert_refused(1, &["password authentication failed"]);
    // What Compose makes of a variable that is not set.
    let right = run(&world, &login).env("CLEANUP_POSTGRES_PASSWORD_COMMAND", "");
    let ended = right.env("PGPASSWORD", "right").output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_file_is_used_as_libpq_uses_it() {
    let (world, folder) = (World::new().await, Folder::new("pgpass"));
    let login = Login::create(&world, "ri:ght").await;
    world.put("p", "a", Ago(60.0)).await;
    let lines =
        format!("other:*:*:*:wrong\n*:*:{}:{}:ri\\:ght\n*:*:*:*:late\n", world.name, login.name);
    folder.write("pgpass", &lines);
    let file = folder.file("pgpass");
    let with_file = || run(&world, &login).env("PGPASSFILE", &file);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("chmod");
    let ignored = with_file().output().await;
    assert_eq!(ignored.code(), 1, "{}", ignored.stderr());
    assert!(ignored.stderr().contains("ignored the password file"), "{}", ignored.stderr());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
    let ended = with_file().env("PGPASSWORD", "wrong").output().await;
    ended.assert_refused(1, &["password authentication failed"]);
    let ended = with_file().output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_command_runs_for_each_connection_and_knows_where_it_goes() {
    let (world, folder) = (World::new().await, Folder::new("command"));
    let login = Login::create(&world, "right").await;
    world.put_many(100, 100).await;
    let seen = folder.file("seen");
    let command = format!("echo $PGUSER/$PGDATABASE/$PGHOST/$PGPORT >> {seen}; echo right");
    let ended =
        run(&world, &login).env("CLEANUP_POSTGRES_PASSWORD_COMMAND", &command).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let port = world.database_url.rsplit([':', '/']).nth(1).expect("a port");
    let expected = format!("{}/{}/127.0.0.1/{port}", login.name, world.name);
    let seen = folder.read("seen");
    assert!(seen.lines().all(|line| line == expected), "{seen}");
    assert!(seen.lines().count() > 2, "once for each connection: {seen}");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_command_that_fails_is_named_with_its_exit_code_and_never_its_output() {
    let world = World::new().await;
    let login = Login::create(&world, "right").await;
    for (command, words) in [
        (
            "echo hunter2; echo 'no token' >&2; echo more >&2; exit 7",
            &["exit code 7: no token"][..],
        ),
        ("echo 'nothing today' >&2", &["printed no password", "exit code 0: nothing today"]),
        ("kill -9 $$", &["killed by a signal"]),
        ("no-such-hunter2", &["exit code 127: the shell cannot run it"]),
    ] {
        let run = run(&world, &login).env("CLEANUP_POSTGRES_PASSWORD_COMMAND", command);
        let ended = run.output().await;
        ended.assert_refused(1, &[&["postgres.password_command", "by hand"][..], words].concat());
        let printed = ended.stderr();
        assert!(!printed.contains("hunter2") && !printed.contains("more"), "{printed}");
    }
    let both = login.url(&world, Some("right"));
    let both = run(&world, &login).env("DATABASE_URL", &both);
    let both = both.env("CLEANUP_POSTGRES_PASSWORD_COMMAND", "echo right");
    both.output().await.assert_refused(2, &["postgres.password_command", "remove one"]);
}

/// As with tokens that expire, and a service that cannot issue one for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_command_that_fails_in_the_middle_of_a_run_is_an_outage_that_ends() {
    let (world, folder) = (World::new().await, Folder::new("command"));
    let login = Login::create(&world, "right").await;
    world.put_many(40, 40).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let broken = folder.file("broken");
    let command = format!("test ! -e {broken} && echo right");
    let run = run(&world, &login).args(&["--batch-size", "10", "--concurrency", "1"]);
    let run = run.env("AWS_ENDPOINT_URL", &s3.url);
    let mut worker = run.env("CLEANUP_POSTGRES_PASSWORD_COMMAND", &command).start();
    s3.called(1).await;
    folder.write("broken", "");
    login.change(&world, "right").await;
    s3.let_go();
    worker.until_it_logs("postgres.password_command failed (exit code 1)").await;
    std::fs::remove_file(&broken).expect("repair it");
    let ended = worker.end().await;
    assert_eq!((ended.code(), &ended.json()["rows_failed"]), (0, &0.into()), "{}", ended.stderr());
    world.assert_drained().await;
}
