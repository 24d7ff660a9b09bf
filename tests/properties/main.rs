//! Whatever happens, in whatever order: random stories on real servers, against a plain in-memory
//! reference.
//!
//! A story is a random graph of pastes and bodies and a random sequence of claims, steps of claims
//! (also out of order, twice, and by zombies), sweeps, writers, keys that S3 refuses, and of what the
//! owners of the tables do: triggers that keep rows, rows deleted behind the fleet's back, locked
//! content, claims ended by hand or forgotten. After every scene the tables and the bucket must be
//! exactly as the reference says.
//!
//! The same stories are played every time, unless told otherwise: see `support/random.rs`. A failure
//! names the seed and shows the shortest story that fails, with what happened in it.

#[path = "../support/mod.rs"]
mod support;

mod keys;
mod spellings;
mod stories;
mod story;

mod plant;
mod play;
mod resolve;
mod steps;

mod finish;
mod others;
mod promises;
mod reference;
mod reset;
mod verbs;

mod meddle;
mod observe;
mod perform;
mod stage;

use proptest::strategy::Strategy;
use stage::{Haste, Stage};
use story::Story;
use support::random::check;
use tokio::runtime::Runtime;

/// Plays random stories, all on one stage: a database and a bucket for each would take longer.
fn all_go_well(cases: u32, haste: Haste, stories: &impl Strategy<Value = Story>) {
    let runtime = Runtime::new().expect("runtime");
    let mut stage = runtime.block_on(Stage::build(haste));
    check(cases, stories, |story| runtime.block_on(play::play(&mut stage, story)));
}

#[test]
fn whatever_the_interleaving_the_tables_and_the_bucket_are_as_the_reference_says() {
    all_go_well(60, Haste::DefersAtOnce, &stories::stories());
}

#[test]
fn whatever_happens_at_the_same_time_comes_out_as_if_one_by_one() {
    all_go_well(60, Haste::WaitsForLocks, &stories::crowded_stories());
}

#[test]
fn whatever_is_wrong_with_the_counts_they_are_repaired_or_kept_as_the_reference_says() {
    all_go_well(80, Haste::DefersAtOnce, &stories::drifted_stories());
}

#[test]
fn whatever_key_the_bucket_holds_its_body_is_kept_while_it_lives_and_deleted_after() {
    let runtime = Runtime::new().expect("runtime");
    let world = runtime.block_on(support::World::new());
    let (mut held, mut all) = (0, 0);
    check(25, &keys::keys(), |keys| {
        all += keys.len();
        held += runtime.block_on(keys::survive_the_round_trip(&world, keys))?;
        Ok(())
    });
    assert!(held * 10 > all * 9, "the store held only {held} of {all} keys as they were");
}

#[test]
fn whatever_spellings_a_key_has_its_object_stays_while_any_of_them_lives_and_goes_after() {
    let runtime = Runtime::new().expect("runtime");
    let world = runtime.block_on(support::World::new());
    check(25, &spellings::users(), |users| {
        runtime.block_on(spellings::spare_each_other(&world, users))
    });
}
