//! The invariants of the reference itself, and its state at the end of a scenario.

use std::collections::{BTreeMap, BTreeSet};

use crate::reference::{Content, Paste, Reference, Status, When};

impl Reference {
    /// Returns the pastes that have not expired, and their content.
    pub(crate) fn alive(&self) -> BTreeMap<String, u8> {
        let alive = self.pastes.iter().filter(|(_, paste)| !paste.has_expired());
        alive.filter_map(|(code, paste)| Some((code.clone(), paste.content_id?))).collect()
    }

    /// Returns what is left when all backoffs have ended and everything expired is gone. For
    /// scenarios with correct counts.
    pub(crate) fn drained(&self) -> Self {
        let mut end = Self { uploads: self.uploads, ..Self::default() };
        end.objects = self.objects.intersection(&self.keys_kept_by_claims()).cloned().collect();
        for (code, paste) in &self.pastes {
            if paste.status == Status::Deleted || !paste.has_expired() {
                let retry = if paste.retry == When::Unset { When::Unset } else { When::Past(0) };
                end.pastes.insert(code.clone(), Paste { retry, ..paste.clone() });
            }
        }
        for (content_id, content) in &self.content {
            let ref_count = end.reference_count(*content_id);
            if ref_count > 0 {
                end.objects.insert(content.key.clone());
                end.content.insert(*content_id, Content { ref_count, ..content.clone() });
            }
        }
        end
    }

    /// Checks the invariants that hold at every moment of a scenario with correct counts: every
    /// count is right, every counted object exists, every object is known.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for (content_id, content) in &self.content {
            if content.ref_count != self.reference_count(*content_id) || content.ref_count == 0 {
                broken.push(format!(
                    "content {content_id} has the wrong ref_count {}",
                    content.ref_count
                ));
            }
            if !self.objects.contains(&content.key) {
                broken.push(format!("object {} is missing, but counted", content.key));
            }
        }
        let known: BTreeSet<&String> = (self.content.values().map(|content| &content.key))
            .chain(self.pastes.values().filter_map(|paste| paste.pending_s3_key.as_ref()))
            .chain(self.claims.values().flat_map(|claim| claim.lease.pending_owners.keys()))
            .collect();
        let orphans = self.objects.iter().filter(|key| !known.contains(key));
        broken.extend(orphans.map(|key| format!("object {key} is an orphan")));
        broken
    }
}
