//! What a decrement will do to each body of its batch, decided under the bodies' locks.

use std::collections::{HashMap, HashSet};

use tokio_postgres::Row;

use crate::{
    claim::{Claim, Decremented, Paste, PendingDelete},
    objects::is_odd,
    postgres::{Unreadable, read},
    worker::batch::fail_rows::Bad,
};

/// The batch's bodies, and the pastes that let go of each.
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
pub(in crate::worker) struct Body {
    pub hash: Vec<u8>,
    pub s3_key: String,
    pub ref_count: i64,
    size_bytes: i64,
    /// How many pastes of this batch let go of it, and the one that inherits its key.
    pub references: i32,
    pending_owner: String,
    /// None of these pastes has failed by itself before.
    pub is_fresh: bool,
    /// It was stored again since the batch was claimed: a count that was too low let an earlier
    /// incarnation go. This one's count never had the batch's references in it.
    pub is_newer: bool,
    /// Its time of creation is in the future: it counts as newer, but may be older.
    pub is_from_the_future: bool,
    /// Some of its pastes are not the claim's any more: nothing tells what became of their references.
    pub has_strays: bool,
    /// Rows outside this batch that still hold it. Counted only if somebody needs it although it
    /// would lose its last reference, if it is newer, or if it has strays.
    pub other_holders: i64,
}

impl Body {
    pub fn new(
        row: &Row,
        references: &References<'_>,
        strays: &HashSet<String>,
    ) -> Result<Self, Unreadable> {
        let hash: Vec<u8> = read(row, "content", "content_hash")?;
        let all = references.get(&*hash).map(Vec::as_slice).unwrap_or_default();
        let ours = all.iter().filter(|paste| !strays.contains(&paste.short_code));
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
            has_strays: pastes.len() < all.len(),
            is_fresh: !pastes.iter().any(|paste| paste.failed_before),
            is_newer: row.get("is_newer"),
            is_from_the_future: row.get("is_from_the_future"),
            other_holders: 0,
            hash,
        })
    }

    /// By its count, this batch holds the last references.
    pub fn loses_its_last(&self) -> bool {
        self.ref_count <= i64::from(self.references)
    }

    /// By its count it may go, if no other paste needs it. Newer content is recounted instead. With a time
    /// in the future nearly all of it is old: counted anew one by one, a night took seven times as long.
    pub fn may_go(&self) -> bool {
        self.loses_its_last() && (!self.is_newer || self.is_from_the_future)
    }

    /// Its count was looked into: it goes, or gets the recount.
    pub fn is_judged(&self) -> bool {
        self.loses_its_last() || self.is_newer || self.has_strays
    }

    /// By its count, or by a recount, and by the tables, nobody else needs it.
    pub fn is_unreferenced(&self) -> bool {
        self.is_judged() && self.other_holders == 0
    }

    /// The count says something else than the tables.
    pub fn drifted(&self) -> bool {
        let left = self.ref_count - i64::from(self.references);
        left < 0 || (self.is_judged() && self.other_holders != left)
    }
}

/// All bodies of a batch, and how many have no content row at all.
#[derive(Debug)]
pub(in crate::worker) struct Plan {
    pub bodies: Vec<Body>,
    pub missing: usize,
    /// Pastes that cannot be worked on, and are taken out of the batch.
    pub bad: Vec<Bad>,
    /// Content has keys that some stores take for others.
    pub keys_are_odd: bool,
    /// Pastes that are not the claim's any more.
    pub strays: HashSet<String>,
}

impl Plan {
    /// Takes a body out; all pastes of the batch that reference it are bad.
    pub fn take_out(
        &mut self,
        hash: &[u8],
        references: &References<'_>,
        error: &str,
        own_fault: bool,
    ) {
        self.bodies.retain(|body| body.hash != hash);
        let pastes = references.get(hash).map(Vec::as_slice).unwrap_or_default();
        let ours = pastes.iter().filter(|paste| !self.strays.contains(&paste.short_code));
        self.bad.extend(ours.map(|paste| Bad {
            short_code: paste.short_code.clone(),
            error: error.into(),
            pending_key: None,
            own_fault,
        }));
    }

    pub fn decremented(self) -> Decremented {
        let drift = self.missing + self.bodies.iter().filter(|body| body.drifted()).count();
        let unreferenced: Vec<Body> =
            self.bodies.into_iter().filter(Body::is_unreferenced).collect();
        Decremented {
            keys_are_odd: self.keys_are_odd || unreferenced.iter().any(|body| is_odd(&body.s3_key)),
            bytes: unreferenced.iter().map(|body| body.size_bytes).sum(),
            drift,
            failed: self.bad.into_iter().map(|bad| (bad.short_code, bad.error)).collect(),
            unreferenced: unreferenced
                .into_iter()
                .map(|body| PendingDelete {
                    pending_owner: body.pending_owner,
                    s3_key: body.s3_key,
                })
                .collect(),
        }
    }
}
