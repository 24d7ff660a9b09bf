//! Failover: a streaming standby takes over while workers have open claims. With a synchronous
//! standby no live paste ever loses its body, whenever the primary is lost. With an asynchronous one
//! it can, and `cleanupctl doctor` warns of it.

use std::time::Duration;

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    postgres::Postgres,
    process::{Ended, Running},
    proxy::Proxy,
    *,
};

/// The sessions of workers that wait for the standby to confirm their COMMIT.
const WAITING: &str = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT'
                       AND application_name LIKE 'cleanup-worker%'";

/// A primary, its standby, the proxy between them, and a world on the server that accepts writes.
struct Pair {
    world: World,
    primary: Postgres,
    standby: Postgres,
    replication: Proxy,
    s3: FaultyS3,
}

enum Standby {
    Synchronous,
    Asynchronous,
}

impl Pair {
    async fn start(standby: Standby) -> Self {
        // Set from the start, so that nothing is ever committed without the standby.
        let names = match standby {
            Standby::Synchronous => "synchronous_standby_names = 'standby'",
            Standby::Asynchronous => "synchronous_standby_names = ''",
        };
        let primary = Postgres::start(&[names]).await;
        let replication = Proxy::start(&primary.address()).await;
        let standby = Postgres::standby(replication.port, "standby", &[]).await;
        let mut world = World::on_server(&primary).await;
        world.database_url = format!(
            "postgres://postgres@{},{}/{}?target_session_attrs=read-write",
            primary.address(),
            standby.address(),
            world.name
        );
        let s3 = FaultyS3::start(&world, Mode::Holding).await;
        Self { world, primary, standby, replication, s3 }
    }

    /// A run with both servers in its URL, which does not know which of them is the primary.
    fn worker(&self) -> Process {
        let (url, _) = self.world.database_url.split_once('?').expect("a URL with parameters");
        let worker = self.world.program("cleanup-worker").args(&["run", "--format", "json"]);
        worker.env("DATABASE_URL", url).env("AWS_ENDPOINT_URL", &self.s3.url)
    }

    /// Starts a run, and cuts replication before the COMMIT of its decrement.
    async fn worker_that_decrements_without_the_standby(&self) -> Running {
        let holder = connect(&self.primary.url(&self.world.name)).await;
        holder.batch_execute("BEGIN; SELECT FROM content FOR UPDATE").await.expect("lock");
        let worker = self.worker().start();
        self.world.until_workers_wait(1).await;
        self.cut_replication().await;
        // Not COMMIT: that would wait for the standby.
        holder.batch_execute("ROLLBACK").await.expect("let go");
        self.until_a_commit_waits().await;
        worker
    }

    async fn cut_replication(&self) {
        self.replication.down();
        let cut = "SELECT count(*) = 0 FROM pg_stat_replication";
        self.world.until("replication is cut", cut).await;
    }

    async fn until_a_commit_waits(&self) {
        let waits = format!("SELECT count(*) > 0 {WAITING}");
        tokio::select! {
            () = self.world.until("a COMMIT waits for the standby", &waits) => {}
            () = self.s3.called(1) => panic!("it deletes objects before the standby has the decrement"),
        }
    }

    async fn until_the_standby_has_it_all(&self) {
        let all = "SELECT count(*) = 1 FROM pg_stat_replication
                   WHERE replay_lsn >= pg_current_wal_insert_lsn()";
        self.world.until("the standby has everything", all).await;
    }

