//! Random bytes as input: files, flags, URLs, answers of S3, HTTP requests. No input causes a panic
//! (not even in a detached task), and an error is one line without control characters and without a
//! password.

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod bytes;
mod requests;
mod settings;
mod urls;

use std::{
    fmt::Debug,
    panic,
    sync::{Mutex, Once, PoisonError},
};

use proptest::strategy::Strategy;
use support::random::check;

/// The password in all inputs.
const SECRET: &str = "hunter2hunter2";

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Checks a property. A panic outside of the tests' own assertions is a failure, whatever the task.
fn try_all<S: Strategy>(
    cases: u32,
    values: &S,
    mut holds: impl FnMut(&S::Value) -> Result<(), String>,
) where
    S::Value: Debug,
{
    record_panics();
    check(cases, values, |value| {
        holds(value)?;
        match PANICS.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            Some(panic) => Err(panic),
            None => Ok(()),
        }
    });
}

fn record_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if info.location().is_some_and(|place| !place.file().starts_with("tests/")) {
                PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(info.to_string());
            }
            usual(info);
        }));
    });
}

/// Checks that a message can be printed: one line, no control characters, no password.
fn is_presentable(text: &str) -> Result<(), String> {
    let changes_direction = |c| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match text {
        "" => Err("an empty message".into()),
        text if text.contains(SECRET) => Err(format!("the password is in {text:?}")),
        text if text.chars().any(|c| c.is_control() || changes_direction(c)) => {
            Err(format!("not one line of plain text: {text:?}"))
        }
        _ => Ok(()),
    }
}
