//! The watchdog's HTTP server: read-only, limited in size, time and connections, and never a delay
//! for the sweeps.

use std::{io::ErrorKind, net::TcpStream as Idle, time::Duration};

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    process::Running,
    sockets::{connections_to, listening},
    *,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const CONNECTIONS: usize = 32;
const LOOPBACK: &str = "0100007F";

/// A resident watchdog and its HTTP address.
struct Sidecar {
    running: Running,
    address: String,
}

impl Sidecar {
    async fn start(world: &World) -> Self {
        Self::of(world.program("cleanup-watchdog")).await
    }

    async fn of(program: Process) -> Self {
        let program = program.env("CLEANUP_WATCHDOG_TICK", "200ms");
        let mut running = program.env("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0").start();
        let line = running.until_it_logs("health and metrics on").await;
        let address = line.split("http://").nth(1).expect("address");
        let address = address.split(['"', ' ']).next().expect("address").to_string();
        Self { running, address }
    }

    fn port(&self) -> u16 {
        self.address.rsplit(':').next().expect("port").parse().expect("a number")
    }

    /// Sends these bytes and reads until the server closes.
    async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.address).await.expect("connect");
        let _ = stream.write_all(bytes).await;
        until_closed(&mut stream).await
    }

    async fn request(&self, method: &str, path: &str) -> String {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).as_bytes())
            .await
    }

    /// Sends requests until one is answered: all connections may be taken.
    async fn answers_again(&self) {
        for _ in 0..600 {
            if self.request("GET", "/healthz").await.starts_with("HTTP/1.1 200") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("never answered again");
    }

    /// Waits until the watchdog's number of connections satisfies the condition.
    async fn until_connections(&self, enough: impl Fn(usize) -> bool) {
        for _ in 0..3000 {
            if enough(connections_to(self.running.pid(), self.port())) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{} connections", connections_to(self.running.pid(), self.port()));
    }

    async fn stops(self) {
        self.running.signal(Signal::TERM);
        let ended = tokio::time::timeout(Duration::from_secs(60), self.running.end()).await;
        assert_eq!(ended.expect("never stopped").code(), 0);
    }

    /// Opens connections without sending anything until all are taken: each lives for some seconds.
    async fn full_crowd(&self) -> Vec<Idle> {
        let mut crowd = Vec::new();
        for _ in 0..3000 {
            crowd.retain(is_open);
            crowd.resize_with(CONNECTIONS, || Idle::connect(&self.address).expect("connect"));
            tokio::time::sleep(Duration::from_millis(20)).await;
            let all_open = crowd.iter().all(is_open);
            if all_open && connections_to(self.running.pid(), self.port()) == CONNECTIONS {
                return crowd;
            }
        }
        panic!("{} connections", connections_to(self.running.pid(), self.port()));
    }

    /// Opens all connections without sending anything.
    fn crowd(&self) -> Vec<Idle> {
        (0..CONNECTIONS).map(|_| Idle::connect(&self.address).expect("connect")).collect()
    }
}

/// Reads until the connection ends, however it ends.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_secs(60), read).await.expect("never closed");
    String::from_utf8_lossy(&answer).into_owned()
}

