//! A progress bar for people on a terminal; a log line now and then for everybody else.

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;
use tokio_postgres::Client;
use tracing::info;

use super::{Position, Report, rows::sizes};
use crate::telemetry;

const LOG_EVERY: Duration = Duration::from_secs(30);

/// Who is told, and how.
#[derive(Default)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    told: Option<Instant>,
}

impl Progress {
    /// By the planner's statistics: there are about as many objects as content rows, which are
    /// walked through twice, and the pastes.
    pub async fn start(db: &Client) -> Self {
        let told = Some(Instant::now());
        if !stderr().is_terminal() {
            return Self { bar: None, told };
        }
        let (content, pastes) = sizes(db).await.unwrap_or_default();
        let bar = telemetry::show_bar(ProgressBar::new(2 * content + pastes));
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent}%, {msg}, {eta} left")
        {
            bar.set_style(style);
        }
        Self { bar: Some(bar), told }
    }

    /// `pending`: found, and to be deleted at the end.
    pub fn show(&mut self, report: &Report, pending: u64, at: &Position) {
        let found = report.found() + pending;
        let done = report.objects + report.content_rows + report.sentinels + report.pastes;
        if let Some(bar) = &self.bar {
            bar.set_length(bar.length().unwrap_or_default().max(done));
            bar.set_position(done);
            let walk = match at {
                Position::Objects(_) => "bucket against tables",
                Position::Counts(_) => "counts",
                Position::Pastes(_) => "pastes",
            };
            bar.set_message(format!("{walk}, {found} found"));
        } else if self.told.is_some_and(|told| told.elapsed() >= LOG_EVERY) {
            self.told = Some(Instant::now());
            let (objects, content_rows) = (report.objects, report.content_rows);
            info!(objects, content_rows, found, %at, "auditing: {found} found so far, done up to {at}");
        }
    }

    pub fn end(&mut self) {
        if self.bar.take().is_some() {
            telemetry::hide_bar();
        }
    }
}
