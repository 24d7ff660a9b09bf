//! An S3 that keeps its objects in memory: for buckets too large to upload, for objects of any age,
//! and to hold an answer until something else has happened.

mod answers;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    body::Bytes,
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use percent_encoding::percent_decode_str;
use tokio::sync::watch;

use self::answers::{Query, no_bucket, no_bulk};

const TIMEOUT: Duration = Duration::from_secs(60);

struct Object {
    body: Bytes,
    size: usize,
    modified_s: u64,
}

/// The kinds of calls that can be held and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// Lists a page of the bucket.
    List,
    /// Lists one key, to see whether it exists.
    Probe,
    Delete,
}

/// Deviations from AWS that some stores have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quirk {
    /// Pages end without a token for the next.
    NoTokens,
    /// Pages have neither a token nor a key.
    NoTokensNoKeys,
    /// Keys that begin with this are not listed (yet).
    Unlisted(&'static str),
    /// HEAD is denied.
    NoReading,
    /// There is no DeleteObjects.
    NoBulk,
    /// Lists keys as they are, although URL encoding was asked for. HEAD is denied.
    NoEncoding,
}

#[derive(Clone)]
pub(crate) struct MemoryS3 {
    pub url: String,
    objects: Arc<Mutex<BTreeMap<String, Object>>>,
    /// Answers to this kind of call are held, from the n-th on.
    hold: Arc<Mutex<Option<(Call, usize)>>>,
    calls: Arc<Mutex<Vec<Call>>>,
    is_held: watch::Sender<usize>,
    let_go: watch::Sender<usize>,
    unavailable: Arc<Mutex<bool>>,
    /// Keys that contain this text are not deleted.
    locked: Arc<Mutex<Option<String>>>,
    quirk: Arc<Mutex<Option<Quirk>>>,
}

impl MemoryS3 {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
        let server = Self {
            url: format!("http://{}", listener.local_addr().expect("address")),
            objects: Arc::default(),
            hold: Arc::default(),
            calls: Arc::default(),
            is_held: watch::channel(0).0,
            let_go: watch::channel(0).0,
            unavailable: Arc::default(),
            locked: Arc::default(),
            quirk: Arc::default(),
        };
        let shared = server.clone();
        let app = Router::new().fallback(move |method: Method, uri: Uri, body: Bytes| {
            let shared = shared.clone();
            async move { shared.answer(&method, &uri, body).await }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        server
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Object>> {
        self.objects.lock().expect("objects")
    }

    /// Stores an empty object of this size and age.
    pub(crate) fn put(&self, key: &str, size: usize, age: Duration) {
        let modified_s = now_s().saturating_sub(age.as_secs());
        self.objects().insert(key.into(), Object { body: Bytes::new(), size, modified_s });
    }

    pub(crate) fn remove(&self, key: &str) {
        self.objects().remove(key);
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.objects().contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.objects().len()
    }

    /// Makes every object older.
    pub(crate) fn age(&self, by: Duration) {
        self.objects().values_mut().for_each(|object| object.modified_s -= by.as_secs());
    }

    /// Holds the answers from the n-th call of this kind on, counted from now, until
    /// [`let_go`](Self::let_go). An answer describes the bucket as it was when the call arrived.
    pub(crate) fn hold(&self, call: Call, nth: usize) {
        *self.hold.lock().expect("hold") = Some((call, nth));
    }

    /// Waits until an answer is held.
    pub(crate) async fn held(&self) {
        let mut held = self.is_held.subscribe();
        let waited = tokio::time::timeout(TIMEOUT, held.wait_for(|held| *held > 0)).await;
        assert!(waited.is_ok(), "nothing was held");
    }

    pub(crate) fn let_go(&self) {
        *self.hold.lock().expect("hold") = None;
        self.is_held.send_replace(0);
        self.let_go.send_modify(|times| *times += 1);
    }

    /// Stops holding new calls. Calls that are held already stay held and are never carried out.
    pub(crate) fn hold_no_more(&self) {
        *self.hold.lock().expect("hold") = None;
    }

    /// Makes it answer every call with 503, or ends that.
    pub(crate) fn set_unavailable(&self, unavailable: bool) {
        *self.unavailable.lock().expect("unavailable") = unavailable;
    }

    /// Refuses to delete keys that contain this text.
    pub(crate) fn lock(&self, text: &str) {
        *self.locked.lock().expect("locked") = Some(text.into());
    }

    /// Counts the calls of this kind so far.
    pub(crate) fn calls(&self, of: Call) -> usize {
        self.calls.lock().expect("calls").iter().filter(|call| **call == of).count()
    }

    async fn answer(&self, method: &Method, uri: &Uri, body: Bytes) -> Response {
        if *self.unavailable.lock().expect("unavailable") {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        let query = Query::of(uri);
        let path = percent_decode_str(uri.path()).decode_utf8_lossy().into_owned();
        if path.starts_with("/paste-cleanup-probe-") {
            return no_bucket();
        }
        let key = path.splitn(3, '/').nth(2).unwrap_or_default().to_string();
        let (call, answer) = match *method {
            Method::GET if query.get("list-type").is_some() => {
                let whole = query.get("max-keys").is_none() || query.get("prefix").is_none();
                let page = whole || query.get("prefix") == Some(String::new());
                (Some(if page { Call::List } else { Call::Probe }), self.list(&query))
            }
            Method::GET => (None, self.get(&key)),
            Method::HEAD if !key.is_empty() => (None, self.head(&key)),
            Method::PUT if !key.is_empty() => {
                let (size, modified_s) = (body.len(), now_s());
                self.objects().insert(key, Object { body, size, modified_s });
                (None, StatusCode::OK.into_response())
            }
            Method::DELETE => {
                self.remove(&key);
                (Some(Call::Delete), StatusCode::NO_CONTENT.into_response())
            }
            Method::POST if self.quirk() == Some(Quirk::NoBulk) => (None, no_bulk()),
            Method::POST => (Some(Call::Delete), self.delete(&body).await),
            _ => (None, StatusCode::OK.into_response()),
        };
        if let Some(call) = call {
            self.calls.lock().expect("calls").push(call);
            // `delete` itself waits, before it deletes anything.
            if call != Call::Delete {
                self.wait_if_held(call).await;
            }
        }
        answer
    }

    async fn wait_if_held(&self, call: Call) {
        let mut gone = self.let_go.subscribe();
        let before = *gone.borrow_and_update();
        let held = match &mut *self.hold.lock().expect("hold") {
            Some((wanted, left)) if *wanted == call => {
                *left = left.saturating_sub(1);
                *left == 0
            }
            _ => false,
        };
        if held {
            self.is_held.send_modify(|held| *held += 1);
            let _ = gone.wait_for(|times| *times > before).await;
        }
    }

    fn quirk(&self) -> Option<Quirk> {
        *self.quirk.lock().expect("quirk")
    }

    pub(crate) fn set_quirk(&self, quirk: Quirk) {
        *self.quirk.lock().expect("quirk") = Some(quirk);
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}
