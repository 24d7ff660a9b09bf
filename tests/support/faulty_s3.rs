//! An S3 endpoint that carries deletions out on the real one, and misbehaves as told.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use super::{World, invariants::Store};

const TIMEOUT: Duration = Duration::from_secs(60);

/// What a call is answered.
#[derive(Clone)]
pub enum Mood {
    /// Deletes, but refuses keys that contain a text, with this code.
    Refusing { text: String, code: &'static str },
    /// Deletes, but refuses keys that contain a text, in these words.
    Insulting { text: String, message: &'static str },
    /// Answers every call as a store does whose bucket is in another region: a redirect names it in a
    /// header, an error in its body.
    Elsewhere { status: u16, code: &'static str, region: &'static str },
    /// Answers every call with this status and error code, deleting nothing.
    Failing { status: u16, code: &'static str },
    /// Deletes nothing and answers 200 with an error as its body.
    ErrorInBody { code: &'static str },
    /// Deletes nothing and answers 200 without a word about any key.
    Mute,
    /// Rejects a call as a whole when one of its keys contains a text.
    Choking { text: String },
    /// Carries calls out, but answers only when it is let go.
    Holding,
    /// Never answers, and carries the call out all the same, so much later.
    Late { by: Duration },
    /// Deletes as it should, and once more so much later.
    Repeating { after: Duration },
    /// Deletes as it should, after a while.
    Slow { by: Duration },
    /// Deletes, and cuts the connection in the middle of the answer.
    Cutting,
    /// Takes only calls that come with Content-MD5, or only such that come without.
    Checksum { md5: bool },
    /// Deletes as it should.
    Fine,
}

/// How many keys went which way.
#[derive(Default)]
pub struct Figures {
    /// Looked at by [`Store::watch_deletion`] before they were deleted.
    pub watched: AtomicU64,
    /// Deleted after the caller had given up.
    pub late: AtomicU64,
    /// Deleted again after the caller was told that they are gone.
    pub repeated: AtomicU64,
    /// Calls that the mood of the moment concerned.
    pub touched: AtomicU64,
    /// Deletions that are still to come.
    pending: AtomicUsize,
}

#[derive(Clone)]
pub struct FaultyS3 {
    pub url: String,
    mood: Arc<Mutex<Mood>>,
    /// So large a share of the calls is concerned by the mood, by a seeded choice.
    odds: Arc<Mutex<Option<(f64, fastrand::Rng)>>>,
    calls: watch::Sender<usize>,
    probes: watch::Sender<usize>,
    go: Arc<Notify>,
    pub figures: Arc<Figures>,
    /// Of the last call.
    pub headers: Arc<Mutex<HeaderMap>>,
}

impl FaultyS3 {
    pub async fn start(world: &World, mood: Mood) -> Self {
        Self::in_front_of(world.store(), mood).await
    }

    /// Every deletion is watched: see [`Store::watch_deletion`].
    pub async fn in_front_of(store: Store, mood: Mood) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let ((calls, _), (probes, _)) = (watch::channel(0), watch::channel(0));
        let server = Self {
            url,
            mood: Arc::new(Mutex::new(mood)),
            odds: Arc::default(),
            calls,
            probes,
            go: Arc::new(Notify::new()),
            figures: Arc::default(),
            headers: Arc::default(),
        };
        let shared = server.clone();
        let app = Router::new().fallback(move |headers: HeaderMap, body: Bytes| {
            let has_md5 = headers.contains_key("content-md5");
            *shared.headers.lock().expect("headers") = headers;
            let (shared, store) = (shared.clone(), store.clone());
            async move { shared.answer(&store, &body, has_md5).await }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        server
    }

    pub fn mood(&self, mood: Mood) {
        *self.odds.lock().expect("odds") = None;
        *self.mood.lock().expect("mood") = mood;
    }

    /// This mood for a share of the calls; the others are fine.
    pub fn sometimes(&self, share: f64, seed: u64, mood: Mood) {
        *self.mood.lock().expect("mood") = mood;
        *self.odds.lock().expect("odds") = Some((share, fastrand::Rng::with_seed(seed)));
    }

    /// Lets held calls go, and all later ones.
    pub fn let_go(&self) {
        self.mood(Mood::Fine);
        self.go.notify_waiters();
    }

    pub fn calls(&self) -> usize {
        *self.calls.borrow()
    }

    /// Waits for a DeleteObjects call that names an object of the test (not a probe).
    pub async fn called(&self, times: usize) {
        at_least(&self.calls, times).await;
    }

    /// How many calls only asked whether deleting works.
    pub fn probes(&self) -> usize {
        *self.probes.borrow()
    }

    /// Waits for so many of these.
    pub async fn probed(&self, times: usize) {
        at_least(&self.probes, times).await;
    }

    /// Waits until every late and repeated deletion has happened.
    pub async fn resolved(&self) {
        while self.figures.pending.load(Relaxed) > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn mood_of_this_call(&self) -> Mood {
        let spared = match &mut *self.odds.lock().expect("odds") {
            Some((share, rng)) => rng.f64() >= *share,
            None => false,
        };
        if spared { Mood::Fine } else { self.mood.lock().expect("mood").clone() }
    }

    async fn answer(&self, store: &Store, body: &[u8], has_md5: bool) -> Response {
        let keys = keys_in(&String::from_utf8_lossy(body));
        let held = self.go.notified();
        let mood = self.mood_of_this_call();
        let probe = keys.iter().all(|key| key.ends_with(".paste-cleanup-probe"));
        if probe {
            self.probes.send_modify(|probes| *probes += 1);
        } else {
            self.calls.send_modify(|calls| *calls += 1);
            let touched = !matches!(mood, Mood::Fine);
            self.figures.touched.fetch_add(u64::from(touched), Relaxed);
        }
        if let Some(refusal) = refusal(&mood, &keys, has_md5) {
            return refusal;
        }
        if let Mood::Late { by } = mood {
            self.delete_later(store, keys, probe, by, |figures| &figures.late);
            return std::future::pending().await;
        }
        if let Mood::Slow { by } = mood {
            sleep(by).await;
        }
        let (bad, good): (Vec<String>, Vec<String>) =
            keys.into_iter().partition(|key| mood.refuses(key));
        if !good.is_empty() && !probe && !self.delete(store, &good).await {
            return failure(503, "ServiceUnavailable");
        }
        match &mood {
            Mood::Holding if !probe => held.await,
            Mood::Repeating { after } => {
                self.delete_later(store, good.clone(), probe, *after, |figures| &figures.repeated);
            }
            _ => {}
        }
        let answer = verdicts(&mood, &good, &bad);
        if matches!(mood, Mood::Cutting) { cut(answer) } else { xml(answer) }
    }

    /// In a task of its own: the caller may be gone by then.
    fn delete_later(
        &self,
        store: &Store,
        keys: Vec<String>,
        probe: bool,
        wait: Duration,
        figure: fn(&Figures) -> &AtomicU64,
    ) {
        if probe {
            return;
        }
        self.figures.pending.fetch_add(1, Relaxed);
        let (server, store) = (self.clone(), store.clone());
        tokio::spawn(async move {
            sleep(wait).await;
            if server.delete(&store, &keys).await {
                figure(&server.figures).fetch_add(keys.len() as u64, Relaxed);
            }
            server.figures.pending.fetch_sub(1, Relaxed);
        });
    }

    /// The real deletion. False: the real S3 is away.
    async fn delete(&self, store: &Store, keys: &[String]) -> bool {
        store.watch_deletion(keys).await;
        self.figures.watched.fetch_add(keys.len() as u64, Relaxed);
        let objects =
            keys.iter().map(|key| ObjectIdentifier::builder().key(key).build().expect("key"));
        let delete =
            Delete::builder().set_objects(Some(objects.collect())).build().expect("delete");
        let call = store.s3.delete_objects().bucket(&store.bucket).delete(delete);
        call.send().await.is_ok_and(|answer| answer.errors().is_empty())
    }
}

impl Mood {
    fn refuses(&self, key: &str) -> bool {
        matches!(self, Self::Refusing { text, .. } | Self::Insulting { text, .. } if key.contains(text))
    }
}

async fn at_least(count: &watch::Sender<usize>, times: usize) {
    let mut count = count.subscribe();
    let waited = tokio::time::timeout(TIMEOUT, count.wait_for(|seen| *seen >= times)).await;
    assert!(waited.is_ok(), "not called {times} times");
}

/// The answer of a mood that deletes nothing.
fn refusal(mood: &Mood, keys: &[String], has_md5: bool) -> Option<Response> {
    match mood {
        Mood::Checksum { md5: true } if !has_md5 => Some(failure(400, "MissingContentMD5")),
        Mood::Checksum { md5: false } if has_md5 => Some(failure(400, "InvalidRequest")),
        Mood::Failing { status, code } => Some(failure(*status, code)),
        Mood::Elsewhere { status, code, region } => Some(elsewhere(*status, code, region)),
        Mood::ErrorInBody { code } => Some(xml(error(code))),
        Mood::Mute => Some(xml("<DeleteResult></DeleteResult>".into())),
        Mood::Choking { text } if keys.iter().any(|key| key.contains(text)) => {
            Some((StatusCode::BAD_REQUEST, error("MalformedXML")).into_response())
        }
        _ => None,
    }
}

/// What became of each key.
fn verdicts(mood: &Mood, good: &[String], bad: &[String]) -> String {
    let (code, message) = match mood {
        Mood::Refusing { code, .. } => (*code, "no"),
        Mood::Insulting { message, .. } => ("ObjectLocked", *message),
        _ => ("", "no"),
    };
    let good = good.iter().map(|key| format!("<Deleted><Key>{}</Key></Deleted>", escape(key)));
    let bad = bad.iter().map(|key| {
        let key = escape(key);
        format!("<Error><Key>{key}</Key><Code>{code}</Code><Message>{message}</Message></Error>")
    });
    let all: String = good.chain(bad).collect();
    format!("<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{all}</DeleteResult>")
}

fn xml(body: String) -> Response {
    ([(CONTENT_TYPE, "application/xml")], format!("<?xml version=\"1.0\"?>{body}")).into_response()
}

/// Half of the answer, then the end of the connection.
fn cut(answer: String) -> Response {
    let half = Bytes::from(answer).split_to(20);
    let end = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    let pieces = futures_util::stream::iter([Ok(half), Err(end)]);
    ([(CONTENT_TYPE, "application/xml")], Body::from_stream(pieces)).into_response()
}

fn failure(status: u16, code: &str) -> Response {
    let status = StatusCode::from_u16(status).expect("status");
    (status, [(CONTENT_TYPE, "application/xml")], error(code)).into_response()
}

fn elsewhere(status: u16, code: &str, region: &str) -> Response {
    let mut answer = match status {
        301 => failure(status, code),
        _ => {
            let named = format!("<Region>{region}</Region></Error>");
            failure(status, code).map(|_| Body::from(error(code).replace("</Error>", &named)))
        }
    };
    if status == 301 {
        answer.headers_mut().insert("x-amz-bucket-region", region.parse().expect("a header"));
    }
    answer
}

fn error(code: &str) -> String {
    format!("<Error><Code>{code}</Code><Message>told to</Message></Error>")
}

fn keys_in(body: &str) -> Vec<String> {
    let mut keys = Vec::new();
    for part in body.split("<Key>").skip(1) {
        let key = part.split("</Key>").next().unwrap_or_default();
        keys.push(
            key.replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&quot;", "\"")
                .replace("&apos;", "'")
                .replace("&amp;", "&"),
        );
    }
    keys
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
