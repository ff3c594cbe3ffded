//! Queues of an open store: the cores of all shards in memory, heads and bodies on disk.
//!
//! Commands go to the committer, which runs the cores in the order of arrival and answers when the group is durable. So
//! reads go the same way; only bodies are read past it. A commit that fails ends the store, so memory is never ahead of
//! the disk for anyone to see.
//!
//! ```text
//! command ->  committer: core, staged parts  ->  commit, fsync  ->  views to listeners  ->  answer  ->  bodies
//! ```

pub mod catalog;
pub mod command;
pub mod key;
pub mod recover;
pub mod spaces;
pub mod staged;
pub mod table;
#[cfg(test)]
pub mod tests;
pub mod time;

use std::sync::Arc;

use async_trait::async_trait;
use hashbrown::HashSet;
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use super::blocking;
use super::command::Command;
use super::core::Core;
use super::error::ReadError;
use crate::adapters::stored::queues::decode_body;
use crate::domain::limits::BODIES_AT_ONCE_MAX;
use crate::domain::queue::command::MessageRef;
use crate::domain::queue::explain::{Cause, Prospect};
use crate::domain::queue::pace::StepTime;
use crate::domain::queue::seal::LeaseKey;
use crate::domain::queue::session::{Session, SessionId};
use crate::domain::queue::{Durability, Filter, Queue, QueueId, QueueName, Reply, Settings, ShardId, State};
use crate::domain::time::Timestamp;
use crate::ports::{
    FilteredDepth, MessageBody, MessagesAt, QueueCatalog, QueueChange, QueueListener, QueueRecord, QueueRequest,
    QueueStore, ShardAnswer, ShardCommand, ShardTotals, StoreError, StoreErrorKind, StoredMessage,
};
use catalog::Catalog;
use command::{Apply, Ask, Read, Seen, Told};
use recover::Recovered;
use spaces::Spaces;
use time::StoreTime;

/// What the committer and the readers of queues share.
pub struct Shared {
    /// The keyspaces, once there is a queue.
    pub spaces: RwLock<Option<Spaces>>,
    /// Names, settings and history.
    pub catalog: Catalog,
    /// Listeners that the committer does not know yet.
    pub new_listeners: Mutex<Vec<Arc<dyn QueueListener>>>,
}

impl Shared {
    /// What is known of the queues of a store that opens.
    pub fn open(found: &Recovered) -> Result<Self, ReadError> {
        let catalog = found.spaces.as_ref().map(Catalog::open).transpose()?.unwrap_or_default();
        Ok(Self { spaces: RwLock::new(found.spaces.clone()), catalog, new_listeners: Mutex::default() })
    }

    /// Forgets all keyspaces, because the store closes.
    pub fn clear(&self) {
        *self.spaces.write() = None;
    }
}

/// The queues of one open store, behind both ports.
pub struct Queues {
    core: Arc<Core>,
    time: StoreTime,
}

const APPLY: &str = "apply to queue";
const READ: &str = "read queue";

impl Queues {
    /// The queues of a store, by this time.
    pub fn new(core: Arc<Core>, time: StoreTime) -> Self {
        Self { core, time }
    }

    async fn ask<T>(
        &self,
        op: &'static str,
        ask: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Ask,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.core.queue.push(Command::Queue(ask(answer)));
        answered.await.unwrap_or_else(|_| Err(StoreError::unknown(StoreErrorKind::Closed, op)))
    }

    async fn see(&self, shard: ShardId, read: Read) -> Result<Seen, StoreError> {
        let moment = self.time.now();
        self.ask(READ, |answer| Ask::Read(shard, moment, read, answer)).await
    }

