//! Points where a test can kill or stop the process: before and after every write. They are
//! compiled in with the feature `failpoints` only, which a release build refuses.
//!
//! `FAILPOINTS="decrement.fenced=1*return(abort)" cleanup-worker run` dies the first time that the
//! fence of a decrement is taken; `return(stop)` freezes the whole process there, as SIGSTOP does,
//! until SIGCONT; `panic` breaks off the batch.

#[cfg(all(feature = "failpoints", not(debug_assertions)))]
compile_error!("failpoints are for tests: build without --release, or without the feature");

/// All of them, in the order in which a batch, a release and a sweep come by.
pub const ALL: &[&str] = &[
    "start.before_binding",
    "start.bound",
    "lock.before_taking",
    "lock.taken",
    "claim.before",
    "claim.marked",
    "claim.remembered",
    "claim.committed",
    "lock.before_releasing",
    "lock.released",
    "heartbeat.before",
    "heartbeat.after",
    "decrement.before",
    "decrement.fenced",
    "decrement.content_locked",
    "decrement.subtracted",
    "decrement.counted",
    "decrement.rows_failed",
    "decrement.recorded",
    "decrement.committed",
    "objects.before_call",
    "objects.after_call",
    "evict.before",
    "evict.after",
    "finish.before",
    "finish.fenced",
    "finish.locked",
    "finish.rows_failed",
    "finish.leftovers",
    "finish.removed",
    "finish.counted",
    "finish.committed",
    "release.before",
    "release.committed",
    "sweep.before",
    "sweep.locked",
    "reset.pending_keys_assigned",
    "reset.pastes_reset",
    "reset.locked",
    "reset.good_reset",
    "reset.closed",
    "sweep.committed",
    "stranded.before",
    "stranded.stamped",
    "stranded.reset",
    "stranded.committed",
    "count.before",
    "count.after",
    "prune.before",
    "prune.after",
    "purge.before",
    "purge.after",
];

/// Reads `FAILPOINTS`. Called once, when a program starts.
#[cfg(feature = "failpoints")]
pub(crate) fn arm() {
    // Dropping the scenario would disarm it.
    std::mem::forget(fail::FailScenario::setup());
}

/// The process is at this point.
#[cfg(feature = "failpoints")]
pub(crate) fn reached(point: &'static str) {
    debug_assert!(ALL.contains(&point), "{point} is not in the list");
    fail::fail_point!(point, |what| act(point, what.as_deref()));
}

/// The process holds a paste: `FAILPOINTS="paste.held=return(CODE)"` dies with that one.
#[cfg(feature = "failpoints")]
pub(crate) fn holds(pastes: &[crate::claim::Paste]) {
    let killed_by = |code: String| pastes.iter().any(|paste| paste.short_code == code);
    fail::fail_point!("paste.held", |code| if code.is_some_and(killed_by) {
        std::process::abort()
    });
}

#[cfg(feature = "failpoints")]
fn act(point: &str, what: Option<&str>) {
    eprintln!("failpoint {point}: {}", what.unwrap_or("nothing"));
    match what {
        Some("abort") => std::process::abort(),
        Some("stop") => {
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::STOP);
            // The signal stops all threads in a moment; this one goes no further until then.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        _ => {}
    }
}

#[cfg(not(feature = "failpoints"))]
pub(crate) fn arm() {}

#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn reached(_: &'static str) {}

#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn holds(_: &[crate::claim::Paste]) {}
