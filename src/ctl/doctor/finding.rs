//! What a check says: how bad it is, what was found, what to do.

use std::fmt;

use serde::Serialize;

#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    Warning,
    Failure,
    /// Could not be looked at, because of an earlier failure.
    LeftOut,
}

#[derive(Serialize, Debug)]
pub struct Outcome {
    verdict: Verdict,
    found: String,
    remedy: Option<String>,
}

pub fn ok(found: impl Into<String>) -> Outcome {
    Outcome { verdict: Verdict::Ok, found: found.into(), remedy: None }
}

pub fn warning(found: impl Into<String>, remedy: impl Into<String>) -> Outcome {
    Outcome { verdict: Verdict::Warning, found: found.into(), remedy: Some(remedy.into()) }
}

pub fn failure(found: impl Into<String>, remedy: impl Into<String>) -> Outcome {
    Outcome { verdict: Verdict::Failure, found: found.into(), remedy: Some(remedy.into()) }
}

pub fn left_out(why: impl Into<String>) -> Outcome {
    Outcome { verdict: Verdict::LeftOut, found: why.into(), remedy: None }
}

impl Outcome {
    /// A check that could not be carried out. Error lines of this crate end with the remedy.
    pub fn failed(error: &anyhow::Error) -> Self {
        let line = format!("{error:#}");
        match line.rsplit_once("; ") {
            Some((found, remedy)) => failure(found, remedy),
            None => failure(line, "see the server's log"),
        }
    }
}

/// An outcome under the name of its check.
#[derive(Serialize, Debug)]
pub struct Finding {
    check: &'static str,
    #[serde(flatten)]
    outcome: Outcome,
}

impl Finding {
    pub fn new(check: &'static str, outcome: Outcome) -> Self {
        Self { check, outcome }
    }

    pub fn verdict(&self) -> Verdict {
        self.outcome.verdict
    }
}

/// One line, aligned with the others.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.outcome.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failure => "failure",
            Verdict::LeftOut => "left out",
        };
        write!(f, "{verdict:8}  {:14}  {}", self.check, self.outcome.found)?;
        self.outcome.remedy.iter().try_for_each(|remedy| write!(f, "; {remedy}"))
    }
}