    async fn messages(&self, shard: ShardId, read: Read) -> Result<MessagesAt, StoreError> {
        let Seen { heads, at, .. } = self.see(shard, read).await?;
        let sequences = heads.iter().map(|head| head.key.sequence).collect();
        let bodies = self.bodies(READ, shard, sequences).await?;
        let pairs = heads.into_iter().zip(bodies);
        // What came to its end since then is left out.
        let messages = pairs.filter_map(|(head, body)| Some(StoredMessage { head, body: body? })).collect();
        Ok(MessagesAt { messages, at })
    }

    /// The bodies of messages that were there; none for one that has come to its end since.
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
            let seen = self.see(shard, Read::These(missing)).await?;
            if let Some(head) = seen.heads.first() {
                let why = format!(
                    "message {} of queue {} has no body; {first} was missed first",
                    head.key.sequence, shard.queue
                );
                return Err(StoreError::not_applied(StoreErrorKind::Corrupt, op).because(why));
            }
        }
        Ok(bodies)
    }

    /// Gives the messages of leases their bodies, all or none. A lease whose message has come to its end since is left out.
    async fn fill(&self, shard: ShardId, answers: &mut [Result<ShardAnswer, StoreError>]) -> Result<(), StoreError> {
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
    core: &Core,
    op: &'static str,
    shard: ShardId,
    sequences: &[u64],
) -> Result<Vec<Option<MessageBody>>, StoreError> {
    core.read(op, |_| {
        let spaces = core.queues.spaces.read();
        let Some(spaces) = spaces.as_ref() else { return Ok(vec![None; sequences.len()]) };
        let read = |sequence: &u64| -> Result<Option<MessageBody>, ReadError> {
            let bytes = spaces.bodies.get(key::of_place(shard, *sequence))?;
            Ok(bytes.map(|bytes| decode_body(&bytes)).transpose()?)
        };
        sequences.iter().map(read).collect()
    })
}

#[async_trait]
impl QueueStore for Queues {
    fn durability(&self) -> Option<Durability> {
        Some(Durability::Safe)
    }

    async fn create(&self, queue: QueueId, shards: u32, settings: Settings) -> Result<(), StoreError> {
        self.ask("create queue", |answer| Ask::Create(queue, shards, Box::new(settings), answer)).await
    }

    async fn drop_queue(&self, queue: QueueId) -> Result<(), StoreError> {
        self.ask("drop queue", |answer| Ask::Drop(queue, answer)).await
    }

    async fn queues(&self) -> Result<Vec<(QueueId, u32)>, StoreError> {
        self.ask("list queues", Ask::List).await
    }

    async fn clock(&self) -> Result<StepTime, StoreError> {
        let moment = self.time.now();
        self.ask("read queue clock", |answer| Ask::Clock(moment, answer)).await
    }

    async fn reset_clock(&self) -> Result<Option<Timestamp>, StoreError> {
        let moment = self.time.now();
        self.ask("reset queue clock", |answer| Ask::ResetClock(moment, answer)).await
    }

