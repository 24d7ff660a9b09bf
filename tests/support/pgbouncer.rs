//! A PgBouncer for one test, between the fleet and the tests' Postgres.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::{Child, Command};

use super::{
    World,
    proxy::address_of,
    servers::{free_port, runs_as_root, server_user, until_it_listens},
};

/// A running PgBouncer; killed when dropped.
pub(crate) struct PgBouncer {
    port: u16,
    _child: Child,
}

impl PgBouncer {
    /// Starts it with these lines in its `[pgbouncer]` section.
    pub(crate) async fn start(world: &World, settings: &[&str]) -> Self {
        let port = free_port();
        let config = configure(world, port, settings);
        let mut command = Command::new(super::env("PGBOUNCER"));
        if runs_as_root() {
            command.args(["--user", server_user()]);
        }
        let log = fs::File::create(config.with_extension("log")).expect("log");
        command.arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.kill_on_drop(true).spawn().expect("start pgbouncer");
        until_it_listens(port).await;
        Self { port, _child: child }
    }

    /// The same URL, through the pooler.
    pub(crate) fn through(&self, url: &str) -> String {
        url.replace(&address_of(url), &format!("127.0.0.1:{}", self.port))
    }
}

/// Writes its configuration, with the users and passwords of the world's URLs.
fn configure(world: &World, port: u16, settings: &[&str]) -> PathBuf {
    let folder = Path::new(&super::env("DIR")).join(format!("pgbouncer-{port}"));
    fs::create_dir(&folder).expect("folder");
    let urls = [world.worker_url(), world.watchdog_url.clone(), world.database_url.clone()];
    let users: String = urls
        .iter()
        .map(|url| {
            let (login, _) = url.trim_start_matches("postgres://").split_once('@').expect("a user");
            let (user, password) = login.split_once(':').expect("a password");
            format!("\"{user}\" \"{password}\"\n")
        })
        .collect();
    let (users_file, config) = (folder.join("users"), folder.join("pgbouncer.ini"));
    fs::write(&users_file, users).expect("users");
    let address = address_of(&world.database_url);
    let (host, server_port) = address.split_once(':').expect("a port");
    let text = format!(
        "[databases]\n* = host={host} port={server_port}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = md5\nauth_file = {}\n{}\n",
        users_file.display(),
        settings.join("\n")
    );
    fs::write(&config, text).expect("config");
    restrict(&folder);
    config
}

/// Makes the folder readable only to the pooler: it contains passwords.
fn restrict(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("permissions");
    if runs_as_root() {
        let mut chown = std::process::Command::new("chown");
        let changed = chown.args(["-R", server_user()]).arg(folder).status();
        assert!(changed.expect("chown").success());
    }
}
