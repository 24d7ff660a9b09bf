//! Hostile short codes, hashes and keys are deleted exactly, with nothing else; error texts that contain them
//! stay on one line and cannot control a terminal.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    invariants::Expected,
    process::Ended,
    *,
};
use redis::AsyncCommands;
use secrecy::ExposeSecret;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

/// Names that mean something to SQL, arrays, XML, URLs, paths, cache patterns, logs or terminals.
const NAMES: [&str; 38] = [
    "'",
    "\"",
    "\\",
    "`",
    "$1",
    "%s",
    "'; DROP TABLE pastes; --",
    "\\'; --",
    "{a,b}",
    "\\N",
    "NULL",
    "a\nb",
    "\r\n",
    "\t",
    " ",
    "\u{1}\u{2}\u{8}\u{7f}\u{9b}",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "😀",
    "\u{202e}right to left",
    "e\u{301}",
    "\u{feff}",
    "\u{2028}",
    "\u{fffe}\u{ffff}",
    "..",
    "../x",
    "a/../b",
    "./c",
    "a//d",
    "%2e%2e%2f",
    "%00",
    "%41",
    "{short_code}",
    "*",
    "?",
    "[a-z]",
    "<Key>x</Key>",
    "&amp;",
];
/// What a careless interpretation of those would delete.
const NEIGHBOURS: [&str; 16] = [
    "anything",
    "a",
    "b",
    "x",
    "c",
    "a/d",
    "A",
    "\u{e9}",
    "red",
    "&",
    "''",
    "null",
    "q",
    "../",
    "short_code",
    "n",
];

/// The names above, and one of a kilobyte.
fn hostile() -> Vec<String> {
    let long = "long\u{1b}'*/".repeat(128);
    NAMES.iter().map(ToString::to_string).chain([long]).collect()
}

/// Not a hash: the bytes of the name, with a NUL.
fn odd_hash(name: &str) -> Vec<u8> {
    [name.as_bytes(), b"\0'"].concat()
}

/// A key that contains the name, within the limits of SeaweedFS: at most a kilobyte, no empty folder names,
/// no backslash (it reports such a key as deleted, but keeps it).
fn key_for(folder: &str, name: &str) -> String {
    let name: String = name.chars().take(1000).collect::<String>().replace('\\', "…");
    let named = |part| if matches!(part, "" | "." | "..") { "…" } else { part };
    let parts: Vec<&str> = name.split('/').map(named).collect();
    format!("{folder}/{}/body", parts.join("/"))
}

/// A cache key of this world: the servers are shared.
fn cache_key(world: &World, code: &str) -> String {
    format!("{}:{code}", world.name)
}

async fn redis(world: &World) -> redis::aio::MultiplexedConnection {
    let url = world.settings.redis.url.as_ref().expect("url").expose_secret();
    let client = redis::Client::open(url).expect("client");
    client.get_multiplexed_async_connection().await.expect("Redis")
}

