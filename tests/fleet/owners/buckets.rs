//! Buckets with versioning, object lock or another region: `cleanupctl doctor` reports what really
//! happens to a deleted object there, and no wrong cause.

use aws_sdk_s3::types::{
    BucketVersioningStatus, DefaultRetention, ObjectLockConfiguration, ObjectLockEnabled,
    ObjectLockRetentionMode, ObjectLockRule, VersioningConfiguration,
};

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    findings::{Findings, diagnose},
    moto::Moto,
    process::Ended,
    *,
};

async fn doctor(world: &World, endpoint: &str) -> Findings {
    diagnose(world.program("cleanupctl").env("AWS_ENDPOINT_URL", endpoint)).await
}

async fn run(world: &World, endpoint: &str) -> Ended {
    let run = world.program("cleanup-worker").args(&["run"]);
    run.env("AWS_ENDPOINT_URL", endpoint).output().await
}

async fn set_versioning(world: &World, status: BucketVersioningStatus) {
    let versioning = VersioningConfiguration::builder().status(status).build();
    let put = world.s3.put_bucket_versioning().bucket(&world.bucket);
    put.versioning_configuration(versioning).send().await.expect("versioning");
}

/// Versions and delete markers of a key.
async fn versions(world: &World, key: &str) -> (usize, usize) {
    let list = world.s3.list_object_versions().bucket(&world.bucket).prefix(key);
    let list = list.send().await.expect("list");
    (list.versions().len(), list.delete_markers().len())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_from_before_versioning_was_suspended_stays_and_doctor_reports_it() {
    let world = World::new().await;
    let endpoint = env("S3_ENDPOINT");
    set_versioning(&world, BucketVersioningStatus::Enabled).await;
    let key = world.put("due", "a", Ago(60.0)).await;
    set_versioning(&world, BucketVersioningStatus::Suspended).await;
    let ran = run(&world, &endpoint).await;
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    assert_eq!((world.keys().await.len(), versions(&world, &key).await), (0, (1, 1)));
    let findings = doctor(&world, &endpoint).await;
    findings.assert_only(0, &["durability", "versions"]);
    let words = ["versioning is suspended", "noncurrent version", "lifecycle rule"];
    findings.assert_says("versions", "warning", &words);
}

#[tokio::test(flavor = "multi_thread")]
async fn under_object_lock_a_run_succeeds_the_version_stays_and_doctor_reports_it() {
    let mut world = World::new().await;
    let moto = Moto::start();
    moto.serve(&mut world).await;
    world.bucket = format!("{}-locked", world.bucket);
    let create = world.s3.create_bucket().bucket(&world.bucket);
    create.object_lock_enabled_for_bucket(true).send().await.expect("bucket");
    let retention = DefaultRetention::builder().mode(ObjectLockRetentionMode::Compliance).days(30);
    let lock = ObjectLockConfiguration::builder()
        .object_lock_enabled(ObjectLockEnabled::Enabled)
        .rule(ObjectLockRule::builder().default_retention(retention.build()).build());
    let put = world.s3.put_object_lock_configuration().bucket(&world.bucket);
    put.object_lock_configuration(lock.build()).send().await.expect("object lock");
    let key = world.put("due", "a", Ago(60.0)).await;
    let ran = run(&world, &moto.url).await;
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 0, "no dead letter");
    assert_eq!((world.keys().await.len(), versions(&world, &key).await), (0, (1, 1)));
    let findings = doctor(&world, &moto.url).await;
    findings.assert_only(0, &["durability", "versions"]);
    let words = ["object lock is on", "delete marker", "retention", "lifecycle rule"];
    findings.assert_says("versions", "warning", &words);
    assert!(!findings.of("versions").to_string().contains("dead letters"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_in_another_region_is_reported_with_its_region_and_not_as_bad_credentials() {
    let world = World::new().await;
    world.put("due", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    for (status, code) in [(301, "PermanentRedirect"), (400, "AuthorizationHeaderMalformed")] {
        s3.set_mode(Mode::OtherRegion { status, code, region: "eu-central-1" });
        let findings = doctor(&world, &s3.url).await;
        let words = [&*world.bucket, code, "set AWS_REGION=eu-central-1"];
        findings.assert_says("bucket", "failure", &words);
        assert!(!findings.of("bucket").to_string().contains("credentials"));
        run(&world, &s3.url).await.assert_refused(1, &words);
    }
    // The same code without a region: bad credentials.
    s3.set_mode(Mode::Failing { status: 400, code: "AuthorizationHeaderMalformed" });
    doctor(&world, &s3.url).await.assert_says("bucket", "failure", &["check credentials"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_answered_is_not_reported_as_unreachable() {
    let world = World::new().await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let findings = doctor(&world, &s3.url).await;
    findings.assert_says("bucket", "ok", &[]);
    findings.assert_says("versions", "left_out", &["cannot read the versioning"]);
    assert!(!findings.of("versions").to_string().contains("no answer"), "it answered, in its way");
    s3.set_mode(Mode::Failing { status: 405, code: "" });
    doctor(&world, &s3.url).await.assert_says("versions", "left_out", &["S3 405"]);
    s3.set_mode(Mode::Failing { status: 503, code: "ServiceUnavailable" });
    let findings = doctor(&world, &s3.url).await;
    findings.assert_says("bucket", "failure", &["S3 is unavailable", "S3 503 ServiceUnavailable"]);
    assert!(!findings.0.stdout().contains("not answer"), "{}", findings.0.stdout());
}
