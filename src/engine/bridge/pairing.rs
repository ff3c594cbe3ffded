//! The pair of a queue store and a counter store. Counters, and the history next to them, belong to one queue store.
//!
//! Two private queue stores may both have a queue `orders`. If both reported to one counter store, the counters would
//! jump between them. So a queue store leaves its mark next to the counters, and another one runs without the bridge
//! until the counters are given to it.
//!
//! ```text
//! no mark --first look of a store--> epoch 1: in force
//! a mark of epoch e --adopt--------> epoch e + 1, even position: given, its store waits
//! given --settle-------------------> the same epoch, the next position: in force
//! ```
//!
//! A mark is kept as the cursor of a shard that no queue has. So the greatest epoch and position wins, whichever server
//! writes it and when. Invariant: a store that was given the counters reports after `settle` only. It waits before
//! `settle` until no server of the store before can still believe that it has them (`report_right`).

use std::sync::Arc;

use tallystone_domain::Timestamp;
use tallystone_domain::history::HistoryCursor;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_domain::queue::{QueueId, ShardId};
use tallystone_domain::rules::QueueHome;
use tallystone_ports::{HistoryBatch, HistoryStore, StoreError, StoreErrorKind};

/// The shard whose cursor holds the mark. No queue has this number.
const MARK: ShardId = ShardId { queue: QueueId(0), number: 0 };
/// The shard whose cursor says how far the store of the mark has reported.
const REPORTED: ShardId = ShardId { queue: QueueId(0), number: 1 };
/// The epoch of a mark that nobody was given.
const FIRST_EPOCH: u32 = 1;

/// The meaning of the mark next to the counters for a queue store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pairing {
    /// The counters are its own.
    Paired,
    /// The counters were given to it by the mark of this place. Servers of the store before may not know that yet.
    Given(RowPosition),
    /// The counters belong to another queue store.
    Apart,
}

/// The mark beside the counters, as one queue store reads and writes it. Cheap to clone.
#[derive(Clone)]
pub struct StoreMark {
    history: Arc<dyn HistoryStore>,
    home: QueueHome,
}

impl StoreMark {
    /// The mark beside these counters, for the queue store of a home.
    pub fn new(history: Arc<dyn HistoryStore>, home: QueueHome) -> Self {
        Self { history, home }
    }

    /// Reads the mark. If there is none, this store leaves its own first.
    ///
    /// `draw` is random: of two stores that leave their marks at the same time, the one with the greater number wins.
    pub async fn look(&self, draw: u64) -> Result<Pairing, StoreError> {
        if let Some(known) = self.history.cursor(MARK).await? {
            return Ok(self.read(&known));
        }
        self.write(MARK, RowPosition { epoch: FIRST_EPOCH, position: draw >> 1 }).await?;
        self.reread().await
    }

    /// Gives the counters to this store, unless they are its own or were given to it. Returns what the mark says then.
    ///
    /// `draw` is random, as above. A repeat changes nothing.
    pub async fn adopt(&self, draw: u64) -> Result<Pairing, StoreError> {
        let found = match self.history.cursor(MARK).await? {
            Some(known) => (self.read(&known), known.position.epoch),
            None => (Pairing::Apart, 0),
        };
        let (Pairing::Apart, epoch) = found else { return Ok(found.0) };
        let Some(epoch) = epoch.checked_add(1) else {
            return Err(StoreError::not_applied(StoreErrorKind::Busy, "give the counters to the queue store")
                .with_source("the epochs of the mark are used up"));
        };
        self.write(MARK, RowPosition { epoch, position: (draw >> 1) & !1 }).await?;
        self.reread().await
    }

    /// Puts a mark in force by which the counters were given to this store. One that was overtaken stays so.
    pub async fn settle(&self, RowPosition { epoch, position }: RowPosition) -> Result<Pairing, StoreError> {
        self.write(MARK, RowPosition { epoch, position: position | 1 }).await?;
        self.reread().await
    }

    /// Notes up to when this store has reported. An earlier time changes nothing.
    pub async fn note_reported(&self, reported_to: Timestamp) -> Result<(), StoreError> {
        let position = u64::try_from(reported_to.micros()).unwrap_or(0);
        self.write(REPORTED, RowPosition { epoch: FIRST_EPOCH, position }).await
    }

    /// The latest time that a store of these counters noted so, whichever it was. It comes from the clock of a server.
    pub async fn reported_to(&self) -> Result<Option<Timestamp>, StoreError> {
        let noted = self.history.cursor(REPORTED).await?;
        Ok(noted.and_then(|noted| i64::try_from(noted.position.position).ok()).map(Timestamp::from_micros))
    }

    /// Returns the meaning of a mark for this store.
    fn read(&self, known: &HistoryCursor) -> Pairing {
        let RowPosition { epoch, position } = known.position;
        match *known.register == self.home.0 {
            false => Pairing::Apart,
            true if epoch > FIRST_EPOCH && position.is_multiple_of(2) => Pairing::Given(known.position),
            true => Pairing::Paired,
        }
    }

    /// Reads the mark after this store has written its own: another one may have won.
    async fn reread(&self) -> Result<Pairing, StoreError> {
        Ok(self.history.cursor(MARK).await?.map_or(Pairing::Apart, |known| self.read(&known)))
    }

    async fn write(&self, shard: ShardId, position: RowPosition) -> Result<(), StoreError> {
        let cursor = HistoryCursor { position, register: self.home.0.into() };
        self.history.append(vec![HistoryBatch { shard, rows: Vec::new(), gaps: Vec::new(), cursor }]).await
    }
}
