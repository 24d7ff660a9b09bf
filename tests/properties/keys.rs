//! Keys of any form: what S3 can hold under a key, the fleet can delete under it.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};

use super::support::{Ago, Expires, Never, World, drain, hash, invariants::Expected};

/// A key in several words, and whether its paste lives.
#[derive(Debug, Clone)]
pub struct Odd {
    key: String,
    lives: bool,
}

/// Letters of all scripts, and above all those that XML, URLs and logs must take care of. Without
/// what XML cannot say (control characters, U+FFFE and U+FFFF): a listing cannot name it, so the
/// checker would not know it. `tests/odd_keys.rs` has those.
fn letter() -> impl Strategy<Value = char> {
    let any = any::<char>().prop_filter("XML cannot say it", |c| {
        !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}' | '/' | '\\')
    });
    let odd: Vec<char> =
        "\t\n\r<>&'\"%+?#=;:*|~ ]\u{7f}\u{85}\u{2028}\u{feff}\u{301}".chars().collect();
    prop_oneof![1 => any, 1 => prop::sample::select(odd), 1 => prop::char::range('a', 'z')]
}

/// Some keys, none a folder of another.
pub fn keys() -> impl Strategy<Value = Vec<Odd>> {
    let word = vec(letter(), 1..12).prop_map(String::from_iter);
    let key = (vec(word, 1..4), any::<bool>());
    vec(key, 1..6).prop_map(|keys| {
        let odd = keys
            .into_iter()
            .enumerate()
            .map(|(n, (words, lives))| Odd { key: format!("k{n}/{}", words.join("/")), lives });
        odd.collect()
    })
}

/// Puts a paste under each key that the store holds as it is, and drains. Says how many it held.
pub async fn survive_the_round_trip(world: &World, keys: &[Odd]) -> Result<usize, String> {
    world.run_sql("TRUNCATE pastes, content, deletion_claims").await;
    world.seen.lock().expect("seen").clear();
    for left in world.keys().await {
        world.s3.delete_object().bucket(&world.bucket).key(left).send().await.expect("clean");
    }
    for odd in keys {
        world.upload(&odd.key, &odd.key).await;
    }
    let held = world.keys().await;
    let mut alive = BTreeMap::new();
    for (n, odd) in keys.iter().enumerate().filter(|(_, odd)| held.contains(&odd.key)) {
        let (code, expires): (String, Expires) =
            (format!("p{n}"), if odd.lives { Never } else { Ago(60.0) });
        world.put_row(&code, &hash(&odd.key), Some(&odd.key), odd.key.len(), expires).await;
        if odd.lives {
            alive.insert(code, odd.key.clone());
        }
    }
    let summary = drain(&world.worker().await).await;
    if summary.rows_failed > 0 {
        return Err(format!("{summary:?}"));
    }
    let in_doubt = keys.iter().map(|odd| odd.key.clone()).filter(|key| !held.contains(key));
    let expected = Expected { alive, in_doubt: in_doubt.collect(), ..Expected::default() };
    match world.store().check(&expected).await.violations {
        wrong if wrong.is_empty() => Ok(held.len()),
        wrong => Err(wrong.join("\n")),
    }
}
