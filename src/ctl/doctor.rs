//! `cleanupctl doctor`: checks everything that the fleet's guarantees depend on, and changes nothing.
//! A check is one function that returns an [`Outcome`], and one line in [`examine`].

mod audit_sample;
mod bucket;
mod clock;
mod deadlines;
mod encryption;
mod finding;
mod postgres;
mod redis;
mod rights;
mod standbys;
mod tables;
mod upkeep;
mod work;

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tokio_postgres::Client;

use self::finding::{Finding, Outcome, Verdict, left_out};
use crate::{
    cli::{Format, print},
    config::{Settings, parse_duration},
    fleet,
    problem::Problem,
};

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Doctor {
    /// Report transactions that have been open for longer than this. A batch takes about a second; a
    /// dump of a large table may take much longer.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = parse_duration)]
    long_transaction: Duration,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const HELP: &str = "\
Checks Postgres, its standbys, Redis, the bucket, the settings and stuck work,
with the settings that a worker would use. Prints one line per check: what was
found and, unless it is ok, the remedy. Changes nothing.

  ok        nothing to do
  warning   the fleet works, but a guarantee is weakened, or an operator is
            needed
  failure   workers would refuse to start, or would make no progress
  left out  not checked, because of an earlier failure or a missing privilege

Connect with the login of your workers: the check `rights` tests what that
login may do. Some checks need pg_monitor to see other sessions and standbys.

Exit codes: 0 no failure (perhaps warnings); 1 at least one failure, also a
missing setting; 2 usage error, or settings that cannot be read.

Examples:
  cleanupctl doctor        before the first run, and after every change
  cleanupctl doctor --format json |
    jq '.findings[] | select(.verdict != \"ok\")'";

#[derive(Serialize)]
struct Diagnosis {
    failures: usize,
    warnings: usize,
    findings: Vec<Finding>,
}

impl Doctor {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let findings = examine(settings, self.long_transaction).await;
        let count = |verdict| findings.iter().filter(|found| found.verdict() == verdict).count();
        let (failures, warnings) = (count(Verdict::Failure), count(Verdict::Warning));
        let diagnosis = Diagnosis { failures, warnings, findings };
        print(self.format, &diagnosis, show);
        Ok(u8::from(failures > 0))
    }
}

/// Runs all checks, in the order in which an operator would go through them.
async fn examine(settings: &Settings, long: Duration) -> Vec<Finding> {
    let (postgres_answers, client) = postgres::answers(settings).await;
    let db = client.as_ref().ok_or("Postgres is unavailable");
    let schema = check(db, "schema", postgres::schema).await;
    let current = if schema.verdict() == Verdict::Ok { db } else { Err("the schema check failed") };
    let (redis_answers, redis) = redis::answers(settings).await;
    let redis = redis.as_ref().ok_or("Redis is unavailable");
    let database = database(current).await;
    let (deletes, objects) = bucket::deletes(settings).await;
    let s3 = objects.as_ref().map_err(|why| *why);
    let encryption = encryption::encryption(client.as_ref(), settings).await;
    vec![
        Finding::new("postgres", postgres_answers),
        check(db, "writes", postgres::writes).await,
        schema,
        check(db, "rights", rights::rights).await,
        check(current, "indexes", upkeep::indexes).await,
        check(current, "blockers", upkeep::blockers).await,
        check(current, "owner triggers", tables::owner_triggers).await,
        check(current, "tables", tables::warnings).await,
        check(current, "content rows", tables::content).await,
        check(db, "autovacuum", upkeep::autovacuum).await,
        check(db, "transactions", async |db| upkeep::transactions(db, long).await).await,
        check(db, "clock", clock::postgres).await,
        check(current, "times", async |db| clock::times(db, settings).await).await,
        check(db, "durability", postgres::durability).await,
        check(db, "standbys", standbys::synchronous).await,
        Finding::new("redis", redis_answers),
        check(redis, "redis lock", async |redis| {
            redis::serves_the_lock(redis, settings, &database).await
        })
        .await,
        check(redis, "redis memory", redis::keeps_the_lock).await,
        check(redis, "redis clock", clock::redis).await,
        Finding::new("bucket", deletes),
        check(s3, "versions", async |s3| bucket::versions(s3, settings).await).await,
        check(current, "bucket binding", async |db| bucket::binding(db, settings).await).await,
        match current {
            Ok(_) => {
                check(s3, "objects", async |s3| audit_sample::objects(s3, settings).await).await
            }
            Err(why) => Finding::new("objects", left_out(why)),
        },
        Finding::new("encryption", encryption.unwrap_or_else(Outcome::from)),
        Finding::new("deadlines", deadlines::deadlines(settings)),
        check(current, "pause", work::pause).await,
        check(current, "claims", async |db| work::claims(db, settings).await).await,
        check(current, "dead letters", work::dead_letters).await,
        check(current, "unclaimable", work::unclaimable).await,
    ]
}

/// The name of the database, which is a part of the lock's key.
async fn database(current: Result<&Client, &str>) -> String {
    match current {
        Ok(db) => fleet::read(db).await.map(|fleet| fleet.database).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// Runs a check that needs a server, or leaves it out for the reason why the server is missing.
async fn check<Server>(
    server: Result<&Server, &'static str>,
    name: &'static str,
    run: impl AsyncFnOnce(&Server) -> Result<Outcome, Problem>,
) -> Finding {
    let outcome = match server {
        Ok(server) => run(server).await.unwrap_or_else(Outcome::from),
        Err(why) => left_out(why),
    };
    Finding::new(name, outcome)
}

fn show(diagnosis: &Diagnosis) -> String {
    let lines: Vec<String> = diagnosis.findings.iter().map(ToString::to_string).collect();
    let Diagnosis { failures, warnings, .. } = diagnosis;
    format!("{}\nfailures: {failures}, warnings: {warnings}", lines.join("\n"))
}
