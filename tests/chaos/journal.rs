//! What a writer believes, written down before and after each of its steps, so that it is known
//! even of a writer that was killed in between.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Write,
    path::Path,
};

use serde::{Deserialize, Serialize};

/// One line of a journal.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// About to upload under this key.
    Upload {
        key: String,
    },
    /// A content row holds this upload.
    Known {
        key: String,
    },
    /// S3 has confirmed that this upload is gone again.
    Dropped {
        key: String,
    },
    /// `paste_put` was committed, and said this.
    Put {
        outcome: String,
        shared: bool,
    },
    /// Whether this was committed is not known.
    Unknown,
    /// Never expires, for all that this writer knows.
    Alive {
        code: String,
        body: String,
    },
    /// From here on it may expire.
    Mortal {
        code: String,
    },
    Extended {
        in_time: bool,
    },
    ExpiredNow {
        in_time: bool,
    },
}

/// The pen of one writer.
pub struct Journal(File);

impl Journal {
    /// Goes on at the end: earlier writers of the same name were killed.
    pub fn open(path: &str) -> Self {
        let file = File::options().create(true).append(true).open(path).expect("journal");
        let mut journal = Self(file);
        journal.0.write_all(b"\n").expect("journal");
        journal
    }

    /// One write for one line: it is there or not, whatever happens next.
    pub fn note(&mut self, event: &Event) {
        let line = serde_json::to_string(event).expect("an event") + "\n";
        self.0.write_all(line.as_bytes()).expect("journal");
    }
}

/// What all journals say together.
#[derive(Debug, Default)]
pub struct Beliefs {
    pub alive: BTreeMap<String, String>,
    /// Uploads that no later line tells about.
    pub in_doubt: BTreeSet<String>,
    pub counts: BTreeMap<&'static str, u64>,
}

impl Beliefs {
    pub fn read(&mut self, path: &Path) {
        let text = std::fs::read(path).expect("journal");
        let text = String::from_utf8_lossy(&text);
        // A line that was torn by a kill is none.
        for event in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            self.learn(event);
        }
    }

    fn learn(&mut self, event: Event) {
        let what = match event {
            Event::Upload { key } => {
                self.in_doubt.insert(key);
                "uploads"
            }
            Event::Known { key } => {
                self.in_doubt.remove(&key);
                return;
            }
            Event::Dropped { key } => {
                self.in_doubt.remove(&key);
                "uploads dropped"
            }
            Event::Put { outcome, .. } if outcome == "duplicate" => "puts repeated",
            Event::Put { shared: true, .. } => "puts that share a body",
            Event::Put { .. } => "puts with a new body",
            Event::Unknown => "outcomes unknown",
            Event::Alive { code, body } => {
                self.alive.insert(code, body);
                return;
            }
            Event::Mortal { code } => {
                self.alive.remove(&code);
                return;
            }
            Event::Extended { in_time: true } => "extended in time",
            Event::Extended { in_time: false } => "extended too late",
            Event::ExpiredNow { in_time: true } => "expired by their owner",
            Event::ExpiredNow { in_time: false } => "expired already",
        };
        *self.counts.entry(what).or_default() += 1;
    }
}
