//! The journal of a writer: one line before and after each of its steps, so that the checker knows
//! even what a killed writer had done.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Write,
    path::Path,
};

use serde::{Deserialize, Serialize};

/// One line of a journal.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    /// About to upload under this key.
    Upload {
        key: String,
    },
    /// A content row uses this upload.
    Stored {
        key: String,
    },
    /// S3 has confirmed the delete of this upload.
    Dropped {
        key: String,
    },
    /// `paste_put` was committed and returned this.
    Put {
        outcome: String,
        shared: bool,
    },
    /// The outcome of a commit is unknown.
    Unknown,
    /// This paste never expires, as far as its writer knows.
    NeverExpires {
        code: String,
        body: String,
    },
    /// From here on this paste can expire.
    MayExpire {
        code: String,
    },
    Extended {
        in_time: bool,
    },
    ExpiredNow {
        in_time: bool,
    },
}

/// The open journal of one writer.
pub(crate) struct Journal(File);

impl Journal {
    /// Opens a journal for appending: earlier writers of the same name were killed.
    pub(crate) fn open(path: &str) -> Self {
        let file = File::options().create(true).append(true).open(path).expect("journal");
        let mut journal = Self(file);
        journal.0.write_all(b"\n").expect("journal");
        journal
    }

    /// Appends a line in a single write, so that a kill leaves it whole or not at all.
    pub(crate) fn append(&mut self, event: &Event) {
        let line = serde_json::to_string(event).expect("an event") + "\n";
        self.0.write_all(line.as_bytes()).expect("journal");
    }
}

/// The combined content of all journals.
#[derive(Debug, Default)]
pub(crate) struct Journals {
    pub alive: BTreeMap<String, String>,
    /// Uploads without a later line about their fate.
    pub in_doubt: BTreeSet<String>,
    pub counts: BTreeMap<&'static str, u64>,
}

impl Journals {
    pub(crate) fn read(&mut self, path: &Path) {
        let text = std::fs::read(path).expect("journal");
        let text = String::from_utf8_lossy(&text);
        // A line that was cut off by a kill is skipped.
        for event in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            self.apply(event);
        }
    }

    fn apply(&mut self, event: Event) {
        let what = match event {
            Event::Upload { key } => {
                self.in_doubt.insert(key);
                "uploads"
            }
            Event::Stored { key } => {
                self.in_doubt.remove(&key);
                return;
            }
            Event::Dropped { key } => {
                self.in_doubt.remove(&key);
                "uploads deleted by their writer"
            }
            Event::Put { outcome, .. } if outcome == "duplicate" => "puts repeated",
            Event::Put { shared: true, .. } => "puts that share content",
            Event::Put { .. } => "puts with new content",
            Event::Unknown => "puts and extensions with unknown outcome",
            Event::NeverExpires { code, body } => {
                self.alive.insert(code, body);
                return;
            }
            Event::MayExpire { code } => {
                self.alive.remove(&code);
                return;
            }
            Event::Extended { in_time: true } => "extensions in time",
            Event::Extended { in_time: false } => "extensions too late",
            Event::ExpiredNow { in_time: true } => "expired by a writer",
            Event::ExpiredNow { in_time: false } => "already expired",
        };
        *self.counts.entry(what).or_default() += 1;
    }
}
