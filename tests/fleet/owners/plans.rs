//! The work of every statement of a batch grows with its rows, whatever the planner's statistics.

use crate::support::{
    work::{Statistics, fill, measure},
    *,
};

const ROWS: u64 = 500;

async fn assert_no_statement_is_quadratic(statistics: Statistics) {
    assert_no_statement_is_quadratic_after("", statistics).await;
}

async fn assert_no_statement_is_quadratic_after(change: &str, statistics: Statistics) {
    let (small, large) = (World::new().await, World::new().await);
    small.run_sql(change).await;
    large.run_sql(change).await;
    fill(&small.db, ROWS, statistics).await.expect("fill");
    fill(&large.db, 4 * ROWS, statistics).await.expect("fill");
    let small = measure(&small.db).await.expect("measure");
    let large = measure(&large.db).await.expect("measure");
    let quadratic: Vec<String> = small
        .into_iter()
        .zip(large)
        .filter(|((_, few), (_, many))| few.grew_too_much(*many))
        .map(|((name, few), (_, many))| format!("{name}: {few:?}, then {many:?}"))
        .collect();
    assert_eq!(quadratic, Vec::<String>::new(), "{statistics:?} statistics");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_of_a_batch_is_quadratic_on_fresh_statistics() {
    assert_no_statement_is_quadratic(Statistics::Fresh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_of_a_batch_is_quadratic_without_statistics() {
    assert_no_statement_is_quadratic(Statistics::Missing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_of_a_batch_is_quadratic_on_stale_statistics() {
    assert_no_statement_is_quadratic(Statistics::Stale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_of_a_batch_is_quadratic_when_short_codes_have_a_collation_of_their_own() {
    let collation = "DROP TRIGGER pastes_guard ON pastes;
                     ALTER TABLE pastes ALTER short_code TYPE text COLLATE \"C\"";
    assert_no_statement_is_quadratic_after(collation, Statistics::Fresh).await;
}
