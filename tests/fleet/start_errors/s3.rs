//! An S3 that is unreachable or denies access, missing credentials, and a bucket that does not
//! exist or is not the bound one: each is named, and no bucket is bound.

use super::{BUCKET_PROGRAMS, assert_gives_up, assert_untouched, timed, world};

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_s3_is_named() {
    let world = world().await;
    for (program, args) in BUCKET_PROGRAMS {
        let process = world.program(program).args(args);
        let process = process.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
        assert_gives_up(process, &["S3 is unavailable", &world.bucket, "AWS_ENDPOINT_URL"]).await;
    }
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_that_accepts_but_never_answers_fails_the_start() {
    let world = world().await;
    let unanswering = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let endpoint = format!("http://{}", unanswering.local_addr().expect("address"));
    let run = world.program("cleanup-worker").args(&["run"]).env("AWS_ENDPOINT_URL", &endpoint);
    let ended = timed(run).await.expect("it gives up");
    ended.assert_refused(1, &["S3"]);
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_named_and_not_bound() {
    let world = world().await;
    let run = world.program("cleanup-worker").args(&["run"]).env("S3_BUCKET", "no-such-bucket");
    let words = ["\"no-such-bucket\" does not exist", "S3_BUCKET", "CLEANUP_S3_BUCKET"];
    assert_gives_up(run, &words).await;
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_seed_cannot_create_is_named_with_the_reason() {
    let world = world().await;
    // S3 allows no name of one letter.
    let seed = world.program("cleanupctl").args(&["seed", "--pastes", "1"]).env("S3_BUCKET", "b");
    let words = ["cannot create bucket \"b\"", "InvalidBucketName", "CLEANUP_S3_BUCKET"];
    assert_gives_up(seed, &words).await;
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_access_to_s3_is_reported() {
    let world = world().await;
    for (variable, value) in
        [("AWS_SECRET_ACCESS_KEY", "wrong-wrong"), ("AWS_ACCESS_KEY_ID", "unknown")]
    {
        for (program, args) in BUCKET_PROGRAMS {
            let process = world.program(program).args(args).env(variable, value);
            let words = ["S3 refuses", &world.bucket, "credentials"];
            assert_gives_up(process, &words).await;
        }
    }
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_credentials_are_one_line_that_names_them_and_the_remedy() {
    let world = world().await;
    for (program, args) in BUCKET_PROGRAMS {
        let process = world.program(program).args(args);
        let process = process.without("AWS_ACCESS_KEY_ID").without("AWS_SECRET_ACCESS_KEY");
        let process = process.env("AWS_EC2_METADATA_DISABLED", "true");
        let process = process
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
        let ended = process.output().await;
        let words = ["no AWS credentials found", &world.bucket, "AWS_ACCESS_KEY_ID", "AWS_PROFILE"];
        ended.assert_refused(1, &words);
        let line = ended.stderr();
        for dump in ["dispatch", "provider", "Attempted", "AWS_ENDPOINT_URL"] {
            assert!(!line.contains(dump), "{line}");
        }
    }
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_of_credentials_that_fails_is_reported_as_such() {
    let world = world().await;
    // As on a container platform whose credential service is down.
    let process = world.program("cleanup-worker").args(&["run"]);
    let process = process.without("AWS_ACCESS_KEY_ID").without("AWS_SECRET_ACCESS_KEY");
    let process = process
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .env("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/credentials");
    let ended = process.output().await;
    ended.assert_refused(1, &["cannot load AWS credentials", "AWS_ACCESS_KEY_ID"]);
    assert!(!ended.stderr().contains("AWS_ENDPOINT_URL"), "{}", ended.stderr());
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_bucket_than_the_bound_one_is_refused() {
    let world = world().await;
    let bind = "UPDATE cleanup_fleet SET bucket = 'the-right-one', prefix = ''";
    world.run_sql(bind).await;
    for (program, args) in BUCKET_PROGRAMS {
        let process = world.program(program).args(args);
        assert_gives_up(process, &["\"the-right-one\"", &world.bucket, "--rebind-bucket"]).await;
    }
    world.run_sql("UPDATE cleanup_fleet SET bucket = NULL, prefix = NULL").await;
    assert_untouched(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_prefix_than_the_bound_one_is_refused() {
    let world = world().await;
    world
        .run_sql(&format!("UPDATE cleanup_fleet SET bucket = '{}', prefix = 'a/'", world.bucket))
        .await;
    let run = world.program("cleanup-worker").args(&["run"]).env("CLEANUP_S3_PREFIX", "b/");
    assert_gives_up(run, &["\"a/\"", "\"b/\"", "--rebind-bucket"]).await;
}
