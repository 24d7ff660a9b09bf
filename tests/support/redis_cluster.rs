//! Redis as people run it in production: a Cluster of three nodes, and a master with a replica that
//! three Sentinels watch.

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::process::{Child, Command};

use super::servers::{Folder, Redis, free_ports, until_it_listens};

/// Three nodes, each with a third of the slots.
pub(crate) struct Cluster {
    nodes: Vec<Redis>,
    _folder: Folder,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[], "").await
    }

    /// Starts it with more options for each node. `login`: of `redis-cli`, as in a URL.
    pub(crate) async fn start_with(extra: &[&str], login: &str) -> Self {
        let (folder, mut nodes) = (Folder::new("cluster"), Vec::new());
        for n in 0..3 {
            let file = folder.file(&format!("{n}.conf"));
            let options = ["--cluster-enabled", "yes", "--cluster-config-file", &file];
            nodes.push(Redis::start_with(&[&options[..], extra].concat()).await);
        }
        let cluster = Self { nodes, _folder: folder };
        let addresses: Vec<String> =
            cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let mut create = Command::new("redis-cli");
        if let Some((user, password)) = login.trim_end_matches('@').split_once(':') {
            create.args(["--user", user, "--pass", password, "--no-auth-warning"]);
        }
        create.args(["--cluster", "create"]).args(addresses).arg("--cluster-yes");
        let created = create.output().await.expect("redis-cli");
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        for node in &cluster.nodes {
            let url = node.url().replace("//", &format!("//{login}"));
            until(&url, redis::cmd("CLUSTER").arg("INFO"), "cluster_state:ok").await;
        }
        cluster
    }

    /// A URL that names only one of the nodes.
    pub(crate) fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.nodes[1].port())
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
            let mut sentinel = Command::new("redis-server");
            sentinel.args([&folder.file(&name), "--sentinel"]).kill_on_drop(true);
            sentinel.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
            sentinels.push((port, sentinel.spawn().expect("start a Sentinel")));
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

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|(port, _)| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/night", hosts.join(","))
    }
}

/// Sends a command to one server.
pub(crate) async fn ask<T: redis::FromRedisValue>(url: &str, command: &Cmd) -> T {
    let client = redis::Client::open(url).expect("a client");
    let mut connection =
        client.get_multiplexed_async_connection().await.expect("a connection to Redis");
    command.query_async(&mut connection).await.expect("an answer of Redis")
}

/// Repeats a command until its answer contains a text.
async fn until(url: &str, command: &Cmd, text: &str) {
    for _ in 0..3000 {
        let answer: Value = ask(url, command).await;
        let answer: String = redis::from_redis_value(answer).unwrap_or_default();
        if answer.contains(text) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{url} never answered {text:?}");
}
