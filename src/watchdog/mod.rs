//! The watchdog: resets what silent workers left behind, prunes history, serves health and metrics.

pub mod cli;
mod clocks;
pub mod history;
mod orphans;
pub mod prune;
pub mod reset;
pub mod sweep;
mod tick;

pub use orphans::Look;
pub use sweep::{SweepError, Swept, let_workers_beat_first, sweep};
pub use tick::{Ticked, Watchdog};
