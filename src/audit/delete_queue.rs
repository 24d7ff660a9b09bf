//! What the walks have found to delete. Nothing is deleted before the walks have ended: a large number
//! means that something else is wrong, and then everything should still be there for the operator
//! who investigates.

use super::{Position, record::Recorded, recount::Content};
use crate::objects::Listed;

/// The orphans and the unreferenced content to delete. Its size is bounded by `--max-delete` and
/// `--list`, not by the bucket.
#[derive(Default)]
pub(super) struct DeleteQueue {
    orphans: Vec<Listed>,
    content: Vec<Content>,
    /// Found when the queue was full: counted, and not kept.
    overflow: Overflow,
    capacity: usize,
    /// The next this many content rows are deleted one by one, because together they failed.
    one_by_one: usize,
    /// The queue as it was before the current page.
    page: Mark,
    /// The state before the first page with something to delete. An audit that resumes there finds
    /// all of it again.
    first: Option<(Position, Recorded)>,
}

#[derive(Default, Clone, Copy)]
pub(super) struct Overflow {
    pub orphans: u64,
    pub orphan_bytes: u64,
    pub content: u64,
}

#[derive(Default, Clone, Copy)]
struct Mark {
    orphans: usize,
    content: usize,
    overflow: Overflow,
}

impl DeleteQueue {
    /// Creates a queue that keeps `capacity` items, and only the number of those beyond.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    pub(super) fn add_orphan(&mut self, orphan: Listed) {
        if !self.is_full() {
            return self.orphans.push(orphan);
        }
        self.overflow.orphans += 1;
        self.overflow.orphan_bytes += orphan.bytes;
    }

    pub(super) fn add_content(&mut self, content: Content) {
        if !self.is_full() {
            return self.content.push(content);
        }
        self.overflow.content += 1;
    }

    fn is_full(&self) -> bool {
        self.orphans.len() + self.content.len() >= self.capacity
    }

    pub(super) fn orphan_count(&self) -> u64 {
        self.orphans.len() as u64 + self.overflow.orphans
    }

    pub(super) fn content_count(&self) -> u64 {
        self.content.len() as u64 + self.overflow.content
    }

    pub(super) fn count(&self) -> u64 {
        self.orphan_count() + self.content_count()
    }

    /// Returns the orphans to delete next, at most this many.
    pub(super) fn next_orphans(&self, most: usize) -> Vec<Listed> {
        self.orphans[..most.min(self.orphans.len())].to_vec()
    }

    /// Removes the next orphans: they are done.
    pub(super) fn finish_orphans(&mut self, orphans: usize) {
        self.orphans.drain(..orphans);
    }

    /// Returns the content to delete next, at most this many rows.
    pub(super) fn next_content(&self, most: usize) -> Vec<Content> {
        let next = if self.one_by_one > 0 { 1 } else { most.min(self.content.len()) };
        self.content[..next].to_vec()
    }

    /// Makes [`Self::next_content`] return the next rows one by one.
    pub(super) fn split_content(&mut self, rows: usize) {
        self.one_by_one = rows;
    }

    /// Removes the next content rows: they are done.
    pub(super) fn finish_content(&mut self, rows: usize) {
        self.content.drain(..rows);
        self.one_by_one = self.one_by_one.saturating_sub(rows);
    }

    /// Keeps what a page has added, when all of the page was checked. The page began at `before`,
    /// with the findings `recorded`.
    pub(super) fn end_page(&mut self, before: &Position, recorded: Recorded) {
        if self.first.is_none() && self.count() > 0 {
            self.first = Some((before.clone(), recorded));
        }
        self.page = Mark {
            orphans: self.orphans.len(),
            content: self.content.len(),
            overflow: self.overflow,
        };
    }

    /// Removes what an unfinished page has added: the page will be checked again.
    pub(super) fn undo_page(&mut self) {
        self.orphans.truncate(self.page.orphans);
        self.content.truncate(self.page.content);
        self.overflow = self.page.overflow;
    }

    /// Returns where to resume so that everything queued is found again, and what was found before.
    pub(super) fn first(&self) -> Option<&(Position, Recorded)> {
        self.first.as_ref()
    }

    /// Empties the queue.
    pub(super) fn take(&mut self) -> (Vec<Listed>, Vec<Content>, Overflow) {
        let Self { orphans, content, overflow, .. } = std::mem::take(self);
        (orphans, content, overflow)
    }
}
