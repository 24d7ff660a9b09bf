//! A Redis server that a test may kill, and what all private servers need: folders, ports, a user.
//! Postgres is in [`super::postgres`].

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    net::TcpStream,
    process::{Child, Command},
};

/// A folder of one test, removed when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(what: &str) -> Self {
        let name = format!("{what}-{}", uuid::Uuid::new_v4().simple());
        let path = Path::new(&super::env("DIR")).join(name);
        fs::create_dir(&path).expect("folder");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path").to_string()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("write");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).expect("read")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A Redis server of one test.
pub(crate) struct Redis {
    child: Child,
    port: u16,
    folder: PathBuf,
    extra: Vec<String>,
}

impl Redis {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts it with more command line options. `--tls-port` closes the plain port.
    pub(crate) async fn start_with(extra: &[&str]) -> Self {
        let port = free_port();
        let folder = PathBuf::from(super::env("DIR"));
        let extra: Vec<String> =
            extra.iter().map(|option| option.replace("{port}", &port.to_string())).collect();
        let child = spawn(port, &folder, &extra);
        let server = Self { child, port, folder, extra };
        until_it_listens(port).await;
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("Redis runs")
    }

    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.expect("kill Redis");
    }

    pub(crate) async fn start_again(&mut self) {
        self.child = spawn(self.port, &self.folder, &self.extra);
        until_it_listens(self.port).await;
    }
}

/// Finds ports that stay usable when their server is restarted: they are below the range of outgoing
/// connections. Port + 10000, which SeaweedFS uses for gRPC, is free, too. All are bound at once, so
/// that they differ.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    let mut bound = Vec::new();
    let mut bind = |port: u16| {
        bound.push(std::net::TcpListener::bind(("127.0.0.1", port)).ok()?);
        Some(())
    };
    [(); N].map(|()| {
        loop {
            let port = fastrand::u16(11000..22700);
            if bind(port).and_then(|()| bind(port + 10000)).is_some() {
                return port;
            }
        }
    })
}

/// Waits until a server that was just started accepts connections.
pub(crate) async fn until_it_listens(port: u16) {
    for _ in 0..3000 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no server listens on port {port}");
}

pub(crate) fn free_port() -> u16 {
    let [port] = free_ports();
    port
}

fn spawn(port: u16, folder: &PathBuf, extra: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    if !extra.iter().any(|option| option == "--tls-port") {
        command.args(["--port", &port.to_string()]);
    }
    command.args(extra).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    command.kill_on_drop(true).spawn().expect("start redis-server")
}

/// Postgres and PgBouncer refuse to run as root.
pub(crate) fn runs_as_root() -> bool {
    std::fs::metadata("/proc/self").expect("own process").uid() == 0
}

/// The user that runs them if the tests run as root.
pub(crate) fn server_user() -> &'static str {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = users.lines().any(|line| line.starts_with("postgres:"));
    if known { "postgres" } else { "nobody" }
}
