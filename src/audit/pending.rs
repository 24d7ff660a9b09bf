//! What the walks have found to be deleted. Nothing of it is deleted before they have ended: too much of
//! it is a sign that something else is wrong, and then none of it should be gone by the time somebody
//! looks why.

use super::{Position, bodies::Body, record::Recorded};
use crate::objects::Listed;

/// Grows with `--max-delete` and `--list`, never with the bucket.
#[derive(Default)]
pub(super) struct Pending {
    pub orphans: Vec<Listed>,
    pub bodies: Vec<Body>,
    /// Found when there were too many already: counted, and not kept.
    pub more: More,
    most: usize,
    /// So many bodies go one by one: together they would not.
    alone: usize,
    /// As it was before the current page.
    page: Mark,
    /// As it was before the first page with something to delete: who goes on from there finds all of
    /// it again.
    first: Option<(Position, Recorded)>,
}

#[derive(Default, Clone, Copy)]
pub(super) struct More {
    pub orphans: u64,
    pub orphan_bytes: u64,
    pub bodies: u64,
}

#[derive(Default, Clone, Copy)]
struct Mark {
    orphans: usize,
    bodies: usize,
    more: More,
}

impl Pending {
    /// Keeps so many; of what comes after them, only the number.
    pub fn keeping(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub fn add_orphan(&mut self, orphan: Listed) {
        if self.orphans.len() + self.bodies.len() < self.most {
            return self.orphans.push(orphan);
        }
        self.more.orphans += 1;
        self.more.orphan_bytes += orphan.bytes;
    }

    pub fn add_body(&mut self, body: Body) {
        if self.orphans.len() + self.bodies.len() < self.most {
            return self.bodies.push(body);
        }
        self.more.bodies += 1;
    }

    pub fn orphan_count(&self) -> u64 {
        self.orphans.len() as u64 + self.more.orphans
    }

    pub fn body_count(&self) -> u64 {
        self.bodies.len() as u64 + self.more.bodies
    }

    pub fn count(&self) -> u64 {
        self.orphan_count() + self.body_count()
    }

    /// The bodies to remove next: so many at most.
    pub fn next_bodies(&self, at_once: usize) -> Vec<Body> {
        let some = if self.alone > 0 { 1 } else { at_once.min(self.bodies.len()) };
        self.bodies[..some].to_vec()
    }

    /// The next so many go one by one.
    pub fn one_by_one(&mut self, bodies: usize) {
        self.alone = bodies;
    }

    /// The next so many are done with.
    pub fn forget_bodies(&mut self, bodies: usize) {
        self.bodies.drain(..bodies);
        self.alone = self.alone.saturating_sub(bodies);
    }

    /// A page was walked through whole; it began at `before`, when the figures were these.
    pub fn end_page(&mut self, before: &Position, figures: Recorded) {
        if self.first.is_none() && self.count() > 0 {
            self.first = Some((before.clone(), figures));
        }
        self.page =
            Mark { orphans: self.orphans.len(), bodies: self.bodies.len(), more: self.more };
    }

    /// A page was not walked through whole, and will be walked through again.
    pub fn undo_page(&mut self) {
        self.orphans.truncate(self.page.orphans);
        self.bodies.truncate(self.page.bodies);
        self.more = self.page.more;
    }

    /// Where to go on so that all of it is found again, and what was found before that.
    pub fn first(&self) -> Option<&(Position, Recorded)> {
        self.first.as_ref()
    }
}
