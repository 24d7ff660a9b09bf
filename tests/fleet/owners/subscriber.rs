//! A logical subscriber, as in a blue/green upgrade: its pastes are a copy, and their objects belong to
//! the publisher's live pastes. The fleet claims, resets and repairs nothing there until the
//! subscription is dropped.

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    findings::diagnose,
    postgres::Postgres,
    *,
};

const SUBSCRIPTION: &str = "pastes is the target of subscription upgrade";

/// A world on a publisher, and a world on its subscriber.
struct BlueGreen {
    publisher: Postgres,
    /// The old server.
    blue: World,
    _subscriber: Postgres,
    /// The new server, with the same bucket.
    green: World,
}

impl BlueGreen {
    async fn new() -> Self {
        let publisher = Postgres::start(&["wal_level = logical"]).await;
        let subscriber = Postgres::start(&[]).await;
        let blue = World::on_server(&publisher).await;
        let mut green = World::on_server(&subscriber).await;
        (green.bucket, green.settings.s3.bucket) =
            (blue.bucket.clone(), blue.settings.s3.bucket.clone());
        Self { publisher, blue, _subscriber: subscriber, green }
    }

    /// Publishes these tables, subscribes to them, and waits until they are copied.
    async fn subscribe(&self, tables: &str) {
        self.blue.run_sql(&format!("CREATE PUBLICATION upgrade FOR TABLE {tables}")).await;
        let (port, database) = (self.publisher.port, &self.blue.name);
        let create = format!(
            "CREATE SUBSCRIPTION upgrade CONNECTION
             'host=127.0.0.1 port={port} user=postgres dbname={database}' PUBLICATION upgrade"
        );
        self.green.run_sql(&create).await;
        let synchronised = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel";
        self.green.until("the subscription has copied its tables", synchronised).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_erased_on_a_subscriber_until_its_subscription_is_dropped() {
    let servers = BlueGreen::new().await;
    let (blue, green) = (&servers.blue, &servers.green);
    for n in 0..50 {
        blue.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    servers.subscribe("pastes, content").await;
    green.until("the copy is complete", "SELECT count(*) = 50 FROM pastes").await;
    // A writer on the publisher extends them all; the subscriber has not received that yet.
    green.run_sql("ALTER SUBSCRIPTION upgrade DISABLE").await;
    blue.run_sql("SELECT paste_extend(short_code, now() + interval '1 day') FROM pastes").await;
    for (program, args) in [
        ("cleanup-worker", &["run"][..]),
        ("cleanup-worker", &["run", "--dry-run"]),
        ("cleanup-watchdog", &["--once"]),
        ("cleanupctl", &["audit", "--repair"]),
    ] {
        let ended = green.program(program).args(args).output().await;
        ended.assert_refused(1, &[SUBSCRIPTION, "publisher", "DROP SUBSCRIPTION"]);
    }
    let doctor = diagnose(green.program("cleanupctl")).await;
    doctor.assert_says("schema", "failure", &[SUBSCRIPTION, "DROP SUBSCRIPTION"]);
    let migrated = green.program("cleanupctl").args(&["migrate"]).output().await;
    assert_eq!(migrated.code(), 0, "the copy may be prepared: {}", migrated.stderr());
    assert!(migrated.stderr().contains(SUBSCRIPTION), "{}", migrated.stderr());
    assert_eq!(blue.keys().await.len(), 50, "no live paste lost its object");

    green.run_sql("ALTER SUBSCRIPTION upgrade ENABLE").await;
    let extended = "SELECT count(*) = 50 FROM pastes WHERE expires_at > now()";
    green.until("the copy has caught up", extended).await;
    green.run_sql("DROP SUBSCRIPTION upgrade").await;
    green.put("late", "late", Ago(60.0)).await;
    let ran = green.program("cleanup-worker").args(&["run", "--format", "json"]).output().await;
    assert_eq!((ran.code(), &ran.json()["rows_deleted"]), (0, &1.into()), "{}", ran.stderr());
    assert_eq!(green.keys().await.len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_worker_claims_no_more_once_its_database_becomes_a_subscriber() {
    let servers = BlueGreen::new().await;
    let green = &servers.green;
    for n in 0..20 {
        green.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    let s3 = FaultyS3::start(green, Mode::Holding).await;
    let worker = green
        .program("cleanup-worker")
        .args(&["run", "--format", "json", "--batch-size", "5", "--concurrency", "1"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .start();
    s3.called(1).await;
    servers.subscribe("content").await;
    s3.let_go();
    let ended = worker.end().await;
    ended.assert_refused(1, &["content is the target of subscription upgrade"]);
    assert_eq!(ended.json()["rows_deleted"], 5, "it finished its batch");
    assert_eq!(green.count("SELECT count(*) FROM deletion_claims").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_watchdog_resets_nothing_once_its_database_becomes_a_subscriber() {
    let servers = BlueGreen::new().await;
    let green = &servers.green;
    let mut watchdog = green
        .program("cleanup-watchdog")
        .env("CLEANUP_WATCHDOG_TICK", "200ms")
        .env("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0")
        .start();
    watchdog.until_it_logs("health and metrics on").await;
    servers.subscribe("pastes").await;
    watchdog.end().await.assert_refused(1, &[SUBSCRIPTION]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_is_reset_on_the_publisher_keeps_its_reference_on_the_subscriber() {
    let servers = BlueGreen::new().await;
    let (blue, green) = (&servers.blue, &servers.green);
    blue.put("expired", "a", Ago(60.0)).await;
    let dead = blue.worker().await;
    claim_some(&dead, 1).await;
    // The content table is not copied: tables are copied one by one.
    servers.subscribe("pastes").await;
    blue.expire_leases(7201.0).await;
    assert_eq!(blue.sweep().await.reset.rows, 1);
    let reset = "SELECT count(*) = 1 FROM pastes WHERE deletion_status = 'NOT_EXPIRED'";
    green.until("the reset has arrived", reset).await;
    assert_eq!(green.count("SELECT count(content_hash) FROM pastes").await, 1);
}
