//! The Redis lock saves work; claims are safe without it.

mod holders;
mod rights;
mod runs;

use paste_cleanup::worker::batch::{Lock, lock::LockOutcome};

use crate::support::servers::Redis;

async fn command(redis: &Redis, words: &[&str]) -> Option<String> {
    let client = redis::Client::open(redis.url()).expect("client");
    let mut connection = client.get_multiplexed_async_connection().await.expect("connection");
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut connection).await.expect("command")
}

/// Returns the remaining TTL; it is negative if the lock is free.
async fn ttl_ms(redis: &Redis, lock: &Lock) -> i64 {
    let client = redis::Client::open(redis.url()).expect("client");
    let mut connection = client.get_multiplexed_async_connection().await.expect("connection");
    redis::cmd("PTTL").arg(lock.key()).query_async(&mut connection).await.expect("PTTL")
}

fn token(outcome: LockOutcome) -> String {
    match outcome {
        LockOutcome::Held(token) => token,
        other => panic!("not held: {other:?}"),
    }
}
