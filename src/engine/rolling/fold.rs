//! Folds over a counter's log, page by page, for rolls and for whoever needs the same without writing.
//!
//! A fold begins where its checkpoint ends, so no event is folded twice.

use crate::domain::Timestamp;
use crate::domain::counter::Counter;
use crate::domain::limits::SCAN_PAGE_EVENTS;
use crate::domain::rollup::{Checkpoint, Folder};
use crate::engine::core::{Core, Scope};
use crate::ports::{Order, ScanRange, StoreError};

/// A fold that has taken all events of its range and is to be finished.
pub struct FoldedLog<'a> {
    /// The fold.
    pub folder: Folder<'a>,
    /// How many events it was given.
    pub events: u64,
    /// The time of the newest.
    pub newest: Option<Timestamp>,
}

impl Core {
    /// Folds what the log holds in (base.as_of, to]. Cost: O(events of the range), a page at a time.
    pub async fn fold_pages<'a>(
        &self,
        scope: &'a Scope,
        counter: &Counter,
        base: Checkpoint,
        to: Timestamp,
    ) -> Result<FoldedLog<'a>, StoreError> {
        let after = base.as_of;
        let mut range = ScanRange { after, to, order: Order::OldestFirst, beyond: None, limit: SCAN_PAGE_EVENTS };
        let mut folded = FoldedLog { folder: Folder::new(base, &scope.rules), events: 0, newest: None };
        loop {
            let page = self.stores.log.scan(scope.dataset.id(), counter, range.clone()).await?;
            page.iter().for_each(|event| folded.folder.take(event));
            folded.events += page.len() as u64;
            let Some(last) = page.last() else { return Ok(folded) };
            folded.newest = Some(last.key.time);
            if page.len() < SCAN_PAGE_EVENTS {
                return Ok(folded);
            }
            range.beyond = Some(last.key.clone());
        }
    }
}
