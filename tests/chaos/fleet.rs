//! The processes of a soak, kept alive as cron and systemd would: what ends is started again.

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

use crate::{stage::Stage, support::Process};

const PAUSE: Duration = Duration::from_millis(300);
/// Longer than any grace period.
const STOPS_WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Worker,
    Watchdog,
    Writer,
}

/// A place in the fleet; one process after the other fills it.
pub struct Member {
    pub name: String,
    pub role: Role,
    /// A handle, not a number that another process may have by now.
    process: Mutex<Option<OwnedFd>>,
}

impl Member {
    /// False: there is no process right now.
    pub fn signal(&self, signal: Signal) -> bool {
        let process = self.process.lock().expect("process");
        process.as_ref().is_some_and(|process| pidfd_send_signal(process, signal).is_ok())
    }
}

/// Starts and ends, by role and way.
#[derive(Default)]
pub struct Ledger {
    pub starts: Mutex<BTreeMap<Role, u64>>,
    pub ends: Mutex<BTreeMap<(Role, String), u64>>,
    /// What finished runs say.
    pub summaries: Mutex<Vec<serde_json::Value>>,
}

/// Everybody.
pub struct Fleet {
    stage: Arc<Stage>,
    pub members: Vec<Arc<Member>>,
    pub ledger: Arc<Ledger>,
    tasks: JoinSet<()>,
    stops: BTreeMap<Role, CancellationToken>,
}

impl Fleet {
    pub fn new(stage: Arc<Stage>) -> Self {
        let (members, ledger) = (Vec::new(), Arc::default());
        Self { stage, members, ledger, tasks: JoinSet::new(), stops: BTreeMap::new() }
    }

    /// Two workers as cron starts them, one that is resident; some generations keep tombstones. The
    /// second one does not heartbeat, nor does its own clock tell it that it was away: when a watchdog
    /// has taken it for dead, nothing but the fence holds it back.
    pub fn start_workers(&mut self) {
        for name in ["worker-1", "worker-2", "worker-3"] {
            let stage = Arc::clone(&self.stage);
            let how = if name == "worker-3" { "schedule" } else { "run" };
            self.keep_alive(name, Role::Worker, move |generation| {
                let worker = stage.program("cleanup-worker").args(&[how, "--format", "json"]);
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

    pub fn start_watchdogs(&mut self) {
        for name in ["watchdog-1", "watchdog-2"] {
            let stage = Arc::clone(&self.stage);
            let listen = format!("127.0.0.1:{}", crate::support::servers::free_port());
            self.keep_alive(name, Role::Watchdog, move |_| {
                let watchdog = stage.program("cleanup-watchdog");
                let watchdog = watchdog.env("CLEANUP_WATCHDOG_LISTEN", &listen);
                watchdog.env("CLEANUP_RETENTION_TOMBSTONES", "3s")
            });
        }
    }

    pub fn start_writers(&mut self, seed: u64) {
        for (place, name) in ["writer-1", "writer-2", "writer-3"].into_iter().enumerate() {
            let stage = Arc::clone(&self.stage);
            self.keep_alive(name, Role::Writer, move |generation| {
                let seed = seed.wrapping_add(generation * 1000 + place as u64);
                let journal = stage.kept.join(format!("{name}.journal"));
                stage.writer(&format!("{name}.{generation}"), seed, &journal)
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
        let (stage, ledger) = (Arc::clone(&self.stage), Arc::clone(&self.ledger));
        self.tasks.spawn(async move {
            let mut generation = 0;
            while !stop.is_cancelled() {
                generation += 1;
                let command = make(generation).into_command();
                live(&stage, &member, &ledger, command, &stop).await;
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = sleep(PAUSE) => {}
                }
            }
        });
    }

    pub fn of(&self, role: Role) -> Vec<Arc<Member>> {
        self.members.iter().filter(|member| member.role == role).cloned().collect()
    }

    /// Asks all of a role to end, for good. Whoever does not within a while is accused, and killed.
    pub async fn end(&self, role: Role, signal: Signal) {
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
                self.stage.accuse(format!("{} did not stop within {STOPS_WITHIN:?}", member.name));
            }
        }
    }
}

/// One process, from start to end.
async fn live(
    stage: &Stage,
    member: &Member,
    ledger: &Ledger,
    mut command: Command,
    stop: &CancellationToken,
) {
    let log = stage.kept.join(format!("{}.log", member.name));
    let log = File::options().create(true).append(true).open(log).expect("log");
    let mut child: Child = command.stderr(log).spawn().expect("start a process");
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("a pid");
    let handle = pidfd_open(pid, PidfdFlags::empty()).expect("pidfd");
    *member.process.lock().expect("process") = Some(handle);
    if stop.is_cancelled() {
        // All of its role were asked to end just before there was anybody to ask.
        member.signal(Signal::KILL);
    }
    *ledger.starts.lock().expect("starts").entry(member.role).or_default() += 1;
    let mut said = Vec::new();
    let mut stdout = child.stdout.take().expect("stdout");
    let (_, status) = tokio::join!(stdout.read_to_end(&mut said), child.wait());
    *member.process.lock().expect("process") = None;
    ledger.ended(stage, member, status.expect("status"), &said);
}

impl Ledger {
    fn ended(&self, stage: &Stage, member: &Member, status: ExitStatus, said: &[u8]) {
        let way = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit {code}"),
            (None, Some(9)) => "SIGKILL".into(),
            (None, Some(15)) => "SIGTERM".into(),
            (None, signal) => format!("signal {signal:?}"),
        };
        // 1 is an outage; 2 would be a mistake of the soak's, 101 a panic.
        if !["exit 0", "exit 1", "exit 3", "SIGKILL", "SIGTERM"].contains(&&*way) {
            stage.accuse(format!("{} ended with {way}", member.name));
        }
        *self.ends.lock().expect("ends").entry((member.role, way)).or_default() += 1;
        // A process that was killed may have been cut short.
        let summaries =
            serde_json::Deserializer::from_slice(said).into_iter().map_while(Result::ok);
        if member.role == Role::Worker {
            self.summaries.lock().expect("summaries").extend(summaries);
        }
    }
}
