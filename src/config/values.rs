//! Types and parsers of the settings that are more than a number or a string.

use std::time::Duration;

use croner::{
    Cron,
    errors::CronError,
    parser::{CronParser, Seconds},
};
use serde::{Deserialize, Deserializer, de};

use crate::printable::printable;

/// 100 years. Longer durations are mistakes, and would overflow when added to a time.
const LONGEST: Duration = Duration::from_secs(100 * 31_557_600);

/// The checksum of a DeleteObjects request.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Checksum {
    /// The SDK's default (CRC32).
    Auto,
    /// `Content-MD5`, for stores that accept nothing newer.
    Md5,
}

/// Whether objects are deleted many in a request.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum BulkDelete {
    /// With DeleteObjects, or one by one in a store that has no DeleteObjects.
    Auto,
    /// With DeleteObjects only.
    Always,
    /// One by one only.
    Never,
}

/// What a worker does while Redis is unavailable.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum WhenUnavailable {
    /// Claim without the lock: correct, but workers wait for each other in Postgres.
    Proceed,
    /// Wait until Redis is available again.
    Wait,
}

/// The format of log lines.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Deserializes a duration such as `2h`, `90s`, `1h 30m`.
pub(super) fn duration<'de, D: Deserializer<'de>>(source: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(source)?;
    parse_duration(&text).map_err(de::Error::custom)
}

/// Parses a duration such as `2h`; also used for flags such as `--run-time 4h`.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let duration = humantime::parse_duration(text.trim())
        .map_err(|cause| DurationError::Invalid { text: text.into(), cause })?;
    match duration <= LONGEST {
        true => Ok(duration),
        false => Err(DurationError::TooLong(text.into())),
    }
}

/// Why a text is not a duration.
#[derive(thiserror::Error, Debug)]
pub enum DurationError {
    #[error(
        "{text:?} is not a duration ({}); write 90s, 10m, 2h or 30d",
        printable(&.cause.to_string())
    )]
    Invalid { text: String, cause: humantime::DurationError },
    #[error("{0:?} is longer than a hundred years")]
    TooLong(String),
}

/// Parses a cron expression of six fields, seconds first; a day of the month and a weekday must both
/// match.
pub fn parse_cron(expression: &str) -> Result<Cron, CronError> {
    CronParser::builder().seconds(Seconds::Required).dom_and_dow(true).build().parse(expression)
}
