//! The rights in S3: the policies of `ops/s3` are enforced by a SeaweedFS of each test's own; they
//! suffice, they are as small as they claim, and without them nothing is claimed.

use std::collections::BTreeSet;

use crate::support::{
    guarded::{
        AUDIT_POLICY, AUDITOR, Guarded, PREFIXED_WORKER, READER, SECRET, WORKER, WORKER_POLICY,
    },
    process::Signal,
    proxy::{Proxy, address_of},
    *,
};
use aws_sdk_s3::{Client as S3, config::Credentials, error::SdkError, primitives::ByteStream};
use serde_json::{Value, json};

impl Guarded {
    /// A run by somebody, at this endpoint.
    fn run_at(&self, endpoint: &str, who: &str) -> Process {
        self.program("cleanup-worker", who)
            .args(&["run", "--format", "json"])
            .env("AWS_ENDPOINT_URL", endpoint)
    }

    /// An audit by somebody, under the role that is its due.
    fn audit(&self, who: &str, args: &[&str]) -> Process {
        let audit = self.world.audit(args).env("AWS_ACCESS_KEY_ID", who);
        audit.env("AWS_SECRET_ACCESS_KEY", SECRET)
    }

    fn run(&self, who: &str) -> Process {
        self.run_at(&self.store.url, who)
    }

    /// Somebody's own client.
    fn client(&self, who: &'static str) -> S3 {
        let credentials = Credentials::new(who, SECRET, None, None, "test");
        let config = self.world.s3.config().to_builder().credentials_provider(credentials);
        S3::from_conf(config.build())
    }

    async fn put_expired(&self, pastes: usize) {
        for n in 0..pastes {
            self.world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
        }
    }

    /// Takes the right to delete away from everybody, or gives it back.
    async fn forbid_deletion(&self, forbid: bool) {
        let (s3, bucket) = (&self.world.s3, &self.world.bucket);
        let policy = json!({"Version": "2012-10-17", "Statement": [{
            "Effect": "Deny", "Principal": "*", "Action": ["s3:DeleteObject"],
            "Resource": [format!("arn:aws:s3:::{bucket}/*")],
        }]});
        if forbid {
            let put = s3.put_bucket_policy().bucket(bucket).policy(policy.to_string());
            put.send().await.expect("put policy");
        } else {
            s3.delete_bucket_policy().bucket(bucket).send().await.expect("delete policy");
        }
    }

