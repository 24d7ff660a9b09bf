//! Random values, always the same ones unless told otherwise: `PASTE_CLEANUP_TEST_SEED=<number>`
//! tries others, `PASTE_CLEANUP_TEST_CASES=<number>` so many of each kind. No files are written.

use std::{cell::RefCell, fmt::Debug};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner},
};

/// Shortening takes a while; this is enough for most.
const SHRINK_FOR_MS: u32 = 90_000;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(format!("PASTE_CLEANUP_TEST_{name}")).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("PASTE_CLEANUP_TEST_{name} is not a number")))
}

/// Tries a property on random values. A failure names the seed and the shortest value that fails.
pub fn check<S: Strategy>(
    cases: u32,
    values: &S,
    holds: impl FnMut(&S::Value) -> Result<(), String>,
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
    let holds = RefCell::new(holds);
    let tried = TestRunner::new(config)
        .run(values, |value| (holds.borrow_mut())(&value).map_err(TestCaseError::fail));
    match tried {
        Ok(()) => {}
        Err(TestError::Fail(reason, value)) => {
            panic!("with PASTE_CLEANUP_TEST_SEED={seed}, for\n{value:?}\n{reason}")
        }
        Err(abort) => panic!("{abort}"),
    }
}
