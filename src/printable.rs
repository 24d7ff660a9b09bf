//! What others say (S3, Postgres, Redis, the writer of a file), made fit for a log, for `last_error`
//! and for a terminal: one line, and nothing in it that is obeyed.

use std::fmt::Write;

/// What others say is kept, but not without end.
const LONGEST: usize = 500;

/// The text on one line, with everything spelled out that is not plainly visible.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(LONGEST));
    text.chars().take(LONGEST).for_each(|c| show(c, &mut shown));
    shown
}

/// A log event as one line, whatever a library put into it (a NOTICE of Postgres, say). Escape
/// characters are the formatter's own colours: it spells out those of others.
pub fn one_line(event: &str) -> String {
    let mut line = String::with_capacity(event.len());
    for c in event.trim_end_matches('\n').chars() {
        match c {
            '\u{1b}' => line.push(c),
            c => show(c, &mut line),
        }
    }
    line + "\n"
}

/// As JSON would spell it, so that a line of JSON stays one.
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
    fn what_is_visible_stays_and_what_is_obeyed_is_spelled_out() {
        let plain = "relation \"pastes\" isn't there: C:\\ größer 日本 😀";
        assert_eq!(printable(plain), plain);
        assert_eq!(printable("a\r\n\tb\u{1b}[2J\u{9b}\0"), r"a\r\n\tb\u001b[2J\u009b\u0000");
        assert_eq!(printable("\u{e0001}"), r"\udb40\udc01");
        assert_eq!(printable("\u{202e}\u{2028}\u{2066}"), r"\u202e\u2028\u2066");
        assert_eq!(printable(&"x".repeat(10_000)).len(), LONGEST);
    }
}
