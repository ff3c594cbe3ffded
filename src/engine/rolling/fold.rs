//! Folds over the log of a counter, page by page, for rolls and for reads that need the same without writing.
//!
//! A fold begins at the end of its checkpoint, so no event is folded twice. It yields to other tasks after each page,
//! however fast the log is. So a long fold blocks no other task, and it ends at a page if its caller goes away. Clears
//! that a verdict could still refuse are settled before they are folded.

use crate::rolling::Roller;
use crate::scopes::NamespaceScope;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, Event, EventKey};
use tallystone_domain::limits::FOLD_EVENTS_AT_ONCE_MAX;
use tallystone_domain::rollup::{Checkpoint, EventFolder, RollupRow, SettledClears};
use tallystone_ports::{ScanOrder, ScanRange, StoreError};

/// The start of a fold, both parts from one row: the checkpoint, and the clear register.
#[derive(Clone)]
pub struct FoldStart {
    pub base: Checkpoint,
    pub register: Option<EventKey>,
}

impl FoldStart {
    /// The start on a row that was read after a watermark.
    pub fn of(row: &RollupRow, watermark: Timestamp) -> Self {
        Self { base: row.base(watermark), register: row.clear.clone() }
    }
}

/// A fold that has processed the events of its range and is not finished yet.
pub struct FoldedLog<'a> {
    pub folder: EventFolder<'a>,
    /// The number of folded events.
    pub events: u64,
    /// The time of the newest.
    pub newest: Option<Timestamp>,
    /// Whether the range contains more events than the maximum.
    pub more: bool,
    /// The clears that are settled after the fold.
    pub clears: SettledClears,
}

impl Roller {
    /// Folds the events of the log in (base.as_of, to], up to a maximum. `to` is a published limit, or the end of time
    /// for the whole tail. Cost: O(folded events), a page at a time; a request more for each clear that has to be
    /// settled.
    pub async fn fold_pages<'a>(
        &self,
        scope: &'a NamespaceScope,
        counter: &Counter,
        start: FoldStart,
        to: Timestamp,
        events_max: usize,
    ) -> Result<FoldedLog<'a>, StoreError> {
        self.fold_pages_noting(scope, counter, start, (to, events_max), |_| {}).await
    }

    /// The same, and reports each folded event, in the order of keys.
    pub async fn fold_pages_noting<'a>(
        &self,
        scope: &'a NamespaceScope,
        counter: &Counter,
        FoldStart { base, register }: FoldStart,
        (to, events_max): (Timestamp, usize),
        mut note: impl FnMut(&Event) + Send,
    ) -> Result<FoldedLog<'a>, StoreError> {
        let (after, order) = (base.as_of, ScanOrder::OldestFirst);
        let mut range = ScanRange { after, to, order, beyond: None, limit: FOLD_EVENTS_AT_ONCE_MAX };
        let limit = if to == Timestamp::MAX { scope.dataset.limit() } else { to };
        let clears = SettledClears::new(register, limit);
        let mut left = events_max;
        let mut folded =
            FoldedLog { folder: EventFolder::new(base, &scope.rules), events: 0, newest: None, more: false, clears };
        loop {
            // One event beyond the maximum tells whether there are more.
            range.limit = left.saturating_add(1).min(FOLD_EVENTS_AT_ONCE_MAX);
            let mut page = self.scopes.stores.log.scan(scope.dataset.id(), counter, range.clone()).await?;
            let is_last = page.len() < range.limit;
            folded.more = page.len() > left;
            page.truncate(left);
            folded.events += page.len() as u64;
            left -= page.len();
            range.beyond = page.last().map(|last| last.key.clone());
            folded.newest = range.beyond.as_ref().map(|last| last.time).or(folded.newest);
            if folded.clears.next_unsettled(&page).is_some() {
                // Boxed: it is rare, and most folds need no space for it.
                Box::pin(self.settle_clears(scope, counter, &mut folded.clears, &mut page)).await?;
            }
            for event in &page {
                folded.folder.take(event);
                note(event);
            }
            if is_last || folded.more {
                return Ok(folded);
            }
            tokio::task::yield_now().await;
        }
    }
}
