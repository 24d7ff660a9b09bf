//! Unknown, missing and invalid settings are refused by name, whichever source they come from.

use super::{File, assert_usage, worker};
use crate::support::*;

#[tokio::test]
async fn an_unknown_flag_is_refused_by_every_program() {
    for (program, args) in [
        ("cleanup-worker", &["run", "--batchsize", "5"][..]),
        ("cleanup-watchdog", &["--onec"]),
        ("cleanupctl", &["migrate", "--force"]),
    ] {
        let ended = Process::new(program).args(args).output().await;
        assert_eq!(ended.code(), 2, "{}", ended.stderr());
        let first = ended.stderr().lines().next().unwrap_or_default().to_string();
        assert!(first.contains(args[args.len() - 1]) || first.contains(args[1]), "{first}");
    }
}

#[tokio::test]
async fn an_unknown_key_in_the_file_is_refused_by_name() {
    for (text, key) in [
        ("[worker]\nbatchsize = 5", "`worker.batchsize`"),
        ("[wroker]\nbatch_size = 5", "`wroker`"),
        ("batch_size = 5", "`batch_size`"),
    ] {
        let file = File::new(text);
        let run = worker(&["run", "--config", file.path()]);
        assert_usage(run, &["unknown key", key, file.path()]).await;
    }
}

#[tokio::test]
async fn an_unknown_variable_is_refused_by_name() {
    let run = worker(&["run"]).env("CLEANUP_WORKER_BATCHSIZE", "5");
    assert_usage(run, &["unknown variable", "CLEANUP_WORKER_BATCHSIZE"]).await;
}

#[tokio::test]
async fn the_variables_of_a_kubernetes_service_are_ignored_and_a_mistyped_setting_is_not() {
    let in_a_pod = || {
        worker(&["run"])
            .env("CLEANUP_WATCHDOG_SERVICE_HOST", "10.0.0.7")
            .env("CLEANUP_WATCHDOG_SERVICE_PORT", "9464")
            .env("CLEANUP_WATCHDOG_SERVICE_PORT_METRICS", "9464")
            .env("CLEANUP_WATCHDOG_PORT", "tcp://10.0.0.7:9464")
            .env("CLEANUP_WATCHDOG_PORT_9464_TCP", "tcp://10.0.0.7:9464")
            .env("CLEANUP_WATCHDOG_PORT_9464_TCP_ADDR", "10.0.0.7")
    };
    let ended = in_a_pod().output().await;
    assert!(!ended.stderr().contains("unknown variable"), "{}", ended.stderr());
    for mistyped in ["CLEANUP_WATCHDOG_STUCKAFTER", "CLEANUP_WATCHDOG_PORTS", "CLEANUP_WORKER_PORT"]
    {
        assert_usage(in_a_pod().env(mistyped, "1h"), &["unknown variable", mistyped]).await;
    }
}

#[tokio::test]
async fn a_url_that_asks_for_a_read_only_server_is_refused() {
    let url = "postgres://127.0.0.1:1/pastes?target_session_attrs=read-only";
    let run = worker(&["run"]).env("CLEANUP_POSTGRES_URL", url);
    assert_usage(run, &["all programs write", "target_session_attrs"]).await;
}

#[tokio::test]
async fn a_file_that_does_not_exist_is_refused_by_name() {
    let run = worker(&["run", "--config", "/nowhere/cleanup.toml"]);
    assert_usage(run, &["/nowhere/cleanup.toml"]).await;
    let run = worker(&["run"]).env("CLEANUP_CONFIG", "/nowhere/cleanup.toml");
    assert_usage(run, &["/nowhere/cleanup.toml"]).await;
}

#[tokio::test]
async fn a_missing_setting_is_named_with_both_of_its_variables() {
    for (well_known, variable) in [
        ("DATABASE_URL", "CLEANUP_POSTGRES_URL"),
        ("REDIS_URL", "CLEANUP_REDIS_URL"),
        ("S3_BUCKET", "CLEANUP_S3_BUCKET"),
    ] {
        for absent in [worker(&["run"]).without(well_known), worker(&["run"]).env(well_known, "")] {
            assert_usage(absent, &[well_known, variable, "--config"]).await;
        }
    }
    for args in [&["migrate"][..], &["status"]] {
        assert_usage(Process::new("cleanupctl").args(args), &["DATABASE_URL"]).await;
    }
    assert_usage(Process::new("cleanup-watchdog").args(&["--once"]), &["DATABASE_URL"]).await;
}

#[tokio::test]
async fn a_cache_key_without_the_short_code_is_refused() {
    let run = worker(&["run"]).env("CLEANUP_CACHE_KEY_PATTERN", "paste");
    assert_usage(run, &["cache.key_pattern", "\"paste\"", "{short_code}"]).await;
}

#[tokio::test]
async fn an_endpoint_without_scheme_or_host_is_refused_by_every_program() {
    for endpoint in ["localhost:9000", "127.0.0.1:9000", "minio", "ftp://minio", "http://"] {
        let words = ["s3.endpoint", endpoint, "AWS_ENDPOINT_URL", "CLEANUP_S3_ENDPOINT", "http://"];
        assert_usage(worker(&["run"]).env("AWS_ENDPOINT_URL", endpoint), &words).await;
        assert_usage(worker(&["run"]).env("CLEANUP_S3_ENDPOINT", endpoint), &words).await;
        let seed = Process::new("cleanupctl").args(&["seed"]).env("AWS_ENDPOINT_URL", endpoint);
        assert_usage(seed, &words).await;
    }
}

#[tokio::test]
async fn numbers_out_of_range_are_refused() {
    for (variable, value, words) in [
        ("CLEANUP_WORKER_BATCH_SIZE", "0", "worker.batch_size"),
        ("CLEANUP_WORKER_BATCH_SIZE", "many", "CLEANUP_WORKER_BATCH_SIZE"),
        ("CLEANUP_WORKER_CONCURRENCY", "65", "worker.concurrency"),
        ("CLEANUP_POSTGRES_POOL_SIZE", "1", "postgres.pool_size"),
        ("CLEANUP_LOCK_TTL", "2s", "lock.ttl"),
        ("CLEANUP_THROTTLE_MAX_RATE", "-1", "CLEANUP_THROTTLE_MAX_RATE"),
        ("CLEANUP_THROTTLE_MAX_REPLICA_LAG", "99ms", "throttle.max_replica_lag"),
        ("CLEANUP_THROTTLE_MAX_REPLICA_LAG", "soon", "CLEANUP_THROTTLE_MAX_REPLICA_LAG"),
        ("CLEANUP_THROTTLE_FLAG_FILE", "stop", "throttle.flag_file"),
        ("CLEANUP_LOG_FILTER", "info,=nonsense=", "log.filter"),
        ("CLEANUP_LOCK_WHEN_UNAVAILABLE", "panic", "CLEANUP_LOCK_WHEN_UNAVAILABLE"),
        ("CLEANUP_WATCHDOG_LISTEN", "here", "CLEANUP_WATCHDOG_LISTEN"),
    ] {
        assert_usage(worker(&["run"]).env(variable, value), &[words]).await;
    }
    assert_usage(worker(&["run", "--batch-size", "0"]), &["worker.batch_size"]).await;
}
