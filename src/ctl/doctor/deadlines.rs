//! The settings' times against each other. What cannot work is refused at the start of every
//! program; this is about what works, but not as somebody would want it.

use std::time::Duration;

use super::finding::{Outcome, ok, warning};
use crate::{config::Settings, postgres::STATEMENT_TIMEOUT};

const DAY: Duration = Duration::from_secs(24 * 3600);
const LONGEST_LOCK: Duration = Duration::from_secs(5 * 60);
const SHORTEST_S3: Duration = Duration::from_secs(5);
/// The default of `watchdog.tick` and `s3.deadline`. Where that is too long already,
/// `watchdog.stuck_after` is too short.
const MINUTE: Duration = Duration::from_secs(60);
const LONGER_STUCK_AFTER: &str = "set CLEANUP_WATCHDOG_STUCK_AFTER=2m or more";

/// A rule that is broken: what is found, what to do.
type Broken = (String, &'static str);

pub(super) fn deadlines(settings: &Settings) -> Outcome {
    let broken: Vec<Broken> =
        [stuck_early(settings), stuck_late(settings), s3(settings), lock(settings)]
            .into_iter()
            .flatten()
            .collect();
    let stuck_after = spell(settings.watchdog.stuck_after);
    match broken.is_empty() {
        true => ok(format!("they fit; a dead worker's pastes come back after {stuck_after}")),
        false => {
            let (found, mut remedies): (Vec<_>, Vec<_>) = broken.into_iter().unzip();
            remedies.dedup();
            warning(found.join(", and "), remedies.join(", and "))
        }
    }
}

/// A decrement or finish holds its claim's row, so its heartbeat waits until the transaction ends; other
/// phases are beaten for as long as they may take.
fn stuck_early(settings: &Settings) -> Option<Broken> {
    let stuck_after = settings.watchdog.stuck_after;
    let found = || {
        format!(
            "watchdog.stuck_after ({}) is shorter than one statement may take ({}): when Postgres \
             is slow, batches of workers that live are dropped and done again",
            spell(stuck_after),
            spell(STATEMENT_TIMEOUT)
        )
    };
    (stuck_after < STATEMENT_TIMEOUT).then(|| (found(), LONGER_STUCK_AFTER))
}

fn stuck_late(settings: &Settings) -> Option<Broken> {
    let (stuck_after, tick) = (settings.watchdog.stuck_after, settings.watchdog.tick);
    if stuck_after > DAY {
        let found = format!(
            "watchdog.stuck_after ({}) is longer than a day: what a killed worker held misses the \
             next night, too",
            spell(stuck_after)
        );
        return Some((found, "set CLEANUP_WATCHDOG_STUCK_AFTER=2h"));
    }
    let found = || {
        format!(
            "watchdog.tick ({}) is longer than watchdog.stuck_after ({}): silence is noticed late",
            spell(tick),
            spell(stuck_after)
        )
    };
    let remedy = if tick > MINUTE { "set CLEANUP_WATCHDOG_TICK=60s" } else { LONGER_STUCK_AFTER };
    (tick > stuck_after).then(|| (found(), remedy))
}

fn s3(settings: &Settings) -> Option<Broken> {
    let (deadline, stuck_after) = (settings.s3.deadline, settings.watchdog.stuck_after);
    let why = match deadline {
        _ if deadline < SHORTEST_S3 => "one slow answer, and a whole batch is released".into(),
        _ if deadline > stuck_after => format!(
            "while S3 is away, workers that live keep their pastes for longer than dead ones \
             would (watchdog.stuck_after, {})",
            spell(stuck_after)
        ),
        _ => return None,
    };
    let remedy = match (SHORTEST_S3..=MINUTE).contains(&deadline) {
        true => LONGER_STUCK_AFTER,
        false => "set CLEANUP_S3_DEADLINE=60s",
    };
    Some((format!("s3.deadline is {}: {why}", spell(deadline)), remedy))
}

fn lock(settings: &Settings) -> Option<Broken> {
    let ttl = settings.lock.ttl;
    let found = format!(
        "lock.ttl is {}: a worker that is killed while it claims keeps the others waiting for as \
         long",
        spell(ttl)
    );
    (ttl > LONGEST_LOCK).then_some((found, "set CLEANUP_LOCK_TTL=30s"))
}

fn spell(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = crate::config::defaults();
        change(&mut settings);
        settings.validate().expect("legal");
        format!("{:?}", deadlines(&settings))
    }

    #[track_caller]
    fn assert_warns(said: &str, words: &[&str]) {
        assert!(said.contains("Warning"), "{said}");
        words.iter().for_each(|word| assert!(said.contains(word), "{word:?} is not in {said}"));
    }

    #[test]
    fn the_defaults_fit_and_so_does_a_minute() {
        assert!(said(|_| {}).contains("Ok"));
        let minute = said(|settings| settings.watchdog.stuck_after = Duration::from_secs(60));
        assert!(minute.contains("Ok"), "{minute}");
    }

    #[test]
    fn what_is_legal_but_unwise_is_a_warning_that_names_the_setting() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let early = said(|settings| settings.watchdog.stuck_after = 59 * second);
        assert_warns(&early, &["shorter than one statement", "STUCK_AFTER=2m"]);
        let late = said(|settings| settings.watchdog.stuck_after = 25 * hour);
        assert_warns(&late, &["misses the next night", "STUCK_AFTER=2h"]);
        let tick = said(|settings| settings.watchdog.tick = 3 * hour);
        assert_warns(&tick, &["noticed late", "CLEANUP_WATCHDOG_TICK=60s"]);
        let short = said(|settings| settings.s3.deadline = second);
        assert_warns(&short, &["one slow answer", "CLEANUP_S3_DEADLINE=60s"]);
        let long = said(|settings| settings.s3.deadline = 3 * hour);
        assert_warns(&long, &["longer than dead ones", "CLEANUP_S3_DEADLINE=60s"]);
        let lock = said(|settings| settings.lock.ttl = hour);
        assert_warns(&lock, &["keeps the others waiting", "CLEANUP_LOCK_TTL=30s"]);
    }

    #[test]
    fn a_value_that_is_set_already_is_not_recommended() {
        let half = said(|settings| settings.watchdog.stuck_after = Duration::from_secs(30));
        assert_warns(&half, &["watchdog.tick (1m)", "s3.deadline is 1m", "STUCK_AFTER=2m or more"]);
        assert!(!half.contains("=60s"), "both are 60s: {half}");
        assert_eq!(half.matches("STUCK_AFTER=").count(), 1, "{half}");
    }

    #[test]
    fn all_that_is_unwise_is_named_at_once() {
        let both = said(|settings| {
            settings.watchdog.stuck_after = Duration::from_secs(30);
            settings.lock.ttl = Duration::from_secs(600);
        });
        assert_warns(&both, &["STUCK_AFTER=2m", "CLEANUP_LOCK_TTL=30s", "s3.deadline"]);
    }
}
