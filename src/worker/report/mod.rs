//! What a run reports of itself: while it runs (`progress`, `run_record`) and when it has ended
//! (`summary`, `text`).

pub(in crate::worker) mod age_histogram;
pub(in crate::worker) mod progress;
pub(in crate::worker) mod run_record;
pub mod summary;
pub mod text;

pub use self::summary::{PhaseTimes, StoppedBecause, Summary, Tally};
use super::Worker;
