//! The crash matrix: at every failpoint a process dies, or is frozen until other processes have
//! taken over and then continues. Every guarantee must hold each time.

mod case;
mod culprit;
mod environment;
mod scenario;
mod sql;
#[path = "../support/mod.rs"]
mod support;

use std::{io::Write, panic::AssertUnwindSafe};

use case::{Case, CaseResult, Fault};
use futures_util::{FutureExt, StreamExt, stream};
use paste_cleanup::{failpoint, format};
use scenario::scenarios_of;
use support::invariants::Findings;
use tokio::time::{Duration, timeout};

/// Cases that run concurrently: they mostly wait.
const CONCURRENT_CASES: usize = 12;
const TIMEOUT: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_miscounted_or_left_behind_wherever_a_process_dies_or_freezes() {
    let cases = failpoint::ALL.iter().flat_map(|point| {
        let faults = [Fault::Abort, Fault::Pause, Fault::Stop];
        let scenarios = scenarios_of(point).into_iter();
        scenarios.flat_map(move |scenario| faults.map(|fault| Case { point, scenario, fault }))
    });
    let cases = cases.filter(|case| case.fault != Fault::Pause || case.leaves_open_claim());
    let only = std::env::var("PASTE_CLEANUP_TEST_CASE").unwrap_or_default();
    let cases: Vec<Case> = cases.filter(|case| format!("{case:?}").contains(&only)).collect();
    assert!(!cases.is_empty(), "no case matches PASTE_CLEANUP_TEST_CASE={only}");
    let found: Vec<CaseResult> =
        stream::iter(cases.clone()).map(run).buffered(CONCURRENT_CASES).collect().await;
    print_table(&cases, &found);
    let results = cases.iter().zip(&found);
    let broken: Vec<_> =
        results.filter(|(_, result)| !result.found.violations.is_empty()).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Runs a case. One that panics or times out counts as a violation.
async fn run(case: Case) -> CaseResult {
    let broken = |why: String| {
        let found = Findings { violations: vec![why], ..Findings::default() };
        CaseResult { found, ..CaseResult::default() }
    };
    let running = AssertUnwindSafe(timeout(TIMEOUT, case.run())).catch_unwind();
    match running.await {
        Ok(Ok(found)) => found,
        Ok(Err(_)) => broken(format!("the case did not end within {TIMEOUT:?}")),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map_or("no message", String::as_str);
            broken(format!("the case panicked: {text}"))
        }
    }
}

/// Prints one table with a line for each case, bypassing the capture of test output.
fn print_table(cases: &[Case], result: &[CaseResult]) {
    let head = [
        "failpoint",
        "scenario",
        "fault",
        "resets",
        "stored again",
        "pastes",
        "counts",
        "objects",
        "objects read",
        "verdict",
    ];
    let rows =
        cases.iter().zip(result).map(|(case, CaseResult { found, resets, stored_again })| {
            let verdict = match found.violations.len() {
                0 => "holds".into(),
                wrong => format!("{wrong} BROKEN"),
            };
            let texts =
                [case.point.into(), format!("{:?}", case.scenario), format!("{:?}", case.fault)];
            let numbers =
                [*stored_again, found.pastes, found.content_rows, found.objects, found.read]
                    .map(|n| n.to_string());
            texts.into_iter().chain([resets.to_string()]).chain(numbers).chain([verdict]).collect()
        });
    let table = format::table(&head, rows);
    writeln!(std::io::stdout(), "\n{table}\n{} cases", cases.len()).expect("stdout");
}
