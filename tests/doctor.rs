//! `cleanupctl doctor` on real servers: what is wrong is found, said with its remedy, and nothing
//! that still can be looked at is left out.

mod support;

use serde_json::Value;
use support::{
    postgres::Postgres,
    process::{Ended, Process},
    proxy::{Proxy, address_of},
    servers::free_port,
    *,
};

/// What it said.
struct Findings(Ended);

impl Findings {
    fn of(&self, check: &str) -> Value {
        let all = self.0.json()["findings"].as_array().expect("findings").clone();
        let found = all.into_iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("no {check} in {}", self.0.stdout()))
    }

    /// Checks the verdict of a check, and that its line has these words.
    #[track_caller]
    fn assert_says(&self, check: &str, verdict: &str, words: &[&str]) {
        let finding = self.of(check);
        assert_eq!(finding["verdict"], verdict, "{finding}");
        for word in words {
            assert!(finding.to_string().contains(word), "{word:?} is not in {finding}");
        }
        let excused = matches!(verdict, "ok" | "left_out");
        assert_eq!(finding["remedy"].is_null(), excused, "a remedy for whatever needs one");
    }

    /// All other checks are ok, or these.
    #[track_caller]
    fn assert_only(&self, code: i32, exceptions: &[&str]) {
        assert_eq!((self.0.code(), self.0.stderr()), (code, String::new()));
        for finding in self.0.json()["findings"].as_array().expect("findings") {
            let check = finding["check"].as_str().expect("a name");
            assert_eq!(finding["verdict"] != "ok", exceptions.contains(&check), "{finding}");
        }
    }
}

async fn diagnose(doctor: Process) -> Findings {
    Findings(doctor.args(&["doctor", "--format", "json"]).output().await)
}

/// A healthy server, and a world on it.
async fn healthy() -> (Postgres, World) {
    let server = Postgres::start(&["fsync = on"]).await;
    let world = World::on_server(&server).await;
    (server, world)
}

/// The same with a standby.
async fn with_standby() -> (Postgres, World, Postgres) {
    let (primary, world) = healthy().await;
    let standby = Postgres::standby(primary.port, "standby", &[]).await;
    let follows = "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'";
    world.until("the standby follows", follows).await;
    (primary, world, standby)
}

#[tokio::test(flavor = "multi_thread")]
async fn healthy_surroundings_are_all_ok_before_and_after_the_first_run() {
    let (_server, world) = healthy().await;
    let before = diagnose(world.program("cleanupctl")).await;
    before.assert_only(0, &[]);
    before.assert_says("bucket binding", "ok", &["none yet", &world.bucket]);
    before.assert_says("standbys", "ok", &["none"]);
    world.put("gone", "a", Ago(60.0)).await;
    let ran = world.program("cleanup-worker").args(&["run"]).output().await;
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    let after = diagnose(world.program("cleanupctl")).await;
    after.assert_only(0, &[]);
    after.assert_says("bucket binding", "ok", &["belongs to", &world.bucket]);
}

