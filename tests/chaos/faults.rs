//! Carrying a planned fault out.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_postgres::Client;

use crate::{
    fleet::{Fleet, Member, Role},
    owner,
    plan::{Kind, OWNERS, Plan, Planned},
    stage::{S3_DEADLINE, STUCK_AFTER, Stage},
    support::{faulty_s3::Mode, proxy::Fault, seaweedfs::s3_answers, try_connect},
};

/// A fault that nothing happens to run into lasts at most this much longer.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Codes that concern a single key: its own, not allowed, busy.
const KEY_ERRORS: [&str; 4] = ["ObjectLocked", "AccessDenied", "InternalError", "SlowDown"];
const KILL_CONNECTIONS: &str = "
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND pid % $1 = $2 % $1";

/// What only a heartbeat's statement says.
const A_HEARTBEAT: &str = "-- Heartbeat:";

const RESET_AFTER_DECREMENT: &str = "SELECT count(*) FROM deletion_claims
    WHERE reset_reason = 'worker lease expired' AND decremented_at IS NOT NULL";

/// How often each kind was carried out.
pub type Done = Arc<Mutex<BTreeMap<Kind, u64>>>;

/// Carries the whole plan out, each fault at its time; they overlap. Returns when all are over.
pub async fn carry_out(stage: &Arc<Stage>, fleet: &Fleet, plan: &Plan, done: &Done) {
    let (start, mut under_way) = (Instant::now(), JoinSet::new());
    for planned in &plan.faults {
        sleep_until(start + planned.at).await;
        let (stage, members) = (Arc::clone(stage), fleet.members.clone());
        let (planned, done) = (planned.clone(), Arc::clone(done));
        under_way.spawn(async move {
            if inflict(&stage, &members, &planned).await {
                *done.lock().expect("done").entry(planned.kind).or_default() += 1;
            }
        });
    }
    while let Some(ended) = under_way.join_next().await {
        ended.expect("a fault is carried out");
    }
}

/// False: there was nobody to hit, or nothing ran into it.
async fn inflict(stage: &Stage, members: &[Arc<Member>], planned: &Planned) -> bool {
    let mut rng = fastrand::Rng::with_seed(planned.seed);
    let lasts = planned.lasts;
    let hit = |role, signal| strike(members, role, planned.seed, signal);
    match planned.kind {
        Kind::KillWorker => hit(Role::Worker, Signal::KILL).await.is_some(),
        Kind::StopWorker => hit(Role::Worker, Signal::TERM).await.is_some(),
        Kind::KillWatchdog => hit(Role::Watchdog, Signal::KILL).await.is_some(),
        Kind::KillWriter => hit(Role::Writer, Signal::KILL).await.is_some(),
        Kind::FreezeWorker => {
            thaw(hit(Role::Worker, Signal::STOP).await, STUCK_AFTER + lasts).await
        }
        Kind::FreezeWatchdog => thaw(hit(Role::Watchdog, Signal::STOP).await, lasts).await,
        Kind::KillRedis => kill_redis(stage, lasts).await,
        Kind::FreezeRedis => freeze_redis(stage, lasts).await,
        Kind::FlushRedis => flush_redis(stage).await,
        Kind::RestartPostgres => restart_postgres(stage, lasts / 3).await,
        Kind::KillConnections => kill_connections(stage, &mut rng).await,
        Kind::CutConnections => cut_connections(stage).await,
        Kind::SlowPostgres => slow_postgres(stage, lasts, rng.u64(10..60)).await,
        Kind::LoseCommitAnswers => trouble_commits(stage, planned, Fault::LoseAnswerOf).await,
        Kind::CutBeforeCommits => trouble_commits(stage, planned, Fault::CutBefore).await,
        Kind::SwallowHeartbeats => swallow_heartbeats(stage, planned).await,
        Kind::KillS3 => kill_s3(stage, lasts / 3).await,
        kind if OWNERS.contains(&kind) => owner::insist(stage, kind, &mut rng, lasts).await,
        kind => upset_s3(stage, planned, mood(kind, &mut rng)).await,
    }
}

/// Sends a signal to one of the role: the one that the seed names, or else the next that runs.
async fn strike(
    members: &[Arc<Member>],
    role: Role,
    seed: u64,
    signal: Signal,
) -> Option<Arc<Member>> {
    let all: Vec<_> = members.iter().filter(|member| member.role == role).collect();
    let give_up = Instant::now() + TIMEOUT;
    while Instant::now() < give_up {
        let first = (seed % all.len() as u64) as usize;
        let mut in_turn = all.iter().cycle().skip(first).take(all.len());
        if let Some(victim) = in_turn.find(|member| member.signal(signal)) {
            return Some(Arc::clone(victim));
        }
        sleep(Duration::from_millis(50)).await;
    }
    None
}

async fn thaw(victim: Option<Arc<Member>>, after: Duration) -> bool {
    let Some(victim) = victim else {
        return false;
    };
    sleep(after).await;
    victim.signal(Signal::CONT);
    true
}

async fn kill_redis(stage: &Stage, away: Duration) -> bool {
    let mut redis = stage.redis.lock().await;
    redis.kill().await;
    sleep(away).await;
    redis.start_again().await;
    true
}

async fn freeze_redis(stage: &Stage, lasts: Duration) -> bool {
    let redis = stage.redis.lock().await;
    let pid = Pid::from_raw(redis.pid().cast_signed()).expect("a pid");
    kill_process(pid, Signal::STOP).expect("freeze Redis");
    sleep(lasts).await;
    kill_process(pid, Signal::CONT).expect("thaw Redis");
    true
}

async fn flush_redis(stage: &Stage) -> bool {
    let server = stage.redis.lock().await;
    let client = redis::Client::open(server.url()).expect("Redis URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis");
    redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.is_ok()
}

