//! TLS to Redis: to one server, to the nodes of a Cluster, and to Sentinels and their master.

use super::{certificates, certificates_for};
use crate::support::{
    redis_cluster::{Cluster, TlsSentinel, tls_options},
    servers::{Folder, Redis},
    *,
};

/// Starts a Redis that accepts only TLS connections.
pub(super) async fn tls_redis(folder: &Folder) -> Redis {
    redis_with(folder, "no").await
}

/// `client`: whether it asks for a client certificate.
async fn redis_with(folder: &Folder, client: &str) -> Redis {
    let options = tls_options(folder);
    let options = options.iter().map(String::as_str).chain(["--tls-auth-clients", client]);
    Redis::start_with(&options.collect::<Vec<_>>()).await
}

/// Drains one paste, and returns how many claims were made without the lock.
async fn claims_without_lock(world: &World, url: &str, ca: Option<&str>) -> u64 {
    claims_without_lock_as(world, url, ca, None).await
}

/// The same with a client certificate and its key.
async fn claims_without_lock_as(
    world: &World,
    url: &str,
    ca: Option<&str>,
    client: Option<(&str, &str)>,
) -> u64 {
    world.put("p", "a", Ago(60.0)).await;
    let mut run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    if let Some(ca) = ca {
        run = run.env("CLEANUP_REDIS_CA_FILE", ca);
    }
    if let Some((certificate, key)) = client {
        run = run.env("CLEANUP_REDIS_CLIENT_CERT_FILE", certificate);
        run = run.env("CLEANUP_REDIS_CLIENT_KEY_FILE", key);
    }
    let ended = run.env("REDIS_URL", url).output().await;
    assert_eq!((ended.code(), &ended.json()["rows_deleted"]), (0, &1.into()), "{}", ended.stderr());
    world.assert_drained().await;
    ended.json()["claims_without_lock"].as_u64().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_over_tls_locks_with_the_right_ca_and_host_name() {
    let (world, folder) = (World::new().await, certificates());
    let redis = tls_redis(&folder).await;
    let url = format!("rediss://localhost:{}", redis.port());
    assert_eq!(claims_without_lock(&world, &url, Some(&folder.file("ca.pem"))).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_with_an_untrusted_certificate_is_not_used() {
    let (world, folder) = (World::new().await, certificates());
    let redis = tls_redis(&folder).await;
    let (right, wrong) = (folder.file("ca.pem"), folder.file("other-ca.pem"));
    for (server, ca, why) in [
        ("rediss://localhost", Some(&*wrong), "another CA"),
        ("rediss://localhost", None, "not one of the system's CAs"),
        ("rediss://127.0.0.1", Some(&*right), "another host name"),
        ("redis://localhost", None, "not encrypted"),
    ] {
        let url = format!("{server}:{}", redis.port());
        assert!(claims_without_lock(&world, &url, ca).await > 0, "{why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_asks_for_a_client_certificate_is_used_with_one() {
    let (world, folder) = (World::new().await, certificates());
    let redis = redis_with(&folder, "yes").await;
    let url = format!("rediss://localhost:{}", redis.port());
    let ca = folder.file("ca.pem");
    assert!(claims_without_lock(&world, &url, Some(&ca)).await > 0, "without a certificate");
    let client = ["client.pem", "client-key.pem"].map(|name| folder.file(name));
    let client = Some((&*client[0], &*client[1]));
    assert_eq!(claims_without_lock_as(&world, &url, Some(&ca), client).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_of_a_cluster_are_used_over_tls() {
    let (world, folder) = (World::new().await, certificates_for("127.0.0.1"));
    let cluster = Cluster::over_tls(&folder).await;
    let (right, wrong) = (folder.file("ca.pem"), folder.file("other-ca.pem"));
    assert_eq!(claims_without_lock(&world, &cluster.url(), Some(&right)).await, 0);
    assert!(claims_without_lock(&world, &cluster.url(), Some(&wrong)).await > 0, "another CA");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_with_a_password_of_its_own_and_its_master_are_used_over_tls() {
    let (world, folder) = (World::new().await, certificates_for("127.0.0.1"));
    let redis = TlsSentinel::start(&folder, "p@ss").await;
    let (right, wrong) = (folder.file("ca.pem"), folder.file("other-ca.pem"));
    let url = format!("{}?sentinel_password=p%40ss", redis.url());
    assert_eq!(claims_without_lock(&world, &url, Some(&right)).await, 0);
    assert!(claims_without_lock(&world, &url, Some(&wrong)).await > 0, "another CA");
    assert!(claims_without_lock(&world, &redis.url(), Some(&right)).await > 0, "no password");
}
