//! A writer's transaction, and what is known of its outcome: the contract turns on it.

use tokio_postgres::{Client, Error, Row, error::Severity, types::ToSql};

/// The parameters of a statement.
pub type Args<'a> = &'a [&'a (dyn ToSql + Sync)];

/// What became of a transaction.
pub enum Told<T> {
    Committed(T),
    RolledBack,
    Unknown,
}

/// What was not asked to commit is rolled back, whatever became of the connection. Whether a
/// COMMIT was carried out is known only from an answer.
pub async fn in_transaction(db: &mut Client, sql: &str, args: Args<'_>) -> Told<Row> {
    let Ok(transaction) = db.transaction().await else {
        return Told::RolledBack;
    };
    let Ok(row) = transaction.query_one(sql, args).await else {
        return Told::RolledBack;
    };
    match transaction.commit().await {
        Ok(()) => Told::Committed(row),
        Err(error) if was_refused(&error) => Told::RolledBack,
        Err(_) => Told::Unknown,
    }
}

fn was_refused(error: &Error) -> bool {
    let severity = error.as_db_error().and_then(|error| error.parsed_severity());
    severity == Some(Severity::Error)
}
