//! Queues on a server whose store is a Cassandra keyspace: there are none, and making one is refused with what to do.

use std::sync::Arc;

use async_trait::async_trait;

use crate::domain::queue::clock::StepTime;
use crate::domain::queue::command::MessageRef;
use crate::domain::queue::commands::explain::{Cause, DequeuePreview};
use crate::domain::queue::filter::Filter;
use crate::domain::queue::messages::lease_seal::LeaseKey;
use crate::domain::queue::name::{QueueId, QueueName, ShardId};
use crate::domain::queue::session_records::{SessionId, SessionRecord};
use crate::domain::queue::{Durability, MessageState, Settings};
use crate::domain::time::Timestamp;
use crate::ports::{
    FilteredDepth, MessagesAt, QueueCatalog, QueueChange, QueueListener, QueueRecord, QueueRequest, QueueStore,
    QueueStores, ShardAnswer, ShardCommand, ShardTotals, StoreError, StoreErrorKind, StoredMessage,
};

/// Stores without queues.
pub fn no_queues() -> QueueStores {
    QueueStores { shards: Arc::new(NoQueues), catalog: Arc::new(NoQueues) }
}

struct NoQueues;

fn refused(op: &'static str) -> StoreError {
    let why = "this server keeps counters in Cassandra and no queues; ask a server with storage.kind embedded, which keeps them";
    StoreError::not_applied(StoreErrorKind::NotKept, op).with_source(why)
}

#[async_trait]
impl QueueCatalog for NoQueues {
    async fn load(&self) -> Result<Vec<crate::domain::queue::setup::queue_spec::CatalogQueue>, StoreError> {
        Ok(Vec::new())
    }

    async fn commit(&self, _record: QueueRecord) -> Result<(), StoreError> {
        Err(refused("commit queue"))
    }

    async fn save_request(&self, _request: QueueRequest, _now: Timestamp) -> Result<(), StoreError> {
        Err(refused("keep request"))
    }

    async fn saved_request(&self, _queue: QueueId, _token: &str) -> Result<Option<QueueRequest>, StoreError> {
        Ok(None)
    }

    /// There is no lease to seal.
    async fn lease_key(&self, made: LeaseKey) -> Result<LeaseKey, StoreError> {
        Ok(made)
    }

    async fn history(&self, _name: &QueueName, _skip: usize, _limit: usize) -> Result<Vec<QueueChange>, StoreError> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl QueueStore for NoQueues {
    /// The most there is: who asks for a queue is told that there are none here, and not that it requires too much.
    fn durability(&self) -> Option<Durability> {
        Some(Durability::Replicated)
    }

    async fn create(&self, _queue: QueueId, _shards: u32, _settings: Settings) -> Result<(), StoreError> {
        Err(refused("create queue"))
    }

    async fn drop_queue(&self, _queue: QueueId) -> Result<(), StoreError> {
        Ok(())
    }

    async fn queues(&self) -> Result<Vec<(QueueId, u32)>, StoreError> {
        Ok(Vec::new())
    }

    async fn apply(&self, _shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>> {
        commands.into_iter().map(|_| Err(refused("apply"))).collect()
    }

    async fn get(
        &self,
        _shard: ShardId,
        _message: MessageRef,
    ) -> Result<Option<(StoredMessage, Timestamp)>, StoreError> {
        Err(refused("get message"))
    }

    async fn peek(&self, _shard: ShardId, _limit: usize) -> Result<MessagesAt, StoreError> {
        Err(refused("peek"))
    }

    async fn list(
        &self,
        _shard: ShardId,
        _state: MessageState,
        _after: u64,
        _limit: usize,
    ) -> Result<MessagesAt, StoreError> {
        Err(refused("list messages"))
    }

    async fn depth(&self, _shard: ShardId, _filter: Filter) -> Result<FilteredDepth, StoreError> {
        Err(refused("count messages"))
    }

    async fn totals(&self, _shard: ShardId) -> Result<ShardTotals, StoreError> {
        Err(refused("read totals"))
    }

    async fn sessions(&self, _shard: ShardId) -> Result<Vec<(SessionId, SessionRecord)>, StoreError> {
        Err(refused("read sessions"))
    }

    async fn leases_of(&self, _shard: ShardId, _sessions: Vec<SessionId>) -> Result<Vec<usize>, StoreError> {
        Err(refused("count leases"))
    }

    async fn explain(&self, _shard: ShardId, _message: MessageRef) -> Result<(Vec<Cause>, Timestamp), StoreError> {
        Err(refused("explain message"))
    }

    async fn preview_dequeue(
        &self,
        _shard: ShardId,
        _filter: Filter,
    ) -> Result<(DequeuePreview, Timestamp), StoreError> {
        Err(refused("explain queue"))
    }

    async fn clock(&self) -> Result<StepTime, StoreError> {
        Err(refused("read queue clock"))
    }

    async fn reset_clock(&self) -> Result<Option<Timestamp>, StoreError> {
        Err(refused("reset queue clock"))
    }

    /// There is nothing to tell of.
    fn listen(&self, _listener: Arc<dyn QueueListener>) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::EffectOutcome;

    #[tokio::test]
    async fn a_queue_is_refused_with_what_to_do_and_none_is_listed() {
        let stores = no_queues();
        assert!(stores.catalog.load().await.expect("a list").is_empty());
        assert!(stores.shards.queues().await.expect("a list").is_empty());
        let shard = ShardId { queue: QueueId(1), number: 0 };
        let refused = stores.shards.totals(shard).await.expect_err("no queues here");
        assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::NotKept, EffectOutcome::NotApplied));
        let why = refused.source.expect("it says why").to_string();
        assert!(why.contains("storage.kind embedded"), "{why}");
    }
}
