//! Makes foreign text (from S3, Postgres, Redis or a file) safe for a log, for `last_error` and for a
//! terminal: one line, without control characters.

use std::fmt::Write;

/// Maximum number of characters kept.
const LONGEST: usize = 500;

/// Returns the text on one line, with invisible characters escaped.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(LONGEST));
    text.chars().take(LONGEST).for_each(|c| show(c, &mut shown));
    shown
}

/// Returns a log event on one line, whatever a library put into it (a NOTICE of Postgres, for example).
/// Escape characters are kept: they are the formatter's own colours; it escapes all others.
pub(crate) fn one_line(event: &str) -> String {
    let mut line = String::with_capacity(event.len());
    for c in event.trim_end_matches('\n').chars() {
        match c {
            '\u{1b}' => line.push(c),
            c => show(c, &mut line),
        }
    }
    line + "\n"
}

/// Appends a character, escaped as in JSON, so that a line of JSON stays valid.
fn show(c: char, shown: &mut String) {
    match c {
        '"' | '\'' | '\\' => shown.push(c),
        '\n' => shown.push_str("\\n"),
        '\r' => shown.push_str("\\r"),
        '\t' => shown.push_str("\\t"),
        c if c.escape_debug().len() == 1 => shown.push(c),
        c => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_characters_stay_and_control_characters_are_escaped() {
        let plain = "relation \"pastes\" isn't there: C:\\ größer 日本 😀";
        assert_eq!(printable(plain), plain);
        assert_eq!(printable("a\r\n\tb\u{1b}[2J\u{9b}\0"), r"a\r\n\tb\u001b[2J\u009b\u0000");
        assert_eq!(printable("\u{e0001}"), r"\udb40\udc01");
        assert_eq!(printable("\u{202e}\u{2028}\u{2066}"), r"\u202e\u2028\u2066");
        assert_eq!(printable(&"x".repeat(10_000)).len(), LONGEST);
    }
}
