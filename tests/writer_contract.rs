//! The contract for the paste service: put, extend, expire now, and the trigger that guards them.

mod support;

use paste_cleanup::worker::report::PhaseTimes;
use support::*;
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_postgres::{Client, Error, Row, error::SqlState};

const PUT: &str = include_str!("../sql/queries/ctl/put_paste.sql");

/// What `paste_put` said.
#[derive(Debug, PartialEq)]
struct Said {
    outcome: String,
    s3_key: Option<String>,
    drop_upload: bool,
}

fn said(outcome: &str, s3_key: Option<&str>, drop_upload: bool) -> Said {
    Said { outcome: outcome.into(), s3_key: s3_key.map(Into::into), drop_upload }
}

impl From<&Row> for Said {
    fn from(row: &Row) -> Self {
        Self {
            outcome: row.get("outcome"),
            s3_key: row.get("s3_key"),
            drop_upload: row.get("drop_upload"),
        }
    }
}

/// Puts a paste that lives for another hour; no object is uploaded.
async fn try_put(db: &Client, code: &str, body: &str, key: Option<&str>) -> Result<Said, Error> {
    let row = db.query_one(PUT, &[&code, &hash(body), &key, &10_i64, &3600.0]).await?;
    Ok(Said::from(&row))
}

async fn put(db: &Client, code: &str, body: &str, key: Option<&str>) -> Said {
    try_put(db, code, body, key).await.expect("paste_put")
}

async fn extend(db: &Client, code: &str) -> bool {
    let extend = "SELECT paste_extend($1, now() + interval '1 day')";
    db.query_one(extend, &[&code]).await.expect("paste_extend").get(0)
}

async fn expire_now(db: &Client, code: &str) -> bool {
    db.query_one("SELECT paste_expire_now($1)", &[&code]).await.expect("expire now").get(0)
}

async fn ref_count(world: &World, body: &str) -> Option<i32> {
    let sql = "SELECT ref_count FROM content WHERE content_hash = $1";
    let row = world.db.query_opt(sql, &[&hash(body)]).await.expect("ref_count");
    row.map(|row| row.get(0))
}

/// Insists on being refused, with this SQLSTATE.
async fn assert_refused(world: &World, state: &SqlState, sql: &str) {
    let refused = world.db.batch_execute(sql).await.expect_err(sql);
    assert_eq!(refused.code(), Some(state), "{sql}: {refused:?}");
}

