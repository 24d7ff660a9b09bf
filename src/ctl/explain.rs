//! `cleanupctl explain`: shows the state of one paste and what happens to it next.

mod object;
mod state;

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use self::{
    object::{Object, probe},
    state::{duration, state},
};
use crate::{
    cli::{Format, print},
    config::Settings,
    fleet::{self, Fleet, snapshot::is_in_the_future},
    format::counted,
    migrate,
    postgres::describe,
    printable::printable,
};

const EXPLAIN: &str = sql!("ctl/explain");

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Explain {
    /// Short code of the paste.
    short_code: String,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const HELP: &str = "\
Shows why a paste still exists: its state, attempts and last error, its claim
and worker, its content row and whether the bucket has the object, and what
happens next, and when. Changes nothing. Without s3:ListBucket, S3 may not
reveal whether an object exists; then it is reported as unknown.

Exit codes: 0 explained; 1 no such paste, or failed; 2 usage or config error.

Examples:
  cleanupctl explain aZ3x9Q
  cleanupctl explain aZ3x9Q --format json | jq .next";

#[derive(Serialize)]
struct Explanation {
    short_code: String,
    state: &'static str,
    /// What happens next, and when.
    next: String,
    attempts: i32,
    last_error: Option<String>,
    claim: Option<Claim>,
    content: Option<Content>,
    /// The pending object delete: the key that must be deleted before the row.
    pending_s3_key: Option<String>,
    /// Inconsistencies, each with its remedy.
    wrong: Vec<String>,
}

/// The open claim of the paste.
#[derive(Serialize)]
struct Claim {
    id: i64,
    worker: Uuid,
    decremented: bool,
    last_heartbeat_s: f64,
}

/// The content row of the paste.
#[derive(Serialize)]
struct Content {
    s3_key: String,
    ref_count: i64,
    /// The pastes that reference it, counted.
    references: i64,
    /// Whether the bucket has the object.
    object: Object,
}

impl Explain {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let client = super::connect(settings).await?;
        migrate::check(&client).await?;
        let fleet = fleet::read(&client).await?;
        // By index only, however little the planner knows about the table.
        client.batch_execute("SET enable_seqscan = off").await.map_err(failed)?;
        let (row, content) = self.read(&client, settings, &fleet).await?;
        let explanation = explain(self.short_code, &row, content, settings, &fleet);
        print(self.format, &explanation, show);
        Ok(0)
    }

    /// Reads the paste with its claim and content, then probes S3 for the object.
    async fn read(
        &self,
        client: &Client,
        settings: &Settings,
        fleet: &Fleet,
    ) -> Result<(Row, Option<Content>)> {
        let row = self.read_row(client).await?;
        let Some(s3_key) = row.get::<_, Option<String>>("s3_key") else {
            return Ok((row, None));
        };
        let object = probe(settings, fleet, &s3_key).await;
        // A worker may have erased it between the two reads: then the content row is gone, too.
        let row = if object == Object::Missing { self.read_row(client).await? } else { row };
        if row.get::<_, Option<&str>>("s3_key") != Some(&s3_key) {
            return Ok((row, None));
        }
        let (ref_count, references) = (row.get("ref_count"), row.get("refs"));
        Ok((row, Some(Content { s3_key, ref_count, references, object })))
    }

    async fn read_row(&self, client: &Client) -> Result<Row> {
        let row = client.query_opt(EXPLAIN, &[&self.short_code]).await.map_err(failed)?;
        row.ok_or_else(|| anyhow!("no paste {:?}: it was erased, or never stored", self.short_code))
    }
}

fn failed(error: tokio_postgres::Error) -> anyhow::Error {
    anyhow!("cannot read the paste: {}", describe(&error))
}

fn explain(
    short_code: String,
    row: &Row,
    content: Option<Content>,
    settings: &Settings,
    fleet: &Fleet,
) -> Explanation {
    let (state, next) = state(row, settings, fleet);
    let open: bool = row.get("claim_is_open");
    Explanation {
        wrong: wrong(&short_code, row, content.as_ref()),
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
        content,
        pending_s3_key: row.get("pending_s3_key"),
    }
}

