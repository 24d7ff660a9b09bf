//! Settings for single transactions: planner switches, and timeouts for work row by row.
//!
//! Each statement of the fleet has one right plan. The statistics of a queue are wrong most of the time
//! (everything was inserted or deleted minutes ago), so the switches rule out every other plan. A switch
//! at session level would affect the owner's triggers as well.

/// For a transaction that finds all its rows by their keys: one cached plan, and never a sequential scan,
/// whatever the statistics are. (Planning again for the thousand keys of each batch takes a tenth of the
/// statement's own time.) Without hash and merge joins: with an array of keys they read the whole table,
/// which is cheap while the table is small, and the plan would be kept.
pub const BY_KEY: &str = "SET LOCAL plan_cache_mode = force_generic_plan; \
                          SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; \
                          SET LOCAL enable_mergejoin = off";

/// Leaves only one plan, the scan along pastes_due_idx. Without index-only scans: planned while
/// cleanup_unclaimable is empty, the lookup of a row would read all of cleanup_unclaimable_retry_idx,
/// and the plan would be kept.
pub const BY_DUE_INDEX: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
                                SET LOCAL enable_sort = off; SET LOCAL enable_indexonlyscan = off";

/// For a reset: leaves only the plan that updates rows in the order in which they were selected. The
/// trigger pastes_verify_content may defer rows whose content row is locked.
pub(crate) const IN_PICKED_ORDER: &str = "SET LOCAL enable_hashjoin = off; \
                                          SET LOCAL enable_mergejoin = off; \
                                          SET LOCAL enable_seqscan = off; \
                                          SET LOCAL paste_cleanup.may_defer = 'on'";

/// For a transaction that works row by row: a short lock_timeout finds a locked row soon. Deferred
/// constraints are checked immediately: at COMMIT it is too late to find the row that violates one. The
/// trigger pastes_verify_content may defer rows whose content row is locked.
pub(crate) const ROW_BY_ROW: &str = "SET LOCAL lock_timeout = 500; SET CONSTRAINTS ALL IMMEDIATE; \
                                     SET LOCAL paste_cleanup.may_defer = 'on'";
