//! Reads of the history of messages: the trace of one message, and searches.
//!
//! The history follows the queues with a delay. A trace therefore reads the outbox of the message's shard too, before
//! the store: a row that moves from one to the other between the two reads is in both. A search reads the history
//! alone.

mod search;
mod trace;

use std::sync::Arc;

use crate::queues::{HistorySource, QueueError, Queues};
use tallystone_domain::history::HistoryGap;
use tallystone_domain::limits::HISTORY_GAPS_SHOWN_MAX;
use tallystone_domain::time::Timestamp;
use tallystone_ports::{HistoryStore, QueueShards};

pub use search::SearchedPage;
pub use trace::{MessageTrace, TraceCursor, TracedLife};

/// The reads of the history. Cheap to clone.
#[derive(Clone)]
pub struct HistoryReader {
    queues: Queues,
    store: Arc<dyn HistoryStore>,
}

/// The part of an answer that is about the history of a queue as a whole.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HistoryExtent {
    /// The missing parts, newest first, at most `HISTORY_GAPS_SHOWN_MAX`.
    pub gaps: Vec<HistoryGap>,
    /// The time from which on no row has left by age; none if none ever left.
    pub starts_at: Option<Timestamp>,
}

impl HistoryReader {
    /// Reads from a store, of the queues that are served here.
    pub fn new(queues: Queues, store: Arc<dyn HistoryStore>) -> Self {
        Self { queues, store }
    }

    async fn extent(&self, queue: QueueShards) -> Result<HistoryExtent, QueueError> {
        let gaps = self.store.gaps(queue, HISTORY_GAPS_SHOWN_MAX).await?;
        Ok(HistoryExtent { gaps, starts_at: self.store.starts_at().await? })
    }
}

fn shards_of(source: &HistorySource) -> QueueShards {
    QueueShards { queue: source.id, shards: source.shards }
}
