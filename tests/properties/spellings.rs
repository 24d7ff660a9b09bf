//! Keys that are several spellings of one object: the store of these tests takes `a//b` for `a/b`.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*};

use super::support::{Ago, Never, World, drain, hash};

const GROUPS: usize = 3;
const SPELLINGS: usize = 4;

/// What has one spelling of one object's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    Nobody,
    /// Content with so many pastes that have expired, and so many that live.
    Content {
        expired: usize,
        live: usize,
    },
    /// A paste whose body was decremented, and whose object could not be deleted.
    PendingRow,
}

/// Who uses which spelling of which key.
pub type Users = Vec<User>;

pub fn users() -> impl Strategy<Value = Users> {
    let user = prop_oneof![
        3 => Just(User::Nobody),
        3 => (1..3_usize).prop_map(|expired| User::Content { expired, live: 0 }),
        2 => (0..2_usize, 1..3_usize).prop_map(|(expired, live)| User::Content { expired, live }),
        1 => Just(User::PendingRow),
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

/// What must be left: pastes, content rows, and objects.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    /// How many by key.
    pastes: BTreeMap<String, usize>,
    /// Keys and their counts.
    content: BTreeSet<(String, i64)>,
    objects: BTreeSet<String>,
}

/// An object that live content may have under another spelling is not deleted; of the pastes that held
/// it, one waits and owes it.
fn expected(users: &Users) -> Left {
    let mut left = Left::default();
    for (group, users) in users.chunks(SPELLINGS).enumerate() {
        let lives = |user: &User| matches!(user, User::Content { live: 1.., .. });
        if !users.iter().any(lives) {
            continue;
        }
        left.objects.insert(object(group));
        for (which, user) in users.iter().enumerate() {
            let key = format!("{group} {which}");
            match *user {
                User::Nobody => {}
                User::Content { live: 0, .. } | User::PendingRow => {
                    left.pastes.insert(key, 1);
                }
                User::Content { live, .. } => {
                    left.pastes.insert(key, live);
                    left.content.insert((spelling(group, which), live as i64));
                }
            }
        }
    }
    left
}

async fn plant(world: &World, users: &Users) {
    world.run_sql("TRUNCATE pastes, content, deletion_claims").await;
    let owe = "INSERT INTO pastes (short_code, expires_at, pending_s3_key)
               VALUES ($1, now() - interval '1 minute', $2)";
    for (n, user) in users.iter().enumerate() {
        let (group, which) = (n / SPELLINGS, n % SPELLINGS);
        let (key, code) = (spelling(group, which), |n: usize| format!("{group} {which} {n}"));
        match *user {
            User::Nobody => continue,
            User::Content { expired, live } => {
                for n in 0..expired + live {
                    let expires = if n < expired { Ago(60.0) } else { Never };
                    world.put_row(&code(n), &hash(&key), Some(&key), 1, expires).await;
                }
            }
            User::PendingRow => {
                world.db.execute(owe, &[&code(0), &key]).await.expect("pending row");
            }
        }
        world.upload(&key, &object(group)).await;
    }
}

async fn found(world: &World) -> Left {
    let pastes = world.db.query("SELECT short_code FROM pastes", &[]).await.expect("pastes");
    let content = "SELECT s3_key, ref_count::bigint FROM content";
    let content = world.db.query(content, &[]).await.expect("content");
    let mut by_key = BTreeMap::new();
    for row in &pastes {
        let (key, _) = row.get::<_, &str>(0).rsplit_once(' ').expect("a code of ours");
        *by_key.entry(key.to_string()).or_default() += 1;
    }
    Left {
        pastes: by_key,
        content: content.iter().map(|row| (row.get(0), row.get(1))).collect(),
        objects: world.keys().await.into_iter().collect(),
    }
}

/// A run while some live, and one after all have expired.
pub async fn spare_each_other(world: &World, users: &Users) -> Result<(), String> {
    plant(world, users).await;
    let worker = world.worker().await;
    drain(&worker).await;
    let (left, expected) = (found(world).await, expected(users));
    if left != expected {
        return Err(format!("left is {left:#?}, not {expected:#?}"));
    }
    let paid = "SELECT count(*) FROM pastes WHERE attempts > 0 OR deletion_status <> 'NOT_EXPIRED'";
    if world.count(paid).await > 0 {
        return Err("it cost somebody an attempt".into());
    }
    let expire = "UPDATE pastes SET expires_at = now() WHERE content_hash IS NOT NULL;
                  UPDATE pastes SET retry_at = NULL";
    world.run_sql(expire).await;
    drain(&worker).await;
    match found(world).await {
        left if left == Left::default() => Ok(()),
        left => Err(format!("in the end {left:#?}")),
    }
}
