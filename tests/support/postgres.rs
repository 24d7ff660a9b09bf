//! A Postgres of the test's own, which it may stop, cut off, promote and fill up.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{io::AsyncWriteExt, process::Command};

use super::{
    env,
    servers::{Folder, free_port, runs_as_root, server_user},
};

/// A crash of the server's processes loses nothing: with `fsync` off a commit is in the operating
/// system's hands, which is all that such a crash can ask for.
const SETTINGS: [&str; 4] =
    ["listen_addresses = '127.0.0.1'", "unix_socket_directories = ''", "fsync = off", "jit = off"];

const STOP: [&str; 4] = ["--mode=immediate", "--silent", "--wait", "stop"];

/// A server on 127.0.0.1 that trusts everybody, unless told otherwise. Stopped when dropped, and
/// its folder removed.
pub struct Postgres {
    folder: Folder,
    pub port: u16,
    /// What its programs are run by.
    wrapper: Vec<String>,
}

impl Postgres {
    /// With these lines in its postgresql.conf.
    pub async fn start(settings: &[&str]) -> Self {
        let server = Self::initialised(|_| Vec::new()).await;
        server.configure(settings).await;
        server.start_again().await;
        server
    }

    /// Not started yet. All its programs are run by the command that `wrapper` makes, which is told
    /// the data folder (`nsenter` of a mount namespace where that one is small, for example).
    pub async fn initialised(wrapper: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let server = Self::nowhere(wrapper);
        let make = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"];
        server.run("initdb", &[&make[..], &["--no-sync"]].concat()).await;
        server.configure(&SETTINGS).await;
        server.configure(&[&format!("port = {}", server.port)]).await;
        server
    }

    /// A standby called `name` (for `synchronous_standby_names`) of the primary that is reached by
    /// this port: the primary's own, or that of a proxy.
    pub async fn standby(port: u16, name: &str, settings: &[&str]) -> Self {
        let server = Self::nowhere(|_| Vec::new());
        let primary = format!("host=127.0.0.1 port={port} user=postgres application_name={name}");
        let from = format!("--dbname={primary}");
        let copy = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", &from];
        server.run("pg_basebackup", &copy).await;
        // The copy has the primary's settings, too.
        let own = format!("port = {}", server.port);
        let alone = "synchronous_standby_names = ''";
        let at_once = "wal_retrieve_retry_interval = 100ms";
        server.configure(&[&own, alone, at_once]).await;
        server.configure(settings).await;
        server.start_again().await;
        server
    }

    fn nowhere(wrapper: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let folder = Folder::new("postgres");
        let data = folder.path().join("data");
        fs::create_dir(&data).expect("folder");
        give_away(folder.path());
        give_away(&data);
        let wrapper = wrapper(&data);
        Self { folder, port: free_port(), wrapper }
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address())
    }

    /// `host:port`, for URLs with several hosts.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// More lines for its postgresql.conf; the last one of a name counts.
    pub async fn configure(&self, lines: &[&str]) {
        self.tee(&["--append"], "postgresql.auto.conf", &(lines.join("\n") + "\n")).await;
    }

    /// Lets a running server know what was configured. It takes a moment to follow.
    pub async fn reload(&self) {
        self.run("pg_ctl", &["--silent", "reload"]).await;
    }

    /// A file among its data, for its own eyes only.
    pub async fn write(&self, name: &str, text: &str) {
        self.tee(&[], name, text).await;
    }

    /// What a crash is to its clients. Nothing is flushed, nobody is waited for.
    pub async fn stop_immediately(&self) {
        self.run("pg_ctl", &STOP).await;
    }

    /// Recovers from the log, and waits until it takes connections.
    pub async fn start_again(&self) {
        let log = format!("--log={}", self.log().display());
        self.run("pg_ctl", &[&log, "--silent", "--wait", "start"]).await;
    }

    /// Makes a standby a primary, and waits until it takes writes.
    pub async fn promote(&self) {
        self.run("pg_ctl", &["--silent", "--wait", "promote"]).await;
    }

    /// What it said, for whoever looks for a reason.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    async fn run(&self, program: &str, args: &[&str]) {
        let mut command = self.command(&Path::new(&env("PG_BIN")).join(program));
        command.arg("--pgdata").arg(self.data()).args(args).stdin(Stdio::null());
        let ended = Command::from(command).stdout(Stdio::null()).output().await.expect(program);
        let said = String::from_utf8_lossy(&ended.stderr);
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        assert!(ended.status.success(), "{program} {args:?}: {said}{log}");
    }

    async fn tee(&self, args: &[&str], name: &str, text: &str) {
        let mut command = self.command(Path::new("sh"));
        command.args(["-c", "umask 077 && exec tee \"$@\"", "tee"]).args(args);
        command.arg(self.data().join(name)).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut tee = Command::from(command).spawn().expect("tee");
        let mut stdin = tee.stdin.take().expect("stdin");
        stdin.write_all(text.as_bytes()).await.expect("write");
        drop(stdin);
        assert!(tee.wait().await.expect("tee").success(), "write {name}");
    }

    /// A program as the server's user: Postgres refuses to run as root.
    fn command(&self, program: &Path) -> std::process::Command {
        let user = ["runuser", "-u", server_user(), "--"];
        let user = if runs_as_root() { &user[..] } else { &["env"] };
        let words = self.wrapper.iter().map(String::as_str).chain(user.iter().copied());
        let words: Vec<&str> = words.collect();
        let mut command = std::process::Command::new(words[0]);
        command.args(&words[1..]).arg(program).current_dir(self.folder.path());
        command
    }
}

/// It is a daemon: it would outlive a test that breaks off.
impl Drop for Postgres {
    fn drop(&mut self) {
        let mut stop = self.command(&Path::new(&env("PG_BIN")).join("pg_ctl"));
        stop.arg("--pgdata").arg(self.data()).args(STOP);
        let _ = stop.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Makes the server's user its owner, and nobody else a visitor.
fn give_away(folder: &Path) {
    let run = |program: &str, arg: &str| {
        let done = std::process::Command::new(program).arg(arg).arg(folder).status();
        assert!(done.expect(program).success(), "{program}");
    };
    run("chmod", "700");
    if runs_as_root() {
        run("chown", server_user());
    }
}
