//! What holds for the reference itself, and how a story ends in it.

use std::collections::{BTreeMap, BTreeSet};

use super::reference::{Content, Paste, Reference, Status, When};

impl Reference {
    /// Pastes that nobody expired, and their bodies.
    pub fn alive(&self) -> BTreeMap<String, u8> {
        let alive = self.pastes.iter().filter(|(_, paste)| !paste.has_expired());
        alive.filter_map(|(code, paste)| Some((code.clone(), paste.body?))).collect()
    }

    /// What is left when all backoffs have ended and everything that has expired is gone. For
    /// stories with right counts.
    pub fn drained(&self) -> Self {
        let mut end = Self { uploads: self.uploads, ..Self::default() };
        end.objects = self.objects.intersection(&self.kept_keys()).cloned().collect();
        for (code, paste) in &self.pastes {
            if paste.status == Status::Deleted || !paste.has_expired() {
                let retry = if paste.retry == When::Unset { When::Unset } else { When::Past(0) };
                end.pastes.insert(code.clone(), Paste { retry, ..paste.clone() });
            }
        }
        for (body, content) in &self.content {
            let ref_count = end.holders(*body);
            if ref_count > 0 {
                end.objects.insert(content.key.clone());
                end.content.insert(*body, Content { ref_count, ..content.clone() });
            }
        }
        end
    }

    /// The promises, which hold for the reference itself at every moment of a story with right
    /// counts: every count is true, every counted body is there, every object is remembered.
    pub fn broken_promises(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for (body, content) in &self.content {
            if content.ref_count != self.holders(*body) || content.ref_count == 0 {
                broken.push(format!("body {body} counts {}", content.ref_count));
            }
            if !self.objects.contains(&content.key) {
                broken.push(format!("the body under {} is lost", content.key));
            }
        }
        let known: BTreeSet<&String> = (self.content.values().map(|content| &content.key))
            .chain(self.pastes.values().filter_map(|paste| paste.pending_s3_key.as_ref()))
            .chain(self.claims.values().flat_map(|claim| claim.lease.pending_owners.keys()))
            .collect();
        let stranded = self.objects.iter().filter(|key| !known.contains(key));
        broken.extend(stranded.map(|key| format!("nobody remembers {key}")));
        broken
    }
}
