//! Queues of an open store: the cores of all shards in memory, heads and bodies on disk.
//!
//! Commands go to the committer, which runs the cores in the order of its lanes and answers when the group is durable.
//! Reads take the same path; only bodies are read directly. A failed commit ends the store, so no caller sees memory
//! ahead of the disk.
//!
//! ```text
//! command ->  committer: core, staged parts  ->  commit, fsync  ->  views to listeners  ->  answer  ->  bodies
//! ```

use std::sync::Arc;

use async_trait::async_trait;
use hashbrown::HashSet;
use tokio::sync::oneshot;

use crate::error::ReadError;
use crate::inbox::command::StoreCommand;
use crate::inbox::queue_command::{ApplyCommands, NewShards, QueueStoreCommand, ReadShard};
use crate::limits::BODIES_AT_ONCE_MAX;
use crate::queues::keyspaces::QueueKeyspaces;
use crate::queues::shard_table::LoadedShard;
use crate::queues::store_time::StoreTime;
use crate::queues::{catalog, key};
use crate::store_core::StoreCore;
use tallystone_adapters::codec::queues::{decode_body, decode_message};
use tallystone_domain::queue::clock::StepTime;
use tallystone_domain::queue::messages::lease_seal::LeaseKey;
use tallystone_domain::queue::messages::message::{MessageRef, SessionId};
use tallystone_domain::queue::session_records::SessionRecord;
use tallystone_domain::queue::shard::explain::{Cause, DequeuePreview};
use tallystone_domain::queue::{
    CatalogQueue, Durability, Filter, MessageHead, MessageState, QueueId, QueueName, Reply, Shard, ShardId,
    ShardSettings,
};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    Catalog, CreatedQueue, FilteredDepth, MessageBody, MessagesAt, QueueCatalog, QueueChange, QueueListener,
    QueueMemory, QueueRecord, QueueRequest, QueueTime, ShardAnswer, ShardCommand, ShardReader, ShardStore, ShardTotals,
    StoreError, StoreErrorKind, StoredMessage,
};

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

    pub(super) fn core(&self) -> &Arc<StoreCore> {
        &self.core
    }

    pub(super) fn keyspaces(&self) -> Option<QueueKeyspaces> {
        self.core.queues.spaces.read().clone()
    }

    pub(super) async fn request<T>(
        &self,
        op: &'static str,
        ask: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> QueueStoreCommand,
    ) -> Result<T, StoreError> {
        self.core.inbox.request(op, |answer| StoreCommand::Queue(ask(answer))).await
    }

    /// Reads a shard in the committer, at the time of the shard.
    pub(super) async fn read_shard<R: Send + 'static>(
        &self,
        shard: ShardId,
        read: impl FnOnce(&LoadedShard, Timestamp) -> R + Send + 'static,
    ) -> Result<R, StoreError> {
        self.read_shard_with(shard, None, read).await
    }

    /// The same with the head of a message, even if it is over.
    async fn read_shard_with<R: Send + 'static>(
        &self,
        shard: ShardId,
        message: Option<MessageRef>,
        read: impl FnOnce(&LoadedShard, Timestamp) -> R + Send + 'static,
    ) -> Result<R, StoreError> {
        let moment = self.time.now();
        let (found, mut finds) = oneshot::channel();
        let read = Box::new(move |kept: &LoadedShard, at| drop(found.send(read(kept, at))));
        let asked = |answer| QueueStoreCommand::Read(ReadShard { shard, moment, message, read, answer });
        self.request(READ, asked).await?;
        Ok(finds.try_recv().expect("a read is done before its reply"))
    }

    /// Adds the bodies. Messages that were removed since their heads were read are left out.
    async fn with_bodies(&self, shard: ShardId, heads: Vec<MessageHead>) -> Result<Vec<StoredMessage>, StoreError> {
        let sequences = heads.iter().map(|head| head.key.sequence).collect();
        let bodies = self.bodies(READ, shard, sequences).await?;
        let pairs = heads.into_iter().zip(bodies);
        Ok(pairs.filter_map(|(head, body)| Some(StoredMessage { head, body: body? })).collect())
    }

    /// Reads the heads of the messages that are over. One that was removed, or lives again, since the first read is
    /// left out.
    async fn heads(&self, shard: ShardId, shown: Vec<ShownMessage>) -> Result<Vec<MessageHead>, StoreError> {
        let over: Vec<u64> = shown.iter().filter_map(ShownMessage::over).collect();
        let read = if over.len() <= BODIES_AT_ONCE_MAX {
            self.core.read(READ, |_| read_over(&self.core, shard, &over))?
        } else {
            self.core.read_long(READ, move |core, _| read_over(core, shard, &over)).await?
        };
        let mut read = read.into_iter();
        let head = |shown| match shown {
            ShownMessage::Head(head) => Some(*head),
            ShownMessage::Over(_, state) => read.next().flatten().filter(|head| head.state == state),
        };
        Ok(shown.into_iter().filter_map(head).collect())
    }

    /// Reads the bodies of messages; `None` for a message that was removed since.
    async fn bodies(
        &self,
        op: &'static str,
        shard: ShardId,
        sequences: Vec<u64>,
    ) -> Result<Vec<Option<MessageBody>>, StoreError> {
        let bodies = if sequences.len() <= BODIES_AT_ONCE_MAX {
            self.core.read(op, |_| read_bodies(&self.core, shard, &sequences))?
        } else {
            let sequences = sequences.clone();
            self.core.read_long(op, move |core, _| read_bodies(core, shard, &sequences)).await?
        };
        let pairs = sequences.iter().zip(&bodies);
        let missing: Vec<u64> = pairs.filter(|(_, body)| body.is_none()).map(|(sequence, _)| *sequence).collect();
        if let Some(first) = missing.first() {
            let first = *first;
            let still_there = move |kept: &LoadedShard, _| missing.into_iter().find(|at| kept.shard.has_message(*at));
            if let Some(sequence) = self.read_shard(shard, still_there).await? {
                let why = format!("message {sequence} of queue {} has no body; {first} was missed first", shard.queue);
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

/// A message of a list.
enum ShownMessage {
    Head(Box<MessageHead>),
    /// It is over, in this state, and its head is read from disk.
    Over(u64, MessageState),
}

impl ShownMessage {
    fn head(core: &Shard, head: &MessageHead) -> Self {
        Self::Head(Box::new(core.with_effective_expiry(head)))
    }

    fn sequence(&self) -> u64 {
        match self {
            Self::Head(head) => head.key.sequence,
            Self::Over(sequence, _) => *sequence,
        }
    }

    /// The sequence, if its head is read from disk.
    fn over(&self) -> Option<u64> {
        match self {
            Self::Head(_) => None,
            Self::Over(sequence, _) => Some(*sequence),
        }
    }
}

fn read_over(core: &StoreCore, shard: ShardId, sequences: &[u64]) -> Result<Vec<Option<MessageHead>>, ReadError> {
    let spaces = core.queues.spaces.read();
    let Some(keyspaces) = spaces.as_ref() else { return Ok(vec![None; sequences.len()]) };
    let read = |sequence: &u64| -> Result<Option<MessageHead>, ReadError> {
        let row = keyspaces.over.get(key::of_over(shard, *sequence))?;
        Ok(row.map(|row| decode_message(shard.number, *sequence, &row)).transpose()?)
    };
    sequences.iter().map(read).collect()
}

fn read_bodies(core: &StoreCore, shard: ShardId, sequences: &[u64]) -> Result<Vec<Option<MessageBody>>, ReadError> {
    let spaces = core.queues.spaces.read();
    let Some(keyspaces) = spaces.as_ref() else { return Ok(vec![None; sequences.len()]) };
    let read = |sequence: &u64| -> Result<Option<MessageBody>, ReadError> {
        let bytes = keyspaces.bodies.get(key::of_message(shard, *sequence))?;
        Ok(bytes.map(|bytes| decode_body(&bytes)).transpose()?)
    };
    sequences.iter().map(read).collect()
}

#[async_trait]
impl ShardStore for EmbeddedQueues {
    fn durability(&self) -> Option<Durability> {
        Some(Durability::Safe)
    }

    fn memory(&self) -> Option<QueueMemory> {
        Some(self.core.queues.memory.memory())
    }

    async fn create(&self, queue: QueueId, shards: u32, settings: ShardSettings) -> Result<(), StoreError> {
        let new = NewShards { queue, shards, settings, moment: self.time.now() };
        self.request("create queue", |answer| QueueStoreCommand::Create(Box::new(new), answer)).await
    }

    async fn drop_queue(&self, queue: QueueId) -> Result<(), StoreError> {
        self.request("drop queue", |answer| QueueStoreCommand::Drop(queue, answer)).await
    }

    async fn queues(&self) -> Result<Vec<CreatedQueue>, StoreError> {
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
        let asked = message.clone();
        let found = move |kept: &LoadedShard, at| {
            let head = kept.shard.get(&message);
            (head.map(|head| ShownMessage::head(&kept.shard, head)), at)
        };
        let (shown, at) = self.read_shard_with(shard, Some(asked), found).await?;
        let messages = self.with_bodies(shard, self.heads(shard, shown.into_iter().collect()).await?).await?;
        Ok(messages.into_iter().next().map(|message| (message, at)))
    }

    async fn peek(&self, shard: ShardId, limit: usize) -> Result<MessagesAt, StoreError> {
        let peeked = move |kept: &LoadedShard, at| (kept.shard.peek().take(limit).cloned().collect(), at);
        let (heads, at) = self.read_shard(shard, peeked).await?;
        Ok(MessagesAt { messages: self.with_bodies(shard, heads).await?, at })
    }

    async fn list(
        &self,
        shard: ShardId,
        state: MessageState,
        after: u64,
        limit: usize,
    ) -> Result<MessagesAt, StoreError> {
        let (mut found, mut after) = (Vec::new(), after);
        loop {
            let wanted = limit - found.len();
            let listed = move |kept: &LoadedShard, at| {
                let core = &kept.shard;
                let shown = |sequence| match core.message(sequence) {
                    Some(head) => ShownMessage::head(core, head),
                    None => ShownMessage::Over(sequence, state),
                };
                (core.sequences(state, after).take(wanted).map(shown).collect::<Vec<_>>(), at)
            };
            let (shown, at) = self.read_shard(shard, listed).await?;
            let last = shown.last().filter(|_| shown.len() == wanted).map(ShownMessage::sequence);
            found.extend(self.with_bodies(shard, self.heads(shard, shown).await?).await?);
            match last {
                // Some were removed between the reads. A short page would say that the shard has no more.
                Some(last) if found.len() < limit => after = last,
                Some(_) | None => return Ok(MessagesAt { messages: found, at }),
            }
        }
    }

    async fn depth(&self, shard: ShardId, filter: Filter) -> Result<FilteredDepth, StoreError> {
        self.read_shard(shard, move |kept, _| kept.shard.depth(&filter)).await
    }

    async fn totals(&self, shard: ShardId) -> Result<ShardTotals, StoreError> {
        self.read_shard(shard, |kept, _| kept.totals()).await
    }

    async fn sessions(&self, shard: ShardId) -> Result<Vec<(SessionId, SessionRecord)>, StoreError> {
        let all = |kept: &LoadedShard, _| kept.shard.sessions().map(|(id, session)| (id, session.clone())).collect();
        self.read_shard(shard, all).await
    }

    async fn leases_of(&self, shard: ShardId, sessions: Vec<SessionId>) -> Result<Vec<usize>, StoreError> {
        self.read_shard(shard, move |kept, _| kept.shard.lease_counts(&sessions)).await
    }

    async fn explain(&self, shard: ShardId, message: MessageRef) -> Result<(Vec<Cause>, Timestamp), StoreError> {
        let asked = Some(message.clone());
        self.read_shard_with(shard, asked, move |kept, at| (kept.shard.explain(&message, at), at)).await
    }

    async fn preview_dequeue(&self, shard: ShardId, filter: Filter) -> Result<(DequeuePreview, Timestamp), StoreError> {
        self.read_shard(shard, move |kept, at| (kept.shard.preview_dequeue(&filter, at), at)).await
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
        let Some(keyspaces) = self.core.queues.spaces.read().clone() else { return Ok(Vec::new()) };
        self.core.read_long(OP, move |_, _| catalog::history(&keyspaces, &name, skip, limit)).await
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