/// Does something on a connection of its own, and returns once it waits for a lock.
async fn until_it_waits<T: Send + 'static, F>(
    world: &World,
    job: impl FnOnce(Client) -> F,
) -> JoinHandle<T>
where
    F: Future<Output = T> + Send + 'static,
{
    let db = connect(&world.database_url).await;
    let pid: i32 = db.query_one("SELECT pg_backend_pid()", &[]).await.expect("pid").get(0);
    let job = tokio::spawn(job(db));
    let blocked = format!("SELECT cardinality(pg_blocking_pids({pid})) > 0");
    world.until("the job waits for a lock", &blocked).await;
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_stores_the_paste_and_counts_its_reference() {
    let world = World::new().await;
    assert_eq!(put(&world.db, "p", "a", Some("a/1")).await, said("stored", Some("a/1"), false));
    let stored = "SELECT count(*) FROM pastes p JOIN content c USING (content_hash)
                  WHERE p.short_code = 'p' AND p.deletion_status = 'NOT_EXPIRED'
                    AND p.expires_at - p.created_at = interval '1 hour'
                    AND c.s3_key = 'a/1' AND c.size_bytes = 10 AND c.ref_count = 1";
    assert_eq!(world.count(stored).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_put_does_not_count_twice_and_reports_its_upload_as_unused() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    let retried = put(&world.db, "p", "a", Some("a/2")).await;
    assert_eq!(retried, said("duplicate", Some("a/1"), true));
    assert_eq!(ref_count(&world, "a").await, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_under_a_taken_short_code_adds_no_reference() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    let taken = put(&world.db, "p", "b", Some("b/1")).await;
    assert_eq!(taken, said("duplicate", Some("a/1"), true));
    assert_eq!((ref_count(&world, "a").await, ref_count(&world, "b").await), (Some(1), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_repeated_with_the_same_key_never_asks_to_drop_the_live_object() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    let repeated = put(&world.db, "p", "a", Some("a/1")).await;
    assert_eq!(repeated, said("duplicate", Some("a/1"), false));
    assert_eq!(ref_count(&world, "a").await, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_without_a_key_asks_for_an_upload_and_inserts_nothing() {
    let world = World::new().await;
    assert_eq!(put(&world.db, "p", "a", None).await, said("needs_upload", None, false));
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 0);
    assert_eq!(world.count("SELECT count(*) FROM content").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_without_a_key_of_known_content_needs_no_upload() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    assert_eq!(put(&world.db, "q", "a", None).await, said("stored", Some("a/1"), false));
    assert_eq!(ref_count(&world, "a").await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_of_known_content_reuses_its_key_and_reports_its_upload_as_unused() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    let shared = put(&world.db, "q", "a", Some("a/2")).await;
    assert_eq!(shared, said("stored", Some("a/1"), true));
    assert_eq!(ref_count(&world, "a").await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_puts_of_the_same_new_content_agree_on_one_upload() {
    let world = World::new().await;
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..8 {
        let db = connect(&world.database_url).await;
        writers.spawn(async move {
            let (code, key) = (format!("p{n}"), format!("a/{n}"));
            put(&db, &code, "a", Some(&key)).await
        });
    }
    let said = writers.join_all().await;
    assert!(said.iter().all(|put| put.outcome == "stored" && put.s3_key == said[0].s3_key));
    assert_eq!(said.iter().filter(|put| put.drop_upload).count(), 7);
    assert_eq!(ref_count(&world, "a").await, Some(8));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_key_that_belongs_to_other_content_is_refused() {
    let world = World::new().await;
    put(&world.db, "p", "a", Some("a/1")).await;
    let refused = try_put(&world.db, "q", "b", Some("a/1")).await.expect_err("a used key");
    assert_eq!(refused.code(), Some(&SqlState::UNIQUE_VIOLATION));
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 1, "nothing half done");
    assert_eq!(put(&world.db, "q", "b", Some("b/1")).await, said("stored", Some("b/1"), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_arguments_are_refused() {
    let world = World::new().await;
    for arguments in
        ["'', 'h', 'k'", "NULL, 'h', 'k'", "'p', '', 'k'", "'p', NULL, 'k'", "'p', 'h', ''"]
    {
        let put = format!("SELECT * FROM paste_put({arguments}, 1, NULL)");
        assert_refused(&world, &SqlState::INVALID_PARAMETER_VALUE, &put).await;
    }
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extended_paste_stays_live_and_its_failures_are_cleared() {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    world
        .run_sql("UPDATE pastes SET attempts = 3, retry_at = 'infinity', last_error = 'locked'")
        .await;
    assert!(extend(&world.db, "p").await);
    let clean = "SELECT count(*) FROM pastes WHERE expires_at > now() + interval '23 hours'
                 AND attempts = 0 AND retry_at IS NULL AND last_error IS NULL";
    assert_eq!(world.count(clean).await, 1);
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 0);
    assert_eq!(world.read("p").await.as_deref(), Some("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_can_be_extended_to_never_expire() {
    let world = World::new().await;
    world.put("p", "a", In(60.0)).await;
    let extended = "SELECT paste_extend('p', NULL)";
    assert!(world.db.query_one(extended, &[]).await.expect("extend").get::<_, bool>(0));
    let never = "SELECT count(*) FROM pastes WHERE expires_at IS NULL";
    assert_eq!(world.count(never).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_is_being_deleted_or_gone_cannot_be_extended() {
    let world = World::new().await;
    for code in ["claimed", "decremented"] {
        world.put(code, code, Ago(60.0)).await;
    }
    let worker = world.worker().await;
    claim_some(&worker, 1).await;
    assert!(!extend(&world.db, "claimed").await, "in progress");
    let decremented = claim_some(&worker, 1).await;
    worker.decrement(&decremented).await.expect("decrement");
    worker.release(decremented.fence, "test").await.expect("release");
    assert!(!extend(&world.db, "decremented").await, "its reference is gone");
    world.put("tombstone", "t", Ago(60.0)).await;
    world
        .run_sql("UPDATE pastes SET deletion_status = 'DELETED' WHERE short_code = 'tombstone'")
        .await;
    assert!(!extend(&world.db, "tombstone").await);
    assert!(!extend(&world.db, "nobody").await);
    let touched = "SELECT count(*) FROM pastes WHERE expires_at > now()";
    assert_eq!(world.count(touched).await, 0, "nothing was changed");
}

/// Extends while a claim of the same paste is under way, and lets the claim end as told.
async fn extend_during_a_claim_that_ends_by(end: &str) -> bool {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    let claiming = connect(&world.database_url).await;
    let mark = "BEGIN;
                WITH claim AS (INSERT INTO deletion_claims (worker, rows_claimed)
                               VALUES (gen_random_uuid(), 1) RETURNING id)
                UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                                  deletion_initiated_at = now(), claim_id = claim.id FROM claim";
    claiming.batch_execute(mark).await.expect("claim");
    let extending = until_it_waits(&world, |db| async move { extend(&db, "p").await }).await;
    claiming.batch_execute(end).await.expect(end);
    let extended = extending.await.expect("extend");
    let in_future = world.count("SELECT count(*) FROM pastes WHERE expires_at > now()").await;
    assert_eq!(in_future == 1, extended, "it says what it did");
    extended
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_waited_for_a_claim_reports_that_it_is_too_late() {
    assert!(!extend_during_a_claim_that_ends_by("COMMIT").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_waited_for_a_claim_which_is_rolled_back_succeeds() {
    assert!(extend_during_a_claim_that_ends_by("ROLLBACK").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn expire_now_makes_a_live_paste_due() {
    let world = World::new().await;
    world.put("hour", "a", In(3600.0)).await;
    world.put("never", "b", Never).await;
    assert!(expire_now(&world.db, "hour").await);
    assert!(expire_now(&world.db, "never").await);
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 2);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expire_now_does_nothing_for_a_paste_that_is_expired_in_progress_or_gone() {
    let world = World::new().await;
    world.put("expired", "a", Ago(60.0)).await;
    assert!(!expire_now(&world.db, "expired").await);
    let worker = world.worker().await;
    let claimed = claim_some(&worker, 1).await;
    assert_eq!(codes(&claimed), ["expired"], "it kept its place in the queue");
    assert!(!expire_now(&world.db, "expired").await, "in progress");
    assert!(!expire_now(&world.db, "nobody").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn expiry_and_content_of_a_paste_in_progress_cannot_be_changed() {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    claim_some(&worker, 1).await;
    for change in [
        "expires_at = now() + interval '1 day'",
        "expires_at = NULL",
        "content_hash = 'x'",
        "content_hash = NULL",
        "content_hash = 'x', deletion_status = 'NOT_EXPIRED'",
        "expires_at = NULL, deletion_status = 'NOT_EXPIRED'",
    ] {
        let update = format!("UPDATE pastes SET {change}");
        assert_refused(&world, &SqlState::OBJECT_IN_USE, &update).await;
    }
    world.run_sql("UPDATE pastes SET expires_at = expires_at, created_at = now()").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decremented_paste_cannot_be_revived() {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    worker.release(claim.fence, "test").await.expect("release");
    let state = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
    let later = "UPDATE pastes SET expires_at = now() + interval '1 day'";
    assert_refused(&world, &state, later).await;
    assert_refused(&world, &state, "UPDATE pastes SET content_hash = 'x'").await;
    world.end_backoff().await;
    assert_eq!(drain(&worker).await.rows_deleted, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_cannot_be_revived() {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    let worker = world
        .worker_with(|settings| {
            settings.retention.tombstones = std::time::Duration::from_secs(3600)
        })
        .await;
    assert_eq!(drain(&worker).await.rows_deleted, 1);
    let state = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
    assert_refused(&world, &state, "UPDATE pastes SET expires_at = NULL").await;
    assert_refused(&world, &state, "UPDATE pastes SET content_hash = 'x'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_allows_a_reset_by_the_fleet() {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.rows, 1);
    let reset = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED'
                 AND content_hash IS NULL AND pending_s3_key IS NOT NULL";
    assert_eq!(world.count(reset).await, 1);
}

/// Makes deletions of content rows wait until the returned sender is used, which holds a decrement
/// at the moment when it has unreferenced a body but not committed yet.
async fn hold_content_deletes(world: &World) -> oneshot::Sender<()> {
    world
        .run_sql(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM pg_advisory_xact_lock(1); RETURN OLD; END $$;
             CREATE TRIGGER hold BEFORE DELETE ON content FOR EACH ROW EXECUTE FUNCTION hold()",
        )
        .await;
    let holder = connect(&world.database_url).await;
    holder.batch_execute("SELECT pg_advisory_lock(1)").await.expect("hold");
    let (let_go, told) = oneshot::channel();
    tokio::spawn(async move {
        let _ = told.await;
        holder.batch_execute("SELECT pg_advisory_unlock(1)").await.expect("let go");
    });
    let_go
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_waited_for_the_delete_of_its_content_stores_it_again_and_keeps_it() {
    let world = World::new().await;
    let old_key = world.put("old", "body", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    let let_go = hold_content_deletes(&world).await;
    let decrementing = tokio::spawn({
        let (worker, claim) = (worker.clone(), claim.clone());
        async move { worker.decrement(&claim).await.expect("decrement") }
    });
    let held = "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    world.until("the decrement is about to delete the body", held).await;
    world.upload("fresh", "body").await;
    let putting =
        until_it_waits(&world, |db| async move { put(&db, "new", "body", Some("fresh")).await });
    let putting = putting.await;
    let_go.send(()).expect("let go");
    let decremented = decrementing.await.expect("decrement");
    assert_eq!(putting.await.expect("put"), said("stored", Some("fresh"), false));
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete objects");
    worker.finish(&claim, &objects, &PhaseTimes::default()).await.expect("finish");
    assert_eq!(world.object(&old_key).await, None, "the old incarnation is gone");
    assert_eq!(world.read("new").await.as_deref(), Some("body"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_that_waited_for_a_put_keeps_the_content() {
    let world = World::new().await;
    let key = world.put("old", "body", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    let writing = connect(&world.database_url).await;
    writing.batch_execute("BEGIN").await.expect("begin");
    assert_eq!(put(&writing, "new", "body", None).await, said("stored", Some(&key), false));
    let decrementing = tokio::spawn({
        let (worker, claim) = (worker.clone(), claim.clone());
        async move { worker.decrement(&claim).await.expect("decrement") }
    });
    let waits = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database()
                 AND cardinality(pg_blocking_pids(pid)) > 0";
    world.until("the decrement waits for the put", waits).await;
    writing.batch_execute("COMMIT").await.expect("commit");
    let decremented = decrementing.await.expect("decrement");
    assert_eq!((decremented.unreferenced.len(), decremented.drift), (0, 0));
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete objects");
    worker.finish(&claim, &objects, &PhaseTimes::default()).await.expect("finish");
    assert_eq!(world.read("new").await.as_deref(), Some("body"));
    world.assert_drained().await;
}
