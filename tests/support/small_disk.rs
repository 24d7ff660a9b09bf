//! A disk that a test may fill: a small tmpfs in its own mount namespace, which no other process
//! sees and which disappears with the test.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use super::servers::runs_as_root;

/// Mounts the tmpfs, and keeps the namespace alive.
const HOLD: &str = "mount -t tmpfs -o size=\"$2\",mode=700 none \"$1\" && \
                    chown --reference=\"$1/..\" \"$1\" && echo ready && exec sleep infinity";
const FILL: &str = "cat /dev/zero > \"$1/filler\" 2>/dev/null; sync; test -s \"$1/filler\"";

pub(crate) struct SmallDisk {
    holder: Child,
    place: PathBuf,
}

impl SmallDisk {
    /// Mounts it on an existing folder. Its owner is that of the parent folder.
    pub(crate) fn mount(place: &Path, size: &str) -> Self {
        let mut command = Command::new("unshare");
        if !runs_as_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "sh", "-c", HOLD, "sh"]).arg(place).arg(size);
        let mut holder = command.stdout(Stdio::piped()).spawn().expect("unshare");
        let stdout = holder.stdout.take().expect("stdout");
        let first = BufReader::new(stdout).lines().next();
        let mounted = first.is_some_and(|line| line.is_ok());
        assert!(
            mounted,
            "no tmpfs: a container needs --privileged, a user kernel.unprivileged_userns_clone"
        );
        Self { holder, place: place.into() }
    }

    /// The command that runs a program where the disk is visible. Without root rights it maps the
    /// user to an id other than 0, because Postgres refuses to run as root.
    pub(crate) fn wrapper(&self) -> Vec<String> {
        let pid = self.holder.id();
        let words = match runs_as_root() {
            true => format!("nsenter --mount=/proc/{pid}/ns/mnt --"),
            false => format!(
                "nsenter --target {pid} --user --mount --preserve-credentials -- \
                 unshare --user --map-user=1000 --map-group=1000 --"
            ),
        };
        words.split_whitespace().map(Into::into).collect()
    }

    /// Fills it to the last byte.
    pub(crate) fn fill(&self) {
        self.run(FILL);
    }

    pub(crate) fn make_room(&self) {
        self.run("rm \"$1/filler\"");
    }

    fn run(&self, script: &str) {
        let words = self.wrapper();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["sh", "-c", script, "sh"]).arg(&self.place);
        assert!(command.status().expect("sh").success(), "{script}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
