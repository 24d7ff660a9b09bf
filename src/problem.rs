//! What is wrong, and what a person must do about it.

use std::fmt;

use tokio_postgres::Row;

use crate::{
    postgres::{describe, remedy},
    printable::printable,
};

/// An error for a person. Prints as one line: the problem, a semicolon, the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong: a clause without a full stop.
    pub problem: String,
    /// What to do about it: an imperative without a full stop.
    pub remedy: String,
}

impl Problem {
    /// Creates a problem from two clauses. The first may end with the full stop of a server's message.
    pub fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        let problem: String = problem.into();
        Self { problem: problem.trim_end_matches('.').to_string(), remedy: remedy.into() }
    }

    /// Joins the problems, and the remedies, of several.
    pub fn join(problems: &[Self]) -> Self {
        let joined = |text: fn(&Self) -> &str| {
            let mut texts: Vec<&str> = problems.iter().map(text).collect();
            texts.dedup();
            texts.join("; ")
        };
        Self::new(joined(|one| &one.problem), joined(|one| &one.remedy))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

impl std::error::Error for Problem {}

/// Reads the columns `problem` and `remedy`.
impl From<&Row> for Problem {
    fn from(row: &Row) -> Self {
        let text = |column| printable(row.get(column));
        Self { problem: text("problem"), remedy: text("remedy") }
    }
}

impl From<tokio_postgres::Error> for Problem {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::new(describe(&error), remedy(&error))
    }
}
