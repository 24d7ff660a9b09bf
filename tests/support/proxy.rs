//! A TCP proxy that loses answers, cuts and hangs on demand: in front of Postgres, Redis or S3.

use std::sync::{Arc, Mutex};

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
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// So many requests with the text are let through first.
    spared: usize,
    fired: usize,
}

/// The proxy; ends with the test.
pub struct Proxy {
    pub port: u16,
    state: Arc<Mutex<State>>,
    /// While false, connections are refused and open ones cut.
    up: watch::Sender<bool>,
}

impl Proxy {
    /// In front of `host:port`.
    pub async fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("proxy port");
        let port = listener.local_addr().expect("address").port();
        let state = Arc::new(Mutex::new(State::default()));
        let (up, seen) = watch::channel(true);
        let (upstream, shared) = (upstream.to_string(), Arc::clone(&state));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !*seen.borrow() {
                    continue;
                }
                let (upstream, shared, seen) =
                    (upstream.clone(), Arc::clone(&shared), seen.clone());
                tokio::spawn(async move { carry(client, &upstream, shared, seen).await });
            }
        });
        Self { port, state, up }
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

async fn carry(
    client: TcpStream,
    upstream: &str,
    state: Arc<Mutex<State>>,
    mut up: watch::Receiver<bool>,
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
            match take_fault(&state, &buffer[..read]) {
                Some(Fault::CutBefore(_)) => return None,
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
            () = cut(&mut up) => break None,
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

async fn cut(up: &mut watch::Receiver<bool>) {
    let _ = up.wait_for(|up| !up).await;
}

fn take_fault(state: &Mutex<State>, request: &[u8]) -> Option<Fault> {
    let mut state = state.lock().expect("state");
    let text = match state.fault.as_ref()? {
        Fault::LoseAnswerOf(text) | Fault::CutBefore(text) => text.as_bytes(),
    };
    if !request.windows(text.len()).any(|window| window == text) {
        return None;
    }
    if state.spared > 0 {
        state.spared -= 1;
        return None;
    }
    state.fired += 1;
    state.fault.take()
}
