//! A progress bar for people on a terminal; nothing under cron.

use std::{
    io::{IsTerminal, stderr},
    sync::Arc,
    time::Duration,
};

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use tokio::task::JoinHandle;

use crate::{
    format::thousands,
    telemetry,
    worker::{Worker, report::left::left},
};

/// Starts the bar, if stderr is a terminal.
pub(in crate::worker) fn start(worker: Arc<Worker>) -> Option<JoinHandle<()>> {
    if !stderr().is_terminal() {
        return None;
    }
    Some(tokio::spawn(async move {
        let bar = telemetry::show_bar(ProgressBar::new(0));
        if let Ok(style) = ProgressStyle::with_template(
            "{wide_bar} {human_pos}/{human_len}{prefix} pastes, {rate}{msg}",
        ) {
            let rate = |state: &ProgressState, text: &mut dyn std::fmt::Write| {
                let _ = write!(text, "{}/s", thousands(state.per_sec().round() as u64));
            };
            bar.set_style(style.with_key("rate", rate));
        }
        let (mut ticks, mut round) = (tokio::time::interval(Duration::from_millis(250)), 0_u32);
        let mut is_capped = false;
        loop {
            ticks.tick().await;
            // The length is counted once a minute: more pastes expire while the run goes on.
            if round.is_multiple_of(240) {
                // Before the count: what is deleted meanwhile must not be counted twice.
                let taken = worker.tally.rows_taken();
                let left = left(&worker).await.unwrap_or_default();
                bar.set_length(taken + u64::try_from(left.due).unwrap_or_default());
                is_capped = left.is_capped();
                bar.set_prefix(if is_capped { "+" } else { "" });
            }
            let deleted = worker.tally.rows();
            bar.set_position(deleted);
            bar.set_length(bar.length().unwrap_or_default().max(deleted));
            bar.set_message(match worker.record.waiting_for() {
                Some(reason) => format!("; waiting for {}", shortened(&reason)),
                None if is_capped || bar.eta().is_zero() => String::new(),
                None => format!(", {:#} left", HumanDuration(bar.eta())),
            });
            round += 1;
        }
    }))
}

/// A bar that is longer than the line would be drawn again and again.
fn shortened(reason: &str) -> String {
    const LONGEST: usize = 40;
    match reason.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &reason[..end]),
        None => reason.into(),
    }
}

pub(in crate::worker) fn end(bar: Option<JoinHandle<()>>) {
    if let Some(task) = bar {
        task.abort();
        telemetry::hide_bar();
    }
}
