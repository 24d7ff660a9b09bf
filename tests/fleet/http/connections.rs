//! Idle clients take every connection: probes are still answered, claims still reset, and the
//! watchdog still stops.

use std::{net::TcpStream as Idle, time::Duration};

use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{CONNECTIONS, Sidecar, is_open};
use crate::support::*;

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
    // A probe that sends nothing for a moment may be closed as idle, so kubelet's three tries
    // count.
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
