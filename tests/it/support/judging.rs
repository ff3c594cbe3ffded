//! A store of queues that refuses what a test says, panics where it says so, and counts reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tallystone::domain::Timestamp;
use tallystone::domain::queue::filter::Filter;
use tallystone::domain::queue::messages::message::{MessageRef, SessionId};
use tallystone::domain::queue::session_records::SessionRecord;
use tallystone::domain::queue::shard::explain::{Cause, DequeuePreview};
use tallystone::domain::queue::{Command, Durability, MessageState, QueueId, ShardId, ShardSettings};
use tallystone::ports::{
    CreatedQueue, FilteredDepth, MessagesAt, QueueListener, QueueStores, ShardAnswer, ShardCommand, ShardReader,
    ShardStore, ShardTotals, StoreError, StoreErrorKind, StoredMessage,
};

/// What becomes of a command.
pub enum Judged {
    Taken,
    Refused,
    /// There is no room.
    Full,
    Panics,
}

/// A store that judges each command before it takes it.
pub struct Judging {
    inner: Arc<dyn ShardStore>,
    judge: Box<dyn Fn(&Command) -> Judged + Send + Sync>,
}

impl Judging {
    /// The same stores, with a judge of their commands.
    pub fn before(stores: QueueStores, judge: impl Fn(&Command) -> Judged + Send + Sync + 'static) -> QueueStores {
        let inner = Arc::clone(&stores.shards);
        QueueStores { shards: Arc::new(Self { inner, judge: Box::new(judge) }), ..stores }
    }
}

/// A reader that counts reads of totals.
pub struct CountedReads {
    inner: Arc<dyn ShardReader>,
    totals_read: AtomicU64,
}

impl CountedReads {
    /// Counts the reads of another reader.
    pub fn of(inner: Arc<dyn ShardReader>) -> Self {
        Self { inner, totals_read: AtomicU64::new(0) }
    }

    /// How often the totals of a shard were read.
    pub fn totals_read(&self) -> u64 {
        self.totals_read.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl ShardStore for Judging {
    fn durability(&self) -> Option<Durability> {
        self.inner.durability()
    }

    async fn apply(&self, shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>> {
        let refusal = |sent: &ShardCommand| match (self.judge)(&sent.command) {
            Judged::Taken => None,
            Judged::Refused => Some(StoreErrorKind::Busy),
            Judged::Full => Some(StoreErrorKind::Full),
            Judged::Panics => panic!("a defect of the store"),
        };
        let refused: Vec<Option<StoreErrorKind>> = commands.iter().map(refusal).collect();
        let taken =
            commands.into_iter().zip(&refused).filter(|(_, refused)| refused.is_none()).map(|(sent, _)| sent).collect();
        let mut answers = self.inner.apply(shard, taken).await.into_iter();
        let answer = |refused: &Option<StoreErrorKind>| match refused {
            Some(kind) => Err(StoreError::not_applied(*kind, "settle")),
            None => answers.next().expect("an answer each"),
        };
        refused.iter().map(answer).collect()
    }

    async fn create(&self, queue: QueueId, shards: u32, settings: ShardSettings) -> Result<(), StoreError> {
        self.inner.create(queue, shards, settings).await
    }

    async fn drop_queue(&self, queue: QueueId) -> Result<(), StoreError> {
        self.inner.drop_queue(queue).await
    }

    async fn queues(&self) -> Result<Vec<CreatedQueue>, StoreError> {
        self.inner.queues().await
    }

    fn listen(&self, listener: Arc<dyn QueueListener>) {
        self.inner.listen(listener);
    }
}

#[async_trait]
impl ShardReader for CountedReads {
    async fn get(&self, shard: ShardId, message: MessageRef) -> Result<Option<(StoredMessage, Timestamp)>, StoreError> {
        self.inner.get(shard, message).await
    }

    async fn peek(&self, shard: ShardId, limit: usize) -> Result<MessagesAt, StoreError> {
        self.inner.peek(shard, limit).await
    }

    async fn list(
        &self,
        shard: ShardId,
        state: MessageState,
        after: u64,
        limit: usize,
    ) -> Result<MessagesAt, StoreError> {
        self.inner.list(shard, state, after, limit).await
    }

    async fn totals(&self, shard: ShardId) -> Result<ShardTotals, StoreError> {
        self.totals_read.fetch_add(1, Ordering::SeqCst);
        self.inner.totals(shard).await
    }

    async fn depth(&self, shard: ShardId, filter: Filter) -> Result<FilteredDepth, StoreError> {
        self.inner.depth(shard, filter).await
    }

    async fn sessions(&self, shard: ShardId) -> Result<Vec<(SessionId, SessionRecord)>, StoreError> {
        self.inner.sessions(shard).await
    }

    async fn leases_of(&self, shard: ShardId, sessions: Vec<SessionId>) -> Result<Vec<usize>, StoreError> {
        self.inner.leases_of(shard, sessions).await
    }

    async fn explain(&self, shard: ShardId, message: MessageRef) -> Result<(Vec<Cause>, Timestamp), StoreError> {
        self.inner.explain(shard, message).await
    }

    async fn preview_dequeue(&self, shard: ShardId, filter: Filter) -> Result<(DequeuePreview, Timestamp), StoreError> {
        self.inner.preview_dequeue(shard, filter).await
    }
}
