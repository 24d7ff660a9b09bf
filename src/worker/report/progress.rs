//! A progress bar for people on a terminal; nothing under cron.

use std::{
    io::{IsTerminal, stderr},
    sync::Arc,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use tokio::task::JoinHandle;

use super::Worker;
use crate::{format::thousands, telemetry};

/// Starts the bar, if there is somebody to see it.
pub(in crate::worker) fn start(worker: Arc<Worker>) -> Option<JoinHandle<()>> {
    if !stderr().is_terminal() {
        return None;
    }
    Some(tokio::spawn(async move {
        let bar = telemetry::show_bar(ProgressBar::new(0));
        if let Ok(style) = ProgressStyle::with_template(
            "{wide_bar} {human_pos}/{human_len} pastes, {rate}, {eta} left{msg}",
        ) {
            let rate = |state: &ProgressState, text: &mut dyn std::fmt::Write| {
                let _ = write!(text, "{}/s", thousands(state.per_sec().round() as u64));
            };
            bar.set_style(style.with_key("rate", rate));
        }
        let (mut ticks, mut round) = (tokio::time::interval(Duration::from_millis(250)), 0_u32);
        loop {
            ticks.tick().await;
            let deleted = worker.tally.rows();
            // The length is looked up now and then: more pastes expire while the run goes on.
            if round.is_multiple_of(240) {
                let left = worker.left().await.unwrap_or_default();
                bar.set_length(deleted + u64::try_from(left.due).unwrap_or_default());
            }
            bar.set_position(deleted);
            let waiting = worker.waiting_for().map(|reason| format!("; waiting for {reason}"));
            bar.set_message(waiting.unwrap_or_default());
            round += 1;
        }
    }))
}

impl Worker {
    /// What the claims wait for right now, else the batches in flight.
    fn waiting_for(&self) -> Option<String> {
        self.tally.waiting_for().or_else(|| self.objects.waiting_for())
    }
}

pub(in crate::worker) fn end(bar: Option<JoinHandle<()>>) {
    if let Some(task) = bar {
        task.abort();
        telemetry::hide_bar();
    }
}
