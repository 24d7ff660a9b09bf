//! `cleanupctl explain`: where one paste stands, and what will happen to it next.

mod object;

use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use self::object::{Object, look_for};
use crate::{
    cli::{Format, print},
    config::Settings,
    fleet::snapshot::is_in_the_future,
    fleet::{self, Fleet},
    migrate,
    postgres::describe,
    printable::printable,
};

const EXPLAIN: &str = sql!("ctl/explain");

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Explain {
    /// The paste.
    short_code: String,
    /// How the answer is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const HELP: &str = "\
Why is this paste still there? Says its state, its attempts and last error, who holds it, how its
body is counted and whether the bucket has it, and what happens next, and when. Changes nothing. What
S3 does not let this login see (s3:ListBucket allows it) is said to be not seen.

Exit codes: 0 explained; 1 there is no such paste, or failed; 2 usage or config.

Examples:
  cleanupctl explain aZ3x9Q
  cleanupctl explain aZ3x9Q --format json | jq .next";

#[derive(Serialize)]
struct Explanation {
    short_code: String,
    state: &'static str,
    /// What will happen next, and when.
    next: String,
    attempts: i32,
    last_error: Option<String>,
    claim: Option<Claim>,
    body: Option<Body>,
    /// The object that it still owes S3.
    owes: Option<String>,
    /// What is not as it should be, with the remedy.
    wrong: Vec<String>,
}

#[derive(Serialize)]
struct Claim {
    id: i64,
    worker: Uuid,
    decremented: bool,
    last_heartbeat_s: f64,
}

#[derive(Serialize)]
struct Body {
    s3_key: String,
    ref_count: i64,
    holders: i64,
    /// Whether the bucket has it.
    object: Object,
}

impl Explain {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let client = super::connect(settings).await?;
        migrate::check(&client).await?;
        let fleet = fleet::read(&client).await?;
        // Never a walk through the table, however little the planner knows about it.
        client.batch_execute("SET enable_seqscan = off").await.map_err(failed)?;
        let (row, body) = self.look(&client, settings, &fleet).await?;
        let told = explain(self.short_code, &row, body, settings, &fleet);
        print(self.format, &told, show);
        Ok(0)
    }

    /// What the tables say, and of the body also what S3 says.
    async fn look(
        &self,
        client: &Client,
        settings: &Settings,
        fleet: &Fleet,
    ) -> Result<(Row, Option<Body>)> {
        let row = self.read(client).await?;
        let Some(s3_key) = row.get::<_, Option<String>>("s3_key") else {
            return Ok((row, None));
        };
        let object = look_for(settings, fleet, &s3_key).await;
        // A worker may have been at it meanwhile: then the object went after its row, as it should.
        let row = if object == Object::Missing { self.read(client).await? } else { row };
        if row.get::<_, Option<&str>>("s3_key") != Some(&s3_key) {
            return Ok((row, None));
        }
        let (ref_count, holders) = (row.get("ref_count"), row.get("refs"));
        Ok((row, Some(Body { s3_key, ref_count, holders, object })))
    }

    async fn read(&self, client: &Client) -> Result<Row> {
        let row = client.query_opt(EXPLAIN, &[&self.short_code]).await.map_err(failed)?;
        row.ok_or_else(|| {
            anyhow!("there is no paste {:?}: it was erased, or never stored", self.short_code)
        })
    }
}

fn failed(error: tokio_postgres::Error) -> anyhow::Error {
    anyhow!("explain: {}", describe(&error))
}

fn explain(
    short_code: String,
    row: &Row,
    body: Option<Body>,
    settings: &Settings,
    fleet: &Fleet,
) -> Explanation {
    let (state, next) = stand(row, settings, fleet);
    let open: bool = row.get("claim_is_open");
    Explanation {
        wrong: wrong(&short_code, row, body.as_ref()),
        short_code,
        state,
        next,
        attempts: row.get("attempts"),
        last_error: row.get::<_, Option<String>>("unclaimable").or(row.get("last_error")),
        claim: row.get::<_, Option<i64>>("claim_id").filter(|_| open).map(|id| Claim {
            id,
            worker: row.get("worker"),
            decremented: row.get("decremented"),
            last_heartbeat_s: row.get::<_, f64>("heartbeat_s_ago").max(0.0),
        }),
        body,
        owes: row.get("pending_s3_key"),
    }
}

