//! The real programs as processes, with real signals.

use std::{
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use rustix::process::Pid;
pub(crate) use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStderr, Command},
};

/// Events happen within seconds; a busy machine may need a minute.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A program that is not started yet. Its environment has only what the test sets.
pub(crate) struct Process {
    command: Command,
}

/// A running program.
pub(crate) struct Running {
    child: Child,
    stderr: Lines<BufReader<ChildStderr>>,
    pub seen: Vec<String>,
}

fn path_of(name: &str) -> PathBuf {
    match name {
        "cleanup-worker" => env!("CARGO_BIN_EXE_cleanup-worker").into(),
        "cleanup-watchdog" => env!("CARGO_BIN_EXE_cleanup-watchdog").into(),
        "cleanupctl" => env!("CARGO_BIN_EXE_cleanupctl").into(),
        other => other.into(),
    }
}

impl Process {
    pub(crate) fn new(name: &str) -> Self {
        let mut command = Command::new(path_of(name));
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // ops/lib.sh finds processes that outlive its script by PASTE_CLEANUP_RUN.
        let kept = ["PATH", "HOME", "PASTE_CLEANUP_RUN"];
        let aws = ["AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
        for name in kept.into_iter().chain(aws) {
            if let Ok(value) = std::env::var(name) {
                command.env(name, value);
            }
        }
        command.env("AWS_EC2_METADATA_DISABLED", "true").kill_on_drop(true);
        Self { command }
    }

    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// The command itself, for a test that starts it differently.
    pub(crate) fn into_command(self) -> Command {
        self.command
    }

    /// Runs it until it exits.
    pub(crate) async fn output(mut self) -> Ended {
        Ended(self.command.output().await.expect("run the program"))
    }

    pub(crate) fn start(mut self) -> Running {
        let mut child = self.command.spawn().expect("start the program");
        let stderr = child.stderr.take().expect("stderr");
        Running { child, stderr: BufReader::new(stderr).lines(), seen: Vec::new() }
    }
}

impl Running {
    /// Reads log lines until one contains the text.
    pub(crate) async fn until_it_logs(&mut self, text: &str) -> String {
        let timeout = tokio::time::sleep(TIMEOUT * 2);
        tokio::pin!(timeout);
        loop {
            let line = tokio::select! {
                line = self.stderr.next_line() => line.ok().flatten(),
                () = &mut timeout => None,
            };
            let Some(line) = line else {
                panic!("{text:?} was never logged, only: {:#?}", self.seen);
            };
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it still runs")
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("send a signal");
    }

    /// Waits until it exits, and collects its output. Panics after three minutes.
    pub(crate) async fn end(self) -> Ended {
        let ended = tokio::time::timeout(TIMEOUT * 3, self.wait_for_exit()).await;
        ended.expect("exits within three minutes")
    }

    async fn wait_for_exit(mut self) -> Ended {
        let stderr = async {
            while let Ok(Some(line)) = self.stderr.next_line().await {
                self.seen.push(line);
            }
        };
        let (output, ()) = tokio::join!(
            async {
                let mut text = Vec::new();
                if let Some(mut stdout) = self.child.stdout.take() {
                    tokio::io::AsyncReadExt::read_to_end(&mut stdout, &mut text)
                        .await
                        .expect("stdout");
                }
                (self.child.wait().await.expect("wait"), text)
            },
            stderr
        );
        let (status, stdout) = output;
        Ended(Output { status, stdout, stderr: self.seen.join("\n").into_bytes() })
    }
}

/// A program that has exited.
pub(crate) struct Ended(pub Output);

impl Ended {
    pub(crate) fn code(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    /// The one JSON object on stdout.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.0.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.stdout(), self.stderr()))
    }

    /// Asserts an exit code, and one line of error that contains all these words.
    pub(crate) fn assert_refused(&self, code: i32, words: &[&str]) {
        let stderr = self.stderr();
        assert_eq!(self.code(), code, "{stderr}");
        let lines: Vec<&str> = stderr.lines().filter(|line| !line.starts_with('{')).collect();
        assert_eq!(lines.len(), 1, "one clear line: {stderr}");
        for word in words {
            assert!(lines[0].contains(word), "{word:?} is not in: {stderr}");
        }
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}
