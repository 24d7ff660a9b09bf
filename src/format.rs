//! Formats numbers, durations and tables for people.

use std::{io::IsTerminal, time::Duration};

/// Groups digits by thousands: 1234567 → "1,234,567". Zero if it is negative.
pub fn thousands(number: impl TryInto<u64>) -> String {
    indicatif::HumanCount(number.try_into().unwrap_or_default()).to_string()
}

/// A number with its noun, in the singular for 1: "1 paste", "1,200 pastes", "2 batches".
pub fn counted(number: impl TryInto<u64>, noun: &str) -> String {
    let number = number.try_into().unwrap_or_default();
    let plural = match number {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {noun}{plural}", thousands(number))
}

/// A number of seconds, rounded: 5025.3 → "1h 23m 45s". Zero if it is negative or not a time.
pub fn seconds(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.round()).unwrap_or_default();
    humantime::format_duration(whole).to_string()
}

/// Formats a number of bytes: 1536 → "1.50 KiB".
pub fn bytes(number: u64) -> String {
    indicatif::HumanBytes(number).to_string()
}

/// A table with a header; all columns but the first are aligned to the right. On a terminal it is no
/// wider than the terminal; into a file or a pipe no cell is wrapped, so that `grep` finds it.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_BORDERS_ONLY};
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header(head.to_vec());
    if std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(-1000), "0");
    }

    #[test]
    fn one_of_something_is_in_the_singular() {
        assert_eq!(counted(0, "paste"), "0 pastes");
        assert_eq!(counted(1, "content row"), "1 content row");
        assert_eq!(counted(1200, "paste"), "1,200 pastes");
    }

    #[test]
    fn seconds_are_rounded_and_never_negative() {
        assert_eq!(seconds(5025.3), "1h 23m 45s");
        assert_eq!(seconds(-3.0), "0s");
        assert_eq!(seconds(f64::INFINITY), "0s");
    }
}
