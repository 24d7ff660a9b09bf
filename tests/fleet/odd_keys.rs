//! Keys that XML cannot express are deleted one by one, and their answers are classified as in a bulk
//! call: gone, an error of the key, or an error of the store.

use crate::support::*;
use axum::{
    Router,
    http::{Method, StatusCode, Uri, header::CONTENT_TYPE},
    response::IntoResponse,
};
use paste_cleanup::{
    config::defaults,
    objects::{Deleted, Objects, ObjectsError},
};

const KEY: &str = "odd\u{1}key";
const PROBE: &str = "probe";
type Answer = (u16, &'static str);
const DONE: Answer = (204, "");

/// Deletes `KEY` in an S3 that gives these answers: for the key, for a probe beside it, and for all
/// other requests.
async fn deleted(key: Answer, beside: Answer, other: Answer) -> Result<Deleted, ObjectsError> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let mut settings = defaults();
    settings.s3.endpoint = Some(format!("http://{}", listener.local_addr().expect("address")));
    settings.s3.bucket = Some("bucket".into());
    settings.s3.deadline = std::time::Duration::from_secs(1);
    let app = Router::new().fallback(move |method: Method, uri: Uri| async move {
        let (path, odd) = (uri.path(), uri.path().contains("odd%01key"));
        let (status, code) = match odd {
            _ if method != Method::DELETE => other,
            true if path.ends_with(PROBE) => beside,
            _ => key,
        };
        let status = StatusCode::from_u16(status).expect("status");
        let body = match (method, status) {
            (Method::POST, StatusCode::NO_CONTENT) => {
                let probe = format!("<Deleted><Key>.paste-cleanup-{PROBE}</Key></Deleted>");
                let body = format!("<DeleteResult>{probe}</DeleteResult>");
                return (StatusCode::OK, body).into_response();
            }
            _ if code.is_empty() => String::new(),
            _ => format!("<Error><Code>{code}</Code><Message>as configured</Message></Error>"),
        };
        (status, [(CONTENT_TYPE, "application/xml")], body).into_response()
    });
    tokio::spawn(async move { axum::serve(listener, app).await });
    Objects::new(&settings).await.expect("S3 client").delete(&[KEY.to_string()], || {}).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_key_that_was_deleted_or_did_not_exist_is_gone() {
    for answer in [DONE, (404, "NoSuchKey")] {
        assert!(deleted(answer, DONE, DONE).await.expect("gone").refused.is_empty(), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_key_is_refused_only_while_others_can_be_deleted() {
    for answer in [(403, "AccessDenied"), (400, "KeyTooLongError"), (405, "MethodNotAllowed")] {
        let refused = deleted(answer, DONE, DONE).await.expect("the store works").refused;
        assert_eq!((refused.len(), refused[0].0.as_str()), (1, KEY), "{answer:?}");
        assert!(refused[0].1.contains(answer.1), "{refused:?}");
        let error = deleted(answer, answer, answer).await.expect_err("nothing can be deleted");
        match answer.0 {
            403 => assert!(matches!(error, ObjectsError::Denied { .. }), "{error}"),
            _ => assert!(matches!(error, ObjectsError::Rejected { .. }), "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_never_a_single_keys_fault() {
    for answer in [(500, "InternalError"), (503, "SlowDown"), (503, ""), (429, "")] {
        let error = deleted(answer, answer, answer).await.expect_err("an outage");
        assert!(matches!(error, ObjectsError::Unavailable { .. }), "{error}");
    }
    let error = deleted((404, "NoSuchBucket"), DONE, DONE).await.expect_err("no bucket");
    assert!(matches!(error, ObjectsError::NoBucket { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_store_deletes_exactly_the_requested_keys() {
    let world = World::new().await;
    let keys = ["k/\u{1}", "k/\u{b}x", "k/\u{1f}\u{1b}[0m", "k/a\u{fffe}", "k/\u{ffff}/b"];
    let neighbours = ["k/\u{2}", "k/x", "k/\u{1f}", "k/a\u{fffd}", "k/b", "k/\u{fffd}/b"];
    for key in keys.iter().chain(&neighbours) {
        world.upload(key, key).await;
        assert_eq!(world.object(key).await.as_deref(), Some(*key));
    }
    let requested: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let objects = Objects::new(&world.settings).await.expect("S3 client");
    let refused = objects.delete(&requested, || {}).await.expect("deleted").refused;
    assert!(refused.is_empty(), "{refused:?}");
    for key in keys {
        assert_eq!(world.object(key).await, None, "{key:?}");
    }
    for key in neighbours {
        assert_eq!(world.object(key).await.as_deref(), Some(key), "{key:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_with_an_odd_key_is_found_and_no_similar_key_is_mistaken_for_it() {
    let world = World::new().await;
    let existing =
        ["k/\u{1}", "k/a\u{fffe}", "k/\r", "k/\n", "k/ü&<\"%41", "k/xy", "k/z/below", "k"];
    let missing = ["k/\u{2}", "k/a\u{fffd}", "k/x", "k/XY", "k/z", "k/\r\n", "k/üA"];
    for key in existing {
        world.upload(key, key).await;
    }
    let objects = Objects::new(&world.settings).await.expect("S3 client");
    for key in existing {
        assert!(objects.exists(key).await.expect("S3 answers"), "{key:?}");
    }
    for key in missing {
        assert!(!objects.exists(key).await.expect("S3 answers"), "{key:?}");
    }
}
