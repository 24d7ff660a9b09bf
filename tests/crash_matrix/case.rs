//! One case: a process dies or freezes at a failpoint, others take over, and, if it was frozen, it
//! goes on as a zombie.

use std::{collections::BTreeMap, os::unix::process::ExitStatusExt, time::Duration};

use paste_cleanup::failpoint;

use super::{
    scene::{Scene, Stage},
    support::{
        invariants::{Expected, Findings},
        process::{Ended, Running},
        *,
    },
};

/// What happens at the failpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies.
    Abort,
    /// The process stops until its claim was reset, and goes on beside those who take over.
    Pause,
    /// The process stops until others have done all that is to do, and then goes on.
    Stop,
}

#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub point: &'static str,
    pub scene: Scene,
    pub fault: Fault,
}

/// What happened, and what was found in the end.
#[derive(Debug, Default)]
pub struct Played {
    pub found: Findings,
    /// Claims that others reset.
    pub resets: i64,
    /// Bodies that were gone from the tables, but perhaps not from S3, when they were stored anew.
    pub stored_anew: usize,
}

const SIGABRT: i32 = 6;
const EXPIRED: usize = 12;

impl Case {
    /// Plays it, and says what was found in the end.
    pub async fn play(self) -> Played {
        let stage = Stage::new().await;
        let mut alive = self.fill(&stage.world).await;
        let before = stage.world.keys().await;
        let action = if self.fault == Fault::Abort { "abort" } else { "stop" };
        let failpoint = format!("{}=1*return({action})", self.point);
        let victim = stage.begin(self.scene, &failpoint).await;
        let zombie = self.until_it_happened(victim).await;

        // While the batch hangs in the air, its bodies are shared and stored anew.
        let meanwhile = store_again(&stage.world, "meanwhile").await;
        let stored_anew = meanwhile.values().filter(|(key, _)| !before.contains(key)).count();
        stage.end_scene().await;
        if let (Fault::Pause, Some(zombie)) = (self.fault, &zombie) {
            reset_by_another(&stage).await;
            self.wake(zombie);
        }
        drain_with_others(&stage).await;
        let reset = "SELECT count(*) FROM deletion_claims WHERE reset_at IS NOT NULL";
        let resets = stage.world.count(reset).await;
        let afterwards = store_again(&stage.world, "afterwards").await;
        let stored = meanwhile.into_iter().chain(afterwards);
        alive.extend(stored.map(|(code, (_, body))| (code, body)));
        let mut wrong = Vec::new();
        if let Some(zombie) = zombie {
            self.wake(&zombie);
            wrong = faults_of(&zombie.end().await);
            drain_with_others(&stage).await;
        }
        let mut found = stage.world.store().check(&Expected { alive, ..Expected::default() }).await;
        found.violations.extend(wrong);
        if self.leaves_a_claim() && resets == 0 {
            found.violations.push("nobody took over".into());
        }
        if self.is_within("decrement.committed", "finish.counted") && stored_anew == 0 {
            found.violations.push("no body was there to be hit by a late delete".into());
        }
        Played { found, resets, stored_anew }
    }

    /// The zombie goes on with what it believes to be its work; a watchdog may end then.
    fn wake(self, zombie: &Running) {
        zombie.signal(Signal::CONT);
        if self.scene.is_a_watchdogs() {
            zombie.signal(Signal::TERM);
        }
    }

    /// Somebody's claim is open at this point, and its holder does not close it any more.
    pub fn leaves_a_claim(self) -> bool {
        self.is_within("claim.committed", "sweep.committed") && self.point != "finish.committed"
    }

    fn is_within(self, first: &str, last: &str) -> bool {
        let place = |point: &str| failpoint::ALL.iter().position(|known| *known == point);
        (place(first)..=place(last)).contains(&place(self.point))
    }

    /// Twelve expired pastes: bodies of their own, bodies shared among them, bodies shared with the
    /// living. Returns those that must survive.
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
        world.put("alone", "nobody shares this", In(3600.0)).await;
        alive.insert("alone".into(), "nobody shares this".into());
        alive
    }

    /// Waits until the process is dead or frozen; a frozen one is returned.
    async fn until_it_happened(self, mut victim: Running) -> Option<Running> {
        victim.until_it_logs(&format!("failpoint {}", self.point)).await;
        match self.fault {
            Fault::Abort => {
                let ended = victim.end().await;
                assert_eq!(ended.0.status.signal(), Some(SIGABRT), "{}", ended.stderr());
                assert_eq!(faults_of(&ended), Vec::<String>::new());
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

/// Bodies 0–3 belong to one expired paste each, the others to two.
fn body(n: usize) -> String {
    format!("body {}", if n < 4 { n } else { n / 2 + 10 })
}

/// Every body of the expired pastes, in a new paste that lives on: its key and its body.
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

/// A watchdog, until it has reset all claims.
async fn reset_by_another(stage: &Stage) {
    let mut watchdog = stage.program("cleanup-watchdog").start();
    watchdog.until_it_logs("watching").await;
    // All of them: the zombie may hold two.
    let reset = "SELECT count(reset_at) > 0 AND count(*) = count(coalesce(reset_at, finished_at))
                 FROM deletion_claims";
    stage.world.until("the claims are reset", reset).await;
    watchdog.signal(Signal::TERM);
    assert_eq!(watchdog.end().await.code(), 0);
}

/// A watchdog, and workers as cron would start them, until nothing is left to do.
async fn drain_with_others(stage: &Stage) {
    let mut watchdog = stage.program("cleanup-watchdog").start();
    watchdog.until_it_logs("watching").await;
    let left = "SELECT (SELECT count(*) FROM pastes
                        WHERE expires_at <= now() AND deletion_status <> 'DELETED')
                     + (SELECT count(*) FROM deletion_claims
                        WHERE finished_at IS NULL AND reset_at IS NULL)";
    for _ in 0..100 {
        if stage.world.count(left).await == 0 {
            break;
        }
        stage.end_waiting().await;
        let ended = stage.worker().output().await;
        assert_eq!(faults_of(&ended), Vec::<String>::new());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    watchdog.signal(Signal::TERM);
    assert_eq!(watchdog.end().await.code(), 0);
}

/// Nobody panics, and nobody ever finds a wrong count.
fn faults_of(ended: &Ended) -> Vec<String> {
    let stderr = ended.stderr();
    let lines = stderr.lines().filter(|line| line.contains("panicked") || line.contains("drift"));
    lines.map(ToString::to_string).collect()
}
