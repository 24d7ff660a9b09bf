//! An S3 endpoint that passes deletions on to the real store and fails in a chosen way.
//!
//! The test picks a [`Mode`], and in [`Kind`] what the store can do at all; `answers` builds the HTTP
//! answers.

mod answers;
mod mode;

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
    body::Bytes,
    http::{HeaderMap, Method, Uri},
    response::Response,
};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use self::answers::{
    cut, failure, keys_in, of_bucket, refusal, single_key, verdict, verdicts, xml,
};
pub(crate) use self::mode::Mode;
use self::mode::PROBE;
use super::{World, invariants::Store};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Counts keys and calls by what happened to them.
#[derive(Default)]
pub(crate) struct Stats {
    /// Keys that [`Store::watch_deletion`] checked before they were deleted.
    pub watched: AtomicU64,
    /// Keys that were deleted after the caller had given up.
    pub late: AtomicU64,
    /// Keys that were deleted again after the caller got its answer.
    pub repeated: AtomicU64,
    /// Calls that had too many keys for the store.
    pub too_many: AtomicU64,
    /// DeleteObjects calls to a store that has none.
    pub bulk_refused: AtomicU64,
    /// Keys that were deleted with DeleteObject.
    pub singles: AtomicU64,
    /// Requests for single objects that are in flight, and the most that were so far.
    in_flight: AtomicU64,
    pub most_in_flight: AtomicU64,
    /// Calls that got another mode than [`Mode::Normal`].
    pub touched: AtomicU64,
    /// Late and repeated deletions that have not happened yet.
    pending: AtomicUsize,
}

/// What the store can do at all.
#[derive(Clone, Default)]
pub(crate) struct Kind {
    /// Answers DeleteObjects with this status and error code.
    pub no_bulk: Option<(u16, &'static str)>,
    /// The most keys that DeleteObjects takes.
    pub most_keys: Option<usize>,
    /// DeleteObjects carries out and mentions only this many keys.
    pub most_carried_out: Option<usize>,
    /// Acknowledges deletes in buckets that do not exist, and answers HEAD of a bucket with this status.
    pub any_bucket: Option<u16>,
}

#[derive(Clone)]
pub(crate) struct FaultyS3 {
    pub url: String,
    kind: Arc<Mutex<Kind>>,
    mode: Arc<Mutex<Mode>>,
    /// The mode that the next probe starts.
    next: Arc<Mutex<Option<Mode>>>,
    /// The share of the calls that the mode applies to, with the generator that picks them.
    odds: Arc<Mutex<Option<(f64, fastrand::Rng)>>>,
    calls: watch::Sender<usize>,
    probes: watch::Sender<usize>,
    go: Arc<Notify>,
    pub stats: Arc<Stats>,
    /// The headers of the last call.
    pub headers: Arc<Mutex<HeaderMap>>,
}

impl FaultyS3 {
    pub(crate) async fn start(world: &World, mode: Mode) -> Self {
        Self::in_front_of(world.store(), mode).await
    }

