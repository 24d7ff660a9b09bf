//! Tables that the fleet cannot work with are refused by name, and nothing in them is changed.

use super::{run_worker, schema};
use crate::support::adopted::{EXISTING_TABLES, migrate, migrate_ok, plain_put, world_with};

#[tokio::test(flavor = "multi_thread")]
async fn blockers_are_named_and_removed_only_on_request() {
    let world = world_with(EXISTING_TABLES).await;
    plain_put(&world, "expired", "now() - interval '1 hour'").await;
    world
        .run_sql(
            "ALTER TABLE pastes ALTER content_hash SET NOT NULL,
             ADD CONSTRAINT content_of_paste FOREIGN KEY (content_hash) REFERENCES content",
        )
        .await;
    let before = schema(&world).await;
    let refused = migrate(&world, &[]).await;
    assert_eq!(refused.code(), 1);
    for words in ["content_of_paste", "NOT NULL on pastes.content_hash", "--remove-blockers"] {
        assert!(refused.stderr().contains(words), "{words} is not in: {}", refused.stderr());
    }
    assert_eq!(schema(&world).await, before, "nothing was changed");

    migrate_ok(&world, &["--remove-blockers"]).await;
    assert_eq!(run_worker(&world).await["rows_deleted"], 1);
    world.assert_drained().await;
}

/// Asserts that the migration refuses these tables with these words, and changes nothing.
async fn assert_refused(change: &str, words: &[&str]) {
    let world = world_with(EXISTING_TABLES).await;
    world.run_sql(change).await;
    let before = schema(&world).await;
    for flags in [&[][..], &["--remove-blockers"]] {
        let refused = migrate(&world, flags).await;
        assert_eq!(refused.code(), 1, "{}", refused.stderr());
        for word in words {
            assert!(refused.stderr().contains(word), "{word} is not in: {}", refused.stderr());
        }
        assert_eq!(schema(&world).await, before, "nothing was changed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_of_the_wrong_type_is_refused_by_name() {
    let to_text = "ALTER TABLE pastes ALTER content_hash TYPE text";
    assert_refused(to_text, &["pastes.content_hash is text", "bytea is needed"]).await;
    let to_local = "ALTER TABLE pastes ALTER expires_at TYPE timestamp";
    assert_refused(to_local, &["pastes.expires_at is timestamp without time zone"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_essential_column_is_refused_by_name() {
    let drop = "ALTER TABLE content DROP s3_key";
    assert_refused(drop, &["content.s3_key is missing"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_counts_are_refused_with_their_number() {
    let negative = "INSERT INTO content VALUES ('a', 'a', 1, -1), ('b', 'b', 1, -2)";
    assert_refused(negative, &["content.ref_count: 2 rows are NULL or negative"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_rows_that_share_one_object_are_refused() {
    let shared = "INSERT INTO content VALUES ('a', 'same', 1, 1), ('b', 'same', 1, 1)";
    assert_refused(shared, &["content.s3_key: 2 rows share their key"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_status_is_refused() {
    let unknown = "ALTER TABLE pastes DROP CONSTRAINT pastes_deletion_status_check;
                   INSERT INTO pastes VALUES ('p', 'a', now(), now(), 'ARCHIVED')";
    assert_refused(unknown, &["pastes.deletion_status: 1 rows have an unknown status"]).await;
}
