//! The expired-paste cleanup fleet.
pub mod migrate;
