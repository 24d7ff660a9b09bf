//! Only GET and HEAD of three paths are answered; no request is waited for without a limit.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::Sidecar;
use crate::support::*;

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
