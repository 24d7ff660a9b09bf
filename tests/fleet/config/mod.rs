//! Settings: file, variables, flags and defaults; an invalid setting is refused in one line with
//! exit code 2.

mod default_file;
mod precedence;
mod refusals;
mod secrets;
mod times;

use std::path::{Path, PathBuf};

use crate::support::*;

/// Nothing listens there.
const NOWHERE: &str = "127.0.0.1:1";

/// A settings file in the test run's own folder, removed with it.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Self {
        let folder =
            std::env::var("PASTE_CLEANUP_TEST_DIR").expect("start the servers with `ops/servers`");
        let path = Path::new(&folder).join(format!("{}.toml", uuid::Uuid::new_v4()));
        std::fs::write(&path, text).expect("write a file");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A worker with complete settings, whose servers do not exist.
fn worker(args: &[&str]) -> Process {
    Process::new("cleanup-worker")
        .env("DATABASE_URL", &format!("postgres://u@{NOWHERE}/d"))
        .env("REDIS_URL", &format!("redis://{NOWHERE}"))
        .env("S3_BUCKET", "b")
        .env("AWS_ENDPOINT_URL", &format!("http://{NOWHERE}"))
        .args(args)
}

/// Asserts exit code 2 and one line with these words.
async fn assert_usage(process: Process, words: &[&str]) {
    let ended = process.output().await;
    ended.assert_refused(2, words);
    assert_eq!(ended.stdout(), "");
}
