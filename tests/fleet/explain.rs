//! `cleanupctl explain`: shows every state of a paste with its reason and what happens next.

use crate::support::{
    guarded::{AUDITOR, Guarded, WORKER},
    *,
};
use serde_json::Value;

async fn explained(world: &World, short_code: &str) -> Value {
    let args = ["explain", short_code, "--format", "json"];
    let ended = world.program("cleanupctl").args(&args).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    ended.json()
}

fn says(value: &Value, words: &[&str]) {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is no text"));
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_paste_is_shown_with_the_time_until_it_expires() {
    let world = World::new().await;
    world.put("eternal", "a", Never).await;
    world.put("live", "b", In(3600.0)).await;
    let shown = explained(&world, "eternal").await;
    assert_eq!(shown["state"], "alive");
    says(&shown["next"], &["never expires"]);
    let shown = explained(&world, "live").await;
    assert_eq!((&shown["state"], &shown["wrong"]), (&"alive".into(), &Value::Array(Vec::new())));
    says(&shown["next"], &["expires in"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_paste_waits_for_the_next_run_or_for_the_end_of_a_pause() {
    let world = World::new().await;
    world.put("due", "a", Ago(600.0)).await;
    let shown = explained(&world, "due").await;
    assert_eq!(shown["state"], "due");
    says(&shown["next"], &["overdue by 10m", "the next run"]);
    world.run_sql("UPDATE cleanup_fleet SET paused_at = now(), pause_reason = 'a move'").await;
    says(&explained(&world, "due").await["next"], &["paused: a move"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_paste_is_shown_with_its_error_and_when_it_is_retried() {
    let world = World::new().await;
    world.put("failed", "a", Ago(600.0)).await;
    let failed = "UPDATE pastes SET attempts = 2, last_error = 'AccessDenied',
                                    retry_at = now() + interval '5 minutes'";
    world.run_sql(failed).await;
    let shown = explained(&world, "failed").await;
    assert_eq!((&shown["state"], &shown["attempts"]), (&"backing off".into(), &2.into()));
    assert_eq!(shown["last_error"], "AccessDenied");
    says(&shown["next"], &["due again in"]);
    world.run_sql("UPDATE pastes SET retry_at = 'infinity'").await;
    let shown = explained(&world, "failed").await;
    assert_eq!(shown["state"], "dead letter");
    says(&shown["next"], &["cleanupctl requeue"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_paste_is_shown_with_its_claim_and_when_it_would_be_reset() {
    let world = World::new().await;
    world.put("claimed", "a", Ago(600.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 10).await;
    let shown = explained(&world, "claimed").await;
    assert_eq!(shown["state"], "being deleted");
    assert_eq!(shown["claim"]["id"], claim.fence.claim);
    assert_eq!(shown["claim"]["worker"], worker.id.to_string());
    assert_eq!((&shown["claim"]["decremented"], &shown["wrong"][0]), (&false.into(), &Value::Null));
    says(&shown["next"], &["no watchdog has ever run", "otherwise the next run resets it"]);
    worker.decrement(&claim).await.expect("decrement");
    let shown = explained(&world, "claimed").await;
    assert_eq!((&shown["claim"]["decremented"], &shown["wrong"][0]), (&true.into(), &Value::Null));
    world.expire_leases(7201.0).await;
    world.sweep().await;
    let shown = explained(&world, "claimed").await;
    says(&shown["last_error"], &["worker lease expired"]);
    assert!(shown["pending_s3_key"].is_string(), "it has a pending object delete: {shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_another_program_marked_is_shown_as_stranded() {
    let world = World::new().await;
    world.put("stranded", "a", Ago(600.0)).await;
    let marked = "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                                    deletion_initiated_at = now() - interval '1 hour'";
    world.run_sql(marked).await;
    let shown = explained(&world, "stranded").await;
    assert_eq!(shown["state"], "stranded: in progress without an open claim");
    says(&shown["next"], &["no watchdog has ever run", "otherwise the next run resets it"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_object_is_probed_and_the_rest_is_shown_even_if_s3_cannot_answer() {
    let world = World::new().await;
    let key = world.put("live", "a", In(3600.0)).await;
    assert_eq!(explained(&world, "live").await["content"]["object"], "exists");
    let unknown = async |name: &str, value: &str, words: &[&str]| {
        let args = ["explain", "live", "--format", "json"];
        let ended = world.program("cleanupctl").args(&args).env(name, value).output().await;
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        let shown = ended.json();
        assert_eq!(
            (&shown["state"], &shown["content"]["s3_key"]),
            (&"alive".into(), &(*key).into())
        );
        assert_eq!(shown["wrong"], Value::Array(Vec::new()), "nothing is reported as missing");
        says(&shown["content"]["object"]["unknown"], words);
    };
    unknown("AWS_ENDPOINT_URL", "http://127.0.0.1:1", &["S3 is unavailable"]).await;
    unknown("S3_BUCKET", "", &["s3.bucket is not set"]).await;
    unknown("S3_BUCKET", "no-such-bucket", &["does not exist"]).await;
    let other = World::new().await;
    world.program("cleanup-worker").args(&["run"]).output().await;
    unknown("S3_BUCKET", &other.bucket, &["belongs to bucket", &world.bucket]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_the_policy_hides_is_not_reported_as_missing() {
    let guarded = Guarded::new().await;
    let key = guarded.world.put("live", "a", In(3600.0)).await;
    let object = async |who: &str| {
        let explain =
            guarded.program("cleanupctl", who).args(&["explain", "live", "--format", "json"]);
        explain.output().await.json()["content"]["object"].clone()
    };
    says(&object(WORKER).await["unknown"], &["AccessDenied", "s3:ListBucket"]);
    assert_eq!(object(AUDITOR).await, "exists");
    let (s3, bucket) = (&guarded.world.s3, &guarded.world.bucket);
    s3.delete_object().bucket(bucket).key(&key).send().await.expect("lose it");
    says(&object(WORKER).await["unknown"], &["AccessDenied"]);
    assert_eq!(object(AUDITOR).await, "missing", "a list suffices");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_does_not_exist_is_refused_by_name() {
    let world = World::new().await;
    let ended = world.program("cleanupctl").args(&["explain", "erased"]).output().await;
    ended.assert_refused(1, &["no paste \"erased\"", "erased"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_output_is_a_few_lines() {
    let world = World::new().await;
    world.put("due", "a", Ago(600.0)).await;
    let ended = world.program("cleanupctl").args(&["explain", "due"]).output().await;
    let text = ended.stdout();
    assert!(text.starts_with("due: due\nnext: overdue by 10m"), "{text}");
    assert!(text.contains("object: ") && text.contains("ref_count 1, in the bucket"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn times_that_are_infinite_or_in_the_future_are_named() {
    let world = World::new().await;
    world.put("paste", "a", Ago(60.0)).await;
    world.run_sql("UPDATE pastes SET expires_at = '-infinity'").await;
    let shown = explained(&world, "paste").await;
    assert_eq!(shown["state"], "due");
    says(&shown["next"], &["-infinity", "the next run deletes it"]);
    world.run_sql("UPDATE pastes SET retry_at = now() + interval '10 years'").await;
    says(&explained(&world, "paste").await["next"], &["corrected by the next sweep"]);
    world.run_sql("UPDATE pastes SET expires_at = 'infinity', retry_at = NULL").await;
    let shown = explained(&world, "paste").await;
    assert_eq!(shown["state"], "alive");
    says(&shown["next"], &["never expires"]);
    world.run_sql("UPDATE pastes SET expires_at = now()").await;
    let worker = world.worker().await;
    claim_some(&worker, 1).await;
    for future in ["now() + interval '1 year'", "'infinity'"] {
        world.run_sql(&format!("UPDATE deletion_claims SET heartbeat_at = {future}")).await;
        let shown = explained(&world, "paste").await;
        assert_eq!(shown["claim"]["last_heartbeat_s"], 0.0);
        says(&shown["wrong"][0], &["heartbeat is in the future"]);
    }
}
