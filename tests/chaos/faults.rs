//! Carries out the planned faults.

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
    environment::{Environment, S3_DEADLINE, STUCK_AFTER},
    fleet::{Fleet, Member, Role},
    owner,
    plan::{Kind, OWNERS, Plan, Planned},
    support::{faulty_s3::Mode, proxy::Fault, seaweedfs::s3_answers, try_connect},
};

/// How much longer a fault lasts until some request runs into it.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Error codes for a single key: locked, not allowed, busy.
const KEY_ERRORS: [&str; 4] = ["ObjectLocked", "AccessDenied", "InternalError", "SlowDown"];
const KILL_CONNECTIONS: &str = "
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND pid % $1 = $2 % $1";

/// Text that occurs only in the heartbeat statement.
const A_HEARTBEAT: &str = "-- Heartbeat:";

const RESET_AFTER_DECREMENT: &str = "SELECT count(*) FROM deletion_claims
    WHERE reset_reason = 'worker lease expired' AND decremented_at IS NOT NULL";

/// How often each kind was carried out.
pub(crate) type Done = Arc<Mutex<BTreeMap<Kind, u64>>>;

/// Carries out the whole plan, each fault at its time; they overlap. Returns when all have ended.
pub(crate) async fn carry_out(env: &Arc<Environment>, fleet: &Fleet, plan: &Plan, done: &Done) {
    let (start, mut running) = (Instant::now(), JoinSet::new());
    for planned in &plan.faults {
        sleep_until(start + planned.at).await;
        let (env, members) = (Arc::clone(env), fleet.members.clone());
        let (planned, done) = (planned.clone(), Arc::clone(done));
        running.spawn(async move {
            if apply(&env, &members, &planned).await {
                *done.lock().expect("done").entry(planned.kind).or_default() += 1;
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("a fault is carried out");
    }
}

/// Carries out one more fault of a kind, after the plan.
pub(crate) async fn repeat(env: &Environment, fleet: &Fleet, planned: &Planned, done: &Done) {
    if apply(env, &fleet.members, planned).await {
        *done.lock().expect("done").entry(planned.kind).or_default() += 1;
    }
}

/// Carries out one fault. Returns false if no process was running, or no request ran into it.
async fn apply(env: &Environment, members: &[Arc<Member>], planned: &Planned) -> bool {
    let mut rng = fastrand::Rng::with_seed(planned.seed);
    let lasts = planned.lasts;
    let hit = |role, signal| signal_one(members, role, planned.seed, signal);
    match planned.kind {
        Kind::KillWorker => hit(Role::Worker, Signal::KILL).await.is_some(),
        Kind::StopWorker => hit(Role::Worker, Signal::TERM).await.is_some(),
        Kind::KillWatchdog => hit(Role::Watchdog, Signal::KILL).await.is_some(),
        Kind::KillWriter => hit(Role::Writer, Signal::KILL).await.is_some(),
        Kind::FreezeWorker => {
            resume_later(hit(Role::Worker, Signal::STOP).await, STUCK_AFTER + lasts).await
        }
        Kind::FreezeWatchdog => resume_later(hit(Role::Watchdog, Signal::STOP).await, lasts).await,
        Kind::KillRedis => kill_redis(env, lasts).await,
        Kind::FreezeRedis => freeze_redis(env, lasts).await,
        Kind::FlushRedis => flush_redis(env).await,
        Kind::RestartPostgres => restart_postgres(env, lasts / 3).await,
        Kind::KillConnections => kill_connections(env, &mut rng).await,
        Kind::CutConnections => cut_connections(env).await,
        Kind::SlowPostgres => slow_postgres(env, lasts, rng.u64(10..60)).await,
        Kind::LoseCommitAnswers => fail_commits(env, planned, Fault::LoseAnswerOf).await,
        Kind::CutBeforeCommits => fail_commits(env, planned, Fault::CutBefore).await,
        Kind::SwallowHeartbeats => swallow_heartbeats(env, planned).await,
        Kind::KillS3 => kill_s3(env, lasts / 3).await,
        kind if OWNERS.contains(&kind) => owner::apply(env, kind, &mut rng, lasts).await,
        kind => disturb_s3(env, planned, mood(kind, &mut rng)).await,
    }
}

/// Sends a signal to a process of the role: the one that the seed selects, or the next running one.
async fn signal_one(
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

async fn resume_later(victim: Option<Arc<Member>>, after: Duration) -> bool {
    let Some(victim) = victim else {
        return false;
    };
    sleep(after).await;
    victim.signal(Signal::CONT);
    true
}

async fn kill_redis(env: &Environment, downtime: Duration) -> bool {
    let mut redis = env.redis.lock().await;
    redis.kill().await;
    sleep(downtime).await;
    redis.start_again().await;
    true
}

async fn freeze_redis(env: &Environment, lasts: Duration) -> bool {
    let redis = env.redis.lock().await;
    let pid = Pid::from_raw(redis.pid().cast_signed()).expect("a pid");
    kill_process(pid, Signal::STOP).expect("freeze Redis");
    sleep(lasts).await;
    kill_process(pid, Signal::CONT).expect("thaw Redis");
    true
}

async fn flush_redis(env: &Environment) -> bool {
    let server = env.redis.lock().await;
    let client = redis::Client::open(server.url()).expect("Redis URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis");
    redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.is_ok()
}

async fn restart_postgres(env: &Environment, downtime: Duration) -> bool {
    let postgres = env.postgres.lock().await;
    postgres.stop_immediately().await;
    sleep(downtime).await;
    postgres.start_again().await;
    true
}

async fn kill_connections(env: &Environment, rng: &mut fastrand::Rng) -> bool {
    let (share, place) = (rng.i32(1..4), rng.i32(0..100));
    let give_up = Instant::now() + TIMEOUT;
    while Instant::now() < give_up {
        // Not while Postgres is restarting.
        let _postgres = env.postgres.lock().await;
        if let Some(db) = try_connect(&env.store.database_url).await
            && let Ok(killed) = db.query(KILL_CONNECTIONS, &[&share, &place]).await
            && !killed.is_empty()
        {
            return true;
        }
        sleep(Duration::from_millis(50)).await;
    }
    false
}

async fn cut_connections(env: &Environment) -> bool {
    let proxies = env.proxies.lock().await;
    proxies.fleet.cut();
    proxies.writers.cut();
    true
}

async fn slow_postgres(env: &Environment, lasts: Duration, delay_ms: u64) -> bool {
    let proxies = env.proxies.lock().await;
    proxies.fleet.delay(Duration::from_millis(delay_ms));
    sleep(lasts).await;
    proxies.calm();
    true
}

/// Lets commits fail. The read-back of a lost answer ends with a COMMIT, too, and can fail as well.
async fn fail_commits(
    env: &Environment,
    planned: &Planned,
    fault: fn(&'static str) -> Fault,
) -> bool {
    let proxies = env.proxies.lock().await;
    let before = proxies.fleet.fired();
    proxies.fleet.arm_share(Some((0.3, planned.seed, fault("COMMIT"))));
    proxies.writers.arm_share(Some((0.1, planned.seed, fault("COMMIT"))));
    let hit = last(planned.lasts, || proxies.fleet.fired() > before).await;
    proxies.calm();
    hit
}

async fn swallow_heartbeats(env: &Environment, planned: &Planned) -> bool {
    let (_alone, proxies) = (env.mood.lock().await, env.proxies.lock().await);
    // Not while Postgres is restarting: a worker that cannot reach it does not continue either.
    let _postgres = env.postgres.lock().await;
    let Some(db) = try_connect(&env.store.database_url).await else {
        return false;
    };
    env.faulty.set_mode(Mode::Slow { by: STUCK_AFTER + Duration::from_secs(1) });
    proxies.fleet.arm_share(Some((1.0, planned.seed, Fault::Swallow(A_HEARTBEAT))));
    let before = claims_reset(&db).await;
    let give_up = Instant::now() + STUCK_AFTER + TIMEOUT + planned.lasts;
    while claims_reset(&db).await == before && Instant::now() < give_up {
        sleep(Duration::from_millis(100)).await;
    }
    // Give the worker time to run into the fence.
    sleep(Duration::from_secs(1)).await;
    proxies.calm();
    env.calm_s3();
    claims_reset(&db).await > before
}

async fn claims_reset(db: &Client) -> Option<i64> {
    Some(db.query_one(RESET_AFTER_DECREMENT, &[]).await.ok()?.get(0))
}

/// Acknowledged writes survive: see [`crate::support::seaweedfs::SeaweedFs`].
async fn kill_s3(env: &Environment, downtime: Duration) -> bool {
    let mut seaweedfs = env.seaweedfs.lock().await;
    seaweedfs.kill().await;
    sleep(downtime).await;
    seaweedfs.start_again();
    s3_answers(&env.store.s3, &env.store.bucket).await;
    true
}

fn mood(kind: Kind, rng: &mut fastrand::Rng) -> Mode {
    let soon = Duration::from_millis(rng.u64(200..1500));
    match kind {
        Kind::SlowDown => Mode::Failing { status: 503, code: "SlowDown" },
        Kind::ServerErrors => Mode::Failing { status: 500, code: "InternalError" },
        Kind::ErrorInBody => Mode::ErrorInBody { code: "InternalError" },
        // About every fifth key contains a given pair of hex digits.
        Kind::RefuseKeys => Mode::Refusing {
            text: format!("{:02x}", rng.u8(..)),
            code: KEY_ERRORS[rng.usize(..KEY_ERRORS.len())],
        },
        Kind::LateDeletes => Mode::Late { by: S3_DEADLINE + soon * 2 },
        Kind::RepeatedDeletes => Mode::Repeating { after: soon * 3 },
        Kind::SlowS3 => Mode::Slow { by: soon },
        Kind::CutS3 => Mode::Cutting,
        other => unreachable!("{other:?} is not an S3 fault"),
    }
}

async fn disturb_s3(env: &Environment, planned: &Planned, mood: Mode) -> bool {
    let _alone = env.mood.lock().await;
    let stats = &env.faulty.stats;
    let before = stats.touched.load(Relaxed);
    // Keys that are refused long enough become dead letters.
    let (share, lasts) = match mood {
        Mode::Refusing { .. } => (1.0, planned.lasts + Duration::from_secs(3)),
        _ => (0.6, planned.lasts),
    };
    env.faulty.sometimes(share, planned.seed, mood);
    let hit = last(lasts, || stats.touched.load(Relaxed) > before).await;
    env.calm_s3();
    hit
}

/// Waits for this time, and then until a request has run into the fault, or the timeout.
async fn last(lasts: Duration, hit: impl Fn() -> bool) -> bool {
    sleep(lasts).await;
    let give_up = Instant::now() + TIMEOUT;
    while !hit() && Instant::now() < give_up {
        sleep(Duration::from_millis(20)).await;
    }
    hit()
}
