//! The report of an audit: its counts, and the first findings of each kind.

use serde::Serialize;

use super::position::hex;

/// The kinds of findings.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An object that no row knows.
    Orphan,
    /// A content row whose object is missing.
    MissingObject,
    /// A `ref_count` that is not the number of pastes that reference the content.
    WrongCount,
    /// A content row that no paste references.
    UnreferencedContent,
    /// Pastes whose content has no content row. One finding for each hash, not for each paste.
    PasteWithoutContent,
    /// A content row whose object a claim or a paste is going to delete.
    PendingDeletion,
    /// An object, or content that no paste references, whose key may be another spelling of a
    /// content row's key.
    Ambiguous,
}

/// One thing that is wrong, or was until it was repaired.
#[derive(Serialize, Debug, Clone)]
pub struct Finding {
    /// Decides which number of the [`Report`] counts it.
    pub kind: Kind,
    /// The object's key, if it is known.
    pub key: Option<String>,
    /// The content hash in hex, if it is known.
    pub content_hash: Option<String>,
    /// What was found, for a person: a clause without a full stop.
    pub what: String,
    /// What to do about it; `None` if it was repaired.
    pub remedy: Option<String>,
    /// Some of the live pastes that are affected.
    pub short_codes: Vec<String>,
    /// Number of live pastes that are affected.
    pub live_pastes: u64,
    /// This audit repaired it. Always false without `--repair`.
    pub repaired: bool,
}

impl Finding {
    /// Creates a finding that is not repaired. `remedy`: what to do about it.
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

    /// Returns the finding with the key of its object.
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Returns the finding with the hash of its content, in hex.
    pub fn content_hash(mut self, hash: &[u8]) -> Self {
        self.content_hash = Some(hex(hash));
        self
    }

    /// Returns the finding as repaired, without a remedy.
    pub fn repaired(self) -> Self {
        Self { remedy: None, repaired: true, ..self }
    }
}

/// Why an audit ended.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// It reached the end of all walks and deleted what it had queued. Findings may be left.
    #[default]
    Done,
    /// SIGINT or SIGTERM.
    Signal,
    /// Stopped by the safety brake: nothing was deleted.
    Brake,
    /// An error: an outage, for example, or a precondition that does not hold any more.
    Failed,
}

/// The result of one audit, from where it started to where it ended.
#[derive(Serialize, Debug, Clone, Default)]
pub struct Report {
    /// The audit reached the end.
    pub complete: bool,
    /// Decides the exit code; for `Done`, together with the findings that are left.
    pub stopped_because: Stopped,
    /// The error behind [`Stopped::Failed`].
    pub error: Option<String>,
    /// The position where it started, if not at the beginning.
    pub after: Option<String>,
    /// The position to resume at, if it did not reach the end.
    pub position: Option<String>,
    /// The command that resumes there.
    pub resume_command: Option<String>,
    /// The audit ran with `--repair`.
    pub repair: bool,

    /// Objects that were listed.
    pub objects: u64,
    /// Their size, by the listing.
    pub bytes: u64,
    /// Objects whose keys the store's listing cannot express: it is not known whether they are orphans.
    pub unchecked_objects: u64,
    /// Content rows whose `ref_count` was checked.
    pub content_rows: u64,
    /// Content rows that only reserve the keys of deleted objects. Not part of `content_rows`.
    pub sentinels: u64,
    /// Content rows whose key is not under `s3.prefix`: their objects were not checked.
    pub outside_prefix: u64,
    /// Pastes that were checked: those that are not in progress; of content with thousands, a part.
    pub pastes: u64,

    /// Objects that no row knows, but so young that their writer may still commit.
    pub fresh_objects: u64,
    /// Content rows that no paste references, but as young as that.
    pub fresh_rows: u64,
    /// Objects that no row knows, including those that were deleted.
    pub orphans: u64,
    /// Their size, by the listing.
    pub orphan_bytes: u64,
    /// Content rows whose object is missing: findings of `missing_object`.
    pub missing_objects: u64,
    /// Referenced content rows whose `ref_count` is too high or too low.
    pub wrong_counts: u64,
    /// Content rows that no paste references, including those that were deleted.
    pub unreferenced_content: u64,
    /// Hashes that pastes reference and no content row has: findings of `paste_without_content`.
    pub missing_content_rows: u64,
    /// Live pastes among them. Their objects may be among the orphans.
    pub live_without_content: u64,
    /// Content rows whose object a claim or a paste is going to delete.
    pub pending_deletions: u64,
    /// Never repaired: deleting one of these could delete the object of live content.
    pub ambiguous: u64,
    /// Rows that could not be checked, because other transactions had locked them.
    pub undecided: u64,

    /// Findings that were repaired, of all kinds.
    pub repaired: u64,
    /// Objects of orphans and of unreferenced content that are gone now.
    pub objects_deleted: u64,
    /// Their size: of orphans by the listing, of content by `size_bytes`.
    pub bytes_deleted: u64,
    /// No worker has erased a paste in this database: it may not be that of the paste service.
    pub never_erased: bool,
    /// Why the safety brake stopped the deletes, if it did.
    pub brake: Option<String>,
    /// Number of objects to delete, if it is more than `--max-delete`: none of them was deleted.
    pub beyond_max_delete: u64,
    /// Warnings that are not findings.
    pub warnings: Vec<String>,

    /// Duration in milliseconds, without the checks before the first page.
    pub elapsed_ms: u64,
    /// The first findings of each kind.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Counts a finding, and keeps it if it is one of the first `most` of its kind.
    pub(super) fn note(&mut self, finding: Finding, most: usize) {
        let counter = self.counter(finding.kind);
        *counter += 1;
        let is_kept = *counter <= most as u64;
        self.repaired += u64::from(finding.repaired);
        if finding.kind == Kind::PasteWithoutContent {
            self.live_without_content += finding.live_pastes;
        }
        if is_kept {
            self.findings.push(finding);
        }
    }

    fn counter(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Orphan => &mut self.orphans,
            Kind::MissingObject => &mut self.missing_objects,
            Kind::WrongCount => &mut self.wrong_counts,
            Kind::UnreferencedContent => &mut self.unreferenced_content,
            Kind::PasteWithoutContent => &mut self.missing_content_rows,
            Kind::PendingDeletion => &mut self.pending_deletions,
            Kind::Ambiguous => &mut self.ambiguous,
        }
    }

    /// Returns the number of findings.
    pub fn found(&self) -> u64 {
        self.orphans
            + self.missing_objects
            + self.wrong_counts
            + self.unreferenced_content
            + self.missing_content_rows
            + self.pending_deletions
            + self.ambiguous
    }

    /// Returns the number of findings that were not repaired.
    pub fn left(&self) -> u64 {
        self.found() - self.repaired
    }
}
