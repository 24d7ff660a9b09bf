//! `cleanupctl dead-letters` and `requeue`: lists the pastes that failed permanently, and gives them
//! another attempt once an operator has fixed the cause.

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;
use tokio_postgres::{Client, Error as PgError, Row};

use crate::{
    cli::{Format, print},
    config::{ConfigError, Settings},
    format::{counted, table},
    migrate,
    postgres::describe,
    printable::printable,
};

const DEAD_LETTERS: &str = sql!("ctl/dead_letters");
const REQUEUE: &str = sql!("ctl/requeue");
const UNCLAIMABLE: &str = sql!("ctl/requeue_unclaimable");
const ROWS_PER_STATEMENT: i32 = 1000;

#[derive(Args, Debug)]
#[command(after_help = LIST_HELP)]
pub(super) struct DeadLetters {
    /// List only pastes whose last error contains TEXT.
    #[arg(long, value_name = "TEXT")]
    error_contains: Option<String>,
    /// Maximum number of pastes to list.
    #[arg(long, default_value_t = 100, value_name = "N")]
    limit: u32,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const LIST_HELP: &str = "\
A paste becomes a dead letter after worker.max_attempts failures of its own:
S3 refuses to delete its object, Postgres refuses to change its row, or its
worker dies. Fix the cause, then run `cleanupctl requeue`.

Examples:
  cleanupctl dead-letters
  cleanupctl dead-letters --error-contains AccessDenied
  cleanupctl dead-letters --format json | jq -r '.dead_letters[].short_code'";

#[derive(Args, Debug)]
#[command(after_help = REQUEUE_HELP)]
pub(super) struct Requeue {
    /// Short codes of the pastes to requeue.
    #[arg(value_name = "SHORT_CODE")]
    short_codes: Vec<String>,
    /// Requeue the dead letters whose last error contains TEXT.
    #[arg(long, value_name = "TEXT", conflicts_with = "short_codes")]
    error_contains: Option<String>,
    /// Requeue all dead letters.
    #[arg(long, conflicts_with_all = ["short_codes", "error_contains"])]
    all: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const REQUEUE_HELP: &str = "\
Each paste is due at once and gets one more attempt; if that fails, it is a
dead letter again. It backs off instead if no paste of its batch could be
deleted: then the cause may be the database. Unclaimable pastes (see
`cleanupctl doctor`) become due again, too.

Examples:
  cleanupctl requeue aZ3x9Q
  cleanupctl requeue --error-contains AccessDenied
  cleanupctl requeue --all";

#[derive(Serialize)]
struct DeadLetter {
    short_code: String,
    attempts: i32,
    /// Seconds since it expired; `None`: it expired at -infinity.
    overdue_s: Option<i64>,
    /// The pending object delete: the key that must be deleted before the row.
    pending_s3_key: Option<String>,
    last_error: Option<String>,
}

#[derive(Serialize)]
struct List {
    /// More dead letters exist than the limit allows.
    more: bool,
    dead_letters: Vec<DeadLetter>,
}

#[derive(Serialize)]
struct Requeued {
    requeued: usize,
    /// Short codes that were named, but are neither dead letters nor unclaimable.
    not_found: Vec<String>,
}

impl DeadLetters {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let client = super::connect(settings).await?;
        migrate::check(&client).await?;
        let limit = i64::from(self.limit) + 1;
        let rows = client.query(DEAD_LETTERS, &[&self.error_contains, &limit]).await;
        let rows =
            rows.map_err(|error| anyhow!("cannot list dead letters: {}", describe(&error)))?;
        let dead_letters = rows.iter().take(self.limit as usize).map(|row| DeadLetter {
            short_code: row.get("short_code"),
            attempts: row.get("attempts"),
            overdue_s: row.get("overdue_s"),
            pending_s3_key: row.get("pending_s3_key"),
            last_error: row.get("last_error"),
        });
        let more = rows.len() > self.limit as usize;
        print(self.format, &List { more, dead_letters: dead_letters.collect() }, show);
        Ok(0)
    }
}

fn show(list: &List) -> String {
    if list.dead_letters.is_empty() {
        return "no dead letters".into();
    }
    let row = |letter: &DeadLetter| {
        let overdue = letter.overdue_s.map(|s| std::time::Duration::from_secs(s.unsigned_abs()));
        vec![
            printable(&letter.short_code),
            letter.attempts.to_string(),
            overdue.map_or("-infinity".into(), |overdue| {
                humantime::format_duration(overdue).to_string()
            }),
            printable(letter.last_error.as_deref().unwrap_or("none recorded")),
        ]
    };
    let head = ["paste", "attempts", "overdue", "last error"];
    let letters = table(&head, list.dead_letters.iter().map(row));
    let more = if list.more { "\nthere are more; raise --limit to list them" } else { "" };
    format!("{letters}{more}\nfix the cause, then run: cleanupctl requeue SHORT_CODE (or --all)")
}

impl Requeue {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        if self.short_codes.is_empty() && self.error_contains.is_none() && !self.all {
            let remedy = "name short codes, or use --error-contains TEXT or --all";
            return Err(ConfigError::new("no pastes selected", remedy).into());
        }
        let client = super::connect(settings).await?;
        migrate::check(&client).await?;
        let requeued = self.requeue(&client, i32::from(settings.worker.max_attempts)).await;
        let requeued = requeued.map_err(|error| anyhow!("cannot requeue: {}", describe(&error)))?;
        let missing = self.short_codes.into_iter().filter(|code| !requeued.contains(code));
        let result = Requeued { requeued: requeued.len(), not_found: missing.collect() };
        print(self.format, &result, show_requeued);
        Ok(u8::from(!result.not_found.is_empty()))
    }

    /// Makes the selected dead letters and unclaimable pastes due, and returns their short codes.
    async fn requeue(&self, client: &Client, max_attempts: i32) -> Result<Vec<String>, PgError> {
        let codes = (!self.short_codes.is_empty()).then_some(&self.short_codes);
        let short_code = |row: &Row| row.get::<_, String>("short_code");
        let mut requeued = Vec::new();
        loop {
            let rows = client
                .query(REQUEUE, &[&codes, &self.error_contains, &max_attempts, &ROWS_PER_STATEMENT])
                .await?;
            requeued.extend(rows.iter().map(short_code));
            if rows.len() < ROWS_PER_STATEMENT as usize {
                break;
            }
        }
        let unclaimable = client.query(UNCLAIMABLE, &[&codes, &self.error_contains]).await?;
        requeued.extend(unclaimable.iter().map(short_code));
        Ok(requeued)
    }
}

fn show_requeued(result: &Requeued) -> String {
    let requeued = format!("requeued {}", counted(result.requeued, "paste"));
    if result.not_found.is_empty() {
        return requeued;
    }
    let names: Vec<String> = result.not_found.iter().map(|code| printable(code)).collect();
    format!("{requeued}; not a dead letter: {}", names.join(", "))
}
