//! Keys that some stores take for another one: `a//b`, `/a/b`, `a/./b` and `a\b` are the object `a/b`
//! in SeaweedFS and in stores that keep files. Which keys have the same canonical form is for
//! `cleanup_canonical_key` in Postgres to say; here is only whether it needs to be asked.

/// Whether a key may not be in its canonical form, as in `content_odd_key_idx`.
pub fn is_odd(key: &str) -> bool {
    !key.is_ascii()
        || key.contains('\\')
        || key.split('/').any(|part| matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::is_odd;

    #[test]
    fn only_plain_keys_need_not_be_asked_about() {
        for plain in ["a", "a/b", "ab12/cd-34_e.txt", "...", "a/.hidden/b..", "a b"] {
            assert!(!is_odd(plain), "{plain}");
        }
        for odd in ["", "/a", "a/", "a//b", "a\\b", "./a", "a/..", "a/./b", "..", "é"] {
            assert!(is_odd(odd), "{odd}");
        }
    }
}
