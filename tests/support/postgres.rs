//! A Postgres server for one test, which may stop, isolate, promote and fill it.

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

/// `fsync = off` is safe here: tests crash the server's processes, never the operating system, which
/// still writes what was committed.
const SETTINGS: [&str; 4] =
    ["listen_addresses = '127.0.0.1'", "unix_socket_directories = ''", "fsync = off", "jit = off"];

const STOP: [&str; 4] = ["--mode=immediate", "--silent", "--wait", "stop"];

/// A server on 127.0.0.1 that trusts every login by default. Dropping it stops the server and
/// removes its folder.
pub(crate) struct Postgres {
    folder: Folder,
    pub port: u16,
    /// The command that runs its programs.
    wrapper: Vec<String>,
}

impl Postgres {
    /// Starts a server with these lines in its configuration.
    pub(crate) async fn start(settings: &[&str]) -> Self {
        let server = Self::initialised(|_| Vec::new()).await;
        server.configure(settings).await;
        server.start_again().await;
        server
    }

    /// Initialises a server without starting it. All its programs are run by the command that
    /// `wrapper` returns for the data folder, for example `nsenter` into a mount namespace where
    /// that folder is a small disk.
    pub(crate) async fn initialised(wrapper: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let server = Self::in_new_folder(wrapper);
        let make = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"];
        server.run("initdb", &[&make[..], &["--no-sync"]].concat()).await;
        server.configure(&SETTINGS).await;
        server.configure(&[&format!("port = {}", server.port)]).await;
        server
    }

    /// Starts a standby with this name (for `synchronous_standby_names`) of the primary at `port`,
    /// which is the primary's own port or that of a proxy.
    pub(crate) async fn standby(port: u16, name: &str, settings: &[&str]) -> Self {
        let server = Self::in_new_folder(|_| Vec::new());
        let primary = format!("host=127.0.0.1 port={port} user=postgres application_name={name}");
        let from = format!("--dbname={primary}");
        let copy = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", &from];
        server.run("pg_basebackup", &copy).await;
        // The copy includes the primary's settings.
        let own = format!("port = {}", server.port);
        let alone = "synchronous_standby_names = ''";
        let at_once = "wal_retrieve_retry_interval = 100ms";
        server.configure(&[&own, alone, at_once]).await;
        server.configure(settings).await;
        server.start_again().await;
        server
    }

    fn in_new_folder(wrapper: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let folder = Folder::new("postgres");
        let data = folder.path().join("data");
        fs::create_dir(&data).expect("folder");
        give_to_server_user(folder.path());
        give_to_server_user(&data);
        let wrapper = wrapper(&data);
        Self { folder, port: free_port(), wrapper }
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address())
    }

    /// `host:port`, for URLs with several hosts.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Appends lines to its configuration; the last line of a name applies.
    pub(crate) async fn configure(&self, lines: &[&str]) {
        self.tee(&["--append"], "postgresql.auto.conf", &(lines.join("\n") + "\n")).await;
    }

    /// Reloads the configuration of a running server, which applies it a moment later.
    pub(crate) async fn reload(&self) {
        self.run("pg_ctl", &["--silent", "reload"]).await;
    }

    /// Writes a file into its data folder, readable only to the server.
    pub(crate) async fn write(&self, name: &str, text: &str) {
        self.tee(&[], name, text).await;
    }

    /// Stops it as a crash would: nothing is flushed, no client is waited for.
    pub(crate) async fn stop_immediately(&self) {
        self.run("pg_ctl", &STOP).await;
    }

    /// Starts it, with recovery from the WAL, and waits until it accepts connections.
    pub(crate) async fn start_again(&self) {
        let log = format!("--log={}", self.log().display());
        self.run("pg_ctl", &[&log, "--silent", "--wait", "start"]).await;
    }

    /// Promotes a standby, and waits until it accepts writes.
    pub(crate) async fn promote(&self) {
        self.run("pg_ctl", &["--silent", "--wait", "promote"]).await;
    }

    /// Its log file.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    async fn run(&self, program: &str, args: &[&str]) {
        let mut command = self.command(&Path::new(&env("PG_BIN")).join(program));
        command.arg("--pgdata").arg(self.data()).args(args).stdin(Stdio::null());
        let ended = Command::from(command).stdout(Stdio::null()).output().await.expect(program);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        assert!(ended.status.success(), "{program} {args:?}: {stderr}{log}");
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

    /// Runs a program as the server's user: Postgres refuses to run as root.
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

/// The server is a daemon and would outlive a test that panics.
impl Drop for Postgres {
    fn drop(&mut self) {
        let mut stop = self.command(&Path::new(&env("PG_BIN")).join("pg_ctl"));
        stop.arg("--pgdata").arg(self.data()).args(STOP);
        let _ = stop.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Makes a folder accessible only to the server's user.
fn give_to_server_user(folder: &Path) {
    let run = |program: &str, arg: &str| {
        let done = std::process::Command::new(program).arg(arg).arg(folder).status();
        assert!(done.expect(program).success(), "{program}");
    };
    run("chmod", "700");
    if runs_as_root() {
        run("chown", server_user());
    }
}
