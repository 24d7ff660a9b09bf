//! Shows the progress of an audit: a bar on a terminal, else a log line every 30 s.

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;
use tokio_postgres::Client;
use tracing::info;

use super::{Position, Report, content_keys::sizes};
use crate::telemetry;

const LOG_EVERY: Duration = Duration::from_secs(30);

/// The progress bar, or the time of the last log line.
#[derive(Default)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    logged: Option<Instant>,
}

impl Progress {
    /// Estimates the length by the planner's statistics: the content rows, about as many objects, and
    /// the pastes.
    pub(super) async fn start(db: &Client) -> Self {
        let logged = Some(Instant::now());
        if !stderr().is_terminal() {
            return Self { bar: None, logged };
        }
        let (content, pastes) = sizes(db).await.unwrap_or_default();
        let bar = telemetry::show_bar(ProgressBar::new(2 * content + pastes));
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent}%, {msg}, {eta} left")
        {
            bar.set_style(style);
        }
        Self { bar: Some(bar), logged }
    }

    /// `queued`: findings that are deleted at the end, and not in the report yet. `resume`: the position
    /// that leaves out nothing queued.
    pub(super) fn show(&mut self, report: &Report, queued: u64, at: &Position, resume: &Position) {
        let found = report.found() + queued;
        let done = report.objects + report.content_rows + report.sentinels + report.pastes;
        if let Some(bar) = &self.bar {
            bar.set_length(bar.length().unwrap_or_default().max(done));
            bar.set_position(done);
            let walk = match at {
                Position::Objects(_) => "checking the bucket",
                Position::Counts(_) => "checking counts",
                Position::Pastes(_) => "checking pastes",
            };
            bar.set_message(format!("{walk}, findings: {found}"));
        } else if self.logged.is_some_and(|logged| logged.elapsed() >= LOG_EVERY) {
            self.logged = Some(Instant::now());
            let (objects, content_rows) = (report.objects, report.content_rows);
            info!(objects, content_rows, found, %at, "audit in progress, checked up to {at}, findings so far: {found}; `--after {resume}` resumes");
        }
    }

    pub(super) fn end(&mut self) {
        if self.bar.take().is_some() {
            telemetry::hide_bar();
        }
    }
}
