//! Reads columns that the table's owner can alter while a program runs.

use std::error::Error as _;

use tokio_postgres::{Row, types::FromSql};

use crate::printable::printable;

/// A column has changed since the program started.
#[derive(thiserror::Error, Debug)]
#[error(
    "{column} cannot be read: {reason}; it was altered while this program was running; run \
     `cleanupctl doctor`"
)]
pub struct Unreadable {
    column: String,
    reason: String,
}

/// Reads a value, where [`Row::get`] would panic on another type or on NULL.
pub fn read<'a, T: FromSql<'a>>(row: &'a Row, table: &str, name: &str) -> Result<T, Unreadable> {
    row.try_get(name).map_err(|error| Unreadable {
        column: format!("{table}.{name}"),
        reason: error.source().map_or(error.to_string(), |cause| printable(&cause.to_string())),
    })
}
