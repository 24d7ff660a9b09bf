//! Random values for property tests, the same in every run. `PASTE_CLEANUP_TEST_SEED=<number>` uses
//! other values, `PASTE_CLEANUP_TEST_CASES=<number>` another number of cases. No files are written.

use std::{cell::RefCell, fmt::Debug};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner},
};

/// The time limit for shrinking a failing value; enough for most.
const SHRINK_FOR_MS: u32 = 90_000;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(format!("PASTE_CLEANUP_TEST_{name}")).ok()?;
    Some(
        value.parse().unwrap_or_else(|_| {
            panic!("PASTE_CLEANUP_TEST_{name} must be a number, not {value:?}")
        }),
    )
}

/// Checks a property for random values. A failure prints the seed and the shortest failing value.
pub(crate) fn check<S: Strategy>(
    cases: u32,
    values: &S,
    property: impl FnMut(&S::Value) -> Result<(), String>,
) where
    S::Value: Debug,
{
    let seed = number("SEED").unwrap_or_default();
    let cases = number("CASES").and_then(|cases| cases.try_into().ok()).unwrap_or(cases);
    let config = Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_time: SHRINK_FOR_MS,
        failure_persistence: None,
        ..Config::default()
    };
    let property = RefCell::new(property);
    let result = TestRunner::new(config)
        .run(values, |value| (property.borrow_mut())(&value).map_err(TestCaseError::fail));
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, value)) => {
            panic!("failed with PASTE_CLEANUP_TEST_SEED={seed} for\n{value:?}\n{reason}")
        }
        Err(abort) => panic!("{abort}"),
    }
}
