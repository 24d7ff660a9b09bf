//! An adopted `content.created_at` may be NULL.

use super::*;
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn content_without_created_at_is_decremented_like_any_other() {
    let world = World::new().await;
    world.put_many(60, 30).await;
    world
        .run_sql(
            "ALTER TABLE content ALTER created_at DROP NOT NULL;
             UPDATE content SET created_at = NULL",
        )
        .await;
    let ended = run(&world).await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(
        (&ended.json()["rows_deleted"], &ended.json()["rows_failed"]),
        (&60.into(), &0.into())
    );
    world.assert_drained().await;
}
