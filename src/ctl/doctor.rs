//! `cleanupctl doctor`: is everything around the fleet as its promises need it? Looks at all of it
//! and changes nothing. A check is one function that returns an [`Outcome`], and one line in
//! [`examine`].

mod bodies;
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

use self::finding::{Finding, Outcome, Verdict, left_out};
use crate::{
    cli::{Format, print},
    config::{Settings, parse_duration},
};

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Doctor {
    /// Name transactions that have been open for longer than this: a batch takes a second, but a
    /// dump of a large table may take its while.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = parse_duration)]
    long_transaction: Duration,
    /// How the findings are printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const HELP: &str = "\
Looks at Postgres, its standbys, Redis, the bucket, the settings and the work that is stuck, with the
settings that a worker would use, one line per check: what was found and, unless it is ok, what to do.
Changes nothing.

  ok        as the fleet needs it
  warning   the fleet works, but a promise stands on less than it should, or somebody should look
  failure   the fleet would refuse to start, or would not get on
  left out  could not be looked at, because of an earlier failure

Connect as the login of your workers: what is asked is whether it may do what they do. Who wants to
see all of it grants that login pg_monitor.

Exit codes: 0 no failure (there may be warnings); 1 a failure; 2 usage or config.

Examples:
  cleanupctl doctor                     before the first run, and after every change around it
  cleanupctl doctor --format json | jq '.findings[] | select(.verdict != \"ok\")'";

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

/// All checks, in the order in which a person would look.
async fn examine(settings: &Settings, long: Duration) -> Vec<Finding> {
    let (postgres_answers, client) = postgres::answers(settings).await;
    let db = client.as_ref().ok_or("Postgres does not answer");
    let schema = look(db, "schema", postgres::schema).await;
    let current = if schema.verdict() == Verdict::Ok { db } else { Err("the schema check failed") };
    let (redis_answers, redis) = redis::answers(settings).await;
    let redis = redis.as_ref().ok_or("Redis does not answer");
    let (deletes, objects) = bucket::deletes(settings).await;
    let s3 = objects.as_ref().map_err(|why| *why);
    let encryption = encryption::encryption(client.as_ref(), settings).await;
    vec![
        Finding::new("postgres", postgres_answers),
        look(db, "writes", postgres::writes).await,
        schema,
        look(db, "rights", rights::rights).await,
        look(current, "indexes", upkeep::indexes).await,
        look(current, "blockers", upkeep::blockers).await,
        look(current, "owner triggers", tables::owner_triggers).await,
        look(current, "content rows", tables::content).await,
        look(db, "autovacuum", upkeep::autovacuum).await,
        look(db, "transactions", async |db| upkeep::transactions(db, long).await).await,
        look(db, "clock", clock::postgres).await,
        look(current, "times", async |db| clock::times(db, settings).await).await,
        look(db, "durability", postgres::durability).await,
        look(db, "standbys", standbys::synchronous).await,
        Finding::new("redis", redis_answers),
        look(redis, "redis memory", redis::keeps_the_lock).await,
        look(redis, "redis clock", clock::redis).await,
        Finding::new("bucket", deletes),
        look(s3, "versions", bucket::versions).await,
        look(current, "bucket binding", async |db| bucket::belongs(db, settings).await).await,
        match current {
            Ok(_) => look(s3, "bodies", async |s3| bodies::bodies(s3, settings).await).await,
            Err(why) => Finding::new("bodies", left_out(why)),
        },
        Finding::new("encryption", encryption.unwrap_or_else(|error| Outcome::failed(&error))),
        Finding::new("deadlines", deadlines::deadlines(settings)),
        look(current, "pause", work::pause).await,
        look(current, "claims", async |db| work::claims(db, settings).await).await,
        look(current, "dead letters", work::dead_letters).await,
        look(current, "unclaimable", work::unclaimable).await,
    ]
}

/// A check that needs a server, or the reason why there is none for it.
async fn look<Server>(
    server: Result<&Server, &'static str>,
    check: &'static str,
    check_it: impl AsyncFnOnce(&Server) -> Result<Outcome>,
) -> Finding {
    let outcome = match server {
        Ok(server) => check_it(server).await.unwrap_or_else(|error| Outcome::failed(&error)),
        Err(why) => left_out(why),
    };
    Finding::new(check, outcome)
}

fn show(diagnosis: &Diagnosis) -> String {
    let lines: Vec<String> = diagnosis.findings.iter().map(ToString::to_string).collect();
    let Diagnosis { failures, warnings, .. } = diagnosis;
    format!("{}\nfailures: {failures}, warnings: {warnings}", lines.join("\n"))
}