    /// Starts it in front of a store. [`Store::watch_deletion`] checks every deletion.
    pub(crate) async fn in_front_of(store: Store, mode: Mode) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let ((calls, _), (probes, _)) = (watch::channel(0), watch::channel(0));
        let server = Self {
            url,
            kind: Arc::default(),
            mode: Arc::new(Mutex::new(mode)),
            next: Arc::default(),
            odds: Arc::default(),
            calls,
            probes,
            go: Arc::new(Notify::new()),
            stats: Arc::default(),
            headers: Arc::default(),
        };
        let shared = server.clone();
        let answer = move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
            let has_md5 = headers.contains_key("content-md5");
            let (shared, store) = (shared.clone(), store.clone());
            async move {
                let kind = shared.kind.lock().expect("kind").clone();
                if let Some(answer) = of_bucket(&kind, &method, &uri, &store.bucket) {
                    return answer;
                }
                *shared.headers.lock().expect("headers") = headers;
                match single_key(&method, &uri) {
                    Some(key) => shared.answer_single(&store, key).await,
                    None => shared.answer_bulk(&kind, &store, &body, has_md5).await,
                }
            }
        };
        let app = Router::new().fallback(answer);
        tokio::spawn(async move { axum::serve(listener, app).await });
        server
    }

    pub(crate) fn set_kind(&self, kind: Kind) {
        *self.kind.lock().expect("kind") = kind;
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        *self.odds.lock().expect("odds") = None;
        *self.mode.lock().expect("mode") = mode;
    }

    /// Sets the mode right after the next probe, with which every run begins: no call to delete an
    /// object comes in between.
    pub(crate) fn set_mode_after_probe(&self, mode: Mode) {
        *self.next.lock().expect("next") = Some(mode);
    }

    /// Sets the mode for a share of the calls; the others get [`Mode::Normal`].
    pub(crate) fn sometimes(&self, share: f64, seed: u64, mode: Mode) {
        *self.mode.lock().expect("mode") = mode;
        *self.odds.lock().expect("odds") = Some((share, fastrand::Rng::with_seed(seed)));
    }

    /// Answers all held calls, and holds no later ones.
    pub(crate) fn let_go(&self) {
        self.let_go_and(Mode::Normal);
    }

    /// Answers all held calls, and treats later ones in this way.
    pub(crate) fn let_go_and(&self, mode: Mode) {
        self.set_mode(mode);
        self.go.notify_waiters();
    }

    pub(crate) fn calls(&self) -> usize {
        *self.calls.borrow()
    }

    /// Waits until this many DeleteObjects calls named an object of the test (probes do not count).
    pub(crate) async fn called(&self, times: usize) {
        at_least(&self.calls, times).await;
    }

    /// How many calls only probed whether deleting works.
    pub(crate) fn probes(&self) -> usize {
        *self.probes.borrow()
    }

    /// Waits for this many probes.
    pub(crate) async fn probed(&self, times: usize) {
        at_least(&self.probes, times).await;
    }

    /// Waits until every late and repeated deletion has happened.
    pub(crate) async fn resolved(&self) {
        while self.stats.pending.load(Relaxed) > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn mode_of_this_call(&self) -> Mode {
        let spared = match &mut *self.odds.lock().expect("odds") {
            Some((share, rng)) => rng.f64() >= *share,
            None => false,
        };
        if spared { Mode::Normal } else { self.mode.lock().expect("mode").clone() }
    }

    async fn answer_bulk(
        &self,
        kind: &Kind,
        store: &Store,
        body: &[u8],
        has_md5: bool,
    ) -> Response {
        let keys = keys_in(&String::from_utf8_lossy(body));
        match kind {
            Kind { no_bulk: Some((status, code)), .. } => {
                self.stats.bulk_refused.fetch_add(1, Relaxed);
                failure(*status, code)
            }
            Kind { most_keys: Some(most), .. } if keys.len() > *most => {
                self.stats.too_many.fetch_add(1, Relaxed);
                failure(400, "MalformedXML")
            }
            Kind { most_carried_out: Some(most), .. } => {
                let keys = keys.into_iter().take(*most).collect();
                self.answer(store, keys, has_md5, false).await
            }
            _ => self.answer(store, keys, has_md5, false).await,
        }
    }

    async fn answer_single(&self, store: &Store, key: String) -> Response {
        let in_flight = self.stats.in_flight.fetch_add(1, Relaxed) + 1;
        self.stats.most_in_flight.fetch_max(in_flight, Relaxed);
        let answer = self.answer(store, vec![key], false, true).await;
        self.stats.in_flight.fetch_sub(1, Relaxed);
        answer
    }

    async fn answer(
        &self,
        store: &Store,
        keys: Vec<String>,
        has_md5: bool,
        single: bool,
    ) -> Response {
        let held = self.go.notified();
        let mode = self.mode_of_this_call();
        let probe = keys.iter().all(|key| key.ends_with(PROBE));
        if probe {
            if let Some(next) = self.next.lock().expect("next").take() {
                self.set_mode(next);
            }
            self.probes.send_modify(|probes| *probes += 1);
        } else {
            self.calls.send_modify(|calls| *calls += 1);
            let touched = !matches!(mode, Mode::Normal);
            self.stats.touched.fetch_add(u64::from(touched), Relaxed);
            self.stats.singles.fetch_add(u64::from(single), Relaxed);
        }
        if let Some(refusal) = refusal(&mode, &keys, has_md5) {
            return refusal;
        }
        if let Mode::Late { by } = mode {
            self.delete_later(store, keys, probe, by, |stats| &stats.late);
            return std::future::pending().await;
        }
        if let Mode::Slow { by } = mode {
            sleep(by).await;
        }
        let (bad, good): (Vec<String>, Vec<String>) =
            keys.into_iter().partition(|key| mode.refuses(key));
        if !good.is_empty() && !probe && !self.delete(store, &good).await {
            return failure(503, "ServiceUnavailable");
        }
        match &mode {
            Mode::Holding if !probe => held.await,
            Mode::Repeating { after } => {
                self.delete_later(store, good.clone(), probe, *after, |stats| &stats.repeated);
            }
            _ => {}
        }
        if single {
            return verdict(&mode, bad.is_empty());
        }
        let answer = verdicts(&mode, &good, &bad);
        if matches!(mode, Mode::Cutting) { cut(answer) } else { xml(answer) }
    }

    /// Deletes the keys after `wait`, in its own task: the caller may be gone by then.
    fn delete_later(
        &self,
        store: &Store,
        keys: Vec<String>,
        probe: bool,
        wait: Duration,
        counter: fn(&Stats) -> &AtomicU64,
    ) {
        if probe {
            return;
        }
        self.stats.pending.fetch_add(1, Relaxed);
        let (server, store) = (self.clone(), store.clone());
        tokio::spawn(async move {
            sleep(wait).await;
            if server.delete(&store, &keys).await {
                counter(&server.stats).fetch_add(keys.len() as u64, Relaxed);
            }
            server.stats.pending.fetch_sub(1, Relaxed);
        });
    }

    /// Deletes the keys in the real store. Returns false if that store is unavailable.
    async fn delete(&self, store: &Store, keys: &[String]) -> bool {
        store.watch_deletion(keys).await;
        self.stats.watched.fetch_add(keys.len() as u64, Relaxed);
        let objects =
            keys.iter().map(|key| ObjectIdentifier::builder().key(key).build().expect("key"));
        let delete =
            Delete::builder().set_objects(Some(objects.collect())).build().expect("delete");
        let call = store.s3.delete_objects().bucket(&store.bucket).delete(delete);
        call.send().await.is_ok_and(|answer| answer.errors().is_empty())
    }
}

async fn at_least(count: &watch::Sender<usize>, times: usize) {
    let mut count = count.subscribe();
    let waited = tokio::time::timeout(TIMEOUT, count.wait_for(|seen| *seen >= times)).await;
    assert!(waited.is_ok(), "not called {times} times");
}
