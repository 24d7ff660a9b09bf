//! Redis as people run it in production: a Cluster of three nodes, and a master with a replica that
//! three Sentinels watch.

use std::{process::Stdio, time::Duration};

use redis::{Cmd, Value};
use tokio::process::{Child, Command};

use super::servers::{Folder, Redis, free_ports, until_it_listens};

/// Three nodes, each with a third of the slots.
pub(crate) struct Cluster {
    nodes: Vec<Redis>,
    scheme: &'static str,
    _folder: Folder,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[], "").await
    }

    /// Starts it with more options for each node. `login`: of `redis-cli`, as in a URL.
    pub(crate) async fn start_with(extra: &[&str], login: &str) -> Self {
        let arguments = match login.trim_end_matches('@').split_once(':') {
            Some((user, password)) => vec!["--user", user, "--pass", password, "--no-auth-warning"],
            None => Vec::new(),
        };
        Self::of_three(extra, &arguments, "redis+cluster").await
    }

    /// Starts it with the certificates of a folder, and without plain ports.
    pub(crate) async fn over_tls(certificates: &Folder) -> Self {
        let ca = certificates.file("ca.pem");
        let options = [&tls_options(certificates)[..], &["--tls-cluster", "yes"].map(String::from)];
        let options = options.concat();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Self::of_three(&options, &["--tls", "--cacert", &ca], "rediss+cluster").await
    }

    /// `cli`: arguments with which redis-cli connects.
    async fn of_three(extra: &[&str], cli: &[&str], scheme: &'static str) -> Self {
        let (folder, mut nodes) = (Folder::new("cluster"), Vec::new());
        for n in 0..3 {
            let file = folder.file(&format!("{n}.conf"));
            let options = ["--cluster-enabled", "yes", "--cluster-config-file", &file];
            nodes.push(Redis::start_with(&[&options[..], extra].concat()).await);
        }
        let cluster = Self { nodes, scheme, _folder: folder };
        let addresses: Vec<String> =
            cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let create = [cli, &["--cluster", "create"], &addresses, &["--cluster-yes"]].concat();
        redis_cli(&create).await.expect("a cluster");
        for node in &cluster.nodes {
            let port = node.port().to_string();
            let info = [cli, &["-h", "127.0.0.1", "-p", &port, "CLUSTER", "INFO"]].concat();
            until_it_prints(&info, "cluster_state:ok").await;
        }
        cluster
    }

    /// A URL that names only one of the nodes.
    pub(crate) fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.nodes[1].port())
    }

    /// Creates a login with these rights on every node.
    pub(crate) async fn grant(&self, user: &str, rights: &[&str]) {
        for node in &self.nodes {
            let mut grant = redis::cmd("ACL");
            grant.arg("SETUSER").arg(user).arg("on").arg("nopass").arg("-@all").arg(rights);
            ask::<()>(&node.url(), &grant).await;
        }
    }

    /// Returns a connection to all nodes.
    pub(crate) async fn connection(&self) -> redis::cluster_async::ClusterConnection {
        let urls = self.nodes.iter().map(Redis::url);
        let client = redis::cluster::ClusterClient::new(urls).expect("a cluster");
        client.get_async_connection().await.expect("a connection")
    }

    /// Returns the number of keys on each node.
    pub(crate) async fn keys(&self) -> Vec<i64> {
        let mut keys = Vec::new();
        for node in &self.nodes {
            keys.push(ask(&node.url(), &redis::cmd("DBSIZE")).await);
        }
        keys
    }
}

/// A master, its replica, and three Sentinels.
pub(crate) struct Sentinels {
    pub master: Redis,
    pub replica: Redis,
    sentinels: Vec<(u16, Child)>,
    _folder: Folder,
}

impl Sentinels {
    pub(crate) async fn start() -> Self {
        let folder = Folder::new("sentinel");
        let master = Redis::start().await;
        let of = ["--replicaof", "127.0.0.1", &master.port().to_string()].map(String::from);
        let replica = Redis::start_with(&of.each_ref().map(String::as_str)).await;
        until(&replica.url(), redis::cmd("INFO").arg("replication"), "master_link_status:up").await;
        let mut sentinels = Vec::new();
        for port in free_ports::<3>() {
            let name = format!("{port}.conf");
            let config = format!(
                "bind 127.0.0.1\nport {port}\nsentinel monitor night 127.0.0.1 {} 2\n\
                 sentinel down-after-milliseconds night 1000\n\
                 sentinel failover-timeout night 5000\n",
                master.port()
            );
            folder.write(&name, &config);
            sentinels.push((port, spawn_sentinel(&folder.file(&name))));
            until_it_listens(port).await;
        }
        let sentinels = Self { master, replica, sentinels, _folder: folder };
        for (port, _) in &sentinels.sentinels {
            // They find each other through the master.
            let url = format!("redis://127.0.0.1:{port}");
            let known = redis::cmd("INFO").arg("sentinel").to_owned();
            until(&url, &known, "slaves=1,sentinels=3").await;
        }
        sentinels
    }

