//! The brakes in moto, a store that keeps every key as it is, as AWS does.

use crate::{
    audit::stage::report_of,
    support::{moto::Moto, *},
};

/// A world in moto, whose fleet has erased a paste, with this many live pastes.
async fn world(moto: &Moto, pastes: usize) -> World {
    let mut world = World::new().await;
    moto.serve(&mut world).await;
    world.bind().await;
    world.erase_one().await;
    for n in 0..pastes {
        world.put(&format!("p{n}"), &format!("b{n}"), Never).await;
    }
    world
}

/// Asserts that a repair is stopped by the brake for this reason and deletes nothing.
async fn assert_braked(world: &World, reason: &str) {
    let before = world.keys().await;
    let report = report_of(&world.audit(&["--repair", "--grace", "0s"]).output().await, 4);
    assert!(report["brake"].to_string().contains(reason), "{report:#}");
    assert_eq!(world.keys().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_not_those_of_the_service_delete_nothing() {
    let moto = Moto::start();
    let second_set = world(&moto, 8).await;
    second_set.run_sql("TRUNCATE pastes, content").await;
    assert_braked(&second_set, "would delete 8 of 8 objects").await;
    let renamed = world(&moto, 8).await;
    renamed.run_sql("CREATE TABLE snippets AS TABLE pastes; TRUNCATE pastes").await;
    assert_braked(&renamed, "would delete 8 of 8 objects").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_of_a_paste_without_a_content_row_stays() {
    let moto = Moto::start();
    let world = world(&moto, 8).await;
    world.run_sql("DELETE FROM content WHERE s3_key = (SELECT max(s3_key) FROM content)").await;
    assert_braked(&world, "1 live paste has no content row").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_objects_of_a_database_whose_prefix_begins_alike_stay() {
    let moto = Moto::start();
    let world = world(&moto, 0).await;
    for n in 0..4 {
        world.upload(&format!("a/{n}"), "orphan").await;
        world.upload(&format!("ab/{n}"), "of another database").await;
    }
    world.run_sql("UPDATE cleanup_fleet SET prefix = 'a'").await;
    let repair = world.audit(&["--repair", "--grace", "0s"]).env("CLEANUP_S3_PREFIX", "a");
    repair.output().await.assert_refused(2, &["s3.prefix \"a\"", "does not end in '/'"]);
    assert_eq!(world.keys().await.len(), 8);
}
