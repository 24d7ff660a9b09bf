//! Compares the timeouts in the settings with each other. Combinations that cannot work are refused when
//! a program starts; these work, but have a bad effect.

use std::time::Duration;

use super::finding::{Outcome, ok, warning};
use crate::config::Settings;

const DAY: Duration = Duration::from_secs(24 * 3600);
const LONGEST_LOCK: Duration = Duration::from_secs(5 * 60);
const SHORTEST_S3: Duration = Duration::from_secs(5);
/// The default of `watchdog.tick` and `s3.deadline`. If even that is too long, `watchdog.stuck_after` is
/// too short.
const MINUTE: Duration = Duration::from_secs(60);
const LONGER_STUCK_AFTER: &str = "set CLEANUP_WATCHDOG_STUCK_AFTER=2m or more";

/// A broken rule: what is wrong, and the remedy.
type Broken = (String, &'static str);

pub(super) fn deadlines(settings: &Settings) -> Outcome {
    let broken: Vec<Broken> =
        [stuck_after(settings), s3(settings), lock(settings)].into_iter().flatten().collect();
    let stuck_after = spell(settings.watchdog.stuck_after);
    match broken.is_empty() {
        true => {
            ok(format!("consistent; the pastes of a dead worker are reset after {stuck_after}"))
        }
        false => {
            let (found, mut remedies): (Vec<_>, Vec<_>) = broken.into_iter().unzip();
            remedies.dedup();
            warning(found.join(", and "), remedies.join(", and "))
        }
    }
}

fn stuck_after(settings: &Settings) -> Option<Broken> {
    let (stuck_after, tick) = (settings.watchdog.stuck_after, settings.watchdog.tick);
    if stuck_after > DAY {
        let found = format!(
            "watchdog.stuck_after ({}) is longer than a day: the pastes of a killed worker miss the \
             next night, too",
            spell(stuck_after)
        );
        return Some((found, "set CLEANUP_WATCHDOG_STUCK_AFTER=2h"));
    }
    let found = || {
        format!(
            "watchdog.tick ({}) is longer than watchdog.stuck_after ({}): expired leases are found late",
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
        _ if deadline < SHORTEST_S3 => {
            "one slow answer makes a worker release a whole batch".into()
        }
        _ if deadline > stuck_after => format!(
            "while S3 is unavailable, live workers keep their pastes for longer than dead workers \
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
        "lock.ttl is {}: a worker that is killed while it claims blocks all others for that time",
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

    fn judged(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = crate::config::defaults();
        change(&mut settings);
        settings.validate().expect("legal");
        format!("{:?}", deadlines(&settings))
    }

    #[track_caller]
    fn assert_warns(text: &str, words: &[&str]) {
        assert!(text.contains("Warning"), "{text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text}"));
    }

    #[test]
    fn the_defaults_fit_and_so_does_a_minute() {
        assert!(judged(|_| {}).contains("Ok"));
        let minute = judged(|settings| settings.watchdog.stuck_after = Duration::from_secs(60));
        assert!(minute.contains("Ok"), "{minute}");
        // A step that waits for a lock keeps its claim alive in cleanup_runs.busy_claims.
        let short = judged(|settings| {
            settings.watchdog.stuck_after = Duration::from_secs(31);
            settings.watchdog.tick = Duration::from_secs(10);
            settings.s3.deadline = Duration::from_secs(30);
        });
        assert!(short.contains("Ok"), "{short}");
    }

    #[test]
    fn a_legal_but_unwise_timeout_is_a_warning_that_names_the_setting() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let late = judged(|settings| settings.watchdog.stuck_after = 25 * hour);
        assert_warns(&late, &["miss the next night", "STUCK_AFTER=2h"]);
        let tick = judged(|settings| settings.watchdog.tick = 3 * hour);
        assert_warns(&tick, &["found late", "CLEANUP_WATCHDOG_TICK=60s"]);
        let short = judged(|settings| settings.s3.deadline = second);
        assert_warns(&short, &["one slow answer", "CLEANUP_S3_DEADLINE=60s"]);
        let long = judged(|settings| settings.s3.deadline = 3 * hour);
        assert_warns(&long, &["longer than dead workers", "CLEANUP_S3_DEADLINE=60s"]);
        let lock = judged(|settings| settings.lock.ttl = hour);
        assert_warns(&lock, &["blocks all others", "CLEANUP_LOCK_TTL=30s"]);
    }

    #[test]
    fn a_value_that_is_already_set_is_not_recommended() {
        let half = judged(|settings| settings.watchdog.stuck_after = Duration::from_secs(30));
        assert_warns(&half, &["watchdog.tick (1m)", "s3.deadline is 1m", "STUCK_AFTER=2m or more"]);
        assert!(!half.contains("=60s"), "both are 60s: {half}");
        assert_eq!(half.matches("STUCK_AFTER=").count(), 1, "{half}");
    }

    #[test]
    fn all_unwise_timeouts_are_named_at_once() {
        let both = judged(|settings| {
            settings.watchdog.stuck_after = Duration::from_secs(30);
            settings.lock.ttl = Duration::from_secs(600);
        });
        assert_warns(&both, &["STUCK_AFTER=2m", "CLEANUP_LOCK_TTL=30s", "s3.deadline"]);
    }
}
