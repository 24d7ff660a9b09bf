//! A database belongs to one bucket, until `cleanupctl migrate --rebind-bucket` binds it to
//! another.

use super::run_worker;
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn another_bucket_is_refused_until_the_database_is_bound_to_it() {
    let world = World::new().await;
    world.put("first", "a", Ago(60.0)).await;
    run_worker(&world).await;
    let moved = format!("{}-moved", world.bucket);
    world.s3.create_bucket().bucket(&moved).send().await.expect("create bucket");
    world.put("second", "b", Ago(60.0)).await;
    let run = || world.program("cleanup-worker").args(&["run"]).env("S3_BUCKET", &moved);
    run().output().await.assert_refused(1, &[&world.bucket, &moved, "migrate --rebind-bucket"]);
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 1, "nothing claimed");

    let rebind = ["migrate", "--rebind-bucket"];
    let rebound = world.program("cleanupctl").args(&rebind).env("S3_BUCKET", &moved).output().await;
    assert_eq!(rebound.code(), 0, "{}", rebound.stderr());
    assert_eq!(run().output().await.code(), 0);
    let old = world.program("cleanup-worker").args(&["run"]).output().await;
    old.assert_refused(1, &[&world.bucket, &moved]);
}
