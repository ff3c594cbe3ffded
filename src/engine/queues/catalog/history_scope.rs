//! The facts about queues that the history needs.

use std::time::Duration;

use crate::queues::catalog::CatalogService;
use crate::queues::error::QueueError;
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::queue::setup::settings::HistoryKept;
use tallystone_domain::queue::{QueueId, QueueName};

/// A queue that is checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedQueue {
    pub id: QueueId,
    pub name: QueueName,
    pub shards: u32,
    pub keeps_history: bool,
    /// Messages of all states, as last known.
    pub messages: u64,
}

impl CheckedQueue {
    fn of(queue: &ServedQueue, now: Duration) -> Self {
        let record = queue.record.load();
        Self {
            id: record.id,
            name: record.spec.name.clone(),
            shards: queue.shards(),
            keeps_history: record.spec.settings.history != HistoryKept::Nothing,
            messages: queue.backlog(now).messages.iter().sum(),
        }
    }
}

impl CatalogService {
    /// Whether the history keeps rows of a queue; true for a queue that is not known. O(1).
    pub(crate) fn keeps_history(&self, id: QueueId) -> bool {
        let found = self.context.by_id(id);
        found.is_none_or(|queue| queue.record.load().spec.settings.history != HistoryKept::Nothing)
    }

    /// Whether a queue exists and holds messages. O(1).
    pub(crate) fn is_served(&self, id: QueueId) -> bool {
        self.context.by_id(id).is_some_and(|queue| queue.holds_messages())
    }

    /// The name of a queue. O(1).
    pub(crate) fn name_of(&self, id: QueueId) -> Option<QueueName> {
        self.context.by_id(id).map(|queue| queue.record.load().spec.name.clone())
    }

    /// A queue that holds messages, or all of them by name. O(queues).
    pub(crate) fn checked_queues(&self, name: Option<&QueueName>) -> Result<Vec<CheckedQueue>, QueueError> {
        let now = self.context.elapsed();
        if let Some(name) = name {
            return Ok(vec![CheckedQueue::of(&*self.context.queue(name)?, now)]);
        }
        let all = self.context.all();
        Ok(all.iter().filter(|queue| queue.holds_messages()).map(|queue| CheckedQueue::of(queue, now)).collect())
    }
}
