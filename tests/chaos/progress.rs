//! Shows the progress: a bar on a terminal, otherwise a line every 10 s.

use std::{
    io::{IsTerminal, stderr},
    sync::Arc,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::{
    task::{AbortHandle, JoinHandle},
    time::{Instant, sleep},
};

use crate::{activity::table_stats, environment::Environment, faults::Done, support::try_connect};

const PRINT_EVERY: Duration = Duration::from_secs(10);
const REFRESH_EVERY: Duration = Duration::from_secs(2);

/// The running progress display.
pub(crate) struct Progress {
    bar: ProgressBar,
    task: AbortHandle,
}

impl Progress {
    pub(crate) fn start(env: Arc<Environment>, done: Done, length: Duration) -> Self {
        let bar =
            ProgressBar::with_draw_target(Some(length.as_secs()), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{elapsed} {wide_bar} {msg}").expect("a template");
        bar.set_style(style);
        let shown = bar.clone();
        let task: JoinHandle<()> = tokio::spawn(async move {
            let start = Instant::now();
            loop {
                let line = line(&env, &done).await;
                let elapsed = start.elapsed();
                if stderr().is_terminal() {
                    shown.set_position(elapsed.as_secs());
                    shown.set_message(line);
                    sleep(REFRESH_EVERY).await;
                } else {
                    println!("[{:4}s] {line}", elapsed.as_secs());
                    sleep(PRINT_EVERY).await;
                }
            }
        });
        Self { bar, task: task.abort_handle() }
    }

    pub(crate) fn end(self) {
        self.task.abort();
        self.bar.finish_and_clear();
    }
}

async fn line(env: &Environment, done: &Done) -> String {
    let faults: u64 = done.lock().expect("done").values().sum();
    let mut line = format!("faults {faults}");
    if let Some(db) = try_connect(&env.store.database_url).await {
        for (name, count) in table_stats(&db).await.unwrap_or_default() {
            line += &format!(", {name} {count}");
        }
    }
    format!("{line}, violations {}", env.violations())
}
