//! A Redis that cannot serve the claim lock (a replica, a node of a cluster, a login with few rights):
//! `cleanupctl doctor` reports why.

use crate::support::{
    findings::{Findings, diagnose},
    servers::Redis,
    *,
};

async fn doctor(world: &World, url: &str, when_unavailable: &str) -> Findings {
    let doctor = world.program("cleanupctl").env("REDIS_URL", url);
    diagnose(doctor.env("CLEANUP_LOCK_WHEN_UNAVAILABLE", when_unavailable)).await
}

/// Asserts a warning with these words, or a failure if workers wait for the lock.
async fn assert_found(redis: &Redis, words: &[&str]) {
    let world = World::new().await;
    for (when_unavailable, code, verdict) in [("proceed", 0, "warning"), ("wait", 1, "failure")] {
        let findings = doctor(&world, &redis.url(), when_unavailable).await;
        findings.assert_only(code, &["durability", "redis lock"]);
        findings.assert_says("redis lock", verdict, words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_replica_is_reported_with_its_master() {
    let master = Redis::start().await;
    let port = master.port().to_string();
    let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    let of = format!("a replica of 127.0.0.1:{port}");
    assert_found(&replica, &[&of, "takes no writes", "REDIS_URL"]).await;
    let world = World::new().await;
    doctor(&world, &master.url(), "wait").await.assert_only(0, &["durability"]);
    let writable = ["--replicaof", "127.0.0.1", &port, "--replica-read-only", "no"];
    let replica = Redis::start_with(&writable).await;
    assert_found(&replica, &[&of, "loses what is written to it", "REDIS_URL"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_without_a_ttl_is_reported_with_its_key() {
    let world = World::new().await;
    let redis = Redis::start().await;
    let database = world.text("SELECT current_database()").await.expect("a name");
    let key = format!("paste-cleanup:claim:{database}");
    let client = redis::Client::open(redis.url()).expect("client");
    let mut connection = client.get_multiplexed_async_connection().await.expect("connection");
    let mut set = async |words: &[&str]| {
        let mut command = redis::cmd("SET");
        command.arg(&key).arg("a token").arg(words);
        command.query_async::<String>(&mut connection).await.expect("SET");
    };
    set(&[]).await;
    let findings = doctor(&world, &redis.url(), "proceed").await;
    findings.assert_says("redis lock", "warning", &[&key, "no TTL", "redis-cli DEL"]);
    set(&["PX", "60000"]).await;
    doctor(&world, &redis.url(), "proceed").await.assert_says("redis lock", "ok", &["taken"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_cluster_node_is_reported() {
    let file = format!("nodes-{}.conf", uuid::Uuid::new_v4().simple());
    let cluster = ["--cluster-enabled", "yes", "--cluster-config-file", &file];
    let node = Redis::start_with(&cluster).await;
    assert_found(&node, &["a node of a Redis Cluster", "REDIS_URL"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_may_not_run_the_release_script_is_told_which_rights_it_lacks() {
    let world = World::new().await;
    let few = ["--user", "night", "on", ">secret", "~paste-cleanup:*", "+@all", "-@scripting"];
    let login = |redis: &Redis| redis.url().replace("//", "//night:secret@");
    let redis = Redis::start_with(&few).await;
    for (when_unavailable, code, verdict) in [("proceed", 0, "warning"), ("wait", 1, "failure")] {
        let findings = doctor(&world, &login(&redis), when_unavailable).await;
        findings.assert_only(code, &["durability", "redis lock"]);
        let words = ["no permissions to run the 'evalsha' command", "+evalsha +script|load"];
        findings.assert_says("redis lock", verdict, &words);
        assert!(!findings.0.stdout().contains("secret"), "{}", findings.0.stdout());
    }
    let redis = Redis::start_with(&[&few[..], &["+evalsha", "+script|load"]].concat()).await;
    doctor(&world, &login(&redis), "wait").await.assert_only(0, &["durability"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_redis_rights_are_enough() {
    let documented = include_str!("../../../ops/SECURITY.md");
    let rights = |of: &str| -> Vec<String> {
        let line = documented.lines().find(|line| line.starts_with(of)).expect("a row for it");
        let words = line.split(['`', ' ']).filter(|word| word.starts_with(['+', '~']));
        words.map(|word| word.replace("\\|", "|")).collect()
    };
    let worker = [rights("| lock |"), rights("| cache |")].concat();
    let doctor_too = [worker.clone(), rights("| `doctor` |")].concat();
    for (rights, runs_doctor) in [(worker, false), (doctor_too, true)] {
        let world = World::new().await;
        world.put("due", "a", Ago(60.0)).await;
        let rights = rights.iter().map(String::as_str);
        let user = ["--user", "night", "on", ">secret"].into_iter().chain(rights);
        let redis = Redis::start_with(&user.collect::<Vec<_>>()).await;
        let url = redis.url().replace("//", "//night:secret@");
        if runs_doctor {
            doctor(&world, &url, "wait").await.assert_only(0, &["durability", "objects"]);
        }
        let run = world.program("cleanup-worker").args(&["run"]).env("REDIS_URL", &url);
        let run = run.env("CLEANUP_CACHE_KEY_PATTERN", "paste:{short_code}");
        let ended = run.env("CLEANUP_LOG_FILTER", "paste_cleanup=debug").output().await;
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        for problem in ["Redis", "left to its TTL", "NoPerm"] {
            assert!(!ended.stderr().contains(problem), "{problem}: {}", ended.stderr());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_refuses_the_password_is_not_reported_as_unreachable() {
    let world = World::new().await;
    let redis = Redis::start_with(&["--requirepass", "right"]).await;
    let url = redis.url().replace("//", "//:wrong@");
    let findings = doctor(&world, &url, "proceed").await;
    findings.assert_says(
        "redis",
        "warning",
        &["is unavailable", "Password authentication failed", "REDIS_URL"],
    );
    assert!(!findings.0.stdout().contains("not answer"), "{}", findings.0.stdout());
}
