//! A TCP proxy in front of Postgres, Redis or S3 that loses answers, cuts connections and hangs on
//! demand.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What happens to the next request that contains this text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The server executes it; the answer is lost and the connection cut.
    LoseAnswerOf(&'static str),
    /// It does not reach the server; the connection is cut.
    CutBefore(&'static str),
    /// The server executes it; the answer is lost, and the outage begins before the caller knows.
    DownAfter(&'static str),
    /// Neither it nor any later request reaches the server; the connection stays open.
    Swallow(&'static str),
}

/// A fault that happens to a random share of the requests that contain its text.
struct Odds {
    fault: Fault,
    share: f64,
    rng: fastrand::Rng,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// The number of requests with the text that pass before the fault.
    spared: usize,
    fired: usize,
    odds: Option<Odds>,
    /// The delay of every chunk on its way to the server.
    delay: Duration,
    /// The first lines of HTTP requests.
    requests: Vec<String>,
}

/// The proxy; ends with the test.
pub(crate) struct Proxy {
    pub port: u16,
    state: Arc<Mutex<State>>,
    /// While false, new connections are refused and open ones cut.
    up: watch::Sender<bool>,
    /// A change cuts all connections that are open.
    cuts: watch::Sender<()>,
}

/// The two events that cut a connection.
struct Cuts {
    up: watch::Receiver<bool>,
    now: watch::Receiver<()>,
}

impl Proxy {
    /// Starts a proxy in front of `host:port`.
    pub(crate) async fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("proxy port");
        let port = listener.local_addr().expect("address").port();
        let state = Arc::new(Mutex::new(State::default()));
        let ((up, seen), (cuts, now)) = (watch::channel(true), watch::channel(()));
        let (upstream, shared, down) = (upstream.to_string(), Arc::clone(&state), up.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !*seen.borrow() {
                    continue;
                }
                let mut cuts = Cuts { up: seen.clone(), now: now.clone() };
                cuts.now.mark_unchanged();
                let (upstream, shared) = (upstream.clone(), Arc::clone(&shared));
                let down = down.clone();
                tokio::spawn(async move { forward(client, &upstream, shared, cuts, down).await });
            }
        });
        Self { port, state, up, cuts }
    }

    /// The same URL, through the proxy.
    pub(crate) fn through(&self, url: &str) -> String {
        let (head, rest) = match url.rsplit_once('@') {
            Some((head, rest)) => (format!("{head}@"), rest),
            None => {
                let (scheme, rest) = url.split_once("://").expect("a URL");
                (format!("{scheme}://"), rest)
            }
        };
        let path = rest.find('/').map(|at| &rest[at..]).unwrap_or_default();
        format!("{head}127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn arm(&self, fault: Fault) {
        self.arm_after(0, fault);
    }

    /// Arms the fault for the request after the next `spared` ones with the text.
    pub(crate) fn arm_after(&self, spared: usize, fault: Fault) {
        let mut state = self.state.lock().expect("state");
        (state.spared, state.fault) = (spared, Some(fault));
    }

    /// Arms the fault for a share of the requests with the text, picked by a seed; `None` ends it.
    pub(crate) fn arm_share(&self, fault: Option<(f64, u64, Fault)>) {
        let odds = fault.map(|(share, seed, fault)| {
            let rng = fastrand::Rng::with_seed(seed);
            Odds { fault, share, rng }
        });
        self.state.lock().expect("state").odds = odds;
    }

    /// Delays every chunk that is sent to the server.
    pub(crate) fn delay(&self, delay: Duration) {
        self.state.lock().expect("state").delay = delay;
    }

    /// Cuts all open connections; new ones are accepted.
    pub(crate) fn cut(&self) {
        self.cuts.send_replace(());
    }

    /// Returns the HTTP requests so far, such as `POST /bucket?delete`.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.lock().expect("state").requests.clone()
    }

    /// Counts the faults that have happened.
    pub(crate) fn fired(&self) -> usize {
        self.state.lock().expect("state").fired
    }

    /// Simulates an outage: open connections are cut, new ones refused.
    pub(crate) fn down(&self) {
        self.up.send_replace(false);
    }

    pub(crate) fn up(&self) {
        self.up.send_replace(true);
    }
}

/// Returns the `host:port` of a URL.
pub(crate) fn address_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split('/').next().expect("an address").to_string()
}

async fn forward(
    client: TcpStream,
    upstream: &str,
    state: Arc<Mutex<State>>,
    mut cuts: Cuts,
    up: watch::Sender<bool>,
) {
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let mut buffer = vec![0; 65536];
        loop {
            let Ok(read @ 1..) = from_client.read(&mut buffer).await else {
                return None;
            };
            let delay = state.lock().expect("state").delay;
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            match take_fault(&state, &buffer[..read]) {
                Some(Fault::CutBefore(_)) => return None,
                Some(Fault::Swallow(_)) => {
                    while let Ok(1..) = from_client.read(&mut buffer).await {}
                    return None;
                }
                Some(Fault::LoseAnswerOf(_)) => {
                    to_server.write_all(&buffer[..read]).await.ok()?;
                    return Some(to_server);
                }
                Some(Fault::DownAfter(_)) => {
                    to_server.write_all(&buffer[..read]).await.ok()?;
                    up.send_replace(false);
                    return Some(to_server);
                }
                None => to_server.write_all(&buffer[..read]).await.ok()?,
            }
        }
    };
    tokio::pin!(requests);
    let mut buffer = vec![0; 65536];
    let lost = loop {
        tokio::select! {
            biased;
            ended = &mut requests => break ended,
            () = cut(&mut cuts) => break None,
            read = from_server.read(&mut buffer) => match read {
                Ok(read @ 1..) if to_client.write_all(&buffer[..read]).await.is_ok() => {}
                _ => break None,
            },
        }
    };
    if let Some(_to_server) = lost {
        // The answer proves that the request was executed. It is not passed on.
        let _ = from_server.read(&mut buffer).await;
    }
}

async fn cut(cuts: &mut Cuts) {
    tokio::select! {
        _ = cuts.up.wait_for(|up| !up) => {}
        _ = cuts.now.changed() => {}
    }
}

fn take_fault(state: &Mutex<State>, request: &[u8]) -> Option<Fault> {
    let mut state = state.lock().expect("state");
    state.requests.extend(http_request(request));
    let fault = state.take_armed(request).or_else(|| state.take_by_odds(request))?;
    state.fired += 1;
    Some(fault)
}

/// A client that waits for each answer begins every request with a new chunk.
fn http_request(chunk: &[u8]) -> Option<String> {
    let line = chunk.split(|byte| *byte == b'\r').next()?;
    let request = std::str::from_utf8(line).ok()?.strip_suffix(" HTTP/1.1")?;
    Some(request.to_string())
}

impl State {
    fn take_armed(&mut self, request: &[u8]) -> Option<Fault> {
        if !self.fault.as_ref()?.matches(request) {
            return None;
        }
        if self.spared > 0 {
            self.spared -= 1;
            return None;
        }
        self.fault.take()
    }

    fn take_by_odds(&mut self, request: &[u8]) -> Option<Fault> {
        let odds = self.odds.as_mut()?;
        let hit = odds.fault.matches(request) && odds.rng.f64() < odds.share;
        hit.then(|| odds.fault.clone())
    }
}

impl Fault {
    fn matches(&self, request: &[u8]) -> bool {
        let (Self::LoseAnswerOf(text)
        | Self::CutBefore(text)
        | Self::DownAfter(text)
        | Self::Swallow(text)) = self;
        request.windows(text.len()).any(|window| window == text.as_bytes())
    }
}
