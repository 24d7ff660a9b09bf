//! A claimed paste, and the size of the batches that it may be claimed in.

use std::time::Duration;

/// A claimed paste, as the claim's RETURNING clause returned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paste {
    /// The primary key of `pastes`.
    pub short_code: String,
    /// `None`: this row has no reference any more.
    pub content_hash: Option<Vec<u8>>,
    /// The pending object delete of this row, if it has one.
    pub pending_s3_key: Option<String>,
    /// Failed attempts before this claim, including the deaths of workers that had claimed it.
    pub attempts: i16,
    /// A step failed for this row alone in an earlier attempt.
    pub failed_before: bool,
    /// How long it had been expired when it was claimed, by Postgres' clock.
    pub overdue: Duration,
}

impl Paste {
    /// Returns the class of the row: how many workers died while they had claimed it. A batch has
    /// rows of one class, and a higher class means smaller batches. A row that failed by itself
    /// harms no other row and has class 0.
    pub fn class(&self) -> i16 {
        if self.failed_before { 0 } else { self.attempts }
    }
}

/// Returns the highest class whose batches have more than one row. The batch size is divided by ten
/// for each attempt that ended with the death of its worker; rows of a higher class run alone in
/// their process.
pub fn max_shared_attempts(batch_size: u32) -> i32 {
    let mut attempts = 0;
    while batch_size / 10_u32.pow(attempts + 1) >= 2 {
        attempts += 1;
    }
    i32::try_from(attempts).unwrap_or(i32::MAX)
}

/// Returns whether a row of this class must be claimed alone: too many workers died with it.
pub fn must_run_alone(batch_size: u32, class: i16) -> bool {
    i32::from(class) > max_shared_attempts(batch_size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn batches_shrink_to_one_by_tens() {
        assert_eq!(max_shared_attempts(1000), 2);
        assert!(!must_run_alone(1000, 2));
        assert!(must_run_alone(1000, 3));
        assert!(must_run_alone(5, 1));
        assert!(!must_run_alone(1, 0));
    }
    proptest! {
        #![proptest_config(crate::same_cases())]

        #[test]
        fn a_row_runs_alone_exactly_when_its_share_of_the_batch_is_one_or_less(
            batch_size in 1..=10_000_u32,
            attempts in 1..=12_i16,
        ) {
            let share = (0..attempts).fold(batch_size, |size, _| size / 10);
            prop_assert_eq!(must_run_alone(batch_size, attempts), share <= 1);
            prop_assert!(!must_run_alone(batch_size, 0));
        }

        #[test]
        fn another_attempt_never_ends_isolation_and_a_larger_batch_never_causes_it(
            batch_size in 1..10_000_u32,
            attempts in 0..32_767_i16,
        ) {
            let alone = must_run_alone(batch_size, attempts);
            prop_assert!(!alone || must_run_alone(batch_size, attempts + 1));
            prop_assert!(alone || !must_run_alone(batch_size + 1, attempts));
        }
    }
}
