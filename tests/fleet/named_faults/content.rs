//! Faults between the tables and the bucket: a wrong count, a missing object, an orphan.

use std::time::Duration;

use super::{assert_done, assert_says};
use crate::support::{findings::diagnose, memory_s3::MemoryS3, *};

/// Older than any grace period.
const DAYS: Duration = Duration::from_secs(3 * 86_400);

/// The inconsistencies that `explain` prints for a paste.
async fn wrong(world: &World, short_code: &str) -> String {
    let args = ["explain", short_code, "--format", "json"];
    let explained = world.program("cleanupctl").args(&args).output().await.json();
    let wrong = explained["wrong"].as_array().expect("a list").iter();
    wrong.map(|wrong| wrong.as_str().expect("text")).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drifted_count_is_named_with_what_corrects_it() {
    let world = World::new().await;
    world.put("one", "shared", In(60.0)).await;
    world.put("two", "shared", In(60.0)).await;
    assert_eq!(wrong(&world, "one").await, "");
    world.run_sql("UPDATE content SET ref_count = 5").await;
    let high = [
        "drift",
        "ref_count is 5",
        "2 references",
        "never be deleted: `cleanupctl audit --repair`",
    ];
    assert_says(&wrong(&world, "one").await, &high);
    world.run_sql("UPDATE content SET ref_count = 1").await;
    assert_says(&wrong(&world, "one").await, &["ref_count is 1", "recounts it"]);
    world.run_sql("DELETE FROM content").await;
    assert_says(&wrong(&world, "one").await, &["drift", "content row does not exist"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_object_is_named_with_its_key_and_both_remedies() {
    let world = World::new().await;
    let key = world.put("it's", "a", In(3600.0)).await;
    world.s3.delete_object().bucket(&world.bucket).key(&key).send().await.expect("lose it");
    let text = wrong(&world, "it's").await;
    let give_up = "SELECT paste_expire_now('it''s')";
    assert_says(&text, &["its object is missing", &key, "from a backup", give_up]);
    world.upload(&key, "a").await;
    assert_eq!(wrong(&world, "it's").await, "", "restored");
    world.s3.delete_object().bucket(&world.bucket).key(&key).send().await.expect("lose it");
    world.run_sql(give_up).await;
    assert_says(
        &wrong(&world, "it's").await,
        &["its object is missing", "nothing to do: the next run"],
    );
    assert_done(&world.program("cleanup-worker").args(&["run"]).output().await);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_and_a_content_row_without_its_object_are_found_by_the_doctor() {
    let world = World::new().await;
    let store = MemoryS3::start().await;
    world.put_row("live", &hash("a"), Some("k/live"), 1, Never).await;
    store.put("k/live", 1, DAYS);
    // In a database where no paste was ever erased, doctor does not recommend a repair.
    world.put_row("gone", &hash("b"), Some("k/gone"), 1, Ago(60.0)).await;
    let program = || world.program("cleanupctl").env("AWS_ENDPOINT_URL", &store.url);
    let bind = world.program("cleanup-worker").env("AWS_ENDPOINT_URL", &store.url);
    assert_done(&bind.args(&["run"]).output().await);
    let nothing = ["nothing wrong in a sample of 1 object and 1 content row"];
    diagnose(program()).await.assert_says("objects", "ok", &nothing);
    store.put("k/orphan", 1, DAYS);
    store.put("k/just uploaded", 1, Duration::ZERO);
    let remedy = ["`cleanupctl audit`", "`cleanupctl audit --repair`"];
    let found = diagnose(program()).await;
    found.assert_says("objects", "warning", &["1 orphan\"", remedy[0], remedy[1]]);
    assert_done(&program().args(&["audit", "--repair"]).output().await);
    diagnose(program()).await.assert_says("objects", "ok", &[]);
    store.remove("k/live");
    let found = diagnose(program()).await;
    found.assert_says("objects", "warning", &["1 content row without an object", remedy[0]]);
}
