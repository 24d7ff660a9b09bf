//! Every paste of a batch failed, one after the other: is it the pastes, or the database? Pastes of one
//! owner come due side by side, so a whole batch of them proves little. Some of those that came due last
//! are tried before the run stops.

use std::time::Duration;

use super::{StoppedBecause, drain::Drain};
use crate::{
    postgres::{answered, bisect::IN_A_ROW},
    worker::batch::claim::ClaimError,
};

/// What is to be found out.
pub(in crate::worker) struct Doubt {
    reason: String,
    /// The batch of those that came due last is on its way.
    is_tried: bool,
}

impl Drain {
    pub(in crate::worker) fn doubt_it(&mut self, reason: String) {
        match self.doubt.take() {
            Some(Doubt { is_tried: true, .. }) => self.give_up(reason),
            _ => self.doubt = Some(Doubt { reason, is_tried: false }),
        }
    }

    fn give_up(&mut self, reason: String) {
        self.stop = Some((StoppedBecause::Failed, Some(reason)));
    }

    /// Waits for the batches in flight, any of which may answer it; then tries others.
    pub(in crate::worker) async fn resolve_doubt(&mut self) {
        if !self.batches.is_empty() {
            return self.wait(Duration::from_secs(1)).await;
        }
        let Some(Doubt { reason, is_tried: false }) = self.doubt.take() else {
            // They neither succeeded nor failed one and all: let the next batch decide.
            return;
        };
        match answered::<_, ClaimError>(self.worker.claim_newest()).await {
            Ok(Some(claim)) => {
                self.doubt = Some(Doubt { reason, is_tried: true });
                let size = u32::try_from(IN_A_ROW).unwrap_or(u32::MAX);
                self.set_off(claim, size);
            }
            Ok(None) => self.give_up(reason),
            Err(error) if error.is_permanent() => self.give_up(error.to_string()),
            Err(error) => {
                self.doubt = Some(Doubt { reason, is_tried: false });
                self.outage = Some(error.to_string());
            }
        }
    }
}