async fn restart_postgres(stage: &Stage, away: Duration) -> bool {
    let postgres = stage.postgres.lock().await;
    postgres.stop_immediately().await;
    sleep(away).await;
    postgres.start_again().await;
    true
}

async fn kill_connections(stage: &Stage, rng: &mut fastrand::Rng) -> bool {
    let (share, place) = (rng.i32(1..4), rng.i32(0..100));
    let give_up = Instant::now() + TIMEOUT;
    while Instant::now() < give_up {
        // Not while it is away.
        let _postgres = stage.postgres.lock().await;
        if let Some(db) = try_connect(&stage.store.database_url).await
            && let Ok(killed) = db.query(KILL_CONNECTIONS, &[&share, &place]).await
            && !killed.is_empty()
        {
            return true;
        }
        sleep(Duration::from_millis(50)).await;
    }
    false
}

async fn cut_connections(stage: &Stage) -> bool {
    let proxies = stage.proxies.lock().await;
    proxies.fleet.cut();
    proxies.writers.cut();
    true
}

async fn slow_postgres(stage: &Stage, lasts: Duration, delay_ms: u64) -> bool {
    let proxies = stage.proxies.lock().await;
    proxies.fleet.delay(Duration::from_millis(delay_ms));
    sleep(lasts).await;
    proxies.calm();
    true
}

/// The look at what became of a commit ends with a commit, too, and may be in trouble as well.
async fn trouble_commits(
    stage: &Stage,
    planned: &Planned,
    fault: fn(&'static str) -> Fault,
) -> bool {
    let proxies = stage.proxies.lock().await;
    let before = proxies.fleet.fired();
    proxies.fleet.arm_share(Some((0.3, planned.seed, fault("COMMIT"))));
    proxies.writers.arm_share(Some((0.1, planned.seed, fault("COMMIT"))));
    let hit = last(planned.lasts, || proxies.fleet.fired() > before).await;
    proxies.calm();
    hit
}

async fn swallow_heartbeats(stage: &Stage, planned: &Planned) -> bool {
    let (_alone, proxies) = (stage.mood.lock().await, stage.proxies.lock().await);
    // Not while Postgres is away: a worker that reaches nothing does not go on either.
    let _postgres = stage.postgres.lock().await;
    let Some(db) = try_connect(&stage.store.database_url).await else {
        return false;
    };
    stage.faulty.set_mode(Mode::Slow { by: STUCK_AFTER + Duration::from_secs(1) });
    proxies.fleet.arm_share(Some((1.0, planned.seed, Fault::Swallow(A_HEARTBEAT))));
    let before = claims_reset(&db).await;
    let give_up = Instant::now() + STUCK_AFTER + TIMEOUT + planned.lasts;
    while claims_reset(&db).await == before && Instant::now() < give_up {
        sleep(Duration::from_millis(100)).await;
    }
    // Time to run into the fence.
    sleep(Duration::from_secs(1)).await;
    proxies.calm();
    stage.calm_s3();
    claims_reset(&db).await > before
}

async fn claims_reset(db: &Client) -> Option<i64> {
    Some(db.query_one(RESET_AFTER_DECREMENT, &[]).await.ok()?.get(0))
}

/// What was acknowledged is there again afterwards: see [`crate::support::seaweedfs::SeaweedFs`].
async fn kill_s3(stage: &Stage, away: Duration) -> bool {
    let mut seaweedfs = stage.seaweedfs.lock().await;
    seaweedfs.kill().await;
    sleep(away).await;
    seaweedfs.start_again();
    s3_answers(&stage.store.s3, &stage.store.bucket).await;
    true
}

fn mood(kind: Kind, rng: &mut fastrand::Rng) -> Mode {
    let soon = Duration::from_millis(rng.u64(200..1500));
    match kind {
        Kind::SlowDown => Mode::Failing { status: 503, code: "SlowDown" },
        Kind::ServerErrors => Mode::Failing { status: 500, code: "InternalError" },
        Kind::ErrorInBody => Mode::ErrorInBody { code: "InternalError" },
        // Two digits are in about every fifth key.
        Kind::RefuseKeys => Mode::Refusing {
            text: format!("{:02x}", rng.u8(..)),
            code: KEY_ERRORS[rng.usize(..KEY_ERRORS.len())],
        },
        Kind::LateDeletes => Mode::Late { by: S3_DEADLINE + soon * 2 },
        Kind::RepeatedDeletes => Mode::Repeating { after: soon * 3 },
        Kind::SlowS3 => Mode::Slow { by: soon },
        Kind::CutS3 => Mode::Cutting,
        other => unreachable!("{other:?} is no mood of S3"),
    }
}

async fn upset_s3(stage: &Stage, planned: &Planned, mood: Mode) -> bool {
    let _alone = stage.mood.lock().await;
    let figures = &stage.faulty.stats;
    let before = figures.touched.load(Relaxed);
    // Keys that are refused long enough make dead letters.
    let (share, lasts) = match mood {
        Mode::Refusing { .. } => (1.0, planned.lasts + Duration::from_secs(3)),
        _ => (0.6, planned.lasts),
    };
    stage.faulty.sometimes(share, planned.seed, mood);
    let hit = last(lasts, || figures.touched.load(Relaxed) > before).await;
    stage.calm_s3();
    hit
}

/// Waits so long, and longer until something ran into it.
async fn last(lasts: Duration, hit: impl Fn() -> bool) -> bool {
    sleep(lasts).await;
    let give_up = Instant::now() + TIMEOUT;
    while !hit() && Instant::now() < give_up {
        sleep(Duration::from_millis(20)).await;
    }
    hit()
}
