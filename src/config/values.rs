//! The types of settings that are more than a number or a string.

use std::time::Duration;

use croner::{
    Cron,
    errors::CronError,
    parser::{CronParser, Seconds},
};
use serde::{Deserialize, Deserializer, de};

use crate::printable::printable;

/// `100y`. Longer ones mean nothing, and could not be multiplied or added to a moment.
const LONGEST: Duration = Duration::from_secs(100 * 31_557_600);

/// What a DeleteObjects call proves its body with.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Checksum {
    /// Whatever the SDK does by itself.
    Auto,
    /// `Content-MD5`, for stores that want nothing newer.
    Md5,
}

/// What a worker does while it cannot reach Redis.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum WhenUnavailable {
    /// Claim without the lock: correct, only less polite.
    Proceed,
    /// Wait until Redis is back.
    Wait,
}

/// How log lines look.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// For eyes.
    Text,
    /// For machines.
    Json,
}

/// Reads `2h`, `90s`, `1h 30m`.
pub(super) fn duration<'de, D: Deserializer<'de>>(source: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(source)?;
    parse_duration(&text).map_err(de::Error::custom)
}

/// Reads a duration as people write it; also used for flags such as `--run-time 4h`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text.trim()).map_err(|error| {
        let reason = printable(&error.to_string());
        format!("{text:?} is not a duration ({reason}); write 90s, 10m, 2h or 30d")
    })?;
    match duration <= LONGEST {
        true => Ok(duration),
        false => Err(format!("{text:?} is longer than a hundred years")),
    }
}

/// Six fields, seconds first; a day of the month and a weekday must both match.
pub fn parse_cron(expression: &str) -> Result<Cron, CronError> {
    CronParser::builder().seconds(Seconds::Required).dom_and_dow(true).build().parse(expression)
}
