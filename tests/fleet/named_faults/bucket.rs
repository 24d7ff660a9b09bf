//! Faults of the bucket: it does not exist, belongs to another database, denies deletes, or keeps
//! old versions; or S3 is unavailable.

use super::{assert_done, doctor};
use crate::support::{
    findings::diagnose,
    guarded::{Guarded, READER},
    proxy::Proxy,
    *,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_does_not_exist_is_a_failure_that_names_the_setting() {
    let world = World::new().await;
    let findings = diagnose(world.program("cleanupctl").env("S3_BUCKET", "no-such-bucket")).await;
    findings.assert_only(1, &["durability", "bucket", "versions", "objects"]);
    findings.assert_says("bucket", "failure", &["does not exist", "S3_BUCKET"]);
    findings.assert_says("versions", "left_out", &["the bucket does not exist"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_store_is_a_failure_that_names_the_setting() {
    let world = World::new().await;
    let proxy = Proxy::start("127.0.0.1:1").await;
    let away = format!("http://127.0.0.1:{}", proxy.port);
    let findings = diagnose(world.program("cleanupctl").env("AWS_ENDPOINT_URL", &away)).await;
    findings.assert_only(1, &["durability", "bucket", "versions", "objects"]);
    findings.assert_says("bucket", "failure", &["S3 is unavailable", "AWS_ENDPOINT_URL"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_belongs_to_another_database_is_a_failure_that_names_both() {
    let (world, other) = (World::new().await, World::new().await);
    assert_done(&world.program("cleanup-worker").args(&["run"]).output().await);
    let program = || world.program("cleanupctl").env("S3_BUCKET", &other.bucket);
    let findings = diagnose(program()).await;
    findings.assert_only(1, &["durability", "bucket binding", "objects"]);
    let words = [&*world.bucket, &*other.bucket, "correct S3_BUCKET", "--rebind-bucket"];
    findings.assert_says("bucket binding", "failure", &words);
    assert_done(&program().args(&["migrate", "--rebind-bucket"]).output().await);
    diagnose(program()).await.assert_says("bucket binding", "ok", &[&other.bucket]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_delete_is_a_failure_that_names_the_permission() {
    let guarded = Guarded::new().await;
    let findings = diagnose(guarded.program("cleanupctl", READER)).await;
    let words = ["S3 refuses to delete", &guarded.world.bucket, "AccessDenied", "s3:DeleteObject"];
    findings.assert_says("bucket", "failure", &words);
    assert_eq!(findings.0.code(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_versioned_bucket_is_a_warning_that_names_what_is_kept() {
    let world = World::new().await;
    let versioning = aws_sdk_s3::types::VersioningConfiguration::builder()
        .status(aws_sdk_s3::types::BucketVersioningStatus::Enabled)
        .build();
    let put = world.s3.put_bucket_versioning().bucket(&world.bucket);
    put.versioning_configuration(versioning).send().await.expect("versioning");
    let findings = doctor(&world).await;
    findings.assert_only(0, &["durability", "versions"]);
    findings.assert_says("versions", "warning", &["noncurrent", "lifecycle rule"]);
}
