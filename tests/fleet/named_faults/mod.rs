//! Faults made by hand, as a night brings them: each is named with its remedy, by `cleanupctl
//! doctor` or, where it is one paste's, by `cleanupctl explain`. Where the remedy is a command, it
//! is carried out, and helps.

mod bucket;
mod content;
mod database;
mod workers;

use crate::support::{
    findings::{Findings, diagnose},
    process::Ended,
    *,
};

async fn doctor(world: &World) -> Findings {
    diagnose(world.program("cleanupctl")).await
}

#[track_caller]
fn assert_says(text: &str, words: &[&str]) {
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text:?}"));
}

#[track_caller]
fn assert_done(ended: &Ended) {
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
}
