//! `cleanupctl doctor` on real servers: each problem is found and printed with its remedy, and a failed
//! check leaves out only the checks that depend on it.

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    findings::diagnose,
    postgres::Postgres,
    proxy::address_of,
    servers::free_port,
    *,
};

/// A server without findings, and a world on it.
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
async fn healthy_dependencies_are_all_ok_before_and_after_the_first_run() {
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
    after.assert_says("bucket binding", "ok", &["bound to", &world.bucket]);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_output_has_one_line_per_check() {
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
async fn an_asynchronous_standby_is_a_warning_that_names_what_can_be_lost() {
    let (_primary, world, _standby) = with_standby().await;
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_only(0, &["standbys"]);
    let words = ["1 connected, none", "undo a decrement", "synchronous_standby_names"];
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
async fn a_role_that_may_not_see_the_standbys_gets_a_warning_with_the_grant() {
    let (_primary, world, _standby) = with_standby().await;
    let roles = world.program("cleanupctl").args(&["migrate", "--roles"]).output().await;
    assert_eq!(roles.code(), 0, "{}", roles.stderr());
    world.run_sql("CREATE ROLE night LOGIN").await;
    let url = world.database_url.replace("postgres@", "night@");
    let stranger = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    stranger.assert_says("schema", "failure", &["42501", "grant cleanup_worker"]);
    world.run_sql("GRANT cleanup_worker TO night").await;
    let blind = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    blind.assert_only(0, &["standbys"]);
    blind.assert_says("standbys", "warning", &["1 connected", "GRANT pg_monitor"]);
    world.run_sql("GRANT pg_monitor TO night").await;
    let seeing = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    seeing.assert_says("standbys", "warning", &["none of them synchronous"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_a_failure_and_is_still_checked() {
    let (primary, world, standby) = with_standby().await;
    let caught_up = "SELECT count(*) = 1 FROM pg_stat_replication
                     WHERE replay_lsn >= pg_current_wal_insert_lsn()";
    world.until("the standby has it all", caught_up).await;
    let url = standby.url(&world.name);
    let findings = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    findings.assert_only(1, &["writes", "standbys", "objects"]);
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
async fn an_unavailable_postgres_leaves_out_its_own_checks_only() {
    let world = World::new().await;
    let url = format!("postgres://night:secret@127.0.0.1:{}/pastes", free_port());
    let findings = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    let needing = [
        "writes",
        "schema",
        "indexes",
        "autovacuum",
        "transactions",
        "rights",
        "clock",
        "times",
        "durability",
        "standbys",
        "blockers",
        "owner triggers",
        "tables",
        "content rows",
        "bucket binding",
        "objects",
        "pause",
        "claims",
        "dead letters",
        "unclaimable",
    ];
    findings.assert_only(1, &[&["postgres"][..], &needing].concat());
    findings.assert_says("postgres", "failure", &[&address_of(&url), "check that it runs"]);
    for check in needing {
        findings.of(check)["verdict"]
            .as_str()
            .filter(|verdict| *verdict == "left_out")
            .expect(check);
    }
    assert!(!findings.0.stdout().contains("secret"), "{}", findings.0.stdout());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_redis_is_a_warning_unless_workers_wait_for_it() {
    let world = World::new().await;
    let url = format!("redis://:secret@127.0.0.1:{}", free_port());
    let doctor = || world.program("cleanupctl").env("REDIS_URL", &url);
    let findings = diagnose(doctor()).await;
    findings.assert_only(0, &["durability", "redis", "redis lock", "redis memory", "redis clock"]);
    findings.assert_says("redis", "warning", &["without the lock", "REDIS_URL"]);
    let findings = diagnose(doctor().env("CLEANUP_LOCK_WHEN_UNAVAILABLE", "wait")).await;
    findings.assert_only(1, &["durability", "redis", "redis lock", "redis memory", "redis clock"]);
    findings.assert_says("redis", "failure", &["workers wait for Redis"]);
    assert!(!findings.0.stdout().contains("secret"), "{}", findings.0.stdout());
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_without_autovacuum_are_a_warning() {
    let world = World::new().await;
    world.run_sql("ALTER TABLE pastes SET (autovacuum_enabled = false)").await;
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_says("autovacuum", "warning", &["pastes", "RESET"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_privilege_is_named_with_the_grant_that_gives_it() {
    let (_server, world) = healthy().await;
    world.run_sql("CREATE ROLE night LOGIN; CREATE ROLE \"Day\" LOGIN").await;
    let login = |name: &str| {
        let url = world.database_url.replace("postgres@", &format!("{name}@"));
        world.program("cleanupctl").env("DATABASE_URL", &url)
    };
    let words = ["night lacks", "DELETE on pastes", " more", "GRANT cleanup_worker TO night"];
    diagnose(login("night")).await.assert_says("rights", "failure", &words);
    let quoted = ["GRANT cleanup_worker TO \\\"Day\\\""];
    diagnose(login("Day")).await.assert_says("rights", "failure", &quoted);
    world.run_sql("GRANT cleanup_worker TO night").await;
    let can = diagnose(login("night")).await;
    can.assert_only(0, &[]);
    can.assert_says("rights", "ok", &["night has all privileges that a worker needs"]);
    world.run_sql("REVOKE UPDATE (pending_s3_key) ON pastes FROM cleanup_worker").await;
    let lacks = diagnose(login("night")).await;
    lacks.assert_only(1, &["rights"]);
    lacks.assert_says(
        "rights",
        "failure",
        &["UPDATE (pending_s3_key) on pastes", "migrate --roles"],
    );
    let both = ["migrate --roles` as the owner, then GRANT cleanup_worker TO"];
    diagnose(login("Day")).await.assert_says("rights", "failure", &both);
    let migrated = world.program("cleanupctl").args(&["migrate", "--roles"]).output().await;
    assert_eq!(migrated.code(), 0, "{}", migrated.stderr());
    diagnose(login("night")).await.assert_only(0, &[]);
    let owner = diagnose(world.program("cleanupctl")).await;
    owner.assert_says("rights", "ok", &["postgres is a superuser", "cleanup_worker is enough"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_checks_exactly_the_privileges_of_the_role_cleanup_worker() {
    let world = World::new().await;
    let granted = "
        SELECT format('%s on %s', privilege_type, relname) FROM pg_class, aclexplode(relacl)
        WHERE grantee = 'cleanup_worker'::regrole
        UNION ALL
        SELECT format('%s (%s) on %s', privilege_type, attname, attrelid::regclass)
        FROM pg_attribute, aclexplode(attacl) WHERE grantee = 'cleanup_worker'::regrole";
    let checked = include_str!("../../sql/queries/doctor/rights.sql");
    let sorted = |rows: Vec<tokio_postgres::Row>| {
        rows.iter().map(|row| row.get(0)).collect::<std::collections::BTreeSet<String>>()
    };
    let granted = world.db.query(granted, &[]).await.expect("granted");
    let checked = world.db.query(checked, &[]).await.expect("checked");
    assert_eq!(sorted(checked), sorted(granted));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_needs_the_other_checksum_is_a_failure_that_names_the_setting() {
    let world = World::new().await;
    let s3 = FaultyS3::start(&world, Mode::Checksum { md5: true }).await;
    let doctor = || world.program("cleanupctl").env("AWS_ENDPOINT_URL", &s3.url);
    let words = ["MissingContentMD5", "set CLEANUP_S3_CHECKSUM=md5"];
    diagnose(doctor()).await.assert_says("bucket", "failure", &words);
    let fixed = diagnose(doctor().env("CLEANUP_S3_CHECKSUM", "md5")).await;
    fixed.assert_says("bucket", "ok", &["with s3.checksum md5 only"]);
    s3.set_mode(Mode::Checksum { md5: false });
    let words = ["InvalidRequest", "set CLEANUP_S3_CHECKSUM=auto"];
    let md5 = diagnose(doctor().env("CLEANUP_S3_CHECKSUM", "md5")).await;
    md5.assert_says("bucket", "failure", &words);
    s3.set_mode(Mode::Normal);
    diagnose(doctor()).await.assert_says("bucket", "ok", &["with either checksum"]);
    assert_eq!(s3.calls(), 0, "only keys that cannot exist were deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn unwise_timeouts_and_plain_text_connections_are_warnings() {
    let world = World::new().await;
    let doctor = world.program("cleanupctl").env("CLEANUP_WATCHDOG_STUCK_AFTER", "3d");
    let findings = diagnose(doctor.env("REDIS_URL", "redis://:secret@cache.invalid:1")).await;
    let words = ["longer than a day", "set CLEANUP_WATCHDOG_STUCK_AFTER=2h"];
    findings.assert_says("deadlines", "warning", &words);
    let words = ["Redis (cache.invalid:1)", "use rediss:// in REDIS_URL"];
    findings.assert_says("encryption", "warning", &words);
    assert!(!findings.0.stdout().contains("secret"), "{}", findings.0.stdout());
}
