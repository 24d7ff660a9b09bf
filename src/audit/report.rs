//! What an audit found: plain figures, and the first findings of each kind.

use serde::Serialize;

use super::position::hex;

/// What can be wrong.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An object that no row knows.
    Orphan,
    /// A content row whose object is not there.
    MissingObject,
    /// A `ref_count` that is not the number of holders.
    WrongCount,
    /// A content row that nobody holds.
    UnreferencedContent,
    /// Pastes that hold a body without a content row.
    PasteWithoutContent,
    /// A content row whose object the fleet is about to delete.
    PendingDeletion,
    /// An object, or content that no paste references, whose key may be another spelling of a
    /// content row's key.
    Ambiguous,
}

/// One thing that is wrong, or was.
#[derive(Serialize, Debug, Clone)]
pub struct Finding {
    pub kind: Kind,
    /// The object's key, if it is known.
    pub key: Option<String>,
    /// The body's hash in hex, if it is known.
    pub content_hash: Option<String>,
    pub what: String,
    /// What to do about it; nothing when it was repaired.
    pub remedy: Option<String>,
    /// Some of the live pastes that suffer, and how many there are.
    pub short_codes: Vec<String>,
    pub live_pastes: u64,
    pub repaired: bool,
}

impl Finding {
    pub fn new(kind: Kind, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            kind,
            key: None,
            content_hash: None,
            what: what.into(),
            remedy: Some(remedy.into()),
            short_codes: Vec::new(),
            live_pastes: 0,
            repaired: false,
        }
    }

    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.into());
        self
    }

    pub fn content_hash(mut self, hash: &[u8]) -> Self {
        self.content_hash = Some(hex(hash));
        self
    }

    pub fn repaired(self) -> Self {
        Self { remedy: None, repaired: true, ..self }
    }
}

/// Why an audit ended.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    #[default]
    Done,
    Signal,
    /// So much was to be deleted that nothing was.
    Brake,
    Failed,
}

/// The figures of one audit, from where it started to where it ended.
#[derive(Serialize, Debug, Clone, Default)]
pub struct Report {
    /// It came to the end.
    pub complete: bool,
    pub stopped_because: Stopped,
    pub error: Option<String>,
    /// Where it started, if not at the beginning.
    pub after: Option<String>,
    /// Where to go on, and the command for it, if it did not come to the end.
    pub position: Option<String>,
    pub go_on: Option<String>,
    pub repair: bool,

    pub objects: u64,
    pub bytes: u64,
    pub content_rows: u64,
    /// Rows that only keep the keys of deleted orphans.
    pub sentinels: u64,
    /// Content rows whose key is not under `s3.prefix`: their objects were not looked for.
    pub outside_prefix: u64,
    /// Pastes that hold a body and are not being deleted; of a body with thousands, a part.
    pub pastes: u64,

    /// Known to no row, but so young that their writer may still be at it.
    pub fresh_objects: u64,
    /// Held by nobody, but as young as that.
    pub fresh_rows: u64,
    pub orphans: u64,
    pub orphan_bytes: u64,
    pub missing_objects: u64,
    pub wrong_counts: u64,
    pub unreferenced_content: u64,
    pub bodies_without_content: u64,
    pub pending_deletions: u64,
    /// Never repaired: deleting one of these could delete the object of live content.
    pub ambiguous: u64,
    /// Rows that others held locked for so long that nothing can be said about them.
    pub undecided: u64,

    pub repaired: u64,
    pub objects_deleted: u64,
    pub bytes_deleted: u64,
    /// No worker has erased a paste in this database: it may not be the paste service's.
    pub never_erased: bool,
    /// Why nothing was deleted, if that was the brake.
    pub brake: Option<String>,
    /// Objects that were to be deleted and were more than `--max-delete`: none of them was.
    pub beyond_max_delete: u64,
    /// What is no finding, but should be looked at.
    pub warnings: Vec<String>,

    pub elapsed_ms: u64,
    /// The first of each kind.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Notes what is wrong; of each kind only the first `most` are kept in words.
    pub(super) fn note(&mut self, finding: Finding, most: usize) {
        let counter = self.counter(finding.kind);
        *counter += 1;
        let is_told = *counter <= most as u64;
        self.repaired += u64::from(finding.repaired);
        if is_told {
            self.findings.push(finding);
        }
    }

    fn counter(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Orphan => &mut self.orphans,
            Kind::MissingObject => &mut self.missing_objects,
            Kind::WrongCount => &mut self.wrong_counts,
            Kind::UnreferencedContent => &mut self.unreferenced_content,
            Kind::PasteWithoutContent => &mut self.bodies_without_content,
            Kind::PendingDeletion => &mut self.pending_deletions,
            Kind::Ambiguous => &mut self.ambiguous,
        }
    }

    pub fn found(&self) -> u64 {
        self.orphans
            + self.missing_objects
            + self.wrong_counts
            + self.unreferenced_content
            + self.bodies_without_content
            + self.pending_deletions
            + self.ambiguous
    }

    /// What is wrong and was not repaired.
    pub fn left(&self) -> u64 {
        self.found() - self.repaired
    }
}
