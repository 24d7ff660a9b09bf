//! Statements that succeed without the expected change, because of a trigger or rule of the owner.

use super::*;
use crate::support::*;

/// Creates a trigger of the owner on content.
async fn trigger_on_content(world: &World, when: &str, code: &str) {
    let sql = format!(
        "CREATE FUNCTION on_content() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN {code} END $$;
         CREATE TRIGGER on_content {when} ON content FOR EACH ROW EXECUTE FUNCTION on_content()"
    );
    world.run_sql(&sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_whose_delete_is_swallowed_keeps_its_object() {
    let world = World::new().await;
    let key = world.put("expired", "kept", Ago(60.0)).await;
    world.put("plain", "plain", Ago(60.0)).await;
    let soft = "IF OLD.content_hash = sha256('kept') THEN RETURN NULL; END IF; RETURN OLD;";
    trigger_on_content(&world, "BEFORE DELETE", soft).await;
    let ended = run_with(&world, &["--limit", "1"]).await;
    assert!(matches!(ended.code(), 1 | 3), "{}", ended.stderr());
    assert!(ended.stderr().contains("swallows it"), "{}", ended.stderr());
    assert_eq!(world.object(&key).await.as_deref(), Some("kept"));
    // A new paste can share that content.
    world.put("live", "kept", Never).await;
    assert_eq!(world.read("live").await.as_deref(), Some("kept"));
    assert_eq!((world.count(WRONG_COUNTS).await, world.count(LEFT).await), (0, 2));
}

/// Asserts that the pastes of content whose update has no effect fail, and no others.
async fn assert_no_decrement(no_effect: &str) {
    let world = World::new().await;
    world.put("expired", "kept", Ago(60.0)).await;
    world.put("live", "kept", Never).await;
    world.put("neighbour", "shared", Ago(60.0)).await;
    world.put("also live", "shared", Never).await;
    let code = format!("IF OLD.content_hash = sha256('kept') THEN {no_effect} END IF; RETURN NEW;");
    trigger_on_content(&world, "BEFORE UPDATE", &code).await;
    let ended = run_with(&world, &["--limit", "1"]).await;
    assert!(matches!(ended.code(), 1 | 3), "{no_effect}: {}", ended.stderr());
    assert!(ended.stderr().contains("swallows it"), "{no_effect}: {}", ended.stderr());
    let left = "SELECT string_agg(short_code, ', ' ORDER BY short_code) FROM pastes";
    assert_eq!(world.text(left).await.as_deref(), Some("also live, expired, live"), "{no_effect}");
    assert_eq!(world.count(WRONG_COUNTS).await, 0, "{no_effect}");
    world.run_sql("DROP TRIGGER on_content ON content").await;
    world.end_backoff().await;
    assert_eq!(run(&world).await.code(), 0, "{no_effect}");
    assert_eq!((world.count(LEFT).await, world.count(WRONG_COUNTS).await), (2, 0), "{no_effect}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_that_a_trigger_swallows_or_undoes_is_not_a_decrement() {
    for no_effect in ["RETURN NULL;", "RETURN OLD;", "NEW.ref_count := OLD.ref_count; RETURN NEW;"]
    {
        assert_no_decrement(no_effect).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_that_a_trigger_undoes_is_not_a_repair() {
    let world = World::new().await;
    // Its count is so low that the decrement recounts it.
    world.put("expired", "kept", Ago(60.0)).await;
    world.put("live", "kept", Never).await;
    world.put("also live", "kept", Never).await;
    world.run_sql("UPDATE content SET ref_count = 1").await;
    trigger_on_content(&world, "BEFORE UPDATE", "RETURN OLD;").await;
    let worker = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let ended = worker.env("CLEANUP_WORKER_MAX_ATTEMPTS", "1").output().await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!(ended.json()["drift_repaired"], 0, "{}", ended.stderr());
    let kept = "SELECT count(*) FROM pastes WHERE content_hash IS NOT NULL";
    assert_eq!(world.count(kept).await, 3, "the expired paste keeps its reference");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_that_a_trigger_undoes_leaves_no_row_under_a_finished_claim() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    let undo = "IF NEW.deletion_status = 'DELETED' AND OLD.short_code LIKE '%5'
                THEN RETURN OLD; END IF; RETURN NEW;";
    trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", undo).await;
    let worker = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let worker = worker.env("CLEANUP_WORKER_MAX_ATTEMPTS", "1");
    let ended = worker.env("CLEANUP_RETENTION_TOMBSTONES", "1h").output().await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!(ended.json()["rows_deleted"], 18, "{}", ended.stderr());
    let failed = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED'
                  AND claim_id IS NULL AND attempts > 0 AND last_error LIKE '%swallows it%'";
    assert_eq!(world.count(failed).await, 2);
    let written = "SELECT count(*) FROM pastes WHERE deletion_status = 'DELETED'";
    assert_eq!(world.count(written).await, 18);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_claimed_while_a_trigger_changes_deletion_initiated_at() {
    let world = World::new().await;
    world.put_many(40, 10).await;
    let restamp = "IF NEW.deletion_initiated_at IS NOT NULL THEN
                   NEW.deletion_initiated_at := clock_timestamp() - interval '1 day'; END IF;
                   RETURN NEW;";
    trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", restamp).await;
    let ended = run(&world).await;
    ended.assert_refused(1, &["changes deletion_initiated_at", "drop the trigger"]);
    let whole =
        "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED' AND attempts = 0";
    assert_eq!((world.count(whole).await, world.count(WRONG_COUNTS).await), (40, 0));
}

/// What a trigger of the owner makes of the claim of a row that it protects.
const UNCLAIMED_BY_TRIGGER: [&str; 4] = [
    "RETURN NULL;",
    "RETURN OLD;",
    "NEW.deletion_status := OLD.deletion_status;",
    "NEW.claim_id := OLD.claim_id;",
];

#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_claim_is_swallowed_or_undone_do_not_keep_others_from_being_claimed() {
    for undo in UNCLAIMED_BY_TRIGGER {
        let world = World::new().await;
        world.put_many(60, 60).await;
        let keep = format!("IF OLD.short_code <= 'p00000040' THEN {undo} END IF; RETURN NEW;");
        trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", &keep).await;
        let ended = run_with(&world, &["--batch-size", "30"]).await;
        assert_eq!(ended.code(), 1, "{undo} {}", ended.stderr());
        let deleted = &ended.json()["rows_deleted"];
        assert_eq!((deleted, world.count(LEFT).await), (&20.into(), 40), "{undo}");
        let why = "SELECT count(*) FROM cleanup_unclaimable WHERE error LIKE '%swallows it%'";
        assert_eq!(world.count(why).await, 40, "{undo}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_trigger_resets_after_each_claim_end_the_run_and_keep_no_other() {
    let world = World::new().await;
    for n in 0..8 {
        world.put(&format!("kept{n}"), "shared", Ago(3600.0)).await;
    }
    for n in 0..12 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    world
        .run_sql(
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 UPDATE pastes SET deletion_status = 'NOT_EXPIRED', claim_id = NULL,
                                   deletion_initiated_at = NULL
                 WHERE short_code = NEW.short_code;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER keep AFTER UPDATE ON pastes FOR EACH ROW
             WHEN (NEW.short_code LIKE 'kept%' AND NEW.deletion_status = 'DELETION_IN_PROGRESS')
             EXECUTE FUNCTION keep()",
        )
        .await;
    let ended = run_with(&world, &["--batch-size", "5"]).await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert!(ended.stderr().contains("left their claims"), "{}", ended.stderr());
    let left = "SELECT count(*) FROM pastes WHERE short_code NOT LIKE 'kept%'";
    assert_eq!((world.count(left).await, world.count(LEFT).await), (0, 8));
    assert_eq!(world.count(WRONG_COUNTS).await, 0);
}
