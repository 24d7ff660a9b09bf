//! Settings for single transactions: planner switches, and timeouts for work row by row.
//!
//! The fleet knows which plan is right for each of its statements. Statistics of a queue are wrong most
//! of the time (everything was inserted or deleted minutes ago), so the switches rule out every other
//! plan. A switch at session level would reach the owner's triggers, too.

/// First in a transaction that finds all its rows by their keys: one plan for good, and never a walk
/// through the table, whatever the statistics say or do not say. (Planning anew for the thousand
/// keys of each batch takes a tenth of the statement's own time.) Without hash and merge joins: with an
/// array of keys they read the whole table, which looks cheap while it is small, and the plan is kept.
pub const BY_KEY: &str = "SET LOCAL plan_cache_mode = force_generic_plan; \
                          SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; \
                          SET LOCAL enable_mergejoin = off";

/// Leaves no other plan than the walk along pastes_due_idx.
pub const BY_DUE_INDEX: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
                                SET LOCAL enable_sort = off";

/// Rows are reset one by one, in the order in which they were picked: no other plan keeps it. The
/// trigger pastes_verify_content lets rows wait for content that is locked.
pub(crate) const IN_PICKED_ORDER: &str = "SET LOCAL enable_hashjoin = off; \
                                          SET LOCAL enable_mergejoin = off; \
                                          SET LOCAL enable_seqscan = off; \
                                          SET LOCAL paste_cleanup.may_defer = 'on'";

/// First in a transaction that works row by row: a statement that waits for a lock is found soon.
/// Deferred constraints would otherwise fail at COMMIT, when it is too late to tell which row. The
/// trigger pastes_verify_content lets rows wait for content that is locked.
pub(crate) const ROW_BY_ROW: &str = "SET LOCAL lock_timeout = 500; SET CONSTRAINTS ALL IMMEDIATE; \
                                     SET LOCAL paste_cleanup.may_defer = 'on'";
