//! The depth of a queue, and the last reading that its watches share.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::queues::error::QueueError;
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::totals::Total;

/// The numbers of messages.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Depth {
    /// By state, in the order of `State::ALL`, for each shard.
    pub by_shard: Vec<[Total; MessageState::ALL.len()]>,
}

impl Depth {
    /// The number of messages of a state in all shards.
    pub fn of(&self, state: MessageState) -> u64 {
        self.by_shard.iter().map(|totals| totals[state as usize].messages).sum()
    }

    /// The bytes of all payloads.
    pub fn bytes(&self) -> u64 {
        self.by_shard.iter().flatten().map(|total| total.bytes).sum()
    }
}

/// The last reading for watches of a queue.
pub struct DepthCache {
    /// When the reading began, as elapsed time, and its result.
    last: Mutex<Option<(Duration, Arc<Depth>)>>,
    /// One reading at a time.
    turn: Semaphore,
}

impl Default for DepthCache {
    fn default() -> Self {
        Self { last: Mutex::default(), turn: Semaphore::new(1) }
    }
}

impl DepthCache {
    /// The last reading, if it began later than `than`.
    fn after(&self, than: Duration) -> Option<Arc<Depth>> {
        let last = self.last.lock();
        last.as_ref().filter(|(began, _)| *began > than).map(|(_, depth)| Arc::clone(depth))
    }

    /// A reading that began later than `than`: the last one, or a new one. `read` returns its begin and its result.
    pub async fn get<R>(&self, than: Duration, read: impl FnOnce() -> R) -> Result<Arc<Depth>, QueueError>
    where
        R: Future<Output = Result<(Duration, Depth), QueueError>>,
    {
        if let Some(depth) = self.after(than) {
            return Ok(depth);
        }
        let _turn = self.turn.acquire().await.map_err(|_closed| QueueError::ShuttingDown)?;
        if let Some(depth) = self.after(than) {
            return Ok(depth);
        }
        let (began, depth) = read().await?;
        let depth = Arc::new(depth);
        *self.last.lock() = Some((began, Arc::clone(&depth)));
        Ok(depth)
    }
}
