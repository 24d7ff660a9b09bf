//! Finding the bad rows of a batch: halves under savepoints, inside the one transaction. Splitting
//! across transactions would break the claim's all-or-nothing marker.

use std::pin::Pin;

use deadpool_postgres::Transaction;

use super::settle::TryError;
use crate::postgres::{describe, is_row_fault};

/// A write to some units of a batch, on its way.
pub(super) type Writing<'a> =
    Pin<Box<dyn Future<Output = Result<u64, tokio_postgres::Error>> + Send + 'a>>;

/// Applies a write to all units but those whose own fault makes it fail; returns these, each with
/// its error.
pub(super) async fn apply_to_good<T: Clone>(
    transaction: &mut Transaction<'_>,
    units: &[T],
    write: impl for<'a> Fn(&'a Transaction<'_>, &'a [T]) -> Writing<'a>,
) -> Result<(u64, Vec<(T, String)>), TryError> {
    // A deferred constraint would speak up only at COMMIT, when it is too late to tell who it was.
    transaction.batch_execute("SET CONSTRAINTS ALL IMMEDIATE").await?;
    let (mut written, mut bad) = (0, Vec::new());
    let mut parts = vec![units];
    while let Some(part) = parts.pop() {
        let savepoint = transaction.savepoint("part").await?;
        match write(&savepoint, part).await {
            Ok(rows) => {
                savepoint.commit().await?;
                written += rows;
            }
            Err(error) if is_row_fault(&error) => {
                savepoint.rollback().await?;
                match part {
                    [one] => bad.push((one.clone(), describe(&error))),
                    many => parts.extend(many.chunks(many.len().div_ceil(2))),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((written, bad))
}
