//! Keys that some stores treat as another key: `a//b`, `/a/b`, `a/./b` and `a\b` are the object `a/b`
//! in SeaweedFS and in stores that keep files. `cleanup_canonical_key` in Postgres computes the
//! canonical form; [`is_odd`] decides whether that query is needed.

/// Whether a key may differ from its canonical form, by the predicate of `content_odd_key_idx`.
pub fn is_odd(key: &str) -> bool {
    !key.is_ascii()
        || key.contains('\\')
        || key.split('/').any(|part| matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::is_odd;

    #[test]
    fn only_plain_keys_need_no_query() {
        for plain in ["a", "a/b", "ab12/cd-34_e.txt", "...", "a/.hidden/b..", "a b"] {
            assert!(!is_odd(plain), "{plain}");
        }
        for odd in ["", "/a", "a/", "a//b", "a\\b", "./a", "a/..", "a/./b", "..", "é"] {
            assert!(is_odd(odd), "{odd}");
        }
    }
}
