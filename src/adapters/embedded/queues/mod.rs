//! Queues of an open store: the cores of all shards in memory, heads and bodies on disk.
//!
//! Commands go to the committer, which runs the cores in order of arrival and answers when the group is durable. Reads
//! take the same path; only bodies are read directly. A failed commit ends the store, so no caller sees memory ahead of
//! the disk.
//!
//! ```text
//! command ->  committer: core, staged parts  ->  commit, fsync  ->  views to listeners  ->  answer  ->  bodies
//! ```

pub mod catalog;
pub mod command;
pub mod key;
pub mod keyspaces;
pub mod recover;
pub mod shard_table;
pub mod staged_changes;
pub mod store_time;
#[cfg(test)]
pub mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use hashbrown::HashSet;
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use super::commit::command::StoreCommand;
use super::disk::blocking;
use super::error::ReadError;
use super::store_core::StoreCore;
use crate::adapters::codec::queues::decode_body;
use crate::domain::limits::BODIES_AT_ONCE_MAX;
use crate::domain::queue::clock::StepTime;
use crate::domain::queue::messages::lease_seal::LeaseKey;
use crate::domain::queue::messages::message::{MessageRef, SessionId};
use crate::domain::queue::session_records::SessionRecord;
use crate::domain::queue::shard::explain::{Cause, DequeuePreview};
use crate::domain::queue::{
    CatalogQueue, Durability, Filter, MessageState, QueueId, QueueName, Reply, Settings, ShardId,
};
use crate::domain::time::Timestamp;
use crate::ports::{
    Catalog, FilteredDepth, MessageBody, MessagesAt, QueueCatalog, QueueChange, QueueListener, QueueRecord,
    QueueRequest, QueueTime, ShardAnswer, ShardCommand, ShardReader, ShardStore, ShardTotals, StoreError,
    StoreErrorKind, StoredMessage,
};
use catalog::QueueCatalogIndex;
use command::{ApplyCommands, QueueStoreCommand, ShardRead, ShardReadDetail, ShardReadResult};
use keyspaces::QueueKeyspaces;
use recover::RecoveredQueues;
use store_time::StoreTime;

/// State of queues that the committer and the readers share.
pub struct QueueSharedState {
    /// Keyspaces; `None` until the first queue is created.
    pub spaces: RwLock<Option<QueueKeyspaces>>,
    /// Names, settings and history.
    pub catalog: QueueCatalogIndex,
    /// Listeners that the committer has not added yet.
    pub new_listeners: Mutex<Vec<Arc<dyn QueueListener>>>,
}

impl QueueSharedState {
    /// Builds the state from the queues recovered at startup.
    pub fn open(found: &RecoveredQueues) -> Result<Self, ReadError> {
        let catalog = found.spaces.as_ref().map(QueueCatalogIndex::open).transpose()?.unwrap_or_default();
        Ok(Self { spaces: RwLock::new(found.spaces.clone()), catalog, new_listeners: Mutex::default() })
    }

    /// Drops all keyspace handles because the store closes.
    pub fn clear(&self) {
        *self.spaces.write() = None;
    }
}

/// The queues of one open store; implements both ports.
pub struct EmbeddedQueues {
    core: Arc<StoreCore>,
    time: StoreTime,
}

const APPLY: &str = "apply to queue";
const READ: &str = "read queue";

impl EmbeddedQueues {
    /// Creates the queues of a store with its time.
    pub fn new(core: Arc<StoreCore>, time: StoreTime) -> Self {
        Self { core, time }
    }

    async fn request<T>(
        &self,
        op: &'static str,
        ask: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> QueueStoreCommand,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.core.inbox.push(StoreCommand::Queue(ask(answer)));
        answered.await.unwrap_or_else(|_| Err(StoreError::unknown(StoreErrorKind::Closed, op)))
    }

    async fn read_shard(&self, shard: ShardId, read: ShardRead) -> Result<ShardReadResult, StoreError> {
        let moment = self.time.now();
        self.request(READ, |answer| QueueStoreCommand::Read(shard, moment, read, answer)).await
    }

    async fn messages(&self, shard: ShardId, read: ShardRead) -> Result<MessagesAt, StoreError> {
        let ShardReadResult { heads, at, .. } = self.read_shard(shard, read).await?;
        let sequences = heads.iter().map(|head| head.key.sequence).collect();
        let bodies = self.bodies(READ, shard, sequences).await?;
        let pairs = heads.into_iter().zip(bodies);
        // Messages that were removed since the first read are left out.
        let messages = pairs.filter_map(|(head, body)| Some(StoredMessage { head, body: body? })).collect();
        Ok(MessagesAt { messages, at })
    }