    /// Makes the replica the master. On a busy machine a Sentinel first refuses: it has not heard from the
    /// replica for too long.
    pub(crate) async fn fail_over(&self) {
        let sentinel = format!("redis://127.0.0.1:{}", self.sentinels[0].0);
        let failover = redis::cmd("SENTINEL").arg("FAILOVER").arg("night").to_owned();
        while try_ask::<()>(&sentinel, &failover).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let role = redis::cmd("INFO").arg("replication").to_owned();
        until(&self.master.url(), &role, "role:slave").await;
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|(port, _)| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/night", hosts.join(","))
    }
}

/// A master over TLS, and a Sentinel with a password of its own that watches it.
pub(crate) struct TlsSentinel {
    port: u16,
    _master: Redis,
    _sentinel: Child,
}

impl TlsSentinel {
    pub(crate) async fn start(certificates: &Folder, password: &str) -> Self {
        let options = tls_options(certificates);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let master = Redis::start_with(&options).await;
        let [port] = free_ports();
        let config = format!(
            "bind 127.0.0.1\nport 0\ntls-port {port}\ntls-auth-clients no\ntls-replication yes\n\
             tls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\nrequirepass {password}\n\
             sentinel monitor night 127.0.0.1 {} 1\n",
            certificates.file("cert.pem"),
            certificates.file("key.pem"),
            certificates.file("ca.pem"),
            master.port()
        );
        certificates.write("sentinel.conf", &config);
        let sentinel = spawn_sentinel(&certificates.file("sentinel.conf"));
        until_it_listens(port).await;
        let (ca, text) = (certificates.file("ca.pem"), port.to_string());
        let to_it = ["--tls", "--cacert", &ca, "-h", "127.0.0.1", "-p", &text, "--no-auth-warning"];
        let info = [&to_it[..], &["-a", password, "INFO", "sentinel"]].concat();
        until_it_prints(&info, "status=ok").await;
        Self { port, _master: master, _sentinel: sentinel }
    }

    pub(crate) fn url(&self) -> String {
        format!("rediss+sentinel://127.0.0.1:{}/night", self.port)
    }
}

fn spawn_sentinel(config: &str) -> Child {
    let mut sentinel = Command::new("redis-server");
    sentinel.args([config, "--sentinel"]).kill_on_drop(true);
    sentinel.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start a Sentinel")
}

/// The options of a server that takes only TLS connections, with the certificates of a folder.
pub(crate) fn tls_options(certificates: &Folder) -> Vec<String> {
    let file = |name| certificates.file(name);
    let (cert, key, ca) = (file("cert.pem"), file("key.pem"), file("ca.pem"));
    let files = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let options = ["--tls-port", "{port}", "--port", "0", "--tls-auth-clients", "no"];
    options.iter().chain(&files).map(ToString::to_string).collect()
}

/// Runs redis-cli, and returns what it printed.
async fn redis_cli(arguments: &[&str]) -> Result<String, String> {
    let ended = Command::new("redis-cli").args(arguments).output().await.expect("redis-cli");
    let printed = String::from_utf8_lossy(&ended.stdout).into_owned();
    if ended.status.success() { Ok(printed) } else { Err(printed) }
}

async fn until_it_prints(arguments: &[&str], text: &str) {
    for _ in 0..3000 {
        if redis_cli(arguments).await.is_ok_and(|printed| printed.contains(text)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("redis-cli {arguments:?} never printed {text:?}");
}

/// Sends a command to one server.
pub(crate) async fn ask<T: redis::FromRedisValue>(url: &str, command: &Cmd) -> T {
    try_ask(url, command).await.expect("an answer of Redis")
}

async fn try_ask<T: redis::FromRedisValue>(url: &str, command: &Cmd) -> redis::RedisResult<T> {
    let client = redis::Client::open(url).expect("a client");
    let mut connection = client.get_multiplexed_async_connection().await?;
    command.query_async(&mut connection).await
}

/// Repeats a command until its answer contains a text.
async fn until(url: &str, command: &Cmd, text: &str) {
    for _ in 0..3000 {
        // Sentinels cut the connections to a master that they demote.
        let answer = try_ask::<Value>(url, command).await.unwrap_or(Value::Nil);
        let answer: String = redis::from_redis_value(answer).unwrap_or_default();
        if answer.contains(text) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{url} never answered {text:?}");
}
