//! Maps a cron expression to moments in time, also when the clocks of the time zone change.

use chrono::{DateTime, LocalResult, NaiveDateTime, TimeDelta, TimeZone, Timelike, Utc};
use chrono_tz::Tz;
use croner::{Cron, errors::CronError};

use crate::config::parse_cron;

/// Half of the window around now in which a clock change is searched for. Only a move of the date
/// line is longer.
const NEAR: TimeDelta = TimeDelta::hours(3);
/// The date line was once moved by a day.
const LONGEST_GAP_MINUTES: i64 = 24 * 60;

/// Decides, moment by moment, whether a run is due.
///
/// A time of day that a clock change skips is due at the end of the gap, one that occurs twice is due
/// the first time: one run a day. With `*` as its hour a schedule follows the elapsed time instead, and
/// is due in both of the repeated hours, as with Vixie cron.
#[derive(Debug)]
pub struct Ticks {
    cron: Cron,
    zone: Tz,
    next: Option<DateTime<Utc>>,
}

impl Ticks {
    /// The first moment that is due is later than `now`.
    pub fn new(expression: &str, zone: Tz, now: DateTime<Utc>) -> Result<Self, CronError> {
        let mut ticks = Self { cron: parse_cron(expression)?, zone, next: None };
        ticks.next = ticks.next_after(now);
        Ok(ticks)
    }

    /// Returns when the next run is due.
    pub fn next(&self) -> Option<DateTime<Utc>> {
        self.next
    }

    /// Whether a run is due now. Moments that were missed count once.
    pub fn is_due(&mut self, now: DateTime<Utc>) -> bool {
        let due = self.next.is_some_and(|next| next <= now);
        if due {
            self.next = self.next_after(now);
        }
        due
    }

    fn next_after(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let now = now.with_nanosecond(0)?;
        let local = |moment: DateTime<Utc>| moment.with_timezone(&self.zone).naive_local();
        // Zero unless the clocks change within a few hours. Then local times repeat or are missing,
        // and the first one by the clock need not be the first to come.
        let apart = local(now + NEAR) - local(now - NEAR);
        let change = (apart - NEAR * 2).abs();
        let mut first: Option<DateTime<Utc>> = None;
        // As if local time were UTC: the library's own rules for clock changes lose hourly runs.
        for named in self.cron.iter_after((local(now) - change).and_utc()) {
            let named = named.naive_utc();
            if first.is_some_and(|first| named > local(first) + change) {
                break;
            }
            let moments = self.moments(named).into_iter().flatten();
            first = first.into_iter().chain(moments.filter(|moment| *moment > now)).min();
        }
        first
    }

    /// Returns the moments at which a local time is due: one; both moments of a repeated time, if
    /// the schedule runs every hour; for a skipped time the end of the gap, or none if it runs
    /// every hour.
    fn moments(&self, named: NaiveDateTime) -> [Option<DateTime<Utc>>; 2] {
        let every_hour = self.cron.pattern.hours.from_wildcard;
        match self.zone.from_local_datetime(&named) {
            LocalResult::Single(moment) => [Some(moment.to_utc()), None],
            LocalResult::Ambiguous(first, second) => {
                [Some(first.to_utc()), every_hour.then(|| second.to_utc())]
            }
            LocalResult::None if every_hour => [None, None],
            LocalResult::None => [self.end_of_gap(named), None],
        }
    }

    /// Gaps end at whole minutes.
    fn end_of_gap(&self, named: NaiveDateTime) -> Option<DateTime<Utc>> {
        let named = named.with_second(0)?;
        let later = (1..=LONGEST_GAP_MINUTES).map(|minutes| named + TimeDelta::minutes(minutes));
        let mut moments =
            later.filter_map(|later| self.zone.from_local_datetime(&later).earliest());
        moments.next().map(|moment| moment.to_utc())
    }
}
