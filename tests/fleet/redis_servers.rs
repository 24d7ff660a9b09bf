//! Redis as people run it: a Cluster, a master behind Sentinels, a Unix socket. The lock is taken and
//! cache entries are evicted there, also across a failover.

use redis::AsyncTypedCommands;

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    findings::diagnose,
    process::Ended,
    redis_cluster::{Cluster, Sentinels, ask},
    servers::{Folder, Redis},
    *,
};

/// A run of a worker with this Redis and a cache.
fn run(world: &World, redis: &str) -> Process {
    let worker = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    worker.env("REDIS_URL", redis).env("CLEANUP_CACHE_KEY_PATTERN", "paste:{short_code}")
}

/// Asserts that the run used Redis for everything.
#[track_caller]
fn assert_used(ended: &Ended, pastes: usize) {
    let summary = ended.json();
    assert_eq!((ended.code(), &summary["rows_deleted"]), (0, &pastes.into()), "{}", ended.stderr());
    let failed = (&summary["claims_without_lock"], &summary["evictions_failed"]);
    assert_eq!(failed, (&0.into(), &0.into()), "{}", ended.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_serves_the_lock_and_ten_thousand_cache_entries_are_evicted_from_all_its_nodes() {
    let (world, cluster) = (World::new().await, Cluster::start().await);
    world.put_many(10_000, 10).await;
    let mut connection = cluster.connection().await;
    let keys: Vec<(String, &str)> =
        (1..=10_000).map(|n| (format!("paste:p{n:08}"), "cached")).collect();
    for some in keys.chunks(500) {
        connection.mset(some).await.expect("fill the cache");
    }
    connection.set("paste:live", "cached").await.expect("a live paste");
    assert!(cluster.keys().await.iter().all(|keys| *keys > 2000), "spread over the nodes");
    assert_used(&run(&world, &cluster.url()).output().await, 10_000);
    assert_eq!(cluster.keys().await.iter().sum::<i64>(), 1, "the live paste, and no lock");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_nothing_wrong_with_a_cluster() {
    let (world, cluster) = (World::new().await, Cluster::start().await);
    let findings = diagnose(world.program("cleanupctl").env("REDIS_URL", &cluster.url())).await;
    findings.assert_only(0, &["durability"]);
    findings.assert_says("redis", "ok", &["version"]);
    findings.assert_says("redis lock", "ok", &["can be taken and released"]);
    findings.assert_says("redis memory", "ok", &["no memory limit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_with_a_password_is_used_on_every_node_of_a_cluster() {
    let world = World::new().await;
    world.put_many(300, 10).await;
    let login = ["--user", "night", "on", ">p@ss", "~*", "+@all", "--user", "default", "off"];
    let cluster = Cluster::start_with(&login, "night:p@ss@").await;
    let url = cluster.url().replace("//", "//night:p%40ss@");
    assert_used(&run(&world, &url).output().await, 300);
    let wrong = run(&world, &cluster.url().replace("//", "//night:wrong@")).output().await;
    assert_eq!(wrong.code(), 0, "{}", wrong.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_enough_for_a_cluster() {
    let (world, cluster) = (World::new().await, Cluster::start().await);
    world.put_many(300, 10).await;
    let documented = include_str!("../../ops/SECURITY.md").split_once("its login needs `");
    let lock = documented.and_then(|(_, rest)| rest.split_once('`')).expect("the rights").0;
    let rights: Vec<&str> = lock.split(' ').chain(["+unlink", "~paste:*"]).collect();
    cluster.grant("night", &rights).await;
    let url = cluster.url().replace("//", "//night:any@");
    let without = run(&world, &url).args(&["--limit", "10"]).output().await;
    assert_eq!(without.json()["claims_without_lock"], 1, "{}", without.stderr());
    let reason = "could not evict its cache keys: NoPerm";
    assert!(without.stderr().contains(reason), "{}", without.stderr());
    cluster.grant("night", &[&rights[..], &["+cluster|slots"]].concat()).await;
    assert_used(&run(&world, &url).output().await, 290);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_with_the_new_master_after_a_failover() {
    let (world, mut redis) = (World::new().await, Sentinels::start().await);
    world.put_many(20, 20).await;
    for n in 1..=20 {
        let set = redis::cmd("SET").arg(format!("paste:p{n:08}")).arg("cached").to_owned();
        ask::<()>(&redis.master.url(), &set).await;
    }
    ask::<i64>(&redis.master.url(), redis::cmd("WAIT").arg(1).arg(0)).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let worker = run(&world, &redis.url()).args(&["--batch-size", "5", "--concurrency", "1"]);
    let worker = worker.env("AWS_ENDPOINT_URL", &s3.url);
    let mut worker = worker.env("CLEANUP_LOCK_WHEN_UNAVAILABLE", "wait").start();
    s3.called(1).await;
    redis.master.kill().await;
    s3.let_go();
    worker.until_it_logs("finished claim").await;
    assert_used(&worker.end().await, 20);
    assert_eq!(ask::<i64>(&redis.replica.url(), &redis::cmd("DBSIZE")).await, 0);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_leaves_a_master_that_was_demoted_for_the_new_one() {
    let (world, redis) = (World::new().await, Sentinels::start().await);
    world.put_many(20, 20).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let worker = run(&world, &redis.url()).args(&["--batch-size", "5", "--concurrency", "1"]);
    let worker = worker.env("AWS_ENDPOINT_URL", &s3.url);
    let worker = worker.env("CLEANUP_LOCK_WHEN_UNAVAILABLE", "wait").start();
    s3.called(1).await;
    // It goes on to run, and to answer: as a replica, it takes no writes.
    redis.fail_over().await;
    s3.let_go();
    assert_used(&worker.end().await, 20);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_on_a_unix_socket_is_used() {
    let (world, folder) = (World::new().await, Folder::new("redis"));
    world.put_many(20, 20).await;
    let socket = folder.file("redis.sock");
    let _redis = Redis::start_with(&["--unixsocket", &socket]).await;
    assert_used(&run(&world, &format!("redis+unix://{socket}")).output().await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_url_of_another_form_is_refused_with_the_forms_that_exist() {
    let world = World::new().await;
    for url in ["redis+cluster://a,,b", "redis+sentinel://:hunter2@a", "memcached://a", "a:6379"] {
        let ended = run(&world, url).output().await;
        ended.assert_refused(2, &["redis.url", "redis+cluster://host1:6379", "redis+sentinel://"]);
        assert!(!ended.stderr().contains("hunter2"), "{}", ended.stderr());
    }
}
