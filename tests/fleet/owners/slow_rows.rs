//! Rows whose triggers take long: together they exceed the statement timeout, and each of them exceeds
//! the shorter timeout of a search for bad rows.

use std::time::Duration;

use deadpool_postgres::Transaction;
use paste_cleanup::postgres::bisect::{Blame, Limits, Write, Writing, apply_to_good};

use crate::support::*;

/// Writes each row in 200 ms.
struct Slowly;

impl Write<i32> for Slowly {
    fn write<'a>(&'a self, transaction: &'a Transaction<'_>, part: &'a [i32]) -> Writing<'a> {
        Box::pin(async move {
            Ok(transaction.execute("SELECT pg_sleep(0.2) FROM unnest($1::int[])", &[&part]).await?)
        })
    }

    fn limits(&self) -> Limits {
        Limits {
            part: Duration::from_millis(50),
            search: Duration::from_millis(200),
            alone: Duration::from_secs(5),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_every_try_fewer_slow_rows_are_left() {
    let world = World::new().await;
    let mut client = world.watchdog_pool().get().await.expect("connection");
    let mut left: Vec<i32> = (1..=12).collect();
    while !left.is_empty() {
        let mut transaction = client.transaction().await.expect("begin");
        let tried =
            apply_to_good(&mut transaction, &left, &Blame::default(), |_| true, &Slowly).await;
        let applied = tried.expect("apply");
        assert_eq!(applied.written as usize + applied.failed.len(), left.len());
        assert!(applied.written > 0, "none of {left:?} is done: {:?}", applied.failed);
        left = applied.failed.into_iter().map(|failed| failed.unit).collect();
        transaction.commit().await.expect("commit");
    }
}
