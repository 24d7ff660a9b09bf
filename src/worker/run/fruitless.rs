//! Ends a run that only repeats what fails. A paste that is locked, slow or stuck in S3 pays no attempt
//! and comes due again for as long as its cause lasts, so waiting for such pastes may never end.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::next_due::WORTH_WAITING_S;
use crate::{claim::Claim, config::Worker as Settings};

/// Whether the run still gets anywhere.
#[derive(Debug, Default)]
pub(super) struct Fruitless {
    /// When the first claim was made, by Postgres' clock. A paste that came due earlier has not failed in
    /// this run.
    first_claimed_at: Option<SystemTime>,
    /// Since when no batch has deleted a paste, and none had a paste from before the first claim.
    since: Option<Instant>,
    /// A claim without the low-water mark has been tried since then.
    was_tried_without_mark: bool,
    /// Batches in a row whose pastes had all left the claim.
    left_in_a_row: u32,
}

/// Another program may reset the pastes of a batch or two by hand.
const MOST_LEFT_IN_A_ROW: u32 = 20;

/// Something takes the pastes of every batch away.
#[derive(thiserror::Error, Debug)]
#[error(
    "all pastes of {MOST_LEFT_IN_A_ROW} batches in a row left their claims before they were deleted: a \
     trigger on pastes or another program resets them; `cleanupctl doctor` lists the triggers"
)]
pub(super) struct AlwaysLeft;

impl Fruitless {
    pub(super) fn batch_started(&mut self, claim: &Claim) {
        let first = *self.first_claimed_at.get_or_insert(claim.claimed_at);
        if claim.first_due < first {
            self.forget();
        }
    }

    /// Returns an error if pastes leave their claims again and again: they are due at once, so the run
    /// would claim them without end.
    pub(super) fn batch_finished(&mut self, rows: usize, all_left: bool) -> Result<(), AlwaysLeft> {
        match rows {
            0 => drop(self.since.get_or_insert_with(Instant::now)),
            _ => self.forget(),
        }
        self.left_in_a_row = if all_left { self.left_in_a_row + 1 } else { 0 };
        match self.left_in_a_row < MOST_LEFT_IN_A_ROW {
            true => Ok(()),
            false => Err(AlwaysLeft),
        }
    }

    pub(super) fn forget(&mut self) {
        (self.since, self.was_tried_without_mark) = (None, false);
    }

    /// A pause on purpose does not count.
    pub(super) fn exclude(&mut self, pause: Duration) {
        self.since = self.since.map(|since| since + pause);
    }

    /// Whether a paste would have failed for the last time by now, if its failures counted.
    pub(super) fn is_too_long(&self, settings: &Settings) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= all_attempts(settings))
    }

    /// Returns whether to try a claim without the low-water mark before the run ends: it may have passed
    /// pastes that must run alone.
    pub(super) fn try_without_mark(&mut self) -> bool {
        !std::mem::replace(&mut self.was_tried_without_mark, true)
    }
}

/// Attempts take time, too, which a small `worker.backoff_cap` does not contain.
const AT_LEAST: Duration = Duration::from_secs(20);

/// How long all attempts of a paste take whose waits are worth waiting for.
fn all_attempts(settings: &Settings) -> Duration {
    let worth_waiting = Duration::from_secs(WORTH_WAITING_S.unsigned_abs().into());
    let attempts = 1..=u64::from(settings.max_attempts);
    let waits = attempts.map(|attempt| Duration::from_secs(attempt * attempt));
    let waits = waits.map(|wait| wait.min(settings.backoff_cap));
    waits.filter(|wait| *wait <= worth_waiting).sum::<Duration>().max(AT_LEAST)
}
