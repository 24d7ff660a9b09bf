//! The TCP sockets of a process, read from `/proc`.

use std::{collections::BTreeSet, fs};

const LISTEN: &str = "0A";

/// Returns the local addresses on which a process listens, as `address:port` in the kernel's hex.
pub(crate) fn listening(pid: u32) -> Vec<String> {
    sockets(pid).into_iter().filter(|(_, state)| state == LISTEN).map(|(local, _)| local).collect()
}

/// Counts the connections to this port of the process.
pub(crate) fn connections_to(pid: u32, port: u16) -> usize {
    let port = format!(":{port:04X}");
    let to_port = |(local, state): &(String, String)| local.ends_with(&port) && state != LISTEN;
    sockets(pid).iter().filter(|socket| to_port(socket)).count()
}

/// Returns local address and state of every TCP socket that the process has open.
fn sockets(pid: u32) -> Vec<(String, String)> {
    let open = open_inodes(pid);
    let tables = ["tcp", "tcp6"].map(|name| format!("/proc/{pid}/net/{name}"));
    let tables = tables.map(|path| fs::read_to_string(path).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        open.contains(fields[9]).then(|| (fields[1].to_string(), fields[3].to_string()))
    };
    lines.filter_map(socket).collect()
}

fn open_inodes(pid: u32) -> BTreeSet<String> {
    let folder = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs");
    let links = folder.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let inode = |link: std::path::PathBuf| {
        let name = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some(name.to_string())
    };
    links.filter_map(inode).collect()
}
