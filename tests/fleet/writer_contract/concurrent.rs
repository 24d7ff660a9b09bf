//! A put and a decrement of the same content at the same time, in either order.

use std::sync::Arc;

use paste_cleanup::worker::report::PhaseTimes;
use tokio::sync::oneshot;

use super::{put, put_result, until_it_waits};
use crate::support::*;

/// Makes deletions of content rows wait until the returned sender is used. This stops a decrement
/// when it is about to delete unreferenced content and has not committed.
async fn hold_content_deletes(world: &World) -> oneshot::Sender<()> {
    world
        .run_sql(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
             BEGIN PERFORM pg_advisory_xact_lock(1); RETURN OLD; END $$;
             CREATE TRIGGER hold BEFORE DELETE ON content FOR EACH ROW EXECUTE FUNCTION hold()",
        )
        .await;
    let holder = connect(&world.database_url).await;
    holder.batch_execute("SELECT pg_advisory_lock(1)").await.expect("hold");
    let (let_go, released) = oneshot::channel();
    tokio::spawn(async move {
        let _ = released.await;
        holder.batch_execute("SELECT pg_advisory_unlock(1)").await.expect("let go");
    });
    let_go
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_waited_for_the_delete_of_its_content_stores_it_again_and_keeps_it() {
    let world = World::new().await;
    let old_key = world.put("old", "body", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    let let_go = hold_content_deletes(&world).await;
    let decrementing = tokio::spawn({
        let (worker, claim) = (Arc::clone(&worker), claim.clone());
        async move { worker.decrement(&claim).await.expect("decrement") }
    });
    let held = "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    world.until("the decrement is about to delete the content", held).await;
    world.upload("fresh", "body").await;
    let putting =
        until_it_waits(&world, |db| async move { put(&db, "new", "body", Some("fresh")).await });
    let putting = putting.await;
    let_go.send(()).expect("let go");
    let decremented = decrementing.await.expect("decrement");
    assert_eq!(putting.await.expect("put"), put_result("stored", Some("fresh"), false));
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete objects");
    worker.finish(&claim, &objects, &PhaseTimes::default()).await.expect("finish");
    assert_eq!(world.object(&old_key).await, None, "the old object is gone");
    assert_eq!(world.read("new").await.as_deref(), Some("body"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_that_waited_for_a_put_keeps_the_content() {
    let world = World::new().await;
    let key = world.put("old", "body", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    let writing = connect(&world.database_url).await;
    writing.batch_execute("BEGIN").await.expect("begin");
    assert_eq!(put(&writing, "new", "body", None).await, put_result("stored", Some(&key), false));
    let decrementing = tokio::spawn({
        let (worker, claim) = (Arc::clone(&worker), claim.clone());
        async move { worker.decrement(&claim).await.expect("decrement") }
    });
    world.when_a_worker_waits(&writing, "COMMIT").await;
    let decremented = decrementing.await.expect("decrement");
    assert_eq!((decremented.unreferenced.len(), decremented.drift), (0, 0));
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete objects");
    worker.finish(&claim, &objects, &PhaseTimes::default()).await.expect("finish");
    assert_eq!(world.read("new").await.as_deref(), Some("body"));
    world.assert_drained().await;
}
