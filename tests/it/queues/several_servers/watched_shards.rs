//! A store of shards that notes its commands and loses requests or answers as it is told.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tallystone::domain::queue::{Command, Durability, QueueId, ShardId, ShardSettings};
use tallystone::ports::{
    CreatedQueue, QueueListener, QueueStores, ShardAnswer, ShardCapabilities, ShardCommand, ShardStore, StoreError,
    StoreErrorKind,
};

/// What becomes of a store call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallFate {
    Answered,
    /// It is applied, and its answer lost.
    AnswerLost,
    /// It is lost on its way.
    RequestLost,
    /// It stays on its way until `arrive`.
    Late,
}

/// The store, with the fates of its next calls that bring dequeues.
pub struct WatchedShards {
    inner: Arc<dyn ShardStore>,
    fates: Mutex<VecDeque<CallFate>>,
    /// Chooses the fate of a call for which none was said.
    otherwise: Box<dyn Fn() -> CallFate + Send + Sync>,
    late: Mutex<Vec<(ShardId, Vec<ShardCommand>)>>,
    /// The durability of the moment, if it is not that of the store.
    offered: Mutex<Option<Durability>>,
    recalled: Mutex<Vec<ShardId>>,
}

impl WatchedShards {
    /// The same stores, with a watch over their shards.
    pub fn over(
        stores: QueueStores,
        otherwise: impl Fn() -> CallFate + Send + Sync + 'static,
    ) -> (QueueStores, Arc<Self>) {
        let watched = Arc::new(Self {
            inner: Arc::clone(&stores.shards),
            fates: Mutex::default(),
            otherwise: Box::new(otherwise),
            late: Mutex::default(),
            offered: Mutex::default(),
            recalled: Mutex::default(),
        });
        (QueueStores { shards: watched.clone(), ..stores }, watched)
    }

    /// Says the durability of the moment.
    pub fn offer(&self, durability: Durability) {
        *self.offered.lock() = Some(durability);
    }

    /// Says the fates of the next calls that bring dequeues or recalls.
    pub fn next(&self, fates: impl IntoIterator<Item = CallFate>) {
        self.fates.lock().extend(fates);
    }

    /// The shards that were asked for earlier leases since the last look.
    pub fn recalled(&self) -> Vec<ShardId> {
        std::mem::take(&mut self.recalled.lock())
    }

    /// Lets the late calls arrive. Returns their answers, which nobody else gets.
    pub async fn arrive(&self) -> Vec<ShardAnswer> {
        let late = std::mem::take(&mut *self.late.lock());
        let mut answers = Vec::new();
        for (shard, commands) in late {
            answers.extend(self.inner.apply(shard, commands).await.into_iter().map(|answer| answer.expect("applied")));
        }
        answers
    }
}

#[async_trait]
impl ShardStore for WatchedShards {
    fn durability(&self) -> Option<Durability> {
        self.offered.lock().or_else(|| self.inner.durability())
    }

    fn capabilities(&self) -> ShardCapabilities {
        ShardCapabilities { answers_may_be_lost: true, durability_may_fall: true, ..ShardCapabilities::WHOLE }
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

    async fn apply(&self, shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>> {
        let recalls = commands.iter().filter(|sent| matches!(sent.command, Command::Recall(_))).count();
        self.recalled.lock().extend(std::iter::repeat_n(shard, recalls));
        let leases = |sent: &ShardCommand| matches!(sent.command, Command::Recall(_) | Command::Dequeue(_));
        if !commands.iter().any(leases) {
            return self.inner.apply(shard, commands).await;
        }
        let fate = self.fates.lock().pop_front().unwrap_or_else(|| (self.otherwise)());
        let count = commands.len();
        match fate {
            CallFate::Answered => return self.inner.apply(shard, commands).await,
            CallFate::AnswerLost => drop(self.inner.apply(shard, commands).await),
            CallFate::RequestLost => {}
            CallFate::Late => self.late.lock().push((shard, commands)),
        }
        (0..count).map(|_| Err(StoreError::unknown(StoreErrorKind::Unavailable, "apply to queue"))).collect()
    }

    fn listen(&self, listener: Arc<dyn QueueListener>) {
        self.inner.listen(listener);
    }
}
