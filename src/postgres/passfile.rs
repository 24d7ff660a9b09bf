//! The password file of libpq: PGPASSFILE, or ~/.pgpass, with lines `host:port:database:user:password`.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Once,
};

use tokio_postgres::Config;
use tracing::warn;

use super::password::address;
use crate::printable::printable;

/// The directories of Unix sockets that libpq calls `localhost`.
const DEFAULT_SOCKETS: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];

/// Returns the password for this host.
pub(super) fn password(host: &Config) -> Option<Vec<u8>> {
    let named = std::env::var_os("PGPASSFILE").filter(|name| !name.is_empty()).map(PathBuf::from);
    let path = named.or_else(|| std::env::home_dir().map(|home| home.join(".pgpass")))?;
    let file = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
    if file.permissions().mode() & 0o077 != 0 {
        warn_of_mode(&path);
        return None;
    }
    let [name, port, database, user] = address(host);
    let name = if DEFAULT_SOCKETS.contains(&&*name) { "localhost".into() } else { name };
    let text = std::fs::read_to_string(&path).ok()?;
    find(&text, &[name, port, database, user]).map(String::into_bytes)
}

fn warn_of_mode(path: &Path) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        let path = printable(&path.display().to_string());
        warn!("ignored the password file {path}: other users have access to it; chmod 0600");
    });
}

/// Returns the password of the first line that matches.
fn find(text: &str, address: &[String; 4]) -> Option<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(fields).find_map(|fields| {
        let (password, wanted) = fields.split_last().filter(|_| fields.len() == 5)?;
        let matches =
            wanted.iter().zip(address).all(|(want, is)| *want == "*" || unescaped(want) == *is);
        let password = unescaped(password);
        (matches && !password.is_empty()).then_some(password)
    })
}

/// Splits a line at the first four colons that are not escaped.
fn fields(line: &str) -> Vec<&str> {
    let (mut fields, mut rest) = (Vec::new(), line);
    while fields.len() < 4 {
        let mut is_escaped = false;
        let colon = rest.find(|c| {
            let found = c == ':' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            found
        });
        let Some(colon) = colon else { break };
        fields.push(&rest[..colon]);
        rest = &rest[colon + 1..];
    }
    fields.push(rest);
    fields
}

/// Removes the backslashes that escape a colon or a backslash.
fn unescaped(field: &str) -> String {
    let mut characters = field.chars();
    let mut text = String::new();
    while let Some(c) = characters.next() {
        text.push(if c == '\\' { characters.next().unwrap_or(c) } else { c });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_matches_has_the_password() {
        let file = "# a comment\nshort:line\n\
                    db1:5432:pastes:night:one\r\n\
                    *:6432:*:night:two:with\\:colons\n\
                    a\\:\\:1:*:*:*:th\\\\ree\n\
                    \\*:*:*:*:no wildcard\n";
        let password = |address: [&str; 4]| find(file, &address.map(String::from));
        assert_eq!(password(["db1", "5432", "pastes", "night"]).as_deref(), Some("one"));
        assert_eq!(password(["db2", "6432", "x", "night"]).as_deref(), Some("two:with:colons"));
        assert_eq!(password(["a::1", "1", "x", "y"]).as_deref(), Some("th\\ree"));
        assert_eq!(password(["db2", "5432", "pastes", "night"]), None);
        assert_eq!(password(["db1", "5432", "pastes", "day"]), None);
    }
}
