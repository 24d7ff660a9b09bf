//! `cleanupctl dead-letters` and `requeue`: pastes that failed for good, until a person has looked.

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{Format, print},
    config::{ConfigError, Settings},
    format::{table, thousands},
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
    /// Only those whose last error contains this.
    #[arg(long, value_name = "TEXT")]
    error_contains: Option<String>,
    /// At most so many.
    #[arg(long, default_value_t = 100)]
    limit: u32,
    /// How the list is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const LIST_HELP: &str = "\
A paste becomes a dead letter after worker.max_attempts failures of its own: S3 refuses its object, a
row of it cannot be changed, or it killed its worker. Fix the cause, then `cleanupctl requeue`.

Examples:
  cleanupctl dead-letters
  cleanupctl dead-letters --error-contains AccessDenied
  cleanupctl dead-letters --format json | jq -r '.dead_letters[].short_code'";

#[derive(Args, Debug)]
#[command(after_help = REQUEUE_HELP)]
pub(super) struct Requeue {
    /// These pastes.
    #[arg(value_name = "SHORT_CODE")]
    short_codes: Vec<String>,
    /// Those whose last error contains this.
    #[arg(long, value_name = "TEXT", conflicts_with = "short_codes")]
    error_contains: Option<String>,
    /// All dead letters.
    #[arg(long, conflicts_with_all = ["short_codes", "error_contains"])]
    all: bool,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const REQUEUE_HELP: &str = "\
Each gets one more attempt, at once; one that fails again is a dead letter again. Pastes that could not
be claimed (`cleanupctl doctor` names them) are tried again, too.

Examples:
  cleanupctl requeue aZ3x9Q
  cleanupctl requeue --error-contains AccessDenied
  cleanupctl requeue --all";

#[derive(Serialize)]
struct DeadLetter {
    short_code: String,
    attempts: i32,
    /// `None`: it expired at -infinity.
    overdue_s: Option<i64>,
    /// The object that it still owes S3.
    pending_s3_key: Option<String>,
    last_error: Option<String>,
}

#[derive(Serialize)]
struct List {
    /// There are more than the limit.
    more: bool,
    dead_letters: Vec<DeadLetter>,
}

#[derive(Serialize)]
struct Requeued {
    requeued: usize,
    /// Named, but no dead letters.
    not_found: Vec<String>,
}

impl DeadLetters {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let client = super::connect(settings).await?;
        migrate::check(&client).await?;
        let asked = i64::from(self.limit) + 1;
        let rows = client.query(DEAD_LETTERS, &[&self.error_contains, &asked]).await;
        let rows = rows.map_err(|error| anyhow!("dead-letters: {}", describe(&error)))?;
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
            printable(letter.last_error.as_deref().unwrap_or("no error")),
        ]
    };
    let head = ["paste", "attempts", "overdue", "last error"];
    let letters = table(&head, list.dead_letters.iter().map(row));
    let more = if list.more { "\nthere are more: --limit" } else { "" };
    format!("{letters}{more}\nwhen the cause is fixed: cleanupctl requeue SHORT_CODE, or --all")
}

impl Requeue {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        if self.short_codes.is_empty() && self.error_contains.is_none() && !self.all {
            let usage = "which ones? Name short codes, or --error-contains TEXT, or --all";
            return Err(ConfigError::Invalid(usage.into()).into());
        }
        let client = super::connect(settings).await?;
        migrate::check(&client).await?;
        let codes = (!self.short_codes.is_empty()).then_some(&self.short_codes);
        let max_attempts = i32::from(settings.worker.max_attempts);
        let mut requeued: Vec<String> = Vec::new();
        loop {
            let rows = client
                .query(REQUEUE, &[&codes, &self.error_contains, &max_attempts, &ROWS_PER_STATEMENT])
                .await
                .map_err(|error| anyhow!("requeue: {}", describe(&error)))?;
            requeued.extend(rows.iter().map(|row| row.get::<_, String>("short_code")));
            if rows.len() < ROWS_PER_STATEMENT as usize {
                break;
            }
        }
        let unclaimable = client.query(UNCLAIMABLE, &[&codes, &self.error_contains]).await;
        let unclaimable = unclaimable.map_err(|error| anyhow!("requeue: {}", describe(&error)))?;
        requeued.extend(unclaimable.iter().map(|row| row.get::<_, String>("short_code")));
        let missing = self.short_codes.into_iter().filter(|code| !requeued.contains(code));
        let result = Requeued { requeued: requeued.len(), not_found: missing.collect() };
        print(self.format, &result, |result| {
            let done = format!("{} pastes are due again", thousands(result.requeued));
            match result.not_found.is_empty() {
                true => done,
                false => {
                    let names = result.not_found.iter().map(|code| printable(code));
                    format!("{done}; no dead letters: {}", names.collect::<Vec<_>>().join(", "))
                }
            }
        });
        Ok(u8::from(!result.not_found.is_empty()))
    }
}