/// The inconsistencies of the paste, each with its remedy.
fn wrong(short_code: &str, row: &Row, content: Option<&Content>) -> Vec<String> {
    let mut wrong = Vec::new();
    let ahead = |age: &str| row.get::<_, Option<f64>>(age).is_some_and(is_in_the_future);
    let is_open: bool = row.get("claim_is_open");
    if is_open && ahead("heartbeat_s_ago") || !is_open && ahead("in_progress_s") {
        let what = if is_open { "its claim's last heartbeat" } else { "its deletion_initiated_at" };
        wrong.push(format!(
            "{what} is in the future: Postgres' clock was ahead; the next sweep corrects it; to do \
             it now: `cleanup-watchdog --once`"
        ));
    }
    match content {
        Some(content) if content.ref_count != content.references => wrong.push(drift(content)),
        None if row.get("has_reference") && !row.get::<_, bool>("decremented") => {
            wrong.push(
                "drift: its content row does not exist, so the key of its object is unknown; \
                 `cleanupctl audit` finds the object as an orphan"
                    .into(),
            );
        }
        _ => {}
    }
    if let Some(content) = content.filter(|content| content.object == Object::Missing) {
        let alive = row.get::<_, Option<f64>>("overdue_s").is_none_or(|overdue| overdue < 0.0);
        wrong.push(missing(short_code, content, alive));
    }
    wrong
}

fn drift(content: &Content) -> String {
    let Content { ref_count, references, .. } = content;
    let remedy = match ref_count < references {
        true => {
            "the decrement that would delete it recounts it first; to do it now: `cleanupctl audit \
             --repair`"
        }
        false => "the object would never be deleted: `cleanupctl audit --repair` recounts it",
    };
    let counted = counted(*references, "reference");
    format!("drift: ref_count is {ref_count}, but pastes have {counted} to the content; {remedy}")
}

/// The fleet cannot restore a missing object: the remedy is a backup, or to give the paste up.
fn missing(short_code: &str, content: &Content, alive: bool) -> String {
    let (key, code) = (printable(&content.s3_key), printable(&short_code.replace('\'', "''")));
    let found = format!("its object is missing: the bucket has no {key}");
    let restore = "restore it under this key, from a backup or an older version";
    match (alive, content.references - 1) {
        (true, _) => {
            format!("{found}; {restore}, or expire the paste: SELECT paste_expire_now('{code}')")
        }
        (false, ..=0) => format!("{found}; nothing to do: the next run erases the paste anyway"),
        (false, others) => {
            let others = counted(others, "other paste");
            format!("{found}; shared with {others}: {restore}")
        }
    }
}

fn show(explanation: &Explanation) -> String {
    let mut lines = vec![
        format!("{}: {}", printable(&explanation.short_code), explanation.state),
        format!("next: {}", explanation.next),
    ];
    if explanation.attempts > 0 || explanation.last_error.is_some() {
        let error = explanation.last_error.as_deref().map_or("none recorded".into(), printable);
        lines.push(format!("attempts: {}; last error: {error}", explanation.attempts));
    }
    if let Some(claim) = &explanation.claim {
        let decremented = if claim.decremented {
            "references decremented"
        } else {
            "references not decremented yet"
        };
        lines.push(format!(
            "claim: {} of worker {}, {decremented}, last heartbeat {} ago",
            claim.id,
            claim.worker,
            duration(claim.last_heartbeat_s)
        ));
    }
    if let Some(content) = &explanation.content {
        let (key, count) = (printable(&content.s3_key), content.ref_count);
        let object = match &content.object {
            Object::Exists => "in the bucket".into(),
            Object::Missing => "not in the bucket".into(),
            Object::Unknown(why) => format!("existence unknown: {why}"),
        };
        lines.push(format!("object: {key}, ref_count {count}, {object}"));
    }
    if let Some(key) = &explanation.pending_s3_key {
        lines.push(format!("pending object delete: {}", printable(key)));
    }
    lines.extend(explanation.wrong.iter().map(|wrong| format!("wrong: {wrong}")));
    lines.join("\n")
}
