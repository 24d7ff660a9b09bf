//! Secrets in files.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::support::{servers::Folder, *};

#[tokio::test(flavor = "multi_thread")]
async fn the_urls_are_read_from_the_files_that_variables_or_settings_name() {
    let (world, folder) = (World::new().await, Folder::new("secrets"));
    folder.write("postgres", &format!("{}\n", world.worker_url()));
    folder.write("redis", &format!("  {}\n\n", env("REDIS_URL")));
    let files = ["postgres", "redis"].map(|name| folder.file(name));
    for variables in [
        ["DATABASE_URL_FILE", "REDIS_URL_FILE"],
        ["CLEANUP_POSTGRES_URL_FILE", "CLEANUP_REDIS_URL_FILE"],
    ] {
        world.put("p", "a", Ago(60.0)).await;
        let mut run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
        run = run.without("DATABASE_URL").without("REDIS_URL");
        for (variable, file) in variables.iter().zip(&files) {
            run = run.env(variable, file);
        }
        let ended = run.output().await;
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        assert_eq!(ended.json()["claims_without_lock"], 0, "{}", ended.stderr());
        world.assert_drained().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_file_that_is_missing_or_empty_is_named() {
    let (world, folder) = (World::new().await, Folder::new("secrets"));
    folder.write("empty", " \n");
    for (variable, value) in
        [("DATABASE_URL", "postgres.url_file"), ("REDIS_URL", "redis.url_file")]
    {
        for (name, reason) in [("missing", "cannot be read"), ("empty", "is empty")] {
            let file = folder.file(name);
            let run = world.program("cleanup-worker").args(&["run"]).without(variable);
            let ended = run.env(&format!("{variable}_FILE"), &file).output().await;
            ended.assert_refused(2, &[value, &file, reason, &format!("{variable}_FILE")]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_set_as_value_and_as_file_is_refused() {
    let world = World::new().await;
    for (variable, words) in [
        ("DATABASE_URL_FILE", ["postgres.url and postgres.url_file are both set", "DATABASE_URL"]),
        ("CLEANUP_REDIS_URL_FILE", ["redis.url and redis.url_file are both set", "REDIS_URL"]),
    ] {
        for (program, args) in [("cleanup-worker", &["run"][..]), ("cleanupctl", &["status"])] {
            let process = world.program(program).args(args).env(variable, "/run/secret");
            process.output().await.assert_refused(2, &words);
        }
    }
    // What Compose makes of a variable that is not set.
    let status = world.program("cleanupctl").args(&["status"]).env("DATABASE_URL_FILE", "");
    let status = status.output().await;
    assert_eq!(status.code(), 0, "{}", status.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_file_that_everybody_may_read_is_a_warning() {
    let (world, folder) = (World::new().await, Folder::new("secrets"));
    folder.write("postgres", &world.worker_url());
    let file = folder.file("postgres");
    for (mode, warned) in [(0o644, true), (0o640, false)] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("chmod");
        let status = world.program("cleanupctl").args(&["status"]).without("DATABASE_URL");
        let ended = status.env("DATABASE_URL_FILE", &file).output().await;
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        let text = ended.stderr();
        let is_named = text.contains(&file) && text.contains("can be read by every user");
        assert_eq!(is_named, warned, "{text}");
    }
}
