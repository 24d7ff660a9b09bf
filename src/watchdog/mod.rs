//! The watchdog: resets claims whose lease has expired, adds up totals, prunes history, and serves health
//! and metrics.

pub mod cli;
mod clocks;
pub mod http;
pub mod prune;
mod stranded;
pub mod sweep;
mod tick;
pub mod totals;

pub use stranded::Depth;
pub use sweep::{SweepError, Swept, let_workers_heartbeat_first, sweep};
pub use tick::{Ticked, Watchdog};