/// Adds a paste with an object and a cache entry. `None` if the store does not accept such a key.
async fn put(world: &World, code: &str, hash: &[u8], key: &str, expires: Expires) -> Option<()> {
    world.upload(key, code).await;
    if world.object(key).await.as_deref() != Some(code) {
        return None;
    }
    world.put_row(code, hash, Some(key), code.len(), expires).await;
    let _: () = redis(world).await.set(cache_key(world, code), code).await.expect("cache");
    Some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_are_deleted_completely_and_their_look_alikes_stay() {
    let world = World::new().await;
    let mut alive = BTreeMap::new();
    for name in NEIGHBOURS {
        put(&world, name, &hash(name), &key_for("k", name), Never).await.expect(name);
        alive.insert(name.to_string(), name.to_string());
    }
    let mut odd_keys = Vec::new();
    for (n, name) in hostile().iter().enumerate() {
        let key = key_for(&format!("k{n}"), name);
        put(&world, name, &odd_hash(name), &key, Ago(60.0)).await.expect(&key);
        odd_keys.push(key);
    }
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json", "--batch-size", "7"])
        .env("CLEANUP_CACHE_KEY_PATTERN", &cache_key(&world, "{short_code}"))
        .output()
        .await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(ended.json()["rows_deleted"], hostile().len());
    assert_eq!(ended.json()["objects_deleted"], hostile().len());
    for key in odd_keys {
        assert_eq!(world.object(&key).await, None, "{key:?}");
    }
    let cached: BTreeSet<String> =
        redis(&world).await.keys(cache_key(&world, "*")).await.expect("keys");
    assert_eq!(cached, NEIGHBOURS.map(|name| cache_key(&world, name)).into());
    let expected = Expected { alive, ..Expected::default() };
    world.store().check(&expected).await.assert_clean("neighbours");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_dots_never_deletes_the_object_it_would_name_as_a_path() {
    let world = World::new().await;
    for key in ["k/b", "k/c"] {
        put(&world, key, &hash(key), key, Never).await.expect(key);
    }
    // SeaweedFS cannot store such keys, and must not delete others instead.
    for key in ["k/a/../b", "k/./c", "./k/b", "../k/c", "k/b/.", "k/a/..%2fb", "%6b/b", "k\\b"] {
        world.put_row(key, &hash(key), Some(key), 1, Ago(60.0)).await;
    }
    let run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let ended = run.env("CLEANUP_WORKER_MAX_ATTEMPTS", "1").output().await;
    let left = &ended.json()["left"];
    // Those that are another spelling of a live key back off; the others are deleted.
    assert_eq!((&left["due"], &left["backing_off"]), (&0.into(), &6.into()), "{left}");
    for key in ["k/b", "k/c"] {
        assert_eq!(world.object(key).await.as_deref(), Some(key), "{}", ended.stderr());
    }
}

/// A text from S3, Postgres, Redis, or the reason of a pause.
const INSULT: &str = "no\nFORGED line\r\n\u{9b}31m\u{202e}\u{85}";

fn is_harmless(text: &str) -> bool {
    let controls = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2028}');
    !text.chars().any(controls) && !text.starts_with("FORGED")
}

/// Asserts that every line is one of the program's own, whatever texts it contains.
fn assert_harmless(ended: &Ended, format: &str) {
    let (stdout, stderr) = (ended.stdout(), ended.stderr());
    assert!(stderr.contains("FORGED"), "the text should be in it: {stderr}");
    for line in stderr.split('\n').filter(|line| !line.is_empty()) {
        assert!(is_harmless(line), "{line:?}");
        let own = match format {
            _ if line.starts_with("cleanup-worker: ") => true,
            "json" => {
                serde_json::from_str::<serde_json::Value>(line).is_ok_and(|it| it.is_object())
            }
            _ => line.starts_with("20"),
        };
        assert!(own, "{line:?}");
    }
    assert!(stdout.split('\n').all(is_harmless), "{stdout:?}");
}

/// A run whose rows fail with hostile error texts.
async fn insulted(world: &World, s3: &FaultyS3, redis: &str, format: &str) -> Ended {
    world
        .program("cleanup-worker")
        .args(&["run"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .env("REDIS_URL", redis)
        .env("CLEANUP_LOG_FORMAT", format)
        .env("CLEANUP_LOG_FILTER", "info,paste_cleanup=trace")
        .env("CLEANUP_WORKER_MAX_ATTEMPTS", "1")
        .output()
        .await
}

/// Answers every command with a hostile error text.
async fn rude_redis() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(1..) = stream.read(&mut buffer).await {
                    let answer = "-ERR \x1b[2J\u{9b}31m FORGED \u{202e}\u{85}\r\n".repeat(8);
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
        }
    });
    format!("redis://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_of_s3_postgres_and_redis_forge_no_line_and_move_no_cursor() {
    for format in ["text", "json"] {
        let world = World::new().await;
        let s3 = FaultyS3::start(&world, Mode::Normal).await;
        let held = world.put("\x1b[2J\nFORGED held", "held", Ago(60.0)).await;
        world.put("\x1b[2J\nFORGED needed", "needed", Ago(60.0)).await;
        world
            .run_sql(&format!(
                "CREATE FUNCTION insult() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     RAISE NOTICE '%', E'{INSULT}' || OLD.short_code;
                     IF OLD.short_code LIKE '%needed' THEN
                         RAISE EXCEPTION USING ERRCODE = '23000',
                             MESSAGE = E'{INSULT}' || OLD.short_code;
                     END IF;
                     RETURN OLD;
                 END $$;
                 CREATE TRIGGER insult BEFORE DELETE ON pastes
                 FOR EACH ROW EXECUTE FUNCTION insult()"
            ))
            .await;
        s3.set_mode(Mode::RefusingWith { text: held, message: INSULT });
        let ended = insulted(&world, &s3, &rude_redis().await, format).await;
        assert_eq!(ended.code(), 1, "{}", ended.stderr());
        assert_harmless(&ended, format);
        let errors = "SELECT string_agg(last_error, ' ') FROM pastes WHERE retry_at = 'infinity'";
        let errors = world.text(errors).await.expect("two dead letters");
        assert!(is_harmless(&errors) && errors.matches("FORGED").count() >= 2, "{errors:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reason_why_a_program_stopped_is_one_line_whatever_it_contains() {
    let world = World::new().await;
    let reason = "UPDATE cleanup_fleet SET paused_at = now(), pause_reason = $1";
    world.db.execute(reason, &[&INSULT]).await.expect("pause");
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let paused = insulted(&world, &s3, "redis://127.0.0.1:1", "text").await;
    assert_eq!(paused.code(), 3, "{}", paused.stderr());
    assert_harmless(&paused, "text");
    let odd = "/nowhere/\n\x1b[2JFORGED";
    let refused = world.program("cleanup-worker").args(&["run", "--config", odd]).output().await;
    refused.assert_refused(2, &["nowhere"]);
    assert!(is_harmless(refused.stderr().trim_end_matches('\n')), "{:?}", refused.stderr());
}