    async fn apply(&self, shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>> {
        let count = commands.len();
        let (answer, answered) = oneshot::channel();
        let moment = self.time.now();
        self.core.queue.push(Command::Queue(Ask::Apply(Apply { shard, moment, commands, answer })));
        let mut answers = match answered.await {
            Ok(answers) => answers,
            Err(_) => (0..count).map(|_| Err(StoreError::unknown(StoreErrorKind::Closed, APPLY))).collect(),
        };
        if self.fill(shard, &mut answers).await.is_err() {
            // What is wrong with one is no other's fault.
            for answer in &mut answers {
                if let Err(error) = self.fill(shard, std::slice::from_mut(answer)).await {
                    // The leases were given.
                    *answer = Err(StoreError::unknown(error.kind, APPLY).because(error));
                }
            }
        }
        answers
    }

    async fn get(&self, shard: ShardId, message: MessageRef) -> Result<Option<(StoredMessage, Timestamp)>, StoreError> {
        let MessagesAt { mut messages, at } = self.messages(shard, Read::Get(message)).await?;
        Ok(messages.pop().map(|message| (message, at)))
    }

    async fn peek(&self, shard: ShardId, limit: usize) -> Result<MessagesAt, StoreError> {
        self.messages(shard, Read::Peek(limit)).await
    }

    async fn list(&self, shard: ShardId, state: State, after: u64, limit: usize) -> Result<MessagesAt, StoreError> {
        self.messages(shard, Read::List(state, after, limit)).await
    }

    async fn depth(&self, shard: ShardId, filter: Filter) -> Result<FilteredDepth, StoreError> {
        match self.see(shard, Read::Depth(filter)).await?.told {
            Told::Depth(depth) => Ok(depth),
            other => unreachable!("a read of the depth answers it, not {other:?}"),
        }
    }

    async fn totals(&self, shard: ShardId) -> Result<ShardTotals, StoreError> {
        Ok(self.see(shard, Read::Totals).await?.totals)
    }

    async fn sessions(&self, shard: ShardId) -> Result<Vec<(SessionId, Session)>, StoreError> {
        match self.see(shard, Read::Sessions).await?.told {
            Told::Sessions(sessions) => Ok(sessions),
            other => unreachable!("a read of sessions answers them, not {other:?}"),
        }
    }

    async fn leases_of(&self, shard: ShardId, sessions: Vec<SessionId>) -> Result<Vec<usize>, StoreError> {
        match self.see(shard, Read::Leases(sessions)).await?.told {
            Told::Leases(counts) => Ok(counts),
            other => unreachable!("a read of leases answers their counts, not {other:?}"),
        }
    }

    async fn explain(&self, shard: ShardId, message: MessageRef) -> Result<(Vec<Cause>, Timestamp), StoreError> {
        let seen = self.see(shard, Read::Explain(message)).await?;
        match seen.told {
            Told::Causes(causes) => Ok((causes, seen.at)),
            other => unreachable!("a read of causes answers them, not {other:?}"),
        }
    }

    async fn prospect(&self, shard: ShardId, filter: Filter) -> Result<(Prospect, Timestamp), StoreError> {
        let seen = self.see(shard, Read::Prospect(filter)).await?;
        match seen.told {
            Told::Prospect(prospect) => Ok((*prospect, seen.at)),
            other => unreachable!("a read of a prospect answers it, not {other:?}"),
        }
    }

    fn listen(&self, listener: Arc<dyn QueueListener>) {
        self.core.queues.new_listeners.lock().push(listener);
        // If it is turned away, the committer has enough to do to find the listener by itself.
        self.core.queue.push(Command::Queue(Ask::Look));
    }
}

#[async_trait]
impl QueueCatalog for Queues {
    async fn load(&self) -> Result<Vec<Queue>, StoreError> {
        Ok(self.core.queues.catalog.load())
    }

    async fn commit(&self, record: QueueRecord) -> Result<(), StoreError> {
        self.ask("commit queue", |answer| Ask::Catalog(Box::new(record), answer)).await
    }

    async fn keep(&self, request: QueueRequest, now: Timestamp) -> Result<(), StoreError> {
        self.ask("keep request", |answer| Ask::Keep(Box::new(request), now, answer)).await
    }

    async fn lease_key(&self, made: LeaseKey) -> Result<LeaseKey, StoreError> {
        self.ask("lease key", |answer| Ask::LeaseKey(made, answer)).await
    }

    async fn kept(&self, queue: QueueId, token: &str) -> Result<Option<QueueRequest>, StoreError> {
        Ok(self.core.queues.catalog.kept(queue, token))
    }

    async fn history(&self, name: &QueueName, skip: usize, limit: usize) -> Result<Vec<QueueChange>, StoreError> {
        const OP: &str = "history of queue";
        let name = name.clone();
        blocking::read(&self.core, OP, move |core| {
            let Some(spaces) = core.queues.spaces.read().clone() else { return Ok(Vec::new()) };
            core.read(OP, |_| catalog::history(&spaces, &name, skip, limit))
        })
        .await
    }
}
