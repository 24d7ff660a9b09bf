//! `cleanupctl explain`: for every state a paste can be in, what it is, why, and what happens next.

mod support;

use serde_json::Value;
use support::{
    guarded::{AUDITOR, Guarded, WORKER},
    *,
};

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
async fn a_paste_that_lives_is_said_to_live_and_until_when() {
    let world = World::new().await;
    world.put("eternal", "a", Never).await;
    world.put("live", "b", In(3600.0)).await;
    let told = explained(&world, "eternal").await;
    assert_eq!(told["state"], "alive");
    says(&told["next"], &["never expires"]);
    let told = explained(&world, "live").await;
    assert_eq!((&told["state"], &told["wrong"]), (&"alive".into(), &Value::Array(Vec::new())));
    says(&told["next"], &["expires in"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_paste_waits_for_the_next_run_or_for_the_end_of_a_pause() {
    let world = World::new().await;
    world.put("due", "a", Ago(600.0)).await;
    let told = explained(&world, "due").await;
    assert_eq!(told["state"], "due");
    says(&told["next"], &["overdue by 10m", "the next run"]);
    world.run_sql("UPDATE cleanup_fleet SET paused_at = now(), pause_reason = 'a move'").await;
    says(&explained(&world, "due").await["next"], &["paused: a move"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_failed_is_told_with_its_error_and_when_it_is_tried_again() {
    let world = World::new().await;
    world.put("failed", "a", Ago(600.0)).await;
    let failed = "UPDATE pastes SET attempts = 2, last_error = 'AccessDenied',
                                    retry_at = now() + interval '5 minutes'";
    world.run_sql(failed).await;
    let told = explained(&world, "failed").await;
    assert_eq!((&told["state"], &told["attempts"]), (&"backing off".into(), &2.into()));
    assert_eq!(told["last_error"], "AccessDenied");
    says(&told["next"], &["due again in"]);
    world.run_sql("UPDATE pastes SET retry_at = 'infinity'").await;
    let told = explained(&world, "failed").await;
    assert_eq!(told["state"], "dead letter");
    says(&told["next"], &["cleanupctl requeue"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_in_a_workers_hands_is_told_with_its_claim_and_when_it_would_come_back() {
    let world = World::new().await;
    world.put("claimed", "a", Ago(600.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 10).await;
    let told = explained(&world, "claimed").await;
    assert_eq!(told["state"], "being deleted");
    assert_eq!(told["claim"]["id"], claim.fence.claim);
    assert_eq!(told["claim"]["worker"], worker.id.to_string());
    assert_eq!((&told["claim"]["decremented"], &told["wrong"][0]), (&false.into(), &Value::Null));
    says(&told["next"], &["no watchdog has ever run", "the start of the next run resets it"]);
    worker.decrement(&claim).await.expect("decrement");
    let told = explained(&world, "claimed").await;
    assert_eq!((&told["claim"]["decremented"], &told["wrong"][0]), (&true.into(), &Value::Null));
    world.expire_leases(7201.0).await;
    world.sweep().await;
    let told = explained(&world, "claimed").await;
    says(&told["last_error"], &["worker lease expired"]);
    assert!(told["owes"].is_string(), "it inherits the object: {told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_something_else_marked_is_told_as_one_without_a_claim() {
    let world = World::new().await;
    world.put("stray", "a", Ago(600.0)).await;
    let marked = "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                                    deletion_initiated_at = now() - interval '1 hour'";
    world.run_sql(marked).await;
    let told = explained(&world, "stray").await;
    assert_eq!(told["state"], "in progress without an open claim");
    says(&told["next"], &["no watchdog has ever run", "the start of the next run resets it"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_looked_for_and_the_rest_is_told_even_if_s3_cannot_say() {
    let world = World::new().await;
    let key = world.put("live", "a", In(3600.0)).await;
    assert_eq!(explained(&world, "live").await["body"]["object"], "there");
    let unseen = async |name: &str, value: &str, words: &[&str]| {
        let args = ["explain", "live", "--format", "json"];
        let ended = world.program("cleanupctl").args(&args).env(name, value).output().await;
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        let told = ended.json();
        assert_eq!((&told["state"], &told["body"]["s3_key"]), (&"alive".into(), &(*key).into()));
        assert_eq!(told["wrong"], Value::Array(Vec::new()), "nothing is said to be missing");
        says(&told["body"]["object"]["not_seen"], words);
    };
    unseen("AWS_ENDPOINT_URL", "http://127.0.0.1:1", &["S3 is unavailable"]).await;
    unseen("S3_BUCKET", "", &["no s3.bucket"]).await;
    unseen("S3_BUCKET", "no-such-bucket", &["does not exist"]).await;
    let other = World::new().await;
    world.program("cleanup-worker").args(&["run"]).output().await;
    unseen("S3_BUCKET", &other.bucket, &["belongs to bucket", &world.bucket]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_policy_does_not_let_us_see_is_not_said_to_be_missing() {
    let guarded = Guarded::new().await;
    let key = guarded.world.put("live", "a", In(3600.0)).await;
    let object = async |who: &str| {
        let explain =
            guarded.program("cleanupctl", who).args(&["explain", "live", "--format", "json"]);
        explain.output().await.json()["body"]["object"].clone()
    };
    says(&object(WORKER).await["not_seen"], &["AccessDenied", "s3:ListBucket allows it"]);
    assert_eq!(object(AUDITOR).await, "there");
    let (s3, bucket) = (&guarded.world.s3, &guarded.world.bucket);
    s3.delete_object().bucket(bucket).key(&key).send().await.expect("lose it");
    says(&object(WORKER).await["not_seen"], &["AccessDenied"]);
    assert_eq!(object(AUDITOR).await, "missing", "a list suffices");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_is_not_there_is_said_to_be_gone() {
    let world = World::new().await;
    let ended = world.program("cleanupctl").args(&["explain", "nobody"]).output().await;
    ended.assert_refused(1, &["no paste \"nobody\"", "erased"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn for_eyes_it_is_a_few_lines() {
    let world = World::new().await;
    world.put("due", "a", Ago(600.0)).await;
    let ended = world.program("cleanupctl").args(&["explain", "due"]).output().await;
    let text = ended.stdout();
    assert!(text.starts_with("due: due\nnext: overdue by 10m"), "{text}");
    assert!(text.contains("body: ") && text.contains("counted 1 times, in the bucket"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn times_that_are_infinite_or_in_the_future_are_named() {
    let world = World::new().await;
    world.put("paste", "a", Ago(60.0)).await;
    world.run_sql("UPDATE pastes SET expires_at = '-infinity'").await;
    let told = explained(&world, "paste").await;
    assert_eq!(told["state"], "due");
    says(&told["next"], &["-infinity", "the next run takes it"]);
    world.run_sql("UPDATE pastes SET retry_at = now() + interval '10 years'").await;
    says(&explained(&world, "paste").await["next"], &["corrected by the next sweep"]);
    world.run_sql("UPDATE pastes SET expires_at = 'infinity', retry_at = NULL").await;
    let told = explained(&world, "paste").await;
    assert_eq!(told["state"], "alive");
    says(&told["next"], &["never expires"]);
    world.run_sql("UPDATE pastes SET expires_at = now()").await;
    let worker = world.worker().await;
    claim_some(&worker, 1).await;
    for future in ["now() + interval '1 year'", "'infinity'"] {
        world.run_sql(&format!("UPDATE deletion_claims SET heartbeat_at = {future}")).await;
        let told = explained(&world, "paste").await;
        assert_eq!(told["claim"]["last_heartbeat_s"], 0.0);
        says(&told["wrong"][0], &["heartbeat is in the future"]);
    }
}