    /// Reads the bodies of messages; `None` for a message that was removed since.
    async fn bodies(
        &self,
        op: &'static str,
        shard: ShardId,
        sequences: Vec<u64>,
    ) -> Result<Vec<Option<MessageBody>>, StoreError> {
        let bodies = if sequences.len() <= BODIES_AT_ONCE_MAX {
            read_bodies(&self.core, op, shard, &sequences)?
        } else {
            let sequences = sequences.clone();
            blocking::read(&self.core, op, move |core| read_bodies(core, op, shard, &sequences)).await?
        };
        let pairs = sequences.iter().zip(&bodies);
        let missing: Vec<u64> = pairs.filter(|(_, body)| body.is_none()).map(|(sequence, _)| *sequence).collect();
        if let Some(first) = missing.first() {
            let first = *first;
            let seen = self.read_shard(shard, ShardRead::BySequence(missing)).await?;
            if let Some(head) = seen.heads.first() {
                let why = format!(
                    "message {} of queue {} has no body; the first one missing was {first}",
                    head.key.sequence, shard.queue
                );
                return Err(StoreError::not_applied(StoreErrorKind::Corrupt, op).with_source(why));
            }
        }
        Ok(bodies)
    }

    /// Adds the bodies to leased messages, all or none. A lease whose message was removed since is left out.
    async fn fill_bodies(
        &self,
        shard: ShardId,
        answers: &mut [Result<ShardAnswer, StoreError>],
    ) -> Result<(), StoreError> {
        let messages = answers.iter().flatten().flat_map(|answer| &answer.messages);
        let sequences: Vec<u64> = messages.map(|message| message.head.key.sequence).collect();
        if sequences.is_empty() {
            return Ok(());
        }
        let mut bodies = self.bodies(APPLY, shard, sequences).await?.into_iter();
        for answer in answers.iter_mut().flatten() {
            let mut gone = HashSet::new();
            for message in std::mem::take(&mut answer.messages) {
                match bodies.next().flatten() {
                    Some(body) => answer.messages.push(StoredMessage { body, ..message }),
                    None => drop(gone.insert(message.head.key)),
                }
            }
            if let Ok(Reply::Leases { leases, .. }) = &mut answer.reply
                && !gone.is_empty()
            {
                leases.retain(|lease| !gone.contains(&lease.token.key));
            }
        }
        Ok(())
    }
}

fn read_bodies(
    core: &StoreCore,
    op: &'static str,
    shard: ShardId,
    sequences: &[u64],
) -> Result<Vec<Option<MessageBody>>, StoreError> {
    core.read(op, |_| {
        let spaces = core.queues.spaces.read();
        let Some(keyspaces) = spaces.as_ref() else { return Ok(vec![None; sequences.len()]) };
        let read = |sequence: &u64| -> Result<Option<MessageBody>, ReadError> {
            let bytes = keyspaces.bodies.get(key::of_message(shard, *sequence))?;
            Ok(bytes.map(|bytes| decode_body(&bytes)).transpose()?)
        };
        sequences.iter().map(read).collect()
    })
}

#[async_trait]
impl ShardStore for EmbeddedQueues {
    fn durability(&self) -> Option<Durability> {
        Some(Durability::Safe)
    }

    async fn create(&self, queue: QueueId, shards: u32, settings: Settings) -> Result<(), StoreError> {
        self.request("create queue", |answer| QueueStoreCommand::Create(queue, shards, Box::new(settings), answer))
            .await
    }

    async fn drop_queue(&self, queue: QueueId) -> Result<(), StoreError> {
        self.request("drop queue", |answer| QueueStoreCommand::Drop(queue, answer)).await
    }

    async fn queues(&self) -> Result<Vec<(QueueId, u32)>, StoreError> {
        self.request("list queues", QueueStoreCommand::List).await
    }

    async fn apply(&self, shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>> {
        let count = commands.len();
        let (answer, answered) = oneshot::channel();
        let moment = self.time.now();
        self.core.inbox.push(StoreCommand::Queue(QueueStoreCommand::Apply(ApplyCommands {
            shard,
            moment,
            commands,
            answer,
        })));
        let mut answers = match answered.await {
            Ok(answers) => answers,
            Err(_) => (0..count).map(|_| Err(StoreError::unknown(StoreErrorKind::Closed, APPLY))).collect(),
        };
        if self.fill_bodies(shard, &mut answers).await.is_err() {
            // Retry one by one: a fault of one message must not fail the others.
            for answer in &mut answers {
                if let Err(error) = self.fill_bodies(shard, std::slice::from_mut(answer)).await {
                    // The leases were granted.
                    *answer = Err(StoreError::unknown(error.kind, APPLY).with_source(error));
                }
            }
        }
        answers
    }

    fn listen(&self, listener: Arc<dyn QueueListener>) {
        self.core.queues.new_listeners.lock().push(listener);
        // If the command is refused, the committer has other commands after which it finds the listener.
        self.core.inbox.push(StoreCommand::Queue(QueueStoreCommand::AttachListeners));
    }
}

#[async_trait]
impl ShardReader for EmbeddedQueues {
    async fn get(&self, shard: ShardId, message: MessageRef) -> Result<Option<(StoredMessage, Timestamp)>, StoreError> {
        let MessagesAt { mut messages, at } = self.messages(shard, ShardRead::Get(message)).await?;
        Ok(messages.pop().map(|message| (message, at)))
    }

