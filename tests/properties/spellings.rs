//! Keys that are several spellings of one object: the S3 server of these tests treats `a//b` as
//! `a/b`.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*};

use crate::support::{Ago, Never, World, drain, hash};

const GROUPS: usize = 3;
const SPELLINGS: usize = 4;

/// What uses one spelling of one object's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    None,
    /// A content row with this many expired and live pastes.
    Content {
        expired: usize,
        live: usize,
    },
    /// A paste with a pending object delete.
    PendingRow,
}

/// The use of each spelling of each key.
pub(crate) type Uses = Vec<Use>;

pub(crate) fn uses() -> impl Strategy<Value = Uses> {
    let user = prop_oneof![
        3 => Just(Use::None),
        3 => (1..3_usize).prop_map(|expired| Use::Content { expired, live: 0 }),
        2 => (0..2_usize, 1..3_usize).prop_map(|(expired, live)| Use::Content { expired, live }),
        1 => Just(Use::PendingRow),
    ];
    vec(user, GROUPS * SPELLINGS)
}

fn object(group: usize) -> String {
    format!("s{group}/k")
}

fn spelling(group: usize, which: usize) -> String {
    let (head, slash) = (["", "/"][which / 2], ["/", "//"][which % 2]);
    format!("{head}s{group}{slash}k")
}

/// The pastes, content rows and objects that remain.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remaining {
    /// The number of pastes by key.
    pastes: BTreeMap<String, usize>,
    /// Keys and their counts.
    content: BTreeSet<(String, i64)>,
    objects: BTreeSet<String>,
}

/// Returns what must remain after a run. An object that live content may use under another spelling
/// is not deleted; one of its expired pastes stays, with the pending delete.
fn expected(uses: &Uses) -> Remaining {
    let mut remaining = Remaining::default();
    for (group, uses) in uses.chunks(SPELLINGS).enumerate() {
        let lives = |user: &Use| matches!(user, Use::Content { live: 1.., .. });
        if !uses.iter().any(lives) {
            continue;
        }
        remaining.objects.insert(object(group));
        for (which, user) in uses.iter().enumerate() {
            let key = format!("{group} {which}");
            match *user {
                Use::None => {}
                Use::Content { live: 0, .. } | Use::PendingRow => {
                    remaining.pastes.insert(key, 1);
                }
                Use::Content { live, .. } => {
                    remaining.pastes.insert(key, live);
                    remaining.content.insert((spelling(group, which), live as i64));
                }
            }
        }
    }
    remaining
}

async fn insert(world: &World, uses: &Uses) {
    world.run_sql("TRUNCATE pastes, content, deletion_claims").await;
    let insert = "INSERT INTO pastes (short_code, expires_at, pending_s3_key)
               VALUES ($1, now() - interval '1 minute', $2)";
    for (n, user) in uses.iter().enumerate() {
        let (group, which) = (n / SPELLINGS, n % SPELLINGS);
        let (key, code) = (spelling(group, which), |n: usize| format!("{group} {which} {n}"));
        match *user {
            Use::None => continue,
            Use::Content { expired, live } => {
                for n in 0..expired + live {
                    let expires = if n < expired { Ago(60.0) } else { Never };
                    world.put_row(&code(n), &hash(&key), Some(&key), 1, expires).await;
                }
            }
            Use::PendingRow => {
                world.db.execute(insert, &[&code(0), &key]).await.expect("pending row");
            }
        }
        world.upload(&key, &object(group)).await;
    }
}

async fn found(world: &World) -> Remaining {
    let pastes = world.db.query("SELECT short_code FROM pastes", &[]).await.expect("pastes");
    let content = "SELECT s3_key, ref_count::bigint FROM content";
    let content = world.db.query(content, &[]).await.expect("content");
    let mut by_key = BTreeMap::new();
    for row in &pastes {
        let (key, _) = row.get::<_, &str>(0).rsplit_once(' ').expect("a short code of this test");
        *by_key.entry(key.to_string()).or_default() += 1;
    }
    Remaining {
        pastes: by_key,
        content: content.iter().map(|row| (row.get(0), row.get(1))).collect(),
        objects: world.keys().await.into_iter().collect(),
    }
}

/// Runs the fleet while some pastes are live, and again after all have expired.
pub(crate) async fn check_spellings(world: &World, uses: &Uses) -> Result<(), String> {
    insert(world, uses).await;
    let worker = world.worker().await;
    drain(&worker).await;
    let (remaining, expected) = (found(world).await, expected(uses));
    if remaining != expected {
        return Err(format!("after the first run, {remaining:#?} remain; expected {expected:#?}"));
    }
    let attempted =
        "SELECT count(*) FROM pastes WHERE attempts > 0 OR deletion_status <> 'NOT_EXPIRED'";
    if world.count(attempted).await > 0 {
        return Err("a paste was charged an attempt, or is not NOT_EXPIRED".into());
    }
    let expire = "UPDATE pastes SET expires_at = now() WHERE content_hash IS NOT NULL;
                  UPDATE pastes SET retry_at = NULL";
    world.run_sql(expire).await;
    drain(&worker).await;
    match found(world).await {
        remaining if remaining == Remaining::default() => Ok(()),
        remaining => Err(format!("after all pastes expired, {remaining:#?} remain")),
    }
}
