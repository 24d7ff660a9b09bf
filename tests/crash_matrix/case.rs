//! One case: a process dies or freezes at a failpoint, and other processes take over. A frozen
//! process then continues as a zombie.

use std::{collections::BTreeMap, os::unix::process::ExitStatusExt, time::Duration};

use paste_cleanup::failpoint;

use super::{
    environment::Environment,
    scenario::Scenario,
    support::{
        invariants::{Expected, Findings},
        process::{Ended, Running},
        *,
    },
};

/// What happens at the failpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process dies.
    Abort,
    /// The process stops until its claim was reset, and continues beside those that take over.
    Pause,
    /// The process stops until others have drained everything, and then continues.
    Stop,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub point: &'static str,
    pub scenario: Scenario,
    pub fault: Fault,
}

/// The result of a case.
#[derive(Debug, Default)]
pub(crate) struct CaseResult {
    pub found: Findings,
    /// Claims that other processes reset.
    pub resets: i64,
    /// Content that was stored again after its row was deleted, perhaps before its object was.
    pub stored_again: usize,
}

const SIGABRT: i32 = 6;
const EXPIRED: usize = 12;

impl Case {
    /// Runs the case and checks every guarantee at the end.
    pub(crate) async fn run(self) -> CaseResult {
        let env = Environment::new().await;
        let mut alive = self.fill(&env.world).await;
        let before = env.world.keys().await;
        let action = if self.fault == Fault::Abort { "abort" } else { "stop" };
        let failpoint = format!("{}=1*return({action})", self.point);
        let victim = env.start(self.scenario, &failpoint).await;
        let zombie = self.wait_for_fault(victim).await;

        // While the batch is interrupted, its content is shared by new pastes or stored again.
        let meanwhile = store_again(&env.world, "meanwhile").await;
        let stored_again = meanwhile.values().filter(|(key, _)| !before.contains(key)).count();
        env.end_faults().await;
        if let (Fault::Pause, Some(zombie)) = (self.fault, &zombie) {
            reset_claims(&env).await;
            self.wake(zombie);
        }
        drain(&env).await;
        let reset = "SELECT count(*) FROM deletion_claims WHERE reset_at IS NOT NULL";
        let resets = env.world.count(reset).await;
        let afterwards = store_again(&env.world, "afterwards").await;
        let stored = meanwhile.into_iter().chain(afterwards);
        alive.extend(stored.map(|(code, (_, body))| (code, body)));
        let mut wrong = Vec::new();
        if let Some(zombie) = zombie {
            self.wake(&zombie);
            wrong = errors_in_log(&zombie.end().await);
            drain(&env).await;
        }
        let mut found = env.world.store().check(&Expected { alive, ..Expected::default() }).await;
        found.violations.extend(wrong);
        if self.leaves_open_claim() && resets == 0 {
            found.violations.push("no process reset the open claim".into());
        }
        if self.is_within("decrement.committed", "finish.counted") && stored_again == 0 {
            found
                .violations
                .push("no content was stored again, so a late delete could hit nothing".into());
        }
        CaseResult { found, resets, stored_again }
    }

    /// Lets the zombie continue with its step; a watchdog may end afterwards.
    fn wake(self, zombie: &Running) {
        zombie.signal(Signal::CONT);
        if self.scenario.is_watchdog() {
            zombie.signal(Signal::TERM);
        }
    }

    /// A claim is open at this point, and its worker will not close it.
    pub(crate) fn leaves_open_claim(self) -> bool {
        self.is_within("claim.committed", "sweep.committed") && self.point != "finish.committed"
    }

    fn is_within(self, first: &str, last: &str) -> bool {
        let place = |point: &str| failpoint::ALL.iter().position(|known| *known == point);
        (place(first)..=place(last)).contains(&place(self.point))
    }

    /// Stores twelve expired pastes: some with content of their own, some that share content with
    /// each other or with live pastes. Returns the pastes that must survive.
    async fn fill(self, world: &World) -> BTreeMap<String, String> {
        for n in 0..EXPIRED {
            world.put(&format!("expired {n:x}"), &body(n), Ago(100.0 - n as f64)).await;
        }
        let mut alive = BTreeMap::new();
        for n in [8, 9, 10] {
            let code = format!("alive {n}");
            world.put(&code, &body(n), Never).await;
            alive.insert(code, body(n));
        }
        world.put("alone", "not shared", In(3600.0)).await;
        alive.insert("alone".into(), "not shared".into());
        alive
    }

    /// Waits until the process is dead or frozen, and returns a frozen one.
    async fn wait_for_fault(self, mut victim: Running) -> Option<Running> {
        victim.until_it_logs(&format!("failpoint {}", self.point)).await;
        match self.fault {
            Fault::Abort => {
                let ended = victim.end().await;
                assert_eq!(ended.0.status.signal(), Some(SIGABRT), "{}", ended.stderr());
                assert_eq!(errors_in_log(&ended), Vec::<String>::new());
                None
            }
            Fault::Pause | Fault::Stop => {
                while !is_stopped(victim.pid()) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Some(victim)
            }
        }
    }
}

/// Returns the body of a paste. Bodies 0–3 belong to one expired paste each, the others to two.
fn body(n: usize) -> String {
    format!("body {}", if n < 4 { n } else { n / 2 + 10 })
}

/// Stores every body of the expired pastes in a new live paste. Returns their keys and bodies.
async fn store_again(world: &World, when: &str) -> BTreeMap<String, (String, String)> {
    let mut stored = BTreeMap::new();
    for n in (0..EXPIRED).filter(|n| *n < 4 || n % 2 == 0) {
        let code = format!("{when} {n}");
        let key = world.put(&code, &body(n), Never).await;
        stored.insert(code, (key, body(n)));
    }
    stored
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
}

/// Runs a watchdog until it has reset all claims.
async fn reset_claims(env: &Environment) {
    let mut watchdog = env.program("cleanup-watchdog").start();
    watchdog.until_it_logs("health and metrics on").await;
    // All of them: the zombie may have two.
    let reset = "SELECT count(reset_at) > 0 AND count(*) = count(coalesce(reset_at, finished_at))
                 FROM deletion_claims";
    env.world.until("the claims are reset", reset).await;
    watchdog.signal(Signal::TERM);
    assert_eq!(watchdog.end().await.code(), 0);
}

/// Runs a watchdog, and workers as cron would start them, until nothing is left to do.
async fn drain(env: &Environment) {
    let mut watchdog = env.program("cleanup-watchdog").start();
    watchdog.until_it_logs("health and metrics on").await;
    let left = "SELECT (SELECT count(*) FROM pastes
                        WHERE expires_at <= now() AND deletion_status <> 'DELETED')
                     + (SELECT count(*) FROM deletion_claims
                        WHERE finished_at IS NULL AND reset_at IS NULL)";
    for _ in 0..100 {
        if env.world.count(left).await == 0 {
            break;
        }
        env.end_deferrals().await;
        let ended = env.worker().output().await;
        assert_eq!(errors_in_log(&ended), Vec::<String>::new());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    watchdog.signal(Signal::TERM);
    assert_eq!(watchdog.end().await.code(), 0);
}

/// Returns log lines about panics and wrong counts, which must not occur.
fn errors_in_log(ended: &Ended) -> Vec<String> {
    let stderr = ended.stderr();
    let lines = stderr.lines().filter(|line| line.contains("panicked") || line.contains("drift"));
    lines.map(ToString::to_string).collect()
}
