//! Generators of input: random bytes, and valid input with a few mistakes.

use proptest::{collection::vec, prelude::*, sample::Index};

/// Returns a byte, often one that is special to a parser.
fn byte() -> impl Strategy<Value = u8> {
    let special = b"\0\t\n\r\x1b \"#%&'*+,-./0159:;<=>?@LW[\\]^_`{|}~\x7f\x85\xc2\xe2\xff".to_vec();
    prop_oneof![2 => prop::sample::select(special), 1 => any::<u8>()]
}

/// Returns random bytes.
pub(crate) fn noise(most: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(byte(), 0..most)
}

/// Returns valid input with a few bytes removed and a few inserted.
pub(crate) fn edited(valid: impl Into<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let valid = valid.into();
    let edit = (any::<Index>(), 0..3_usize, noise(4));
    vec(edit, 0..5).prop_map(move |edits| {
        let mut bytes = valid.clone();
        for (place, removed, inserted) in edits {
            let from = place.index(bytes.len() + 1);
            let to = (from + removed).min(bytes.len());
            bytes.splice(from..to, inserted);
        }
        bytes
    })
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns random text, or valid text with a few mistakes.
pub(crate) fn words(valid: &'static [&'static str]) -> impl Strategy<Value = String> {
    let almost = prop::sample::select(valid).prop_flat_map(edited);
    prop_oneof![1 => noise(40), 3 => almost].prop_map(|bytes| text(&bytes))
}