    async fn peek(&self, shard: ShardId, limit: usize) -> Result<MessagesAt, StoreError> {
        self.messages(shard, ShardRead::Peek(limit)).await
    }

    async fn list(
        &self,
        shard: ShardId,
        state: MessageState,
        after: u64,
        limit: usize,
    ) -> Result<MessagesAt, StoreError> {
        self.messages(shard, ShardRead::List(state, after, limit)).await
    }

    async fn depth(&self, shard: ShardId, filter: Filter) -> Result<FilteredDepth, StoreError> {
        match self.read_shard(shard, ShardRead::Depth(filter)).await?.detail {
            ShardReadDetail::Depth(depth) => Ok(depth),
            other => unreachable!("a read of the depth answers it, not {other:?}"),
        }
    }

    async fn totals(&self, shard: ShardId) -> Result<ShardTotals, StoreError> {
        Ok(self.read_shard(shard, ShardRead::Totals).await?.totals)
    }

    async fn sessions(&self, shard: ShardId) -> Result<Vec<(SessionId, SessionRecord)>, StoreError> {
        match self.read_shard(shard, ShardRead::Sessions).await?.detail {
            ShardReadDetail::Sessions(sessions) => Ok(sessions),
            other => unreachable!("a read of sessions answers them, not {other:?}"),
        }
    }

    async fn leases_of(&self, shard: ShardId, sessions: Vec<SessionId>) -> Result<Vec<usize>, StoreError> {
        match self.read_shard(shard, ShardRead::Leases(sessions)).await?.detail {
            ShardReadDetail::Leases(counts) => Ok(counts),
            other => unreachable!("a read of leases answers their counts, not {other:?}"),
        }
    }

    async fn explain(&self, shard: ShardId, message: MessageRef) -> Result<(Vec<Cause>, Timestamp), StoreError> {
        let seen = self.read_shard(shard, ShardRead::Explain(message)).await?;
        match seen.detail {
            ShardReadDetail::Causes(causes) => Ok((causes, seen.at)),
            other => unreachable!("a read of causes answers them, not {other:?}"),
        }
    }

    async fn preview_dequeue(&self, shard: ShardId, filter: Filter) -> Result<(DequeuePreview, Timestamp), StoreError> {
        let seen = self.read_shard(shard, ShardRead::Prospect(filter)).await?;
        match seen.detail {
            ShardReadDetail::Prospect(prospect) => Ok((*prospect, seen.at)),
            other => unreachable!("a read of a prospect answers it, not {other:?}"),
        }
    }
}

#[async_trait]
impl QueueTime for EmbeddedQueues {
    async fn clock(&self) -> Result<StepTime, StoreError> {
        let moment = self.time.now();
        self.request("read queue clock", |answer| QueueStoreCommand::Clock(moment, answer)).await
    }

    async fn reset_clock(&self) -> Result<Option<Timestamp>, StoreError> {
        let moment = self.time.now();
        self.request("reset queue clock", |answer| QueueStoreCommand::ResetClock(moment, answer)).await
    }
}

#[async_trait]
impl Catalog<CatalogQueue> for EmbeddedQueues {
    async fn load(&self) -> Result<Vec<CatalogQueue>, StoreError> {
        Ok(self.core.queues.catalog.load())
    }

    async fn commit(&self, record: QueueRecord) -> Result<(), StoreError> {
        self.request("commit queue", |answer| QueueStoreCommand::Catalog(Box::new(record), answer)).await
    }

    async fn history(&self, name: &QueueName, skip: usize, limit: usize) -> Result<Vec<QueueChange>, StoreError> {
        const OP: &str = "history of queue";
        let name = name.clone();
        blocking::read(&self.core, OP, move |core| {
            let Some(keyspaces) = core.queues.spaces.read().clone() else { return Ok(Vec::new()) };
            core.read(OP, |_| catalog::history(&keyspaces, &name, skip, limit))
        })
        .await
    }
}

#[async_trait]
impl QueueCatalog for EmbeddedQueues {
    async fn save_request(&self, request: QueueRequest, now: Timestamp) -> Result<(), StoreError> {
        self.request("keep request", |answer| QueueStoreCommand::SaveRequest(Box::new(request), now, answer)).await
    }

    async fn lease_key(&self, made: LeaseKey) -> Result<LeaseKey, StoreError> {
        self.request("lease key", |answer| QueueStoreCommand::LeaseKey(made, answer)).await
    }

    async fn saved_request(&self, queue: QueueId, token: &str) -> Result<Option<QueueRequest>, StoreError> {
        Ok(self.core.queues.catalog.find_request(queue, token))
    }
}