    /// What somebody is denied, of all that could be asked.
    async fn denied(&self, who: &'static str) -> Vec<&'static str> {
        let (s3, bucket, key) = (self.client(who), &self.world.bucket, "body/of-another");
        self.world.upload(key, "a").await;
        let (body, other) = (ByteStream::from_static(b"x"), format!("{bucket}-2"));
        let answers = [
            ("list", is_denied(s3.list_objects_v2().bucket(bucket).send().await)),
            ("read", is_denied(s3.get_object().bucket(bucket).key(key).send().await)),
            ("head", is_denied(s3.head_object().bucket(bucket).key(key).send().await)),
            ("upload", is_denied(s3.put_object().bucket(bucket).key(key).body(body).send().await)),
            ("drop bucket", is_denied(s3.delete_bucket().bucket(bucket).send().await)),
            ("make bucket", is_denied(s3.create_bucket().bucket(other).send().await)),
            ("read policy", is_denied(s3.get_bucket_policy().bucket(bucket).send().await)),
            ("delete", is_denied(s3.delete_object().bucket(bucket).key(key).send().await)),
        ];
        answers.into_iter().filter(|(_, denied)| *denied).map(|(what, _)| what).collect()
    }
}

/// Denied, and not failed for another reason.
fn is_denied<T, E>(answer: Result<T, SdkError<E>>) -> bool {
    answer.is_err_and(|error| error.raw_response().is_some_and(|raw| raw.status().as_u16() == 403))
}

/// The actions that a policy allows, each with what it allows them on.
fn allowed(policy: &str) -> BTreeSet<(String, String)> {
    let policy: Value = serde_json::from_str(policy).expect("JSON");
    assert_eq!(policy["Version"], "2012-10-17");
    let mut allowed = BTreeSet::new();
    let texts = |value: &Value| -> Vec<String> {
        serde_json::from_value(value.clone()).expect("a list of texts")
    };
    for statement in policy["Statement"].as_array().expect("statements") {
        assert_eq!(statement["Effect"], "Allow");
        for action in texts(&statement["Action"]) {
            let on = texts(&statement["Resource"]).into_iter();
            allowed.extend(on.map(|resource| (action.clone(), resource)));
        }
    }
    allowed
}

fn exactly(expected: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    expected.iter().map(|(action, on)| (action.to_string(), on.to_string())).collect()
}

/// The right that S3 asks for when it gets such a request.
fn right_for(request: &str, bucket: &str) -> String {
    let deletes = [
        format!("POST /{bucket}/?delete"),
        format!("POST /{bucket}?delete"),
        format!("DELETE /{bucket}/"),
    ];
    match deletes.iter().any(|delete| request.starts_with(delete)) {
        true => "s3:DeleteObject".into(),
        false => format!("whatever {request} needs"),
    }
}

#[test]
fn the_policies_allow_deleting_and_for_the_audit_listing_and_nothing_else() {
    let delete = ("s3:DeleteObject", "arn:aws:s3:::YOUR-BUCKET/*");
    let list = ("s3:ListBucket", "arn:aws:s3:::YOUR-BUCKET");
    assert_eq!(allowed(WORKER_POLICY), exactly(&[delete]));
    assert_eq!(allowed(AUDIT_POLICY), exactly(&[delete, list]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_calls_is_what_its_policy_allows() {
    let guarded = Guarded::new().await;
    guarded.put_expired(12).await;
    let recording = Proxy::start(&address_of(&guarded.store.url)).await;
    let run = guarded.run_at(&recording.through(&guarded.store.url), WORKER);
    let ended = run.env("CLEANUP_WORKER_BATCH_SIZE", "5").output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let requests = recording.requests();
    assert!(requests.len() >= 4, "a probe and three batches: {requests:?}");
    // Is a delete acknowledged in a bucket that does not exist? It may be refused.
    let (elsewhere, requests): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|request| request.starts_with("POST /paste-cleanup-probe-"));
    assert_eq!(elsewhere.len(), 1, "{elsewhere:?}");
    let needed: BTreeSet<String> =
        requests.iter().map(|request| right_for(request, &guarded.world.bucket)).collect();
    let granted: BTreeSet<String> =
        allowed(WORKER_POLICY).into_iter().map(|(action, _)| action).collect();
    assert_eq!(needed, granted);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_workers_policy_everything_is_drained_and_nothing_else_is_possible() {
    let guarded = Guarded::new().await;
    guarded.put_expired(30).await;
    guarded.world.put("live", "kept", In(3600.0)).await;
    let ended = guarded.run(WORKER).output().await;
    assert_eq!((ended.code(), &ended.json()["objects_deleted"]), (0, &30.into()));
    guarded.world.assert_drained().await;
    assert_eq!(guarded.world.read("live").await.as_deref(), Some("kept"));
    let all_but_delete =
        ["list", "read", "head", "upload", "drop bucket", "make bucket", "read policy"];
    assert_eq!(guarded.denied(WORKER).await, all_but_delete);
    let all_but_list_and_delete = &all_but_delete[1..];
    assert_eq!(guarded.denied(AUDITOR).await, all_but_list_and_delete);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_for_a_prefix_suffices_for_a_worker_with_that_prefix() {
    let guarded = Guarded::new().await;
    let world = &guarded.world;
    for code in ["a", "b"] {
        let key = format!("pastes/{code}");
        world.upload(&key, code).await;
        world.put_row(code, &hash(code), Some(&key), 1, Ago(60.0)).await;
    }
    let without = guarded.run(PREFIXED_WORKER).output().await;
    without.assert_refused(1, &["S3 refuses", &world.bucket, "s3:DeleteObject"]);
    let with = guarded.run(PREFIXED_WORKER).env("CLEANUP_S3_PREFIX", "pastes/").output().await;
    assert_eq!((with.code(), &with.json()["objects_deleted"]), (0, &2.into()));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_delete_a_run_says_so_and_claims_nothing() {
    let guarded = Guarded::new().await;
    guarded.put_expired(3).await;
    let denied = guarded.denied(READER).await;
    assert_eq!(denied, ["drop bucket", "make bucket", "read policy", "delete"]);
    let ended = guarded.run(READER).output().await;
    let bucket = &guarded.world.bucket;
    ended.assert_refused(1, &["S3 refuses", bucket, "AccessDenied", "policy", "s3:DeleteObject"]);
    let claims = "SELECT count(*) FROM deletion_claims";
    assert_eq!(guarded.world.count(claims).await, 0);
    let bound = "SELECT count(*) FROM cleanup_fleet WHERE bucket IS NOT NULL";
    assert_eq!(guarded.world.count(bound).await, 0, "no bucket is remembered");
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_taken_away_in_the_middle_cost_no_attempt_and_leave_nothing_claimed() {
    let guarded = Guarded::new().await;
    let world = &guarded.world;
    guarded.put_expired(60).await;
    // Slow enough to be still at it when the right goes.
    let mut run = guarded
        .run(WORKER)
        .env("CLEANUP_WORKER_BATCH_SIZE", "4")
        .env("CLEANUP_S3_MAX_KEYS_PER_SECOND", "3")
        .start();
    world.until("a batch is done", "SELECT count(*) < 60 FROM pastes").await;
    guarded.forbid_deletion(true).await;
    let said = run.until_it_logs("paused claims").await;
    assert!(said.contains(&world.bucket) && said.contains("s3:DeleteObject"), "{said}");
    run.signal(Signal::TERM);
    let ended = run.end().await;
    assert_ne!(ended.code(), 0, "a backlog is left");
    let held = "SELECT count(*) FROM pastes
                WHERE deletion_status <> 'NOT_EXPIRED' OR attempts > 0 OR retry_at IS NOT NULL";
    let open =
        "SELECT count(*) FROM deletion_claims WHERE finished_at IS NULL AND reset_at IS NULL";
    assert_eq!((world.count(held).await, world.count(open).await), (0, 0));
    assert!(world.count("SELECT count(*) FROM pastes").await > 0, "it was in the middle");
    guarded.forbid_deletion(false).await;
    let again = guarded.run(WORKER).output().await;
    assert_eq!(again.code(), 0, "{}", again.stderr());
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_audits_policy_and_role_an_audit_finds_and_repairs_everything() {
    let guarded = Guarded::new().await;
    let world = &guarded.world;
    world.bind().await;
    world.erase_one().await;
    for n in 0..10 {
        world.put(&format!("p{n}"), &format!("b{n}"), In(3600.0)).await;
    }
    world.upload("orphan", "nobody's").await;
    world
        .run_sql("UPDATE content SET ref_count = 3; DELETE FROM pastes WHERE short_code = 'p1'")
        .await;
    let missing =
        world.text("SELECT s3_key FROM content JOIN pastes USING (content_hash) LIMIT 1").await;
    let missing = missing.expect("a key");
    world.s3.delete_object().bucket(&world.bucket).key(&missing).send().await.expect("delete");
    let ended = guarded.audit(AUDITOR, &["--repair", "--grace", "0s"]).output().await;
    let report = ended.json();
    assert_eq!(ended.code(), 1, "{report:#} {}", ended.stderr());
    let counts = ["orphans", "wrong_counts", "unreferenced_content", "missing_objects", "repaired"];
    assert_eq!(counts.map(|count| report[count].as_u64()), [1, 9, 1, 1, 11].map(Some));
    world.upload(&missing, "back").await;
    let again = guarded.audit(AUDITOR, &["--grace", "0s"]).output().await;
    assert_eq!(again.code(), 0, "{}", again.stdout());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_without_a_right_in_s3_says_which_one() {
    let guarded = Guarded::new().await;
    let world = &guarded.world;
    world.bind().await;
    world.erase_one().await;
    world.put("p", "body", Never).await;
    world.upload("orphan", "nobody's").await;
    let blind = guarded.audit(WORKER, &["--repair", "--grace", "0s"]).output().await;
    assert_eq!(blind.code(), 1);
    assert!(blind.stderr().contains("s3:ListBucket"), "{}", blind.stderr());
    let looking = guarded.audit(READER, &["--grace", "0s"]).output().await;
    assert_eq!((looking.code(), &looking.json()["orphans"]), (1, &1.into()));
    let denied = guarded.audit(READER, &["--grace", "0s", "--repair"]).output().await;
    assert_eq!((denied.code(), &denied.json()["orphans"]), (1, &1.into()));
    assert!(denied.stderr().contains("s3:DeleteObject"), "{}", denied.stderr());
    assert_eq!(guarded.world.keys().await.len(), 2);
}
