//! Only the resident watchdog opens a port, on loopback unless it is configured otherwise.

use super::Sidecar;
use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    sockets::listening,
    *,
};

const LOOPBACK: &str = "0100007F";

#[tokio::test(flavor = "multi_thread")]
async fn by_default_only_the_watchdog_listens_and_only_on_loopback() {
    let world = World::new().await;
    assert!(paste_cleanup::config::defaults().watchdog.listen.ip().is_loopback());
    let sidecar = Sidecar::start(&world).await;
    let one = vec![format!("{LOOPBACK}:{:04X}", sidecar.port())];
    assert_eq!(listening(sidecar.running.pid()), one);

    let mut scheduler = world.program("cleanup-worker").args(&["schedule"]).start();
    scheduler.until_it_logs("next run:").await;
    assert_eq!(listening(scheduler.pid()), Vec::<String>::new());

    world.put("a", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let run = world.program("cleanup-worker").args(&["run"]).env("AWS_ENDPOINT_URL", &s3.url);
    let run = run.start();
    s3.called(1).await;
    assert_eq!(listening(run.pid()), Vec::<String>::new());
    s3.let_go();
    assert_eq!(run.end().await.code(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn watchdog_once_does_not_listen() {
    let world = World::new().await;
    let other = connect(&world.database_url).await;
    let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
                 AND wait_event_type = 'Lock' AND application_name LIKE 'cleanup-watchdog%'";
    for _ in 0..10 {
        other.batch_execute("BEGIN; LOCK TABLE deletion_claims").await.expect("lock");
        let once = world.program("cleanup-watchdog").args(&["--once"]).start();
        world.until("the sweep waits", waits).await;
        assert_eq!(listening(once.pid()), Vec::<String>::new());
        other.batch_execute("ROLLBACK").await.expect("rollback");
        let ended = once.end().await;
        // On a slow machine its lock_timeout may be over first.
        if !ended.stderr().contains("lock timeout") {
            assert_eq!(ended.code(), 0, "{}", ended.stderr());
            return;
        }
    }
    panic!("never got the lock");
}
