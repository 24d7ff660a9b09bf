//! An S3 that keeps its objects in memory: for buckets too large to upload, for objects of any age,
//! and to hold an answer until something else has happened.

use std::{
    collections::BTreeMap,
    fmt::Write,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    body::Bytes,
    http::{Method, StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::sync::watch;

const TIMEOUT: Duration = Duration::from_secs(60);

struct Object {
    body: Bytes,
    size: usize,
    modified_s: u64,
}

/// The kinds of calls that can be held and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Lists a page of the bucket.
    List,
    /// Lists one key, to see whether it exists.
    Probe,
    Delete,
}

/// Deviations from AWS that some stores have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quirk {
    /// Pages end without a token for the next.
    NoTokens,
    /// Pages have neither a token nor a key.
    NoTokensNoKeys,
    /// Keys that begin with this are not listed (yet).
    Unlisted(&'static str),
    /// HEAD is denied.
    NoReading,
}

#[derive(Clone)]
pub struct MemoryS3 {
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
    pub async fn start() -> Self {
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
    pub fn put(&self, key: &str, size: usize, age: Duration) {
        let modified_s = now_s().saturating_sub(age.as_secs());
        self.objects().insert(key.into(), Object { body: Bytes::new(), size, modified_s });
    }

    pub fn remove(&self, key: &str) {
        self.objects().remove(key);
    }

    pub fn has(&self, key: &str) -> bool {
        self.objects().contains_key(key)
    }

    pub fn len(&self) -> usize {
        self.objects().len()
    }

    /// Makes every object older.
    pub fn age(&self, by: Duration) {
        self.objects().values_mut().for_each(|object| object.modified_s -= by.as_secs());
    }

    /// Holds the answers from the n-th call of this kind on, counted from now, until
    /// [`let_go`](Self::let_go). An answer describes the bucket as it was when the call arrived.
    pub fn hold(&self, call: Call, nth: usize) {
        *self.hold.lock().expect("hold") = Some((call, nth));
    }

    /// Waits until an answer is held.
    pub async fn held(&self) {
        let mut held = self.is_held.subscribe();
        let waited = tokio::time::timeout(TIMEOUT, held.wait_for(|held| *held > 0)).await;
        assert!(waited.is_ok(), "nothing was held");
    }

    pub fn let_go(&self) {
        *self.hold.lock().expect("hold") = None;
        self.is_held.send_replace(0);
        self.let_go.send_modify(|times| *times += 1);
    }

    /// Stops holding new calls. Calls that are held already stay held and are never carried out.
    pub fn hold_no_more(&self) {
        *self.hold.lock().expect("hold") = None;
    }

    /// Makes it answer every call with 503, or ends that.
    pub fn set_unavailable(&self, unavailable: bool) {
        *self.unavailable.lock().expect("unavailable") = unavailable;
    }

    /// Refuses to delete keys that contain this text.
    pub fn lock(&self, text: &str) {
        *self.locked.lock().expect("locked") = Some(text.into());
    }

    /// Counts the calls of this kind so far.
    pub fn calls(&self, of: Call) -> usize {
        self.calls.lock().expect("calls").iter().filter(|call| **call == of).count()
    }

    async fn answer(&self, method: &Method, uri: &Uri, body: Bytes) -> Response {
        if *self.unavailable.lock().expect("unavailable") {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        let query = Query::of(uri);
        let path = percent_decode_str(uri.path()).decode_utf8_lossy().into_owned();
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

    fn get(&self, key: &str) -> Response {
        match self.objects().get(key) {
            Some(object) => object.body.clone().into_response(),
            None => {
                (StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>").into_response()
            }
        }
    }

    fn head(&self, key: &str) -> Response {
        if self.quirk() == Some(Quirk::NoReading) {
            return StatusCode::FORBIDDEN.into_response();
        }
        match self.has(key) {
            true => StatusCode::OK.into_response(),
            false => StatusCode::NOT_FOUND.into_response(),
        }
    }

    fn quirk(&self) -> Option<Quirk> {
        *self.quirk.lock().expect("quirk")
    }

    pub fn set_quirk(&self, quirk: Quirk) {
        *self.quirk.lock().expect("quirk") = Some(quirk);
    }

    async fn delete(&self, body: &[u8]) -> Response {
        self.wait_if_held(Call::Delete).await;
        let body = String::from_utf8_lossy(body);
        let mut answer = String::from("<DeleteResult>");
        for key in body.split("<Key>").skip(1).filter_map(|part| part.split("</Key>").next()) {
            let plain = key.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
            let plain = plain.replace("&apos;", "'").replace("&#xA;", "\n").replace("&amp;", "&");
            let locked = self.locked.lock().expect("locked").clone();
            if locked.is_some_and(|text| plain.contains(&text)) {
                let _ = write!(
                    answer,
                    "<Error><Key>{key}</Key><Code>ObjectLocked</Code><Message>kept</Message></Error>"
                );
                continue;
            }
            self.remove(&plain);
            let _ = write!(answer, "<Deleted><Key>{key}</Key></Deleted>");
        }
        xml(answer + "</DeleteResult>")
    }

    fn list(&self, query: &Query) -> Response {
        let prefix = query.get("prefix").unwrap_or_default();
        let after = query.get("continuation-token").or_else(|| query.get("start-after"));
        let most = query.get("max-keys").and_then(|most| most.parse().ok()).unwrap_or(1000);
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix.clone()),
        };
        let encode: fn(&str) -> String =
            if query.get("encoding-type").is_some() { url_encoded } else { escaped };
        let objects = self.objects();
        let quirk = self.quirk();
        let unlisted =
            |key: &str| matches!(quirk, Some(Quirk::Unlisted(some)) if key.starts_with(some));
        let most = if quirk == Some(Quirk::NoTokensNoKeys) { 0 } else { most };
        let under = objects.range((from, Bound::Unbounded));
        let mut under =
            under.take_while(|(key, _)| key.starts_with(&prefix)).filter(|(key, _)| !unlisted(key));
        let mut answer = String::from("<ListBucketResult>");
        let mut last = None;
        for (key, object) in under.by_ref().take(most) {
            let time = aws_sdk_s3::primitives::DateTime::from_secs(object.modified_s.cast_signed());
            let time = time.fmt(aws_sdk_s3::primitives::DateTimeFormat::DateTime).expect("time");
            let (name, size) = (encode(key), object.size);
            let _ = write!(
                answer,
                "<Contents><Key>{name}</Key><LastModified>{time}</LastModified><Size>{size}</Size></Contents>"
            );
            last = Some(key);
        }
        let more = under.next().is_some();
        let _ = write!(answer, "<IsTruncated>{more}</IsTruncated>");
        if let Some(last) = last.filter(|_| more && quirk != Some(Quirk::NoTokens)) {
            let token = escaped(last);
            let _ = write!(answer, "<NextContinuationToken>{token}</NextContinuationToken>");
        }
        if query.get("encoding-type").is_some() {
            answer.push_str("<EncodingType>url</EncodingType>");
        }
        xml(answer + "</ListBucketResult>")
    }
}

struct Query(Vec<(String, String)>);

impl Query {
    fn of(uri: &Uri) -> Self {
        let plain = |text: &str| {
            percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
        };
        let pairs = uri.query().unwrap_or_default().split('&');
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Self(pairs.map(|(name, value)| (plain(name), plain(value))).collect())
    }

    fn get(&self, name: &str) -> Option<String> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }
}

/// Encodes a key as AWS does: a space becomes a plus sign.
fn url_encoded(key: &str) -> String {
    utf8_percent_encode(key, NON_ALPHANUMERIC).to_string().replace("%20", "+")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn xml(body: String) -> Response {
    ([(CONTENT_TYPE, "application/xml")], format!("<?xml version=\"1.0\"?>{body}")).into_response()
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}