/// Its state, and what will happen next.
fn stand(row: &Row, settings: &Settings, fleet: &Fleet) -> (&'static str, String) {
    let stuck_after = settings.watchdog.stuck_after;
    let status: &str = row.get("deletion_status");
    let overdue_s: Option<f64> = row.get("overdue_s");
    let seconds = |name: &str| row.get::<_, Option<f64>>(name).unwrap_or_default().max(0.0);
    let run = match &fleet.paused {
        Some(reason) => format!("nothing, while the fleet is paused: {reason}"),
        None => "the next run takes it".to_string(),
    };
    if status == "DELETED" {
        return ("tombstone", "the watchdog purges it after retention.tombstones".into());
    }
    if status == "DELETION_IN_PROGRESS" {
        let left = |silent: f64| fleet.reset_in(stuck_after.as_secs_f64() - silent, settings);
        let waits = row.get::<_, Option<bool>>("waits_for_content") == Some(true);
        return match row.get("claim_is_open") {
            true => (
                "being deleted",
                format!(
                    "its worker finishes it; should that stay silent, {}",
                    left(seconds("heartbeat_s_ago"))
                ),
            ),
            false if waits => (
                "waiting for its content row, which another transaction holds",
                fleet.reset_in(seconds("retry_in_s"), settings),
            ),
            false => ("in progress without an open claim", left(seconds("in_progress_s"))),
        };
    }
    match overdue_s {
        None | Some(f64::NEG_INFINITY) => ("alive", "nothing: it never expires".into()),
        Some(overdue) if overdue < 0.0 => {
            ("alive", format!("it expires in {}, then a run takes it", spell(-overdue)))
        }
        Some(_) if row.get::<_, Option<bool>>("is_dead_letter") == Some(true) => (
            "dead letter",
            "nothing, until somebody fixes the cause and runs `cleanupctl requeue`".into(),
        ),
        Some(_) if row.get::<_, Option<String>>("unclaimable").is_some() => (
            "unclaimable",
            "Postgres refuses to mark it (see the last error); when that is fixed, run \
             `cleanupctl requeue`"
                .into(),
        ),
        Some(_) if seconds("retry_in_s") > settings.worker.longest_backoff().as_secs_f64() => (
            "backing off",
            "its retry_at is too far ahead to be right (the server's clock was ahead), and is \
             corrected by the next sweep: `cleanup-watchdog --once`"
                .into(),
        ),
        Some(_) if seconds("retry_in_s") > 0.0 => {
            ("backing off", format!("it is due again in {}; {run}", spell(seconds("retry_in_s"))))
        }
        Some(f64::INFINITY) => ("due", format!("it expired at -infinity; {run}")),
        Some(overdue) => ("due", format!("overdue by {}; {run}", spell(overdue))),
    }
}

fn wrong(short_code: &str, row: &Row, body: Option<&Body>) -> Vec<String> {
    let mut wrong = Vec::new();
    let ahead = |age: &str| row.get::<_, Option<f64>>(age).is_some_and(is_in_the_future);
    let is_open: bool = row.get("claim_is_open");
    if is_open && ahead("heartbeat_s_ago") || !is_open && ahead("in_progress_s") {
        let what = if is_open { "its claim's last heartbeat" } else { "its deletion_initiated_at" };
        wrong.push(format!(
            "{what} is in the future: the server's clock was ahead; the next sweep corrects it \
             (`cleanup-watchdog --once`)"
        ));
    }
    match body {
        Some(body) if body.ref_count != body.holders => wrong.push(format!(
            "drift: ref_count is {}, but {} pastes hold the body; {}",
            body.ref_count,
            body.holders,
            match body.ref_count < body.holders {
                true => {
                    "the decrement that would delete it recounts it, `cleanupctl audit --repair` now"
                }
                false => "it would stay for good: `cleanupctl audit --repair` recounts it",
            }
        )),
        None if row.get("has_reference") && !row.get::<_, bool>("decremented") => {
            wrong.push("drift: its body has no content row; its object is not known, and `cleanupctl audit` \
                 finds it as an orphan"
                    .into());
        }
        _ => {}
    }
    if let Some(body) = body.filter(|body| body.object == Object::Missing) {
        let lives = row.get::<_, Option<f64>>("overdue_s").is_none_or(|overdue| overdue < 0.0);
        wrong.push(missing(short_code, body, lives));
    }
    wrong
}

/// Whoever lost it, nothing that the fleet could do brings it back.
fn missing(short_code: &str, body: &Body, lives: bool) -> String {
    let (key, code) = (printable(&body.s3_key), printable(&short_code.replace('\'', "''")));
    let found = format!("its body is missing: the bucket has no {key}");
    let back = "bring it back under this key, from a backup or an older version";
    match (lives, body.holders - 1) {
        (true, _) => {
            format!("{found}; {back}, or give the paste up: SELECT paste_expire_now('{code}')")
        }
        (false, ..=0) => format!("{found}; nothing to do: a run erases the paste all the same"),
        (false, others) => format!("{found}; {others} more pastes share it: {back}"),
    }
}

fn spell(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.ceil()).unwrap_or_default();
    humantime::format_duration(whole).to_string()
}

fn show(told: &Explanation) -> String {
    let mut lines = vec![
        format!("{}: {}", printable(&told.short_code), told.state),
        format!("next: {}", told.next),
    ];
    if told.attempts > 0 || told.last_error.is_some() {
        let error = told.last_error.as_deref().map_or("no error".into(), printable);
        lines.push(format!("attempts: {}; last error: {error}", told.attempts));
    }
    if let Some(claim) = &told.claim {
        let decremented = if claim.decremented { "decremented" } else { "not decremented yet" };
        lines.push(format!(
            "claim: {} of worker {}, {decremented}, last heartbeat {} ago",
            claim.id,
            claim.worker,
            spell(claim.last_heartbeat_s)
        ));
    }
    if let Some(body) = &told.body {
        let (key, count) = (printable(&body.s3_key), body.ref_count);
        let object = match &body.object {
            Object::There => "in the bucket".into(),
            Object::Missing => "not in the bucket".into(),
            Object::NotSeen(why) => format!("in the bucket or not, that cannot be seen: {why}"),
        };
        lines.push(format!("body: {key}, counted {count} times, {object}"));
    }
    if let Some(key) = &told.owes {
        lines.push(format!("owes S3 the deletion of {}", printable(key)));
    }
    lines.extend(told.wrong.iter().map(|wrong| format!("wrong: {wrong}")));
    lines.join("\n")
}
