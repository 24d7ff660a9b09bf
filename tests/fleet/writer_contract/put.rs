//! `paste_put`: what it stores, counts and returns.

use tokio_postgres::error::SqlState;

use super::{assert_refused, put, put_result, ref_count, try_put};
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_put_stores_the_paste_and_counts_its_reference() {
    let world = World::new().await;
    assert_eq!(
        put(&world.db, "p", "a", Some("a/1")).await,
        put_result("stored", Some("a/1"), false)
    );
    let stored = "SELECT count(*) FROM pastes p JOIN content c USING (content_hash)
                  WHERE p.short_code = 'p' AND p.deletion_status = 'NOT_EXPIRED'
                    AND p.expires_at - p.created_at = interval '1 hour'
                    AND c.s3_key = 'a/1' AND c.size_bytes = 10 AND c.ref_count = 1";
    assert_eq!(world.count(stored).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_put_does_not_count_twice_and_reports_its_upload_as_unused() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    let retried = put(&world.db, "p", "a", Some("a/2")).await;
    assert_eq!(retried, put_result("duplicate", Some("a/1"), true));
    assert_eq!(ref_count(&world, "a").await, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_under_a_taken_short_code_adds_no_reference() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    let taken = put(&world.db, "p", "b", Some("b/1")).await;
    assert_eq!(taken, put_result("duplicate", Some("a/1"), true));
    assert_eq!((ref_count(&world, "a").await, ref_count(&world, "b").await), (Some(1), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_repeated_with_the_same_key_never_asks_to_drop_the_live_object() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    let repeated = put(&world.db, "p", "a", Some("a/1")).await;
    assert_eq!(repeated, put_result("duplicate", Some("a/1"), false));
    assert_eq!(ref_count(&world, "a").await, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_without_a_key_asks_for_an_upload_and_inserts_nothing() {
    let world = World::new().await;
    assert_eq!(put(&world.db, "p", "a", None).await, put_result("needs_upload", None, false));
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 0);
    assert_eq!(world.count("SELECT count(*) FROM content").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_without_a_key_of_known_content_needs_no_upload() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    assert_eq!(put(&world.db, "q", "a", None).await, put_result("stored", Some("a/1"), false));
    assert_eq!(ref_count(&world, "a").await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_of_known_content_reuses_its_key_and_reports_its_upload_as_unused() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    let shared = put(&world.db, "q", "a", Some("a/2")).await;
    assert_eq!(shared, put_result("stored", Some("a/1"), true));
    assert_eq!(ref_count(&world, "a").await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_puts_of_the_same_new_content_agree_on_one_upload() {
    let world = World::new().await;
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..8 {
        let db = connect(&world.database_url).await;
        writers.spawn(async move {
            let (code, key) = (format!("p{n}"), format!("a/{n}"));
            put(&db, &code, "a", Some(&key)).await
        });
    }
    let results = writers.join_all().await;
    assert!(results.iter().all(|put| put.outcome == "stored" && put.s3_key == results[0].s3_key));
    assert_eq!(results.iter().filter(|put| put.drop_upload).count(), 7);
    assert_eq!(ref_count(&world, "a").await, Some(8));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_key_that_belongs_to_other_content_is_refused() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    let refused = try_put(&world.db, "q", "b", Some("a/1")).await.expect_err("a used key");
    assert_eq!(refused.code(), Some(&SqlState::UNIQUE_VIOLATION));
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 1, "nothing was stored");
    assert_eq!(
        put(&world.db, "q", "b", Some("b/1")).await,
        put_result("stored", Some("b/1"), false)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_arguments_are_refused() {
    let world = World::new().await;
    for arguments in
        ["'', 'h', 'k'", "NULL, 'h', 'k'", "'p', '', 'k'", "'p', NULL, 'k'", "'p', 'h', ''"]
    {
        let put = format!("SELECT * FROM paste_put({arguments}, 1, NULL)");
        assert_refused(&world, &SqlState::INVALID_PARAMETER_VALUE, &put).await;
    }
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 0);
}
