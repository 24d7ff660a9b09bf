//! A TCP proxy that loses answers, cuts and hangs on demand: in front of Postgres, Redis or S3.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What happens to the next request that contains a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// It arrives and is carried out; the answer is lost and the connection cut.
    LoseAnswerOf(&'static str),
    /// It never arrives; the connection is cut.
    CutBefore(&'static str),
    /// It never arrives, nor does anything after it; the connection stays open.
    Swallow(&'static str),
}

/// What happens to some of the requests that contain its text, by a seeded choice.
struct Odds {
    fault: Fault,
    share: f64,
    rng: fastrand::Rng,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// So many requests with the text are let through first.
    spared: usize,
    fired: usize,
    odds: Option<Odds>,
    /// Every piece waits this long on its way to the server.
    delay: Duration,
    /// First lines of HTTP requests.
    requests: Vec<String>,
}

/// The proxy; ends with the test.
pub struct Proxy {
    pub port: u16,
    state: Arc<Mutex<State>>,
    /// While false, connections are refused and open ones cut.
    up: watch::Sender<bool>,
    /// Whatever was opened before a change is cut.
    cuts: watch::Sender<()>,
}

/// What ends a connection before its time.
struct Cuts {
    up: watch::Receiver<bool>,
    now: watch::Receiver<()>,
}

impl Proxy {
    /// In front of `host:port`.
    pub async fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("proxy port");
        let port = listener.local_addr().expect("address").port();
        let state = Arc::new(Mutex::new(State::default()));
        let ((up, seen), (cuts, now)) = (watch::channel(true), watch::channel(()));
        let (upstream, shared) = (upstream.to_string(), Arc::clone(&state));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !*seen.borrow() {
                    continue;
                }
                let mut cuts = Cuts { up: seen.clone(), now: now.clone() };
                cuts.now.mark_unchanged();
                let (upstream, shared) = (upstream.clone(), Arc::clone(&shared));
                tokio::spawn(async move { carry(client, &upstream, shared, cuts).await });
            }
        });
        Self { port, state, up, cuts }
    }

    /// The same URL, through the proxy.
    pub fn through(&self, url: &str) -> String {
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

    pub fn arm(&self, fault: Fault) {
        self.arm_after(0, fault);
    }

    /// Lets so many requests with the text through first.
    pub fn arm_after(&self, spared: usize, fault: Fault) {
        let mut state = self.state.lock().expect("state");
        (state.spared, state.fault) = (spared, Some(fault));
    }

    /// From now on, so large a share of the requests with the text; `None` ends it.
    pub fn arm_often(&self, often: Option<(f64, u64, Fault)>) {
        let odds = often.map(|(share, seed, fault)| {
            let rng = fastrand::Rng::with_seed(seed);
            Odds { fault, share, rng }
        });
        self.state.lock().expect("state").odds = odds;
    }

    /// From now on, every piece that is sent to the server waits this long.
    pub fn delay(&self, delay: Duration) {
        self.state.lock().expect("state").delay = delay;
    }

    /// Cuts all open connections; new ones are welcome.
    pub fn cut(&self) {
        self.cuts.send_replace(());
    }

    /// The HTTP requests so far, as `POST /bucket?delete`.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().expect("state").requests.clone()
    }

    /// How many faults have happened.
    pub fn fired(&self) -> usize {
        self.state.lock().expect("state").fired
    }

    /// The server is away: open connections are cut, new ones refused.
    pub fn down(&self) {
        self.up.send_replace(false);
    }

    pub fn up(&self) {
        self.up.send_replace(true);
    }
}

/// The `host:port` of a URL.
pub fn address_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split('/').next().expect("an address").to_string()
}

async fn carry(client: TcpStream, upstream: &str, state: Arc<Mutex<State>>, mut cuts: Cuts) {
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
        // The answer shows that it was carried out; nobody gets to see it.
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

/// A client that waits for its answers begins each request with a piece of its own.
fn http_request(piece: &[u8]) -> Option<String> {
    let line = piece.split(|byte| *byte == b'\r').next()?;
    let request = std::str::from_utf8(line).ok()?.strip_suffix(" HTTP/1.1")?;
    Some(request.to_string())
}

impl State {
    fn take_armed(&mut self, request: &[u8]) -> Option<Fault> {
        if !self.fault.as_ref()?.concerns(request) {
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
        let hit = odds.fault.concerns(request) && odds.rng.f64() < odds.share;
        hit.then(|| odds.fault.clone())
    }
}

impl Fault {
    fn concerns(&self, request: &[u8]) -> bool {
        let (Self::LoseAnswerOf(text) | Self::CutBefore(text) | Self::Swallow(text)) = self;
        request.windows(text.len()).any(|window| window == text.as_bytes())
    }
}
