//! `cleanupctl doctor`: is everything around the fleet as its promises need it? Looks at all of it
//! and changes nothing. A check is one function that returns an [`Outcome`], and one line in
//! [`examine`].

mod bucket;
mod finding;
mod postgres;
mod redis;
mod standbys;
mod upkeep;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tokio_postgres::Client;

use self::finding::{Finding, Outcome, Verdict, left_out};
use crate::{
    cli::{Format, print},
    config::Settings,
};

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Doctor {
    /// How the findings are printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const HELP: &str = "\
Looks at Postgres, its standbys, Redis and the bucket with the settings that a worker would use, one
line per check: what was found and, unless it is ok, what to do. Changes nothing.

  ok        as the fleet needs it
  warning   the fleet works, but a promise stands on less than it should
  failure   the fleet would refuse to start, or would not get on
  left out  could not be looked at, because of an earlier failure

Connect as the login of your workers: a privilege that they lack shows up here, then. Who wants to
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
        let findings = examine(settings).await;
        let count = |verdict| findings.iter().filter(|found| found.verdict() == verdict).count();
        let (failures, warnings) = (count(Verdict::Failure), count(Verdict::Warning));
        let diagnosis = Diagnosis { failures, warnings, findings };
        print(self.format, &diagnosis, show);
        Ok(u8::from(failures > 0))
    }
}

/// All checks, in the order in which a person would look.
async fn examine(settings: &Settings) -> Vec<Finding> {
    let (answers, client) = postgres::answers(settings).await;
    let db = client.as_ref().ok_or("Postgres does not answer");
    let schema = look(db, "schema", postgres::schema).await;
    let current = if schema.verdict() == Verdict::Ok { db } else { Err("the schema is not there") };
    vec![
        Finding::new("postgres", answers),
        look(db, "writes", postgres::writes).await,
        schema,
        look(current, "indexes", upkeep::indexes).await,
        look(db, "autovacuum", upkeep::autovacuum).await,
        look(db, "transactions", upkeep::transactions).await,
        look(db, "clock", upkeep::clock).await,
        look(db, "encryption", upkeep::encryption).await,
        look(db, "durability", postgres::durability).await,
        look(db, "standbys", standbys::synchronous).await,
        Finding::new("redis", redis::answers(settings).await),
        Finding::new("redis memory", redis::keeps_the_lock(settings).await),
        Finding::new("bucket", bucket::deletes(settings).await),
        Finding::new("versions", bucket::versions(settings).await),
        look(current, "bucket binding", async |db| bucket::belongs(db, settings).await).await,
    ]
}

/// A check that needs a database, or the reason why there is none for it.
async fn look(
    db: Result<&Client, &'static str>,
    check: &'static str,
    check_it: impl AsyncFnOnce(&Client) -> Result<Outcome>,
) -> Finding {
    let outcome = match db {
        Ok(db) => check_it(db).await.unwrap_or_else(|error| Outcome::failed(&error)),
        Err(why) => left_out(why),
    };
    Finding::new(check, outcome)
}

fn show(diagnosis: &Diagnosis) -> String {
    let lines: Vec<String> = diagnosis.findings.iter().map(ToString::to_string).collect();
    let Diagnosis { failures, warnings, .. } = diagnosis;
    format!("{}\nfailures: {failures}, warnings: {warnings}", lines.join("\n"))
}
