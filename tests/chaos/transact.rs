//! A writer's transaction and what is known about its outcome, on which the contract depends.

use tokio_postgres::{Client, Error, Row, error::Severity, types::ToSql};

/// The parameters of a statement.
pub(crate) type Args<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The outcome of a transaction, as its client knows it.
pub(crate) enum Outcome<T> {
    Committed(T),
    RolledBack,
    Unknown,
}

/// Runs one statement in a transaction. Before the COMMIT is sent, any failure means a rollback.
/// Whether a COMMIT was carried out is known only from its answer.
pub(crate) async fn in_transaction(db: &mut Client, sql: &str, args: Args<'_>) -> Outcome<Row> {
    let Ok(transaction) = db.transaction().await else {
        return Outcome::RolledBack;
    };
    let Ok(row) = transaction.query_one(sql, args).await else {
        return Outcome::RolledBack;
    };
    match transaction.commit().await {
        Ok(()) => Outcome::Committed(row),
        Err(error) if was_refused(&error) => Outcome::RolledBack,
        Err(_) => Outcome::Unknown,
    }
}

fn was_refused(error: &Error) -> bool {
    let severity = error.as_db_error().and_then(|error| error.parsed_severity());
    severity == Some(Severity::Error)
}