#[tokio::test(flavor = "multi_thread")]
async fn eyes_get_one_line_per_check() {
    let world = World::new().await;
    let ended = world.program("cleanupctl").args(&["doctor"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let stdout = ended.stdout();
    let lines: Vec<&str> = stdout.lines().collect();
    let checks = diagnose(world.program("cleanupctl")).await.0.json()["findings"].clone();
    assert_eq!(lines.len(), checks.as_array().expect("findings").len() + 1, "{stdout}");
    assert!(lines[0].starts_with("ok        postgres        Postgres at "), "{stdout}");
    assert_eq!(lines.last(), Some(&"failures: 0, warnings: 1"), "{stdout}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_standby_is_a_warning_that_says_what_can_be_lost() {
    let (_primary, world, _standby) = with_standby().await;
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_only(0, &["standbys"]);
    let words = ["1 connected, none", "take back a release", "synchronous_standby_names"];
    findings.assert_says("standbys", "warning", &words);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_standby_is_ok_and_a_failure_once_it_is_gone() {
    let (primary, world, standby) = with_standby().await;
    primary.configure(&["synchronous_standby_names = 'standby'"]).await;
    primary.reload().await;
    let synchronous = "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'";
    world.until("the standby is synchronous", synchronous).await;
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_only(0, &[]);
    findings.assert_says("standbys", "ok", &["1 connected, 1 synchronous"]);
    drop(standby);
    world.until("it is gone", "SELECT count(*) = 0 FROM pg_stat_replication").await;
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_only(1, &["standbys"]);
    findings.assert_says("standbys", "failure", &["\\\"standby\\\"", "every COMMIT waits"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_see_it_all_is_told_so() {
    let (_primary, world, _standby) = with_standby().await;
    let roles = world.program("cleanupctl").args(&["migrate", "--roles"]).output().await;
    assert_eq!(roles.code(), 0, "{}", roles.stderr());
    world.run_sql("CREATE ROLE night LOGIN").await;
    let url = world.database_url.replace("postgres@", "night@");
    let stranger = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    stranger.assert_only(1, &["schema", "indexes", "standbys", "bucket binding"]);
    stranger.assert_says("schema", "failure", &["42501", "grant the role of sql/roles.sql"]);
    world.run_sql("GRANT cleanup_worker TO night").await;
    let blind = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    blind.assert_only(0, &["standbys"]);
    blind.assert_says("standbys", "warning", &["1 connected", "GRANT pg_monitor"]);
    world.run_sql("GRANT pg_monitor TO night").await;
    let seeing = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    seeing.assert_says("standbys", "warning", &["none of them synchronous"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_writes_is_a_failure_and_is_looked_at_all_the_same() {
    let (primary, world, standby) = with_standby().await;
    let caught_up = "SELECT count(*) = 1 FROM pg_stat_replication
                     WHERE replay_lsn >= pg_current_wal_insert_lsn()";
    world.until("the standby has it all", caught_up).await;
    let url = standby.url(&world.name);
    let findings = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    findings.assert_only(1, &["writes", "standbys"]);
    findings.assert_says("writes", "failure", &["a standby", "name the primary"]);
    findings.assert_says("standbys", "left_out", &["only the primary"]);
    let options = "options=-c%20default_transaction_read_only%3Don";
    let url = format!("{}?{options}", primary.url(&world.name));
    let findings = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    findings.assert_says("writes", "failure", &["default_transaction_read_only"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_wait_for_its_disk_is_a_warning() {
    let world = World::new().await;
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_only(0, &["durability"]);
    findings.assert_says("durability", "warning", &["fsync off", "crash of the machine"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_not_migrated_is_a_failure_that_says_how_to() {
    let world = World::new().await;
    let (url, _empty) = empty_database().await;
    let findings = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    findings.assert_only(1, &["schema", "indexes", "durability", "bucket binding"]);
    findings.assert_says("schema", "failure", &["run `cleanupctl migrate`"]);
    findings.assert_says("bucket binding", "left_out", &["schema"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_is_away_leaves_its_checks_out_and_the_others_in() {
    let world = World::new().await;
    let url = format!("postgres://night:secret@127.0.0.1:{}/pastes", free_port());
    let findings = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    let needing = [
        "writes",
        "schema",
        "indexes",
        "autovacuum",
        "transactions",
        "clock",
        "encryption",
        "durability",
        "standbys",
        "bucket binding",
    ];
    findings.assert_only(1, &[&["postgres"][..], &needing].concat());
    findings.assert_says("postgres", "failure", &[&address_of(&url), "check that it runs"]);
    for check in needing {
        findings.of(check)["verdict"].as_str().filter(|said| *said == "left_out").expect(check);
    }
    assert!(!findings.0.stdout().contains("secret"), "{}", findings.0.stdout());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_away_is_a_warning_unless_workers_wait_for_it() {
    let world = World::new().await;
    let url = format!("redis://:secret@127.0.0.1:{}", free_port());
    let doctor = || world.program("cleanupctl").env("REDIS_URL", &url);
    let findings = diagnose(doctor()).await;
    findings.assert_only(0, &["durability", "redis", "redis memory"]);
    findings.assert_says("redis", "warning", &["without their lock", "REDIS_URL"]);
    let findings = diagnose(doctor().env("CLEANUP_LOCK_WHEN_UNAVAILABLE", "wait")).await;
    findings.assert_only(1, &["durability", "redis", "redis memory"]);
    findings.assert_says("redis", "failure", &["workers wait for it"]);
    assert!(!findings.0.stdout().contains("secret"), "{}", findings.0.stdout());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_away_or_does_not_exist_is_a_failure() {
    let world = World::new().await;
    let proxy = Proxy::start("127.0.0.1:1").await;
    let away = format!("http://127.0.0.1:{}", proxy.port);
    let findings = diagnose(world.program("cleanupctl").env("AWS_ENDPOINT_URL", &away)).await;
    findings.assert_only(1, &["durability", "bucket", "versions"]);
    findings.assert_says("bucket", "failure", &["does not answer", "AWS_ENDPOINT_URL"]);
    let findings = diagnose(world.program("cleanupctl").env("S3_BUCKET", "no-such-bucket")).await;
    findings.assert_only(1, &["durability", "bucket", "versions"]);
    findings.assert_says("bucket", "failure", &["does not exist", "S3_BUCKET"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_belongs_to_another_database_is_a_failure() {
    let (world, other) = (World::new().await, World::new().await);
    let ran = world.program("cleanup-worker").args(&["run"]).output().await;
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    let findings = diagnose(world.program("cleanupctl").env("S3_BUCKET", &other.bucket)).await;
    findings.assert_only(1, &["durability", "bucket binding"]);
    let words = [&*world.bucket, &*other.bucket, "--rebind-bucket"];
    findings.assert_says("bucket binding", "failure", &words);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_missing_is_a_failure_until_migrate_has_built_it_again() {
    let world = World::new().await;
    world.run_sql("DROP INDEX pastes_due_idx").await;
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_says("indexes", "failure", &["pastes_due_idx", "cleanupctl migrate"]);
    assert_eq!(findings.0.code(), 1);
    let migrated = world.program("cleanupctl").args(&["migrate"]).output().await;
    assert!(migrated.stdout().contains("pastes_due_idx"), "{}", migrated.stdout());
    diagnose(world.program("cleanupctl")).await.assert_says("indexes", "ok", &["valid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_nobody_vacuums_are_a_warning() {
    let world = World::new().await;
    world.run_sql("ALTER TABLE pastes SET (autovacuum_enabled = false)").await;
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_says("autovacuum", "warning", &["pastes", "RESET"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_is_found_with_whose_it_is() {
    let world = World::new().await;
    let mut forgotten = connect(&world.database_url).await;
    forgotten.batch_execute("SET application_name = 'pg_dump'").await.expect("name");
    let _open = forgotten.transaction().await.expect("begin");
    let look = include_str!("../sql/queries/doctor_transactions.sql");
    let row = world.db.query_one(look, &[&0.0_f64]).await.expect("look");
    assert!(row.get::<_, i64>("open") >= 1);
    assert!(row.get::<_, String>("who").contains("pg_dump"), "{row:?}");
    diagnose(world.program("cleanupctl")).await.assert_says("transactions", "ok", &["none"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_versioned_bucket_is_a_warning_that_says_what_stays() {
    let world = World::new().await;
    let versioning = aws_sdk_s3::types::VersioningConfiguration::builder()
        .status(aws_sdk_s3::types::BucketVersioningStatus::Enabled)
        .build();
    let put = world.s3.put_bucket_versioning().bucket(&world.bucket);
    put.versioning_configuration(versioning).send().await.expect("versioning");
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_says("versions", "warning", &["noncurrent", "lifecycle rule"]);
}