fn is_open(stream: &Idle) -> bool {
    stream.set_nonblocking(true).expect("nonblocking");
    matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[tokio::test(flavor = "multi_thread")]
async fn get_and_head_are_answered_and_the_connection_is_closed() {
    let world = World::new().await;
    let sidecar = Sidecar::start(&world).await;
    for (path, body) in [("/healthz", "ok\n"), ("/readyz", "ok\n"), ("/metrics", "# HELP")] {
        let answer = sidecar.request("GET", path).await;
        assert!(answer.contains("\r\nconnection: close\r\n"), "{path}: {answer}");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(body), "{path}: {answer}");
        let head = sidecar.request("HEAD", path).await;
        assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{path}: {head}");
    }
    for path in ["/", "/metrics/", "//healthz", "/../healthz", "/%68ealthz", "/healthz/.."] {
        let answer = sidecar.request("GET", path).await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_but_get_and_head_is_refused() {
    let world = World::new().await;
    let sidecar = Sidecar::start(&world).await;
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "ODD"] {
        for path in ["/healthz", "/readyz", "/metrics"] {
            let answer = sidecar.request(method, path).await;
            let refused = answer.starts_with("HTTP/1.1 405") || method == "CONNECT";
            assert!(refused && !answer.contains(" 200 "), "{method} {path}: {answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_body_is_not_waited_for() {
    let world = World::new().await;
    let sidecar = Sidecar::start(&world).await;
    for (method, status) in [("GET", "200"), ("POST", "405")] {
        let head = format!("{method} /healthz HTTP/1.1\r\nHost: x\r\n");
        for length in ["Content-Length: 1000000000", "Transfer-Encoding: chunked"] {
            let answer = sidecar.send(format!("{head}{length}\r\n\r\n").as_bytes()).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{method}: {answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_request_head_is_limited_in_time_and_size() {
    let world = World::new().await;
    let sidecar = Sidecar::start(&world).await;
    let unfinished = b"GET /healthz HTTP/1.1\r\nHost: x\r\n";
    // Just over the limit: the connection of a much longer one would be reset before it is read.
    let too_long = [&unfinished[..], b"Long: ", &[b'x'; 16 * 1024]].concat();
    let (idle, half, trickling, endless) = tokio::join!(
        sidecar.send(b""),
        sidecar.send(unfinished),
        async {
            let stream = TcpStream::connect(&sidecar.address).await.expect("connect");
            let (mut from, mut to) = stream.into_split();
            let trickle = async {
                while to.write_all(b"G").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let mut answer = Vec::new();
            tokio::join!(trickle, async { drop(from.read_to_end(&mut answer).await) });
            answer
        },
        sidecar.send(&too_long),
    );
    assert_eq!((idle.as_str(), half.as_str(), trickling.len()), ("", "", 0));
    assert!(endless.starts_with("HTTP/1.1 431"), "{endless}");
    sidecar.answers_again().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_read_their_answer_hold_no_connection() {
    let world = World::new().await;
    let sidecar = Sidecar::start(&world).await;
    let mut idle = Vec::new();
    for _ in 0..3 * CONNECTIONS {
        let mut stream = TcpStream::connect(&sidecar.address).await.expect("connect");
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        idle.push(stream);
    }
    // This request waits behind them.
    sidecar.answers_again().await;
    sidecar.until_connections(|connections| connections == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_connections_are_taken_the_oldest_idle_one_is_closed() {
    let world = World::new().await;
    let sidecar = Sidecar::start(&world).await;
    let crowd = sidecar.full_crowd().await;
    assert!(sidecar.request("GET", "/healthz").await.starts_with("HTTP/1.1 200"));
    let closed: Vec<usize> = (0..CONNECTIONS).filter(|place| !is_open(&crowd[*place])).collect();
    assert!(closed.first().is_none_or(|first| *first == 0), "closed first: {closed:?}");
    sidecar.answers_again().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_probe_is_answered_while_idle_clients_keep_connecting() {
    let world = World::new().await;
    let sidecar = Sidecar::start(&world).await;
    let address = sidecar.address.clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let mut crowd = sidecar.crowd();
    let crowding = std::thread::spawn(move || {
        while stopped.try_recv().is_err() {
            crowd.retain(is_open);
            crowd.resize_with(2 * CONNECTIONS, || Idle::connect(&address).expect("connect"));
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    // A probe that sends nothing for a moment may be closed as idle, so kubelet's three tries count.
    let mut answered = 0;
    for _ in 0..40 {
        for _ in 0..3 {
            let answer = sidecar.request("GET", "/healthz").await;
            if answer.starts_with("HTTP/1.1 200") {
                answered += 1;
                break;
            }
        }
    }
    let _ = stop.send(());
    crowding.join().expect("crowd");
    assert_eq!(answered, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_claims_are_reset_while_idle_clients_hold_every_connection() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let worker = world.worker().await;
    claim_some(&worker, 10).await;
    let sidecar = Sidecar::start(&world).await;
    let address = sidecar.address.clone();
    let mut crowd = sidecar.crowd();
    let crowding = tokio::spawn(async move {
        loop {
            crowd.retain(is_open);
            crowd.resize_with(CONNECTIONS, || Idle::connect(&address).expect("connect"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    world.expire_leases(7201.0).await;
    world.until("all reset", "SELECT count(*) = 10 FROM pastes WHERE attempts = 1").await;
    crowding.abort();
    sidecar.answers_again().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watchdog_that_ran_out_of_file_descriptors_answers_again() {
    let world = World::new().await;
    let program = env!("CARGO_BIN_EXE_cleanup-watchdog");
    let few = world.program("sh").args(&["-c", "ulimit -n 24 && exec \"$0\"", program]);
    let mut sidecar = Sidecar::of(few).await;
    let crowd = sidecar.crowd();
    sidecar.running.until_it_logs("cannot accept a connection").await;
    drop(crowd);
    sidecar.answers_again().await;
    sidecar.stops().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_client_does_not_delay_a_stop() {
    let world = World::new().await;
    let sidecar = Sidecar::start(&world).await;
    let (half, idle) = (Idle::connect(&sidecar.address), Idle::connect(&sidecar.address));
    let (mut half, _idle) = (half.expect("connect"), idle.expect("connect"));
    std::io::Write::write_all(&mut half, b"GET /healthz HTTP/1.1\r\n").expect("half a head");
    sidecar.until_connections(|connections| connections == 2).await;
    sidecar.stops().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_only_the_watchdog_listens_and_only_on_loopback() {
    let world = World::new().await;
    assert!(paste_cleanup::config::defaults().watchdog.listen.ip().is_loopback());
    let sidecar = Sidecar::start(&world).await;
    let one = vec![format!("{LOOPBACK}:{:04X}", sidecar.port())];
    assert_eq!(listening(sidecar.running.pid()), one);

    let mut scheduler = world.program("cleanup-worker").args(&["schedule"]).start();
    scheduler.until_it_logs("next run:").await;
    assert_eq!(listening(scheduler.pid()), Vec::<String>::new());

    world.put("a", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let run = world.program("cleanup-worker").args(&["run"]).env("AWS_ENDPOINT_URL", &s3.url);
    let run = run.start();
    s3.called(1).await;
    assert_eq!(listening(run.pid()), Vec::<String>::new());
    s3.let_go();
    assert_eq!(run.end().await.code(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn watchdog_once_does_not_listen() {
    let world = World::new().await;
    let other = connect(&world.database_url).await;
    let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
                 AND wait_event_type = 'Lock' AND application_name LIKE 'cleanup-watchdog%'";
    for _ in 0..10 {
        other.batch_execute("BEGIN; LOCK TABLE deletion_claims").await.expect("lock");
        let once = world.program("cleanup-watchdog").args(&["--once"]).start();
        world.until("the sweep waits", waits).await;
        assert_eq!(listening(once.pid()), Vec::<String>::new());
        other.batch_execute("ROLLBACK").await.expect("rollback");
        let ended = once.end().await;
        // On a slow machine its lock_timeout may be over first.
        if !ended.stderr().contains("lock timeout") {
            assert_eq!(ended.code(), 0, "{}", ended.stderr());
            return;
        }
    }
    panic!("never got the lock");
}
