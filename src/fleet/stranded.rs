//! Stranded pastes that no sweep could reset: they are expired, but no run can claim them.

use std::fmt;

use tokio_postgres::{Client, Error};

use crate::{config::Settings, format::counted, printable::printable};

const STRANDED: &str = sql!("stranded/left");
const MOST_COUNTED: i64 = 1_000_000;

/// Expired pastes in progress without an open claim. Shown as a sentence that names the first one.
#[derive(Debug, Clone)]
pub struct Stranded {
    /// How many; counted up to a cap.
    pub pastes: i64,
    first: String,
}

impl Stranded {
    /// Finds stranded pastes. Costs as much as a thorough sweep, so it is not for every tick.
    pub async fn find(client: &Client, settings: &Settings) -> Result<Option<Self>, Error> {
        let stuck_after = settings.watchdog.stuck_after.as_secs_f64();
        let row = client.query_one(STRANDED, &[&stuck_after, &MOST_COUNTED]).await?;
        let first: Option<String> = row.get("first");
        Ok(first.map(|first| Self { pastes: row.get("pastes"), first: printable(&first) }))
    }

    /// Returns the commands that find the cause.
    pub fn remedy(&self) -> String {
        format!(
            "`cleanupctl explain {}` shows the last error; `cleanupctl doctor --long-transaction 1m` \
             names transactions that lock rows",
            self.first
        )
    }
}

impl fmt::Display for Stranded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let are = if self.pastes == 1 { "is" } else { "are" };
        write!(
            f,
            "{} {are} in progress without an open claim, because another transaction locks rows or a \
             trigger refuses the reset",
            counted(self.pastes, "expired paste"),
        )
    }
}
