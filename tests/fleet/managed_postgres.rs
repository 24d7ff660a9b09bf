//! Managed Postgres: poolers of other vendors are named with the host to use instead, and databases that
//! only speak Postgres's protocol are refused.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::support::{findings::diagnose, pgbouncer::PgBouncer, proxy::address_of, *};

const NEON: &str = "ep-cool-1-pooler.eu-central-1.aws.neon.tech";
const RDS_PROXY: &str = "night.proxy-abc123.eu-west-1.rds.amazonaws.com";

/// The same URL with the name of another host, at the same address.
fn named(url: &str, host: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{}{separator}hostaddr=127.0.0.1", url.replace("127.0.0.1", host))
}

/// Asserts that a run and the doctor name these words and claim nothing.
async fn assert_refused(world: &World, url: &str, words: &[&str]) {
    let run = world.program("cleanup-worker").args(&["run"]).env("DATABASE_URL", url);
    run.output().await.assert_refused(1, words);
    let doctor = diagnose(world.program("cleanupctl").env("DATABASE_URL", url)).await;
    doctor.assert_says("postgres", "failure", words);
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_is_known_by_its_host_is_named_with_the_host_to_use_instead() {
    let world = World::new().await;
    for settings in [
        &["pool_mode = transaction"][..],
        &["pool_mode = transaction", "ignore_startup_parameters = options"],
    ] {
        let pooler = PgBouncer::start(&world, settings).await;
        let url = |host| named(&pooler.through(&world.worker_url()), host);
        let words = ["Neon's pooler", "connect to ep-cool-1.eu-central-1.aws.neon.tech"];
        assert_refused(&world, &url(NEON), &words).await;
        let words = ["RDS Proxy", "connect to the endpoint of the database cluster or instance"];
        assert_refused(&world, &url(RDS_PROXY), &words).await;
    }
}

/// RDS Proxy's answer to a session with settings.
async fn proxy_that_refuses() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let address = listener.local_addr().expect("address").to_string();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.expect("accept");
            tokio::spawn(async move {
                let mut asked = [0; 1024];
                // To the request for TLS: no.
                let length = client.read(&mut asked).await.unwrap_or_default();
                if length == 8 {
                    client.write_all(b"N").await.expect("no TLS");
                    let _ = client.read(&mut asked).await;
                }
                let fields = "SFATAL\0VFATAL\0C0A000\0MFeature not supported: RDS Proxy currently \
                              doesn't support command-line options.\0\0";
                let length = u32::try_from(fields.len() + 4).expect("short").to_be_bytes();
                let answer = [b"E", &length[..], fields.as_bytes()].concat();
                client.write_all(&answer).await.expect("refusal");
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_names_itself_in_its_refusal_needs_no_telling_host() {
    let world = World::new().await;
    let own = world.worker_url();
    let url = own.replace(&address_of(&own), &proxy_that_refuses().await);
    let words =
        ["RDS Proxy refuses the session", "connect to the endpoint of the database cluster"];
    assert_refused(&world, &url, &words).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_that_only_speak_the_protocol_of_postgres_are_refused_by_name() {
    let says = |version: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql
                 AS $$SELECT '{version}'$$"
        )
    };
    let citus = "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable,
                                           extversion)
                 VALUES (99999, 'citus', 10, 11, false, '12.1')";
    for (name, change) in [
        ("CockroachDB", says("CockroachDB CCL v23.2.4 (x86_64-pc-linux-gnu)")),
        ("YugabyteDB", says("PostgreSQL 15.2-YB-2.25.0.0-b0 on x86_64-pc-linux-gnu")),
        ("Citus", citus.into()),
    ] {
        let world = World::new().await;
        world.run_sql(&format!("SET allow_system_table_mods = on; {change}")).await;
        let words = [&*format!("it is {name}"), "use Postgres 15 or newer"];
        assert_refused(&world, &world.worker_url(), &words).await;
    }
}
