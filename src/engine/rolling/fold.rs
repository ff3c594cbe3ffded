//! Folds over the log of a counter, page by page, for rolls and for reads that need the same without writing.
//!
//! A fold begins at the end of its checkpoint, so no event is folded twice. It yields to other tasks after each page, however
//! fast the log is. So a long fold blocks no other task, and it ends at a page if its caller goes away.

use crate::rolling::Roller;
use crate::scopes::NamespaceScope;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, Event};
use tallystone_domain::limits::FOLD_EVENTS_AT_ONCE_MAX;
use tallystone_domain::rollup::{Checkpoint, EventFolder};
use tallystone_ports::{ScanOrder, ScanRange, StoreError};

/// A fold that has processed the events of its range and is not finished yet.
pub struct FoldedLog<'a> {
    pub folder: EventFolder<'a>,
    /// The number of folded events.
    pub events: u64,
    /// The time of the newest.
    pub newest: Option<Timestamp>,
    /// Whether the range contains more events than the maximum.
    pub more: bool,
}

impl Roller {
    /// Folds the events of the log in (base.as_of, to], up to a maximum. Cost: O(folded events), a page at a time.
    pub async fn fold_pages<'a>(
        &self,
        scope: &'a NamespaceScope,
        counter: &Counter,
        base: Checkpoint,
        to: Timestamp,
        events_max: usize,
    ) -> Result<FoldedLog<'a>, StoreError> {
        self.fold_pages_noting(scope, counter, base, (to, events_max), |_| {}).await
    }

    /// The same, and reports each folded event, in the order of keys.
    pub async fn fold_pages_noting<'a>(
        &self,
        scope: &'a NamespaceScope,
        counter: &Counter,
        base: Checkpoint,
        (to, events_max): (Timestamp, usize),
        mut note: impl FnMut(&Event) + Send,
    ) -> Result<FoldedLog<'a>, StoreError> {
        let (after, order) = (base.as_of, ScanOrder::OldestFirst);
        let mut range = ScanRange { after, to, order, beyond: None, limit: FOLD_EVENTS_AT_ONCE_MAX };
        let mut left = events_max;
        let mut folded =
            FoldedLog { folder: EventFolder::new(base, &scope.rules), events: 0, newest: None, more: false };
        loop {
            // One event beyond the maximum tells whether there are more.
            range.limit = left.saturating_add(1).min(FOLD_EVENTS_AT_ONCE_MAX);
            let mut page = self.scopes.stores.log.scan(scope.dataset.id(), counter, range.clone()).await?;
            let is_last = page.len() < range.limit;
            folded.more = page.len() > left;
            page.truncate(left);
            for event in &page {
                folded.folder.take(event);
                note(event);
            }
            folded.events += page.len() as u64;
            left -= page.len();
            folded.newest = page.last().map(|last| last.key.time).or(folded.newest);
            if is_last || folded.more {
                return Ok(folded);
            }
            range.beyond = page.pop().map(|last| last.key);
            tokio::task::yield_now().await;
        }
    }
}
