//! `cleanupctl status`: the fleet at a glance, never by a full count.

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;
use uuid::Uuid;

use crate::{
    cli::{Format, print, table, thousands},
    config::Settings,
    fleet, migrate,
    postgres::describe,
};

const STATUS: &str = include_str!("../../sql/queries/status.sql");
const OPEN_CLAIMS: &str = include_str!("../../sql/queries/open_claims.sql");
const MOST_COUNTED: i32 = 1_000_000;

#[derive(Args, Debug)]
pub(super) struct Status {
    /// How the status is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Serialize)]
struct Figures {
    bucket: Option<String>,
    paused: Option<String>,
    /// Due right now, counted up to a million.
    backlog: i64,
    oldest_overdue_s: Option<i64>,
    backing_off: i64,
    dead_letters: i64,
    open_claims: i64,
    rows_in_progress: i64,
    stuck_claims: i64,
    deleted_24h: i64,
    deleted_1m: i64,
    workers: Vec<OpenWorker>,
}

#[derive(Serialize)]
struct OpenWorker {
    worker: Uuid,
    claims: i64,
    rows: i64,
    oldest_beat_ms: i64,
    oldest_claim_ms: i64,
}

impl Status {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let client = super::connect(settings).await?;
        migrate::check(&client).await?;
        let fleet = fleet::read(&client).await?;
        let failed = |error| anyhow!("status: {}", describe(&error));
        let stuck_after = settings.watchdog.stuck_after.as_secs_f64();
        let row = client.query_one(STATUS, &[&MOST_COUNTED, &stuck_after]).await.map_err(failed)?;
        let workers = client.query(OPEN_CLAIMS, &[]).await.map_err(failed)?;
        let figures = Figures {
            bucket: fleet.bucket,
            paused: fleet.paused,
            backlog: row.get("backlog"),
            oldest_overdue_s: row.get("oldest_overdue_s"),
            backing_off: row.get("backing_off"),
            dead_letters: row.get("dead_letters"),
            open_claims: row.get("open_claims"),
            rows_in_progress: row.get("rows_in_progress"),
            stuck_claims: row.get("stuck_claims"),
            deleted_24h: row.get("deleted_24h"),
            deleted_1m: row.get("deleted_1m"),
            workers: workers
                .iter()
                .map(|row| OpenWorker {
                    worker: row.get("worker"),
                    claims: row.get("claims"),
                    rows: row.get("rows"),
                    oldest_beat_ms: row.get("oldest_beat_ms"),
                    oldest_claim_ms: row.get("oldest_claim_ms"),
                })
                .collect(),
        };
        print(self.format, &figures, show);
        Ok(0)
    }
}

fn show(figures: &Figures) -> String {
    let more = if figures.backlog >= i64::from(MOST_COUNTED) { "+" } else { "" };
    let seconds = |s: i64| {
        let age = std::time::Duration::from_secs(u64::try_from(s).unwrap_or_default());
        humantime::format_duration(age).to_string()
    };
    let overdue = figures.oldest_overdue_s.map_or("nothing overdue".into(), seconds);
    let rows = [
        ("bucket", figures.bucket.clone().unwrap_or_else(|| "not bound yet".into())),
        ("paused", figures.paused.clone().unwrap_or_else(|| "no".into())),
        ("backlog", format!("{}{more}", thousands(figures.backlog))),
        ("oldest overdue", overdue),
        ("in progress", thousands(figures.rows_in_progress)),
        ("open claims", thousands(figures.open_claims)),
        ("stuck claims", thousands(figures.stuck_claims)),
        ("backing off", thousands(figures.backing_off)),
        ("dead letters", thousands(figures.dead_letters)),
        ("deleted, last minute", thousands(figures.deleted_1m)),
        ("deleted, last 24 h", thousands(figures.deleted_24h)),
    ];
    let fleet = table(&["fleet", ""], rows.map(|(name, value)| vec![name.to_string(), value]));
    if figures.workers.is_empty() {
        return fleet;
    }
    let workers = figures.workers.iter().map(|worker| {
        let beat = format!("{:.1} s ago", worker.oldest_beat_ms as f64 / 1000.0);
        let (claims, rows) = (thousands(worker.claims), thousands(worker.rows));
        vec![worker.worker.to_string(), claims, rows, beat]
    });
    format!("{fleet}\n{}", table(&["worker", "claims", "pastes", "last beat"], workers))
}
