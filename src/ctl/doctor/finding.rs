//! The result of a check: a verdict, what was found, and the remedy.

use std::fmt;

use serde::Serialize;

use crate::problem::Problem;

#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Ok,
    Warning,
    Failure,
    /// Not checked, because of an earlier failure or a missing privilege.
    LeftOut,
}

#[derive(Serialize, Debug)]
pub(super) struct Outcome {
    verdict: Verdict,
    found: String,
    remedy: Option<String>,
}

impl Outcome {
    pub(super) fn is_ok(&self) -> bool {
        self.verdict == Verdict::Ok
    }
}

pub(super) fn ok(found: impl Into<String>) -> Outcome {
    Outcome { verdict: Verdict::Ok, found: found.into(), remedy: None }
}

pub(super) fn warning(found: impl Into<String>, remedy: impl Into<String>) -> Outcome {
    Outcome { verdict: Verdict::Warning, found: found.into(), remedy: Some(remedy.into()) }
}

pub(super) fn failure(found: impl Into<String>, remedy: impl Into<String>) -> Outcome {
    Outcome { verdict: Verdict::Failure, found: found.into(), remedy: Some(remedy.into()) }
}

pub(super) fn left_out(why: impl Into<String>) -> Outcome {
    Outcome { verdict: Verdict::LeftOut, found: why.into(), remedy: None }
}

/// The outcome of a check that could not be carried out.
impl From<Problem> for Outcome {
    fn from(Problem { problem, remedy }: Problem) -> Self {
        failure(problem, remedy)
    }
}

/// An outcome with the name of its check.
#[derive(Serialize, Debug)]
pub(super) struct Finding {
    check: &'static str,
    #[serde(flatten)]
    outcome: Outcome,
}

impl Finding {
    pub(super) fn new(check: &'static str, outcome: Outcome) -> Self {
        Self { check, outcome }
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.outcome.verdict
    }
}

/// Writes one line, aligned with those of the other findings.
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
