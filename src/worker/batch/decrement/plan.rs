//! What a decrement does to each content row of its batch, decided while these rows are locked.

use std::collections::{HashMap, HashSet};

use tokio_postgres::Row;

use crate::{
    claim::{Claim, Decremented, Paste, PendingDelete},
    objects::is_odd,
    postgres::{Unreadable, read},
    worker::batch::fail_rows::BadRow,
};

/// The batch's content hashes, and the pastes that give up their reference to each.
pub(in crate::worker) type References<'a> = HashMap<&'a [u8], Vec<&'a Paste>>;

pub(in crate::worker) fn references(claim: &Claim) -> References<'_> {
    let mut references = References::with_capacity(claim.pastes.len());
    for paste in &claim.pastes {
        if let Some(hash) = &paste.content_hash {
            references.entry(hash).or_default().push(paste);
        }
    }
    references
}

/// One locked content row.
#[derive(Debug)]
pub(in crate::worker) struct Content {
    pub hash: Vec<u8>,
    pub s3_key: String,
    pub ref_count: i64,
    size_bytes: i64,
    /// How many pastes of this batch give up their reference, and the paste on whose behalf its object is
    /// deleted.
    pub references: i32,
    pending_owner: String,
    /// None of these pastes has failed by itself before.
    pub is_fresh: bool,
    /// The content row was inserted after the batch was claimed (the earlier row was deleted
    /// because its count was too low), so its count does not include the batch's references.
    pub is_newer: bool,
    /// Its time of creation is in the future: it counts as newer, but may be older.
    pub is_from_the_future: bool,
    /// Some of its pastes no longer belong to the claim: nothing records what became of their references.
    pub has_taken_away: bool,
    /// Number of references from outside this batch. It is 0 unless it was counted: if another
    /// paste references content that would be deleted, if the content is newer than the claim, or
    /// if pastes left the claim.
    pub other_references: i64,
}

impl Content {
    pub(crate) fn new(
        row: &Row,
        references: &References<'_>,
        taken_away: &HashSet<String>,
    ) -> Result<Self, Unreadable> {
        let hash: Vec<u8> = read(row, "content", "content_hash")?;
        let all = references.get(&*hash).map(Vec::as_slice).unwrap_or_default();
        let ours = all.iter().filter(|paste| !taken_away.contains(&paste.short_code));
        let pastes: Vec<&&Paste> = ours.collect();
        Ok(Self {
            s3_key: read(row, "content", "s3_key")?,
            ref_count: row.get("ref_count"),
            size_bytes: row.get("size_bytes"),
            references: i32::try_from(pastes.len()).unwrap_or(i32::MAX),
            pending_owner: pastes
                .first()
                .or(all.first().as_ref())
                .map(|paste| paste.short_code.clone())
                .unwrap_or_default(),
            has_taken_away: pastes.len() < all.len(),
            is_fresh: !pastes.iter().any(|paste| paste.failed_before),
            is_newer: row.get("is_newer"),
            is_from_the_future: row.get("is_from_the_future"),
            other_references: 0,
            hash,
        })
    }

    /// The count without the references of this batch.
    pub(crate) fn left(&self) -> i64 {
        self.ref_count - i64::from(self.references)
    }

    /// By its count, this batch has the last references.
    pub(crate) fn loses_its_last(&self) -> bool {
        self.left() <= 0
    }

    /// Returns whether the count allows the delete, if no other paste references the content.
    /// Content that is newer than the claim is recounted instead, unless its `created_at` is in the
    /// future: then nearly all of it is old, and recounting it made a night seven times as long.
    pub(crate) fn may_be_deleted(&self) -> bool {
        self.loses_its_last() && (!self.is_newer || self.is_from_the_future)
    }

    /// Returns whether the tables were consulted for this content, so that it is deleted or set to
    /// the recount instead of being subtracted from.
    pub(crate) fn is_checked(&self) -> bool {
        self.loses_its_last() || self.is_newer || self.has_taken_away
    }

    /// By its count, or by a recount, and by the tables, no other paste references it.
    pub(crate) fn is_unreferenced(&self) -> bool {
        self.is_checked() && self.other_references == 0
    }

    /// The count disagrees with the tables.
    pub(crate) fn drifted(&self) -> bool {
        self.left() < 0 || (self.is_checked() && self.other_references != self.left())
    }
}

/// All content rows of a batch, and how many of its hashes have none.
#[derive(Debug)]
pub(in crate::worker) struct Plan {
    pub contents: Vec<Content>,
    pub missing: usize,
    /// Pastes that cannot be processed, and leave the batch.
    pub bad: Vec<BadRow>,
    /// Some keys in content have other spellings: some stores take them for the same object.
    pub keys_are_odd: bool,
    /// Pastes that no longer belong to the claim.
    pub taken_away: HashSet<String>,
}

impl Plan {
    /// Takes a content row out of the plan; all pastes of the batch that reference it leave the batch.
    pub(crate) fn take_out(
        &mut self,
        hash: &[u8],
        references: &References<'_>,
        error: &str,
        is_row_error: bool,
    ) {
        self.contents.retain(|content| content.hash != hash);
        let pastes = references.get(hash).map(Vec::as_slice).unwrap_or_default();
        let ours = pastes.iter().filter(|paste| !self.taken_away.contains(&paste.short_code));
        self.bad.extend(ours.map(|paste| BadRow {
            short_code: paste.short_code.clone(),
            error: error.into(),
            pending_key: None,
            is_row_error,
        }));
    }

    pub(crate) fn decremented(self) -> Decremented {
        let drift = self.missing + self.contents.iter().filter(|content| content.drifted()).count();
        let unreferenced: Vec<Content> =
            self.contents.into_iter().filter(Content::is_unreferenced).collect();
        Decremented {
            keys_are_odd: self.keys_are_odd
                || unreferenced.iter().any(|content| is_odd(&content.s3_key)),
            bytes: unreferenced.iter().map(|content| content.size_bytes).sum(),
            drift,
            failed: self.bad.into_iter().map(|bad| (bad.short_code, bad.error)).collect(),
            unreferenced: unreferenced
                .into_iter()
                .map(|content| PendingDelete {
                    pending_owner: content.pending_owner,
                    s3_key: content.s3_key,
                })
                .collect(),
        }
    }
}
