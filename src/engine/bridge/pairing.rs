//! The pair of a queue store and a counter store. Counters belong to the first queue store that reports to them.
//!
//! Two private queue stores may both have a queue `orders`. If both reported to one counter store, the counters would jump
//! between them. So the first queue store leaves its mark beside the counters, and another one runs without the bridge.

use std::sync::Arc;

use tallystone_domain::history::HistoryCursor;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_domain::queue::{QueueId, ShardId};
use tallystone_ports::{HistoryBatch, HistoryStore, StoreError};

/// The shard whose cursor holds the mark. No queue has this number.
const MARK: ShardId = ShardId { queue: QueueId(0), number: 0 };

/// Leaves the mark of a queue store beside the counters, if there is none. Returns whether the mark there is its own.
///
/// `draw` is random: of two stores that leave their marks at the same time, the one with the greater number wins.
pub async fn claim(history: &Arc<dyn HistoryStore>, mark: &[u8], draw: u64) -> Result<bool, StoreError> {
    if let Some(known) = history.cursor(MARK).await? {
        return Ok(*known.register == *mark);
    }
    let position = RowPosition { epoch: 1, position: draw };
    let cursor = HistoryCursor { position, register: mark.into() };
    history.append(vec![HistoryBatch { shard: MARK, rows: Vec::new(), gaps: Vec::new(), cursor }]).await?;
    Ok(history.cursor(MARK).await?.is_some_and(|known| *known.register == *mark))
}
