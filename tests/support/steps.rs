//! The steps of a batch, called in the test's own process.

use std::sync::Arc;

use paste_cleanup::{
    claim::Claim,
    worker::{
        Worker,
        batch::claim::Wanted,
        report::{PhaseTimes, Summary},
        run::Options,
    },
};

/// Claims as a run does that has no other claim open.
pub(crate) async fn claim(worker: &Worker, size: u32) -> Option<Claim> {
    worker.claim(Wanted { size, mark: None, busy: false, until: None }).await.expect("claim")
}

/// Claims, and panics if nothing is due.
pub(crate) async fn claim_some(worker: &Worker, size: u32) -> Claim {
    claim(worker, size).await.expect("something to claim")
}

/// Performs the steps after the claim: decrement, delete objects, evict, finish.
pub(crate) async fn carry_out(worker: &Worker, claim: &Claim) {
    let decremented = worker.decrement(claim).await.expect("decrement");
    let objects = worker.delete_objects(claim, &decremented).await.expect("delete objects");
    worker.evict(claim).await;
    worker.finish(claim, &objects, &PhaseTimes::default()).await.expect("finish");
}

/// Performs a whole run.
pub(crate) async fn drain(worker: &Arc<Worker>) -> Summary {
    worker.run(Options::default()).await
}

pub(crate) fn codes(claim: &Claim) -> Vec<String> {
    let mut codes: Vec<String> = claim.pastes.iter().map(|p| p.short_code.clone()).collect();
    codes.sort();
    codes
}
