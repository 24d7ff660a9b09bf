//! A flag has precedence over a variable, a variable over the file, and the file over the default.

use super::{File, NOWHERE, worker};
use crate::support::*;

/// The database that the worker tried to reach, from its error.
async fn database_tried(process: Process) -> String {
    let ended = process.output().await;
    ended.assert_refused(1, &[NOWHERE]);
    let (_, rest) = ended.stderr().split_once("database \"").map(own).expect("a database");
    rest.split('"').next().expect("its name").to_string()
}

fn own((a, b): (&str, &str)) -> (String, String) {
    (a.to_string(), b.to_string())
}

#[tokio::test]
async fn a_cleanup_variable_beats_the_well_known_one_which_beats_the_file() {
    let url = |database: &str| format!("postgres://u@{NOWHERE}/{database}");
    let file = File::new(&format!("[postgres]\nurl = \"{}\"", url("file")));
    let args = ["run", "--config", file.path()];
    let all = worker(&args)
        .env("DATABASE_URL", &url("well-known"))
        .env("CLEANUP_POSTGRES_URL", &url("cleanup"));
    assert_eq!(database_tried(all).await, "cleanup");
    let two = worker(&args).env("DATABASE_URL", &url("well-known"));
    assert_eq!(database_tried(two).await, "well-known");
    assert_eq!(database_tried(worker(&args).without("DATABASE_URL")).await, "file");
    let named = worker(&["run"]).without("DATABASE_URL").env("CLEANUP_CONFIG", file.path());
    assert_eq!(database_tried(named).await, "file");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_beats_the_variable_which_beats_the_file_which_beats_the_default() {
    let world = World::new().await;
    let file = File::new("[worker]\nbatch_size = 4\nconcurrency = 1");
    let flag = ["run", "--format", "json", "--config", file.path(), "--batch-size", "12"];
    let (variable, from_file, default) = (&flag[..5], &flag[..5], &flag[..3]);
    for (args, in_variable, batches) in
        [(&flag[..], "6", 1), (variable, "6", 2), (from_file, "", 3), (default, "", 1)]
    {
        world.put_many(12, 12).await;
        let mut run = world.program("cleanup-worker").args(args);
        if !in_variable.is_empty() {
            run = run.env("CLEANUP_WORKER_BATCH_SIZE", in_variable);
        }
        let ended = run.output().await;
        assert_eq!(ended.json()["batches"], batches, "{args:?} {in_variable}");
    }
}
