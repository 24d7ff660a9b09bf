//! Faults made by hand, as a night brings them: each is named with its remedy, by `cleanupctl
//! doctor` or, where it is one paste's, by `cleanupctl explain`. Where the remedy is a command, it
//! is carried out, and helps.

use std::time::Duration;

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    findings::{Findings, diagnose, diagnose_with},
    guarded::{Guarded, READER},
    memory_s3::MemoryS3,
    process::Ended,
    proxy::Proxy,
    *,
};

/// Older than any grace period.
const DAYS: Duration = Duration::from_secs(3 * 86_400);

async fn doctor(world: &World) -> Findings {
    diagnose(world.program("cleanupctl")).await
}

/// The inconsistencies that `explain` prints for a paste.
async fn wrong(world: &World, short_code: &str) -> String {
    let args = ["explain", short_code, "--format", "json"];
    let explained = world.program("cleanupctl").args(&args).output().await.json();
    let wrong = explained["wrong"].as_array().expect("a list").iter();
    wrong.map(|wrong| wrong.as_str().expect("text")).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn assert_says(text: &str, words: &[&str]) {
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text:?}"));
}

#[track_caller]
fn assert_done(ended: &Ended) {
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_not_migrated_is_a_failure_with_the_command() {
    let world = World::new().await;
    let (url, _empty) = empty_database().await;
    let program = || world.program("cleanupctl").env("DATABASE_URL", &url);
    let findings = diagnose(program()).await;
    let needing = [
        "rights",
        "indexes",
        "blockers",
        "owner triggers",
        "tables",
        "content rows",
        "times",
        "bucket binding",
        "objects",
        "pause",
        "claims",
        "dead letters",
        "unclaimable",
    ];
    findings.assert_only(1, &[&["schema", "durability"][..], &needing].concat());
    findings.assert_says("schema", "failure", &["not prepared", "run `cleanupctl migrate`"]);
    for check in needing {
        findings.assert_says(check, "left_out", &["schema"]);
    }
    assert_done(&program().args(&["migrate"]).output().await);
    diagnose(program()).await.assert_only(0, &["durability"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_index_is_a_failure_until_migrate_has_rebuilt_it() {
    let world = World::new().await;
    world.run_sql("DROP INDEX pastes_due_idx").await;
    let findings = doctor(&world).await;
    findings.assert_only(1, &["durability", "indexes"]);
    findings.assert_says("indexes", "failure", &["pastes_due_idx", "run `cleanupctl migrate`"]);
    let migrated = world.program("cleanupctl").args(&["migrate"]).output().await;
    assert!(migrated.stdout().contains("pastes_due_idx"), "{}", migrated.stdout());
    doctor(&world).await.assert_says("indexes", "ok", &["valid"]);
}

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

#[tokio::test(flavor = "multi_thread")]
async fn a_long_transaction_is_named_with_the_statement_that_ends_it() {
    let world = World::new().await;
    let mut forgotten = connect(&world.database_url).await;
    forgotten.batch_execute("SET application_name = 'pg_dump'").await.expect("name");
    let open = forgotten.transaction().await.expect("begin");
    let pid: i32 = open.query_one("SELECT pg_backend_pid()", &[]).await.expect("pid").get(0);
    let old = format!(
        "SELECT now() - xact_start > interval '1 s' FROM pg_stat_activity WHERE pid = {pid}"
    );
    world.until("it is open for a second", &old).await;
    doctor(&world).await.assert_says("transactions", "ok", &["none"]);
    let strict = || diagnose_with(world.program("cleanupctl"), &["--long-transaction", "1s"]);
    let end_it = format!("SELECT pg_terminate_backend({pid})");
    let who = format!("pid {pid} (pg_dump)");
    strict().await.assert_says("transactions", "warning", &[&who, "vacuum", &end_it]);
    world.run_sql(&end_it).await;
    let gone = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}");
    world.until("it is gone", &gone).await;
    strict().await.assert_says("transactions", "ok", &["none"]);
}

/// Kills a worker while S3 deletes its objects, and returns the open claim.
async fn kill_a_worker(world: &World) -> i64 {
    world.put("held", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(world, Mode::Holding).await;
    let run = world.program("cleanup-worker").args(&["run"]).env("AWS_ENDPOINT_URL", &s3.url);
    let worker = run.start();
    s3.called(1).await;
    worker.signal(Signal::KILL);
    assert_ne!(worker.end().await.code(), 0);
    world.count("SELECT id FROM deletion_claims").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_just_killed_is_named_with_its_claim_and_what_resets_it_now() {
    let world = World::new().await;
    kill_a_worker(&world).await;
    doctor(&world).await.assert_says("claims", "ok", &["sends heartbeats"]);
    world.expire_leases(40.0).await;
    let worker = world.text("SELECT worker::text FROM deletion_claims").await.expect("a worker");
    let findings = doctor(&world).await;
    findings.assert_only(0, &["durability", "claims"]);
    let reset = format!("`cleanupctl reset --worker {worker}`");
    let words = [&*worker, "no heartbeat for", "1 paste\"", "can be reset in 1h 5", &reset];
    findings.assert_says("claims", "warning", &words);
    let done = world.program("cleanupctl").args(&["reset", "--worker", &worker]).output().await;
    assert_done(&done);
    doctor(&world).await.assert_only(0, &["durability"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_without_a_watchdog_is_named_with_the_sweep_to_run() {
    let world = World::new().await;
    kill_a_worker(&world).await;
    world.expire_leases(2.0 * 3600.0 + 61.0).await;
    let words = ["no heartbeat for 2h", "start cleanup-watchdog", "`cleanup-watchdog --once`"];
    doctor(&world).await.assert_says("claims", "warning", &words);
    assert_done(&world.program("cleanup-watchdog").args(&["--once"]).output().await);
    doctor(&world).await.assert_only(0, &["durability"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_a_warning_with_its_error_and_the_command() {
    let world = World::new().await;
    let key = world.put("locked", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Refusing { text: key, code: "ObjectLocked" }).await;
    let run = world.program("cleanup-worker").args(&["run"]).env("AWS_ENDPOINT_URL", &s3.url);
    let ended = run.env("CLEANUP_WORKER_MAX_ATTEMPTS", "1").output().await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    let findings = doctor(&world).await;
    findings.assert_only(0, &["durability", "dead letters"]);
    let words = [
        "1 paste failed permanently",
        "locked",
        "ObjectLocked",
        "`cleanupctl dead-letters`",
        "requeue --all",
    ];
    findings.assert_says("dead letters", "warning", &words);
    let again = world.program("cleanupctl").args(&["requeue", "--all"]).output().await;
    assert_done(&again);
    doctor(&world).await.assert_says("dead letters", "ok", &["none"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_fleet_is_a_warning_with_the_reason_until_it_is_resumed() {
    let world = World::new().await;
    let pause = ["pause", "--reason", "a move, ask Ada"];
    assert_done(&world.program("cleanupctl").args(&pause).output().await);
    let findings = doctor(&world).await;
    findings.assert_only(0, &["durability", "pause"]);
    findings.assert_says("pause", "warning", &["paused", "a move, ask Ada", "`cleanupctl resume`"]);
    assert_done(&world.program("cleanupctl").args(&["resume"]).output().await);
    doctor(&world).await.assert_says("pause", "ok", &["not paused"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_constraint_that_blocks_the_cleanup_is_a_failure_until_it_is_removed() {
    let world = World::new().await;
    world.run_sql("ALTER TABLE pastes ALTER content_hash SET NOT NULL").await;
    let findings = doctor(&world).await;
    findings.assert_only(1, &["durability", "blockers"]);
    let words = ["NOT NULL on pastes.content_hash", "cleanupctl migrate --remove-blockers"];
    findings.assert_says("blockers", "failure", &words);
    let removed = world.program("cleanupctl").args(&["migrate", "--remove-blockers"]);
    assert_done(&removed.output().await);
    doctor(&world).await.assert_says("blockers", "ok", &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_could_not_start_is_recorded_with_its_reason() {
    let world = World::new().await;
    let worker = world.program("cleanup-worker").args(&["run"]).env("S3_BUCKET", "no-such-bucket");
    assert_eq!(worker.output().await.code(), 1);
    let status = world.program("cleanupctl").args(&["status"]).output().await.stdout();
    assert_says(&status, &["failed", "does not exist; create it", "cleanupctl doctor"]);
    let counted = "SELECT count(*) FROM cleanup_runs
                   WHERE stats @> '{\"runs.failed\": 1, \"s3_errors.denied\": 1}'";
    assert_eq!(world.count(counted).await, 1);
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