    async fn until_deleted(&self, key: &str) {
        while self.world.object(key).await.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn lose_the_primary(&mut self) {
        self.primary.stop_immediately().await;
        self.promote().await;
    }

    async fn promote(&mut self) {
        self.standby.promote().await;
        self.world.db = connect(&self.standby.url(&self.world.name)).await;
    }

    /// Asserts that no claim is open, none had to be reset, and everything is drained.
    async fn assert_drained_by_its_first_worker(&self, ended: &Ended) {
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        let reset = "SELECT count(*) FROM deletion_claims WHERE reset_at IS NOT NULL";
        assert_eq!(self.world.count(reset).await, 0, "{}", ended.stderr());
        self.world.assert_drained().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_survives_a_failover_and_its_worker_continues() {
    let mut pair = Pair::start(Standby::Synchronous).await;
    let key = pair.world.put("gone", "a", Ago(60.0)).await;
    let worker = pair.worker().start();
    pair.until_deleted(&key).await;
    pair.lose_the_primary().await;
    pair.world.put("again", "a", Never).await;
    pair.s3.let_go();
    let ended = worker.end().await;
    assert_eq!(ended.json()["rows_deleted"], 1, "{}", ended.stderr());
    pair.assert_drained_by_its_first_worker(&ended).await;
    assert_eq!(pair.world.read("again").await.as_deref(), Some("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_that_the_standby_has_not_confirmed_deletes_nothing() {
    let mut pair = Pair::start(Standby::Synchronous).await;
    pair.world.put("gone", "a", Ago(60.0)).await;
    let worker = pair.worker_that_decrements_without_the_standby().await;
    pair.primary.stop_immediately().await;
    assert_eq!(pair.s3.calls(), 0, "deleted objects of an unconfirmed decrement");
    pair.promote().await;
    pair.world.put("again", "a", Never).await;
    pair.s3.let_go();
    let ended = worker.end().await;
    pair.assert_drained_by_its_first_worker(&ended).await;
    assert_eq!(pair.world.read("again").await.as_deref(), Some("a"));
}

/// Ends the wait of a decrement for its standby by force, so that it is committed and visible on the
/// primary alone. The worker reads it back, and must not act on it before the standby has it, too.
async fn a_forced_end_of_the_wait_deletes_nothing(force: &str) {
    let mut pair = Pair::start(Standby::Synchronous).await;
    let key = pair.world.put("gone", "a", Ago(60.0)).await;
    let worker = pair.worker_that_decrements_without_the_standby().await;
    // More than once: the transactions that read it back wait, too, and may be ended as well.
    for _ in 0..3 {
        pair.until_a_commit_waits().await;
        pair.world.run_sql(&format!("SELECT {force} {WAITING}")).await;
    }
    let decremented = "SELECT count(*) = 1 FROM deletion_claims WHERE decremented_at IS NOT NULL";
    pair.world.until("the decrement is committed on the primary", decremented).await;
    pair.until_a_commit_waits().await;
    worker.signal(Signal::STOP);
    pair.lose_the_primary().await;
    assert_eq!(pair.s3.calls(), 0, "the standby does not have this decrement");
    // On the new primary the content was never decremented: it can be shared.
    assert_eq!(pair.world.put("live", "a", Never).await, key);
    worker.signal(Signal::CONT);
    pair.s3.let_go();
    let ended = worker.end().await;
    pair.assert_drained_by_its_first_worker(&ended).await;
    assert_eq!(pair.world.read("live").await.as_deref(), Some("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_read_back_before_the_standby_has_it_deletes_nothing() {
    a_forced_end_of_the_wait_deletes_nothing("pg_terminate_backend(pid, 5000)").await;
}

/// Postgres answers such a COMMIT with success and a warning.
#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_whose_wait_for_the_standby_was_cancelled_deletes_nothing() {
    a_forced_end_of_the_wait_deletes_nothing("pg_cancel_backend(pid)").await;
}

/// Shows why one standby must be synchronous. If this fails, the docs promise too little.
#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_standby_can_cost_a_new_paste_its_body_and_doctor_warns_of_it() {
    let mut pair = Pair::start(Standby::Asynchronous).await;
    let key = pair.world.put("gone", "a", Ago(60.0)).await;
    pair.until_the_standby_has_it_all().await;
    let doctor = pair.world.program("cleanupctl").args(&["doctor"]).output().await;
    assert!(doctor.stdout().contains("none of them synchronous"), "{}", doctor.stdout());
    pair.cut_replication().await;
    pair.s3.let_go();
    let ended = pair.worker().output().await;
    assert_eq!((ended.code(), pair.world.object(&key).await), (0, None), "{}", ended.stderr());
    pair.lose_the_primary().await;
    assert_eq!(
        pair.world.put("live", "a", Never).await,
        key,
        "shares the content row, which exists again"
    );
    assert_eq!(pair.world.read("live").await, None, "its object is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_open_during_a_switchover_are_finished_on_the_new_primary() {
    let mut pair = Pair::start(Standby::Synchronous).await;
    let mut keys = Vec::new();
    for code in ["a", "b", "c", "d", "e"] {
        keys.push(pair.world.put(code, code, Ago(60.0)).await);
    }
    let worker = pair.worker().env("CLEANUP_WORKER_BATCH_SIZE", "2");
    let worker = worker.env("CLEANUP_WORKER_CONCURRENCY", "2").start();
    for key in &keys[..4] {
        pair.until_deleted(key).await;
    }
    // The old primary restarts as a standby, answers, and is still the first host in the URL.
    pair.primary.stop_immediately().await;
    pair.primary.write("standby.signal", "").await;
    pair.primary.start_again().await;
    pair.promote().await;
    pair.s3.let_go();
    let ended = worker.end().await;
    assert_eq!(ended.json()["rows_deleted"], 5, "{}", ended.stderr());
    pair.assert_drained_by_its_first_worker(&ended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_server_that_became_read_only_are_not_used_again() {
    let mut pair = Pair::start(Standby::Asynchronous).await;
    let key = pair.world.put("gone", "a", Ago(60.0)).await;
    let worker = pair.worker().start();
    pair.until_deleted(&key).await;
    pair.until_the_standby_has_it_all().await;
    pair.primary.configure(&["default_transaction_read_only = on"]).await;
    pair.primary.reload().await;
    let read_only = "SELECT current_setting('transaction_read_only') = 'on'";
    pair.world.until("the old primary is read-only", read_only).await;
    pair.promote().await;
    pair.s3.let_go();
    let ended = worker.end().await;
    pair.assert_drained_by_its_first_worker(&ended).await;
    let old = connect(&pair.primary.url(&pair.world.name)).await;
    let open = "SELECT count(*) FROM deletion_claims WHERE finished_at IS NULL";
    let open: i64 = old.query_one(open, &[]).await.expect("count").get(0);
    assert_eq!(open, 1, "finished on the new primary alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_refused_at_the_start() {
    let pair = Pair::start(Standby::Asynchronous).await;
    pair.until_the_standby_has_it_all().await;
    let standby = pair.standby.url(&pair.world.name);
    let options = "options=-c%20default_transaction_read_only%3Don";
    let read_only = format!("{}?{options}", pair.primary.url(&pair.world.name));
    for url in [&standby, &read_only] {
        for (program, args) in [
            ("cleanup-worker", &["run"][..]),
            ("cleanup-watchdog", &["--once"]),
            ("cleanupctl", &["migrate"]),
        ] {
            let refused = pair.world.program(program).args(args).env("DATABASE_URL", url);
            let words = ["does not allow writes", "name the primary", "DATABASE_URL"];
            refused.output().await.assert_refused(1, &words);
        }
    }
    let status = pair.world.program("cleanupctl").args(&["status"]);
    let any = format!("{standby}?target_session_attrs=any");
    assert_eq!(status.env("DATABASE_URL", &any).output().await.code(), 0, "status only reads");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_accepts_and_never_answers_is_skipped() {
    let world = World::new().await;
    world.put("gone", "a", Ago(60.0)).await;
    let hanging = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let hanging = hanging.local_addr().expect("address");
    let (head, rest) = world.database_url.split_once('@').expect("a URL with a user");
    let worker = world.program("cleanup-worker").args(&["run"]);
    let worker = worker.env("DATABASE_URL", &format!("{head}@{hanging},{rest}"));
    let ended = worker.output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    world.assert_drained().await;
}
