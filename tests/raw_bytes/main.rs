//! Raw bytes at whatever parses outside input: files, flags, URLs, S3's answers, HTTP requests.
//! Never a panic (also none in a task that nobody looks at), an error is one line that obeys no
//! terminal, and a password is not in it.

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

/// Planted where a password belongs.
const SECRET: &str = "hunter2hunter2";

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Tries a property; a panic outside of the tests' own assertions is a failure wherever it happens.
fn try_all<S: Strategy>(
    cases: u32,
    values: &S,
    mut holds: impl FnMut(&S::Value) -> Result<(), String>,
) where
    S::Value: Debug,
{
    note_panics();
    check(cases, values, |value| {
        holds(value)?;
        match PANICS.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            Some(panic) => Err(panic),
            None => Ok(()),
        }
    });
}

fn note_panics() {
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

/// What may be printed: one line, nothing that a terminal would obey, no password.
fn is_presentable(text: &str) -> Result<(), String> {
    let turns = |c| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match text {
        "" => Err("an error without a word".into()),
        text if text.contains(SECRET) => Err(format!("the password is in {text:?}")),
        text if text.chars().any(|c| c.is_control() || turns(c)) => {
            Err(format!("not one harmless line: {text:?}"))
        }
        _ => Ok(()),
    }
}
