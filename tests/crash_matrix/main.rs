//! The crash matrix: at every failpoint a process dies, and at every failpoint one is frozen until
//! others have taken over and then goes on; every promise holds each time.

mod case;
mod culprit;
mod owners;
mod scene;
#[path = "../support/mod.rs"]
mod support;

use std::{io::Write, panic::AssertUnwindSafe};

use case::{Case, Fault, Played};
use futures_util::{FutureExt, StreamExt, stream};
use paste_cleanup::{failpoint, format};
use scene::scenes_of;
use support::invariants::Findings;
use tokio::time::{Duration, timeout};

/// Cases that are played at the same time: they mostly wait.
const AT_ONCE: usize = 12;
const LONGEST: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn wherever_a_process_dies_or_freezes_nothing_is_lost_miscounted_or_left_behind() {
    let cases = failpoint::ALL.iter().flat_map(|point| {
        let faults = [Fault::Abort, Fault::Pause, Fault::Stop];
        let scenes = scenes_of(point).into_iter();
        scenes.flat_map(move |scene| faults.map(|fault| Case { point, scene, fault }))
    });
    let cases = cases.filter(|case| case.fault != Fault::Pause || case.leaves_a_claim());
    let only = std::env::var("PASTE_CLEANUP_TEST_CASE").unwrap_or_default();
    let cases: Vec<Case> = cases.filter(|case| format!("{case:?}").contains(&only)).collect();
    assert!(!cases.is_empty(), "no case is called {only:?}");
    let found: Vec<Played> =
        stream::iter(cases.clone()).map(play).buffered(AT_ONCE).collect().await;
    show(&cases, &found);
    let played = cases.iter().zip(&found);
    let broken: Vec<_> = played.filter(|(_, played)| !played.found.violations.is_empty()).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// A case that breaks off is a broken promise, too.
async fn play(case: Case) -> Played {
    let broken = |why: String| {
        let found = Findings { violations: vec![why], ..Findings::default() };
        Played { found, ..Played::default() }
    };
    let played = AssertUnwindSafe(timeout(LONGEST, case.play())).catch_unwind();
    match played.await {
        Ok(Ok(found)) => found,
        Ok(Err(_)) => broken(format!("no end within {LONGEST:?}")),
        Err(panic) => broken(format!("broke off: {:?}", panic.downcast_ref::<String>())),
    }
}

/// One table, past the capture of the test's output.
fn show(cases: &[Case], played: &[Played]) {
    let head = [
        "failpoint",
        "scene",
        "fault",
        "resets",
        "stored anew",
        "pastes",
        "counts",
        "objects",
        "bodies read",
        "verdict",
    ];
    let rows = cases.iter().zip(played).map(|(case, Played { found, resets, stored_anew })| {
        let verdict = match found.violations.len() {
            0 => "holds".into(),
            wrong => format!("{wrong} BROKEN"),
        };
        let texts = [case.point.into(), format!("{:?}", case.scene), format!("{:?}", case.fault)];
        let numbers = [*stored_anew, found.pastes, found.bodies, found.objects, found.read]
            .map(|n| n.to_string());
        texts.into_iter().chain([resets.to_string()]).chain(numbers).chain([verdict]).collect()
    });
    let table = format::table(&head, rows);
    writeln!(std::io::stdout(), "\n{table}\n{} cases", cases.len()).expect("stdout");
}
