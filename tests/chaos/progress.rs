//! How it goes: a bar for people on a terminal, otherwise a line now and then.

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

use crate::{faults::Done, report::figures_of_tables, stage::Stage, support::try_connect};

const A_LINE_EVERY: Duration = Duration::from_secs(10);
const A_LOOK_EVERY: Duration = Duration::from_secs(2);

/// Until it is ended.
pub struct Progress {
    bar: ProgressBar,
    task: AbortHandle,
}

impl Progress {
    pub fn start(stage: Arc<Stage>, done: Done, length: Duration) -> Self {
        let bar =
            ProgressBar::with_draw_target(Some(length.as_secs()), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{elapsed} {wide_bar} {msg}").expect("a template");
        bar.set_style(style);
        let shown = bar.clone();
        let task: JoinHandle<()> = tokio::spawn(async move {
            let start = Instant::now();
            loop {
                let line = line(&stage, &done).await;
                let elapsed = start.elapsed();
                if stderr().is_terminal() {
                    shown.set_position(elapsed.as_secs());
                    shown.set_message(line);
                    sleep(A_LOOK_EVERY).await;
                } else {
                    println!("[{:4}s] {line}", elapsed.as_secs());
                    sleep(A_LINE_EVERY).await;
                }
            }
        });
        Self { bar, task: task.abort_handle() }
    }

    pub fn end(self) {
        self.task.abort();
        self.bar.finish_and_clear();
    }
}

async fn line(stage: &Stage, done: &Done) -> String {
    let faults: u64 = done.lock().expect("done").values().sum();
    let mut line = format!("faults {faults}");
    if let Some(db) = try_connect(&stage.store.database_url).await {
        for (name, count) in figures_of_tables(&db).await.unwrap_or_default() {
            line += &format!(", {name} {count}");
        }
    }
    format!("{line}, violations {}", stage.violations())
}
