//! The processes of a soak, restarted when they end, as cron and systemd would do.

use std::{
    collections::BTreeMap,
    fs::File,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    process::ExitStatus,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{environment::Environment, support::Process};

const PAUSE: Duration = Duration::from_millis(300);
/// Much longer than any grace period, also on a busy machine.
const STOPS_WITHIN: Duration = Duration::from_secs(180);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Worker,
    Watchdog,
    Writer,
}

/// A named position in the fleet, filled by one process after the other.
pub(crate) struct Member {
    pub name: String,
    pub role: Role,
    /// A pidfd: unlike a pid, it cannot refer to another process later.
    process: Mutex<Option<OwnedFd>>,
}

impl Member {
    /// Sends a signal. Returns false if no process is running at the moment.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let process = self.process.lock().expect("process");
        process.as_ref().is_some_and(|process| pidfd_send_signal(process, signal).is_ok())
    }
}

/// Counts process starts by role, and ends by role and exit status.
#[derive(Default)]
pub(crate) struct Ledger {
    pub starts: Mutex<BTreeMap<Role, u64>>,
    pub ends: Mutex<BTreeMap<(Role, String), u64>>,
    /// The summaries of finished runs.
    pub summaries: Mutex<Vec<serde_json::Value>>,
}

/// All processes of a soak.
pub(crate) struct Fleet {
    env: Arc<Environment>,
    pub members: Vec<Arc<Member>>,
    pub ledger: Arc<Ledger>,
    tasks: JoinSet<()>,
    stops: BTreeMap<Role, CancellationToken>,
}

impl Fleet {
    pub(crate) fn new(env: Arc<Environment>) -> Self {
        let (members, ledger) = (Vec::new(), Arc::default());
        Self { env, members, ledger, tasks: JoinSet::new(), stops: BTreeMap::new() }
    }

    /// Starts two workers as cron would, and one resident worker; some generations keep tombstones.
    /// The second worker sends no heartbeats and does not check its own lease: after a watchdog has
    /// reset its claims, only the fence stops it.
    pub(crate) fn start_workers(&mut self) {
        for name in ["worker-1", "worker-2", "worker-3"] {
            let env = Arc::clone(&self.env);
            let how = if name == "worker-3" { "schedule" } else { "run" };
            self.keep_alive(name, Role::Worker, move |generation| {
                let worker = env.program("cleanup-worker").args(&[how, "--format", "json"]);
                let tombstones = if generation.is_multiple_of(3) { "3s" } else { "0s" };
                let worker = worker.env("CLEANUP_RETENTION_TOMBSTONES", tombstones);
                if name != "worker-2" {
                    return worker;
                }
                let worker = worker.env("CLEANUP_WORKER_HEARTBEAT_INTERVAL", "1h");
                worker.env("CLEANUP_WATCHDOG_STUCK_AFTER", "3h")
            });
        }
    }

    pub(crate) fn start_watchdogs(&mut self) {
        for name in ["watchdog-1", "watchdog-2"] {
            let env = Arc::clone(&self.env);
            let listen = format!("127.0.0.1:{}", crate::support::servers::free_port());
            self.keep_alive(name, Role::Watchdog, move |_| {
                let watchdog = env.program("cleanup-watchdog");
                let watchdog = watchdog.env("CLEANUP_WATCHDOG_LISTEN", &listen);
                watchdog.env("CLEANUP_RETENTION_TOMBSTONES", "3s")
            });
        }
    }

    pub(crate) fn start_writers(&mut self, seed: u64) {
        for (position, name) in ["writer-1", "writer-2", "writer-3"].into_iter().enumerate() {
            let env = Arc::clone(&self.env);
            self.keep_alive(name, Role::Writer, move |generation| {
                let seed = seed.wrapping_add(generation * 1000 + position as u64);
                let journal = env.output_dir.join(format!("{name}.journal"));
                env.writer(&format!("{name}.{generation}"), seed, &journal)
            });
        }
    }

    fn keep_alive(
        &mut self,
        name: &str,
        role: Role,
        make: impl Fn(u64) -> Process + Send + 'static,
    ) {
        let process = Mutex::default();
        let member = Arc::new(Member { name: name.into(), role, process });
        self.members.push(Arc::clone(&member));
        let stop = self.stops.entry(role).or_default().clone();
        let (env, ledger) = (Arc::clone(&self.env), Arc::clone(&self.ledger));
        self.tasks.spawn(async move {
            let mut generation = 0;
            while !stop.is_cancelled() {
                generation += 1;
                let command = make(generation).into_command();
                run_process(&env, &member, &ledger, command, &stop).await;
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = sleep(PAUSE) => {}
                }
            }
        });
    }

    pub(crate) fn of(&self, role: Role) -> Vec<Arc<Member>> {
        self.members.iter().filter(|member| member.role == role).cloned().collect()
    }

    /// Ends all processes of a role permanently. One that does not stop in time is killed and
    /// recorded as a violation.
    pub(crate) async fn end(&self, role: Role, signal: Signal) {
        if let Some(stop) = self.stops.get(&role) {
            stop.cancel();
        }
        let members = self.of(role);
        for member in &members {
            member.signal(signal);
        }
        let all_ended = async {
            while members.iter().any(|member| member.process.lock().expect("process").is_some()) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(STOPS_WITHIN, all_ended).await.is_err() {
            for member in members.iter().filter(|member| member.signal(Signal::KILL)) {
                self.env.record_violation(format!(
                    "{} did not stop within {STOPS_WITHIN:?}",
                    member.name
                ));
            }
        }
    }
}

/// Runs one process from start to end.
async fn run_process(
    env: &Environment,
    member: &Member,
    ledger: &Ledger,
    mut command: Command,
    stop: &CancellationToken,
) {
    let log = env.output_dir.join(format!("{}.log", member.name));
    let log = File::options().create(true).append(true).open(log).expect("log");
    let mut child: Child = command.stderr(log).spawn().expect("start a process");
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("a pid");
    let handle = pidfd_open(pid, PidfdFlags::empty()).expect("pidfd");
    *member.process.lock().expect("process") = Some(handle);
    if stop.is_cancelled() {
        // Its role was ended just before this process had started.
        member.signal(Signal::KILL);
    }
    *ledger.starts.lock().expect("starts").entry(member.role).or_default() += 1;
    let mut output = Vec::new();
    let mut stdout = child.stdout.take().expect("stdout");
    let (_, status) = tokio::join!(stdout.read_to_end(&mut output), child.wait());
    *member.process.lock().expect("process") = None;
    ledger.ended(env, member, status.expect("status"), &output);
}

impl Ledger {
    fn ended(&self, env: &Environment, member: &Member, status: ExitStatus, stdout: &[u8]) {
        let way = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit {code}"),
            (None, Some(9)) => "SIGKILL".into(),
            (None, Some(15)) => "SIGTERM".into(),
            (None, signal) => format!("signal {signal:?}"),
        };
        // 1 is an outage; 2 would be a bug in the soak, 101 a panic.
        if !["exit 0", "exit 1", "exit 3", "SIGKILL", "SIGTERM"].contains(&&*way) {
            env.record_violation(format!("{} ended with {way}", member.name));
        }
        *self.ends.lock().expect("ends").entry((member.role, way)).or_default() += 1;
        // The last summary of a killed process may be incomplete.
        let summaries =
            serde_json::Deserializer::from_slice(stdout).into_iter().map_while(Result::ok);
        if member.role == Role::Worker {
            self.summaries.lock().expect("summaries").extend(summaries);
        }
    }
}
