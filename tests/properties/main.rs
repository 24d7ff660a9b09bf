//! Property tests: random scenarios run on real servers and on a plain in-memory reference.
//!
//! A scenario starts from random pastes that share content. It then runs a random sequence of
//! claims, steps of claims (also out of order, twice, and by zombies), sweeps, writers and keys
//! that S3 refuses, and of what the owner of the tables does: triggers that refuse deletes, rows
//! deleted outside the fleet, locked content rows, claims ended by hand or truncated. After every
//! round the tables and the bucket must be exactly as the reference predicts.
//!
//! Every run uses the same scenarios unless a seed is set: see `support/random.rs`. A failure
//! prints the seed and the shortest scenario that fails, with the result of each step.
//!
//! `scenario` and `strategies` define what can happen, `run` and `resolve` run it, `reference` is
//! the in-memory prediction, and `servers` is the real system.

#[path = "../support/mod.rs"]
mod support;

mod initial;
mod keys;
mod reference;
mod resolve;
mod run;
mod scenario;
mod servers;
mod spellings;
mod step;
mod strategies;

use proptest::strategy::Strategy;
use scenario::Scenario;
use servers::{Environment, LockWait};
use support::random::check;
use tokio::runtime::Runtime;

/// Runs random scenarios, all in one environment: a database and a bucket for each would take
/// longer.
fn assert_all_pass(cases: u32, lock_wait: LockWait, scenarios: &impl Strategy<Value = Scenario>) {
    let runtime = Runtime::new().expect("runtime");
    let mut env = runtime.block_on(Environment::build(lock_wait));
    check(cases, scenarios, |scenario| runtime.block_on(run::run(&mut env, scenario)));
}

#[test]
fn tables_and_bucket_match_the_reference_after_every_step() {
    assert_all_pass(60, LockWait::NoWait, &strategies::scenarios());
}

#[test]
fn concurrent_steps_have_the_effect_of_some_serial_order() {
    assert_all_pass(60, LockWait::TwoSeconds, &strategies::concurrent_scenarios());
}

#[test]
fn wrong_counts_are_repaired_or_kept_as_the_reference_predicts() {
    assert_all_pass(80, LockWait::NoWait, &strategies::scenarios_with_drift());
}

#[test]
fn an_object_under_any_key_is_kept_while_its_paste_lives_and_deleted_afterwards() {
    let runtime = Runtime::new().expect("runtime");
    let world = runtime.block_on(support::World::new());
    let (mut stored, mut all) = (0, 0);
    check(25, &keys::keys(), |keys| {
        all += keys.len();
        stored += runtime.block_on(keys::check_keys(&world, keys))?;
        Ok(())
    });
    assert!(stored * 10 > all * 9, "S3 stored only {stored} of {all} keys unchanged");
}

#[test]
fn an_object_with_several_key_spellings_is_kept_while_any_of_them_is_in_use() {
    let runtime = Runtime::new().expect("runtime");
    let world = runtime.block_on(support::World::new());
    check(25, &spellings::uses(), |uses| {
        runtime.block_on(spellings::check_spellings(&world, uses))
    });
}
