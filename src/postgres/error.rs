//! The errors of Postgres: their types, their words, and what to do about them.

use std::{error::Error as _, time::Duration};

use deadpool_postgres::{PoolError, TimeoutType};
use tokio_postgres::{Error, error::SqlState};

use super::{
    ANSWER_WITHIN, CONNECT_TIMEOUT, Fault, WAIT_TIMEOUT, is_read_only, untried::why_untried,
};
use crate::printable::printable;

/// Why Postgres did not do what it was asked to do.
#[derive(thiserror::Error, Debug)]
pub enum PgError {
    /// The answer of the server, or a broken connection.
    #[error("{}", describe(.0))]
    Backend(Error),
    /// No answer within this time. The statement may have been executed nevertheless.
    #[error("Postgres did not answer within {} s", .0.as_secs_f64())]
    NoAnswer(Duration),
    /// Opening a connection took too long.
    #[error("could not connect to Postgres in time")]
    NotConnected,
    /// Other tasks of this process used all connections of the pool.
    #[error("no free Postgres connection within {} s (postgres.pool_size)", WAIT_TIMEOUT.as_secs())]
    NoFreeConnection,
    /// Any other error of the pool, as text.
    #[error("no Postgres connection: {0}")]
    Pool(String),
}

impl PgError {
    /// Returns whether only an operator can remove the cause.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Backend(error) if is_permanent(error))
    }

    /// Returns whether single rows may be the cause.
    pub fn may_be_a_row(&self) -> bool {
        matches!(self, Self::Backend(error) if Fault::of(error) != Fault::Transient)
    }
}

impl From<Error> for PgError {
    fn from(error: Error) -> Self {
        Self::Backend(error)
    }
}

impl From<PoolError> for PgError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => Self::Backend(error),
            PoolError::Timeout(TimeoutType::Wait) => Self::NoFreeConnection,
            PoolError::Timeout(TimeoutType::Create) => Self::NotConnected,
            PoolError::Timeout(TimeoutType::Recycle) => Self::NoAnswer(CONNECT_TIMEOUT),
            error => Self::Pool(printable(&error.to_string())),
        }
    }
}

/// Waits for an attempt, up to [`ANSWER_WITHIN`]. Nothing is cancelled on the server: after that time,
/// the answer counts as lost.
pub async fn answered<T, E: From<PgError>>(
    attempt: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match tokio::time::timeout(ANSWER_WITHIN, attempt).await {
        Ok(answer) => answer,
        Err(_) => Err(E::from(PgError::NoAnswer(ANSWER_WITHIN))),
    }
}

/// Returns what to do about an error.
pub fn remedy(error: &Error) -> &str {
    match error.code() {
        None if why_untried(error).is_some() => why_untried(error).map_or("", |why| &why.remedy),
        _ if is_read_only(error) => {
            "it is a standby or was made read-only: name the primary, too, in DATABASE_URL or \
             CLEANUP_POSTGRES_URL (which may list several hosts), or switch \
             default_transaction_read_only off"
        }
        _ if is_row_security(error) => {
            "row-level security hides rows from this login: give it BYPASSRLS or a policy that \
             shows all rows"
        }
        Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
            "check user and password: in DATABASE_URL or CLEANUP_POSTGRES_URL or its file, \
             postgres.password_command, PGPASSWORD or PGPASSFILE"
        }
        Some(&SqlState::UNDEFINED_OBJECT) if is_unknown_setting(error) => {
            "upgrade it to Postgres 15 or newer, or correct the options in DATABASE_URL or \
             CLEANUP_POSTGRES_URL"
        }
        Some(&SqlState::INVALID_CATALOG_NAME) => "create the database, or correct its name",
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            "grant cleanup_worker, cleanup_watchdog or cleanup_auditor to this login (`cleanupctl \
             migrate --roles` creates these roles)"
        }
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN) => {
            "run `cleanupctl migrate`; `cleanupctl doctor` lists what is missing"
        }
        Some(&SqlState::TOO_MANY_CONNECTIONS) => "raise max_connections, or run fewer workers",
        Some(_) => "see the server's log",
        None => {
            "check that it runs, and that DATABASE_URL or CLEANUP_POSTGRES_URL is correct, with a password \
             if it needs one"
        }
    }
}

/// Returns an error with its cause, on one line. `tokio_postgres` itself prints just "db error".
pub fn describe(error: &Error) -> String {
    if let Some(db) = error.as_db_error() {
        let place = db.where_().and_then(function).map(|name| format!(" in the function {name}"));
        let place = place.unwrap_or_default();
        return format!("{} (SQLSTATE {}){place}", printable(db.message()), db.code().code());
    }
    if let Some(why) = why_untried(error) {
        return why.problem.clone();
    }
    match error.source() {
        Some(cause) => printable(&format!("{error}: {cause}")),
        None => error.to_string(),
    }
}

/// Returns the innermost function that raised an error, for example a trigger's: "relation content does
/// not exist" has another cause there than in a statement of the fleet.
fn function(context: &str) -> Option<String> {
    let (_, rest) = context.split_once("PL/pgSQL function ")?;
    rest.split_once(" line ").map(|(name, _)| printable(name))
}

/// The server does not know a setting that the session was to be started with.
fn is_unknown_setting(error: &Error) -> bool {
    // By the routine that raises it: the message may be translated.
    let routine = error.as_db_error().and_then(|refusal| refusal.routine());
    matches!(routine, Some("find_option" | "set_config_option"))
}

/// Returns whether Postgres refused a query because a policy would have hidden rows.
pub fn is_row_security(error: &Error) -> bool {
    // By the routine that raises it: the message may be translated.
    error.as_db_error().is_some_and(|refusal| {
        refusal.code() == &SqlState::INSUFFICIENT_PRIVILEGE
            && refusal.routine() == Some("check_enable_rls")
    })
}

/// Returns whether an error is permanent: SQLSTATE class 42, a missing privilege, table or column, needs
/// an operator.
pub fn is_permanent(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("42"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_of_the_pool_prints_the_words_of_the_pool() {
        let waited = |what| PgError::from(PoolError::Timeout(what)).to_string();
        assert_eq!(waited(TimeoutType::Recycle), "Postgres did not answer within 5 s");
        assert_eq!(waited(TimeoutType::Create), "could not connect to Postgres in time");
        assert!(waited(TimeoutType::Wait).starts_with("no free Postgres connection within 30 s"));
        let no_answer = PgError::NoAnswer(ANSWER_WITHIN);
        assert_eq!(no_answer.to_string(), "Postgres did not answer within 75 s");
        assert!(!no_answer.is_permanent() && !no_answer.may_be_a_row());
    }
}
