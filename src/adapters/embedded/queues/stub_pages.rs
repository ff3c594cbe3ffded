//! Pages of stubs on disk: a start reads them instead of the heads of messages that are over.
//!
//! A page is valid unless it has a row that says it is dirty. This row is written in the commit that changes the
//! content of the page. So no crash leaves a page that is wrong. A dirty page is written when its last message is over,
//! or after a while. Until then a start reads the heads of its messages that are over.

use std::collections::{BTreeMap, BTreeSet};

use super::key::{self, PageTag};
use super::keyspaces::QueueKeyspaces;
use crate::disk::writer::CommitBatch;
use crate::limits::{STUB_PAGE_WRITTEN_AFTER, STUB_PAGES_AT_ONCE_MAX};
use tallystone_adapters::codec::queues::stubs::encode_stub_page;
use tallystone_domain::queue::{Shard, ShardId};
use tallystone_domain::time::Timestamp;

/// The dirty pages of a shard, and since when.
#[derive(Default)]
pub struct DirtyPages {
    since: BTreeMap<u64, Timestamp>,
    by_time: BTreeSet<(Timestamp, u64)>,
}

/// The change that a commit makes to the messages of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageChange {
    /// Messages of the page are over now.
    Ended,
    /// Messages that were over have changed, live again or are gone.
    Left,
}

impl DirtyPages {
    /// Adds a page; returns whether it is new.
    pub fn add(&mut self, page: u64, now: Timestamp) -> bool {
        let is_new = !self.since.contains_key(&page);
        if is_new {
            self.since.insert(page, now);
            self.by_time.insert((now, page));
        }
        is_new
    }

    fn remove(&mut self, page: u64) {
        if let Some(since) = self.since.remove(&page) {
            self.by_time.remove(&(since, page));
        }
    }

    /// The next page that was dirty for long enough.
    fn due(&self, now: Timestamp) -> Option<u64> {
        let (since, page) = *self.by_time.first()?;
        (since + STUB_PAGE_WRITTEN_AFTER <= now).then_some(page)
    }

    /// Stages the rows of the pages that a commit changes, and of some that have waited. Returns whether it removed
    /// any.
    pub fn write(
        &mut self,
        (id, shard): (ShardId, &Shard),
        changed: &BTreeMap<u64, PageChange>,
        now: Timestamp,
        spaces: &QueueKeyspaces,
        batch: &mut CommitBatch,
    ) -> bool {
        let mut staged = StagedPages { id, spaces, batch, removed: false };
        for (page, change) in changed {
            let counts = shard.page_counts(*page);
            let is_final = *change == PageChange::Ended && counts.live == 0 && shard.is_page_given(*page);
            if counts.over == 0 {
                self.remove(*page);
                staged.remove(*page);
            } else if let Some(stubs) = is_final.then(|| shard.over_in_page(*page)).flatten() {
                self.remove(*page);
                staged.put(*page, encode_stub_page(&stubs));
            } else if self.add(*page, now) {
                staged.mark(*page);
            }
        }
        for _ in 0..STUB_PAGES_AT_ONCE_MAX {
            let Some(page) = self.due(now) else { break };
            self.remove(page);
            match shard.over_in_page(page) {
                Some(stubs) => staged.put(page, encode_stub_page(&stubs)),
                // A message of it keeps its head, which only a look at the heads finds.
                None => drop(self.add(page, now)),
            }
        }
        staged.removed
    }
}

/// The rows of pages in the batch of a commit.
struct StagedPages<'a> {
    id: ShardId,
    spaces: &'a QueueKeyspaces,
    batch: &'a mut CommitBatch,
    removed: bool,
}

impl StagedPages<'_> {
    fn put(&mut self, page: u64, row: Vec<u8>) {
        self.batch.put(&self.spaces.stubs, key::of_page(PageTag::Stubs, self.id, page), row);
        self.batch.remove(&self.spaces.stubs, key::of_page(PageTag::Dirty, self.id, page));
        self.removed = true;
    }

    fn mark(&mut self, page: u64) {
        self.batch.put(&self.spaces.stubs, key::of_page(PageTag::Dirty, self.id, page), &b""[..]);
    }

    fn remove(&mut self, page: u64) {
        for tag in [PageTag::Stubs, PageTag::Dirty] {
            self.batch.remove(&self.spaces.stubs, key::of_page(tag, self.id, page));
        }
        self.removed = true;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_page_is_due_once_it_was_dirty_for_long_enough_and_the_oldest_comes_first() {
        let mut pages = DirtyPages::default();
        let at = Timestamp::from_secs;
        assert!(pages.add(7, at(0)) && pages.add(3, at(1)) && !pages.add(7, at(20)));
        let wait = STUB_PAGE_WRITTEN_AFTER;
        assert_eq!(pages.due(at(0) + (wait - Duration::from_micros(1))), None);
        assert_eq!(pages.due(at(1) + wait), Some(7));
        pages.remove(7);
        assert_eq!(pages.due(at(1) + wait), Some(3));
        pages.remove(3);
        assert_eq!(pages.due(Timestamp::MAX), None);
        assert!(pages.add(7, at(0)), "it may come again");
    }
}
