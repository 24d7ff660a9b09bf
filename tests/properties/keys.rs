//! Keys of any form: an object that S3 can store under a key, the fleet can delete.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};

use crate::support::{Ago, Expires, Never, World, drain, hash, invariants::Expected};

/// A key, and whether its paste is live.
#[derive(Debug, Clone)]
pub(crate) struct OddKey {
    key: String,
    live: bool,
}

/// Generates letters of all scripts, mostly those that XML, URLs and logs must escape. Characters
/// that XML cannot express (control characters, U+FFFE and U+FFFF) are left out: a listing cannot
/// name them, so the checker would not find their objects. `tests/fleet/odd_keys.rs` covers those.
fn letter() -> impl Strategy<Value = char> {
    let any = any::<char>().prop_filter("XML cannot express it", |c| {
        !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}' | '/' | '\\')
    });
    let odd: Vec<char> =
        "\t\n\r<>&'\"%+?#=;:*|~ ]\u{7f}\u{85}\u{2028}\u{feff}\u{301}".chars().collect();
    prop_oneof![1 => any, 1 => prop::sample::select(odd), 1 => prop::char::range('a', 'z')]
}

/// Generates some keys, none of which is a folder of another.
pub(crate) fn keys() -> impl Strategy<Value = Vec<OddKey>> {
    let word = vec(letter(), 1..12).prop_map(String::from_iter);
    let key = (vec(word, 1..4), any::<bool>());
    vec(key, 1..6).prop_map(|keys| {
        let odd = keys
            .into_iter()
            .enumerate()
            .map(|(n, (words, live))| OddKey { key: format!("k{n}/{}", words.join("/")), live });
        odd.collect()
    })
}

/// Puts a paste under each key that S3 stores unchanged, and drains. Returns how many it stored.
pub(crate) async fn check_keys(world: &World, keys: &[OddKey]) -> Result<usize, String> {
    world.run_sql("TRUNCATE pastes, content, deletion_claims").await;
    world.seen.lock().expect("seen").clear();
    for old in world.keys().await {
        world.s3.delete_object().bucket(&world.bucket).key(old).send().await.expect("clean");
    }
    for odd in keys {
        // SeaweedFS accepts no key that ends with "/.".
        world.try_upload(&odd.key, &odd.key).await;
    }
    let stored = world.keys().await;
    let mut alive = BTreeMap::new();
    for (n, odd) in keys.iter().enumerate().filter(|(_, odd)| stored.contains(&odd.key)) {
        let (code, expires): (String, Expires) =
            (format!("p{n}"), if odd.live { Never } else { Ago(60.0) });
        world.put_row(&code, &hash(&odd.key), Some(&odd.key), odd.key.len(), expires).await;
        if odd.live {
            alive.insert(code, odd.key.clone());
        }
    }
    let summary = drain(&world.worker().await).await;
    if summary.rows_failed > 0 {
        return Err(format!("{summary:?}"));
    }
    let in_doubt = keys.iter().map(|odd| odd.key.clone()).filter(|key| !stored.contains(key));
    let expected = Expected { alive, in_doubt: in_doubt.collect(), ..Expected::default() };
    match world.store().check(&expected).await.violations {
        wrong if wrong.is_empty() => Ok(stored.len()),
        wrong => Err(wrong.join("\n")),
    }
}
