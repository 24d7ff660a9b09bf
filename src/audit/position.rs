//! The position of an audit, in a form that needs no quoting on a command line.

use std::{fmt, str::FromStr};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Characters that a shell does not interpret.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/');

/// The last key or hash that was checked, in one of the three walks. The walks are in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Position {
    /// The counts of the content rows, in the order of the hashes.
    Counts(Vec<u8>),
    /// The pastes, in the order of their content hashes.
    Pastes(Vec<u8>),
    /// The bucket, in the order of the keys. It is the last walk, because it finds the objects whose
    /// rows an audit has deleted, wherever that audit was resumed or stopped.
    Objects(String),
}

impl Default for Position {
    fn default() -> Self {
        Self::Counts(Vec::new())
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Objects(key) => write!(f, "objects:{}", utf8_percent_encode(key, &PLAIN)),
            Self::Counts(hash) => write!(f, "counts:{}", hex(hash)),
            Self::Pastes(hash) => write!(f, "pastes:{}", hex(hash)),
        }
    }
}

impl FromStr for Position {
    type Err = NotAPosition;

    fn from_str(text: &str) -> Result<Self, NotAPosition> {
        let (walk, place) = text.split_once(':').ok_or(NotAPosition)?;
        match walk {
            "objects" => {
                let key = percent_decode_str(place).decode_utf8().map_err(|_| NotAPosition)?;
                Ok(Self::Objects(key.into_owned()))
            }
            "counts" => bytes(place).map(Self::Counts).ok_or(NotAPosition),
            "pastes" => bytes(place).map(Self::Pastes).ok_or(NotAPosition),
            _ => Err(NotAPosition),
        }
    }
}

/// The text does not name a position.
#[derive(thiserror::Error, Debug, PartialEq, Eq)]
#[error(
    "not a position; use the one that an audit printed: counts:HASH, pastes:HASH or objects:KEY"
)]
pub struct NotAPosition;

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::same_cases())]

        #[test]
        fn a_position_is_read_back_as_it_was_printed_and_needs_no_quotes(
            key in any::<String>(),
            hash in any::<Vec<u8>>(),
        ) {
            for at in [Position::Objects(key), Position::Counts(hash.clone()), Position::Pastes(hash)] {
                let printed = at.to_string();
                prop_assert!(printed.chars().all(|c| c.is_ascii_alphanumeric() || ":%-_./".contains(c)));
                prop_assert_eq!(printed.parse::<Position>(), Ok(at));
            }
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "key", "objects", "counts:xyz", "pastes:abc", "counts:ä", "bodies:00"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }
}
