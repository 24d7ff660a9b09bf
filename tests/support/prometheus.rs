//! A Prometheus for one test, with the shipped rules.

use std::{collections::BTreeSet, path::Path, process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
};

use super::servers::{Folder, free_port, until_it_listens};

/// The scrape job that the rules expect.
pub(crate) const JOB: &str = "cleanup-watchdog";

const KEYWORDS: [&str; 10] =
    ["and", "or", "unless", "by", "on", "ignoring", "group_left", "bool", "offset", "without"];
const BEFORE_LABELS: [&str; 5] = ["by", "on", "ignoring", "group_left", "without"];

/// The path of a file in `ops/`.
pub(crate) fn shipped(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ops").join(file);
    path.to_str().expect("a path").to_string()
}

/// A running Prometheus; killed when dropped.
pub(crate) struct Prometheus {
    address: String,
    _child: Child,
    _folder: Folder,
}

impl Prometheus {
    /// Starts one that scrapes this watchdog, if any, and evaluates the rules every second.
    pub(crate) async fn start(watchdog: Option<&str>) -> Self {
        let (folder, port) = (Folder::new("prometheus"), free_port());
        let targets = watchdog.map(|address| format!("'{address}'")).unwrap_or_default();
        let rules = shipped("prometheus/alerts.yml");
        folder.write(
            "prometheus.yml",
            &format!(
                "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
                 rule_files: ['{rules}']\n\
                 scrape_configs: [{{job_name: {JOB}, static_configs: [{{targets: [{targets}]}}]}}]\n"
            ),
        );
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(super::env("PROMETHEUS"));
        command.arg(format!("--config.file={}", folder.file("prometheus.yml")));
        command.arg(format!("--storage.tsdb.path={}", folder.file("data")));
        command.arg(format!("--web.listen-address={address}"));
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let log = std::fs::File::create(folder.file("prometheus.log")).expect("log");
        let child = command.stderr(log).kill_on_drop(true).spawn().expect("start prometheus");
        until_it_listens(port).await;
        Self { address, _child: child, _folder: folder }
    }

    /// Returns all series that the query finds now.
    pub(crate) async fn query(&self, query: &str) -> Vec<Value> {
        let answer = self.get(&format!("/api/v1/query?query={}", encoded(query))).await;
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().expect("a vector").clone()
    }

    /// Repeats the query until it returns at least one series.
    pub(crate) async fn until(&self, query: &str) {
        for _ in 0..600 {
            if !self.query(query).await.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("never true: {query}; targets: {}", self.get("/api/v1/targets").await);
    }

    /// Returns all rules, in the order of their groups.
    pub(crate) async fn rules(&self) -> Vec<Value> {
        let answer = self.get("/api/v1/rules").await;
        let groups = answer["data"]["groups"].as_array().expect("groups").clone();
        groups.iter().flat_map(|group| group["rules"].as_array().cloned().expect("rules")).collect()
    }

    async fn get(&self, path: &str) -> Value {
        // Its port is open before it can answer.
        for _ in 0..600 {
            let answer = get(&self.address, path).await;
            if !answer.is_empty() && answer != "Service Unavailable" {
                return serde_json::from_str(&answer)
                    .unwrap_or_else(|error| panic!("{path}: {error}: {answer}"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("Prometheus never answered {path}");
    }
}

/// Sends a GET request and returns the body of the answer.
pub(crate) async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connect");
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    body.to_string()
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Runs promtool with this input, and asserts that it succeeds.
pub(crate) async fn promtool(args: &[&str], input: &str) {
    let mut command = Command::new(super::env("PROMTOOL"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().expect("start promtool");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(input.as_bytes()).await.expect("feed promtool");
    drop(stdin);
    let ended = child.wait_with_output().await.expect("promtool");
    let output = [ended.stdout, ended.stderr].concat();
    assert!(ended.status.success(), "promtool {args:?}: {}", String::from_utf8_lossy(&output));
}

/// Returns the selectors of a query, with their matchers and without ranges.
pub(crate) fn selectors(query: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut rest = query;
    let mut last_word = "";
    while let Some(first) = rest.chars().next() {
        let of_word = |c: char| c.is_ascii_alphanumeric() || "_:.".contains(c);
        let word = &rest[..rest.find(|c| !of_word(c)).unwrap_or(rest.len())];
        rest = &rest[word.len().max(first.len_utf8())..];
        let after = rest.trim_start();
        if BEFORE_LABELS.contains(&last_word) && first == '(' {
            rest = rest.split_once(')').expect("the end of a list of labels").1;
        } else if first == '[' {
            rest = rest.split_once(']').expect("the end of a range").1;
        } else if first == '"' {
            rest = rest.split_once('"').expect("the end of a string").1;
        } else if word.is_empty() || first.is_ascii_digit() || KEYWORDS.contains(&word) {
            // Operators, numbers and keywords.
        } else if let Some(matchers) = after.strip_prefix('{') {
            let (matchers, more) = matchers.split_once('}').expect("the end of the matchers");
            found.insert(format!("{word}{{{matchers}}}"));
            rest = more;
        } else if !["(", "by ", "without "].iter().any(|next| after.starts_with(next)) {
            found.insert(word.to_string());
        }
        if !first.is_whitespace() {
            last_word = word;
        }
    }
    found
}
