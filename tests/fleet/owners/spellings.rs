//! Stores that normalise keys: SeaweedFS, the store of these tests, treats `a//b` as `a/b`.

use super::*;
use crate::support::*;

/// Stores a paste whose object has this key.
async fn put_under(world: &World, code: &str, body: &str, key: &str, expires: Expires) {
    world.upload(key, body).await;
    world.put_row(code, &hash(body), Some(key), body.len(), expires).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_key_does_not_delete_live_content_under_another_spelling_of_it() {
    for (expired, live) in [("a//b", "a/b"), ("a/b", "a//b"), ("/c/d", "c/d"), ("/e/f", "e//f")] {
        let world = World::new().await;
        put_under(&world, "expired", "the old", expired, Ago(60.0)).await;
        put_under(&world, "live", "the new", live, Never).await;
        world.put("plain", "plain", Ago(60.0)).await;
        let ended = run(&world).await;
        assert_eq!(ended.code(), 1, "{expired}: {}", ended.stderr());
        assert!(ended.stderr().contains("is kept while other content uses"), "{}", ended.stderr());
        assert_eq!(world.read("live").await.as_deref(), Some("the new"), "{expired} {live}");
        assert_eq!(world.count(LEFT).await, 2, "the plain one is deleted");
        assert_eq!((world.count(ATTEMPTS).await, world.count(WRONG_COUNTS).await), (0, 0));
        // Once the other one has expired, too, both are deleted.
        world.run_sql("UPDATE pastes SET expires_at = now() WHERE short_code = 'live'").await;
        world.run_sql("UPDATE pastes SET retry_at = NULL").await;
        assert_eq!(run(&world).await.code(), 0);
        assert_eq!((world.count(LEFT).await, world.keys().await), (0, Vec::new()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_object_delete_spares_live_content_under_another_spelling() {
    let world = World::new().await;
    put_under(&world, "live", "the new", "x/y", Never).await;
    world.put("pending", "gone", Ago(60.0)).await;
    world
        .run_sql(
            "DELETE FROM content WHERE s3_key <> 'x/y';
             UPDATE pastes SET content_hash = NULL, pending_s3_key = 'x//y' WHERE short_code = 'pending'",
        )
        .await;
    let ended = run(&world).await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!(world.read("live").await.as_deref(), Some("the new"));
    let kept = "SELECT count(*) FROM pastes WHERE pending_s3_key = 'x//y' AND attempts = 0";
    assert_eq!(world.count(kept).await, 1, "its delete stays pending");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_expired_spellings_of_one_object_do_not_wait_for_each_other() {
    let world = World::new().await;
    put_under(&world, "one", "the old", "a//b", Ago(60.0)).await;
    put_under(&world, "two", "the new", "a/b", Ago(60.0)).await;
    // With different attempts they are never in one batch.
    world.run_sql("UPDATE pastes SET attempts = 1 WHERE short_code = 'two'").await;
    run(&world).await;
    world.run_sql("UPDATE pastes SET retry_at = NULL").await;
    assert_eq!(run(&world).await.code(), 0);
    assert_eq!((world.count(LEFT).await, world.keys().await), (0, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_spelling_of_a_key_has_one_canonical_form() {
    let world = World::new().await;
    for (key, canonical) in [
        ("a/b", "a/b"),
        ("/lead/1", "lead/1"),
        ("a//b", "a/b"),
        ("back\\slash", "back/slash"),
        ("a/./b/", "a/b"),
        ("a/../b", "b"),
        ("../b", "b"),
        ("e\u{301}", "\u{e9}"),
        ("..a/...", "..a/..."),
    ] {
        let row = world.db.query_one("SELECT cleanup_canonical_key($1)", &[&key]).await;
        assert_eq!(row.expect("form").get::<_, String>(0), canonical, "{key}");
    }
}
