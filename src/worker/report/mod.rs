//! What a run reports of itself: while it runs (`tally`, `progress`, `run_record`) and when it has ended
//! (`left`, `summary`, `text`).

pub(super) mod age_histogram;
pub(super) mod left;
pub(super) mod progress;
pub(super) mod run_record;
pub mod summary;
mod tally;
pub mod text;

pub(super) use self::run_record::RunRecord;
pub(super) use self::tally::Stats;
pub use self::{
    left::Left,
    summary::{PhaseTimes, StoppedBecause, Summary},
    tally::Tally,
};
