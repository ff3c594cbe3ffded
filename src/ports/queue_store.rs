//! The queue store: every shard of every queue, one atomic step for each command.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::domain::queue::clock::StepTime;
use crate::domain::queue::command::MessageRef;
use crate::domain::queue::commands::explain::{Cause, DequeuePreview};
use crate::domain::queue::filter::Filter;
use crate::domain::queue::name::{QueueId, ShardId};
use crate::domain::queue::session_records::{SessionId, SessionRecord};
use crate::domain::queue::shard::{FilterWalk, UndeclaredFilter};
use crate::domain::queue::totals::Totals;
use crate::domain::queue::{Command, Durability, MessageHead, MessageState, Refusal, Reply, Settings, Transition};
use crate::domain::time::Timestamp;
use crate::ports::StoreError;

/// What a message carries that no rule looks at. At most 32 KiB of payload and 256 bytes for each of the others.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MessageBody {
    /// The payload.
    pub payload: Bytes,
    /// The type that its producer gave it.
    pub kind: Option<Box<str>>,
    /// The trace it belongs to, as W3C `traceparent`.
    pub trace_context: Option<Box<str>>,
}

/// A command, and the body beside an enqueue.
#[derive(Clone, Debug)]
pub struct ShardCommand {
    /// The command.
    pub command: Command,
    /// The body of the message of an enqueue; ignored beside other commands.
    pub body: MessageBody,
}

impl ShardCommand {
    /// A command that brings no body.
    pub fn of(command: Command) -> Self {
        Self { command, body: MessageBody::default() }
    }
}

/// A message with its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredMessage {
    /// The message.
    pub head: MessageHead,
    /// Its body.
    pub body: MessageBody,
}

/// What a shard has to offer at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ShardStatus {
    /// Grows with the shard's commands; a view with a lower one is older.
    pub step: u64,
    /// Messages of each state, in the order of `State::ALL`.
    pub messages: [u64; MessageState::ALL.len()],
    /// How often a message came to be pending, since the store was opened.
    pub arrived: u64,
    /// The priority of the best of those that are pending.
    pub head: Option<i64>,
    /// How long the one has been ready that is so for the longest, to the second.
    pub ready_for: Option<Duration>,
    /// Whether dequeue is blocked.
    pub blocked: bool,
    /// How long nothing changes unless a command comes; none if nothing ever will.
    pub next_event_in: Option<Duration>,
}

impl ShardStatus {
    /// Pending messages.
    pub fn ready(&self) -> u64 {
        self.messages[MessageState::Pending as usize]
    }
}

/// What came of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardAnswer {
    /// The answer.
    pub reply: Result<Reply, Refusal>,
    /// The messages of the leases of the reply, in their order; empty for other replies.
    pub messages: Vec<StoredMessage>,
    /// The rows applied, in order.
    pub transitions: Vec<Transition>,
    /// What a dequeue looked at whose filter has no index.
    pub walked: Option<FilterWalk>,
    /// The shard's time of the command.
    pub at: Timestamp,
    /// The shard after the last command of the call.
    pub view: ShardStatus,
}

impl ShardAnswer {
    /// That of a command which never came to its shard.
    pub const fn refused(refusal: Refusal, at: Timestamp, view: ShardStatus) -> Self {
        Self { reply: Err(refusal), messages: Vec::new(), transitions: Vec::new(), walked: None, at, view }
    }
}

/// Messages read at one moment of their shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessagesAt {
    /// The messages.
    pub messages: Vec<StoredMessage>,
    /// The shard's time of the read.
    pub at: Timestamp,
}

/// How many messages of each state meet a filter, or which shape is nearest to one that is not declared.
pub type FilteredDepth = Result<[u64; MessageState::ALL.len()], UndeclaredFilter>;

/// Who is told what a shard has to offer.
pub trait QueueListener: Send + Sync + 'static {
    /// Takes the news of a shard. Called from any thread, never blocks, may come late and out of order: the view's step
    /// says which is newer.
    fn changed(&self, shard: ShardId, view: ShardStatus);
}

/// The queue store.
///
/// Laws:
/// 1. A command is one atomic step of its shard: shards are linearizable, and the commands of one call are steps in their
///    order. Its answer comes when the step is durable.
/// 2. A shard answers as `domain::queue::Shard` does (law 11 apart), at the store's time of the step. That time never goes back, over a
///    restart neither.
/// 3. A command refused with `Outcome::NotApplied` left no trace; the others of its call are not affected by it.
/// 4. A message comes out with the body that its first enqueue brought, bit by bit, as long as the message exists. What a
///    repeat or a refused enqueue brought is not kept.
/// 5. `create` makes empty shards, all or none, durably. Of an id that exists it changes nothing; of one that was dropped
///    it is a `Conflict`.
/// 6. After `drop_queue` every command and read of the queue is refused with `Conflict` and `NotApplied`, as for a queue
///    that never was; its messages and bodies are gone in the end. Dropping what is not there changes nothing.
/// 7. Every listener is told the view of a shard after each of its commands that changed it, at the latest soon after the
///    answer. News may be merged: the newest counts.
/// 8. A read sees every step that was answered before it began. A failed read is an error, never a shorter answer.
/// 9. With no room left, enqueues are refused with `ShardCapacity` and `NotApplied`; what takes messages out goes on.
/// 10. `queues` answers exactly the queues that were created and not dropped.
/// 11. An id is one message of its queue, in whatever shard: an enqueue of an id that another shard has, or whose token
///     another shard keeps the answer to, is refused with `TokenReused`, if anything but the id routed either of the two.
/// 12. `durability` says no more than is so of every answer, and the same as long as the store is open.
/// 13. `clock` is the time of a step that came now, and changes nothing. `reset_clock` does nothing unless the age of tokens
///     is judged by a time more than a minute ahead of wall time; then it is judged by wall time from the next step on, and
///     tokens of before the time that it answers are refused as too old, durably.
#[async_trait]
pub trait QueueStore: Send + Sync + 'static {
    /// What an answer survives; none where queues end with the process.
    fn durability(&self) -> Option<Durability>;

    /// Creates the shards 0 to `shards` - 1 of a queue, each with these settings.
    async fn create(&self, queue: QueueId, shards: u32, settings: Settings) -> Result<(), StoreError>;

    /// Drops a queue with all its shards.
    async fn drop_queue(&self, queue: QueueId) -> Result<(), StoreError>;

    /// The queues there are, with the numbers of their shards.
    async fn queues(&self) -> Result<Vec<(QueueId, u32)>, StoreError>;

    /// Applies commands to a shard, each with its own answer in the order of the call. A caller that stops waiting after
    /// the first poll leaves the commands running.
    async fn apply(&self, shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>>;

    /// Reads a message.
    async fn get(&self, shard: ShardId, message: MessageRef) -> Result<Option<(StoredMessage, Timestamp)>, StoreError>;

    /// Reads pending messages in the order in which they would be served.
    async fn peek(&self, shard: ShardId, limit: usize) -> Result<MessagesAt, StoreError>;

    /// Reads the messages of a state whose sequence lies above `after`, by sequence.
    async fn list(
        &self,
        shard: ShardId,
        state: MessageState,
        after: u64,
        limit: usize,
    ) -> Result<MessagesAt, StoreError>;

    /// Reads the totals of a shard, the sequence of its newest message, and its view.
    async fn totals(&self, shard: ShardId) -> Result<ShardTotals, StoreError>;

    /// Counts the messages of a shard that meet a filter, by state in the order of `State::ALL`: exact, and answered for
    /// declared shapes that are filled only.
    async fn depth(&self, shard: ShardId, filter: Filter) -> Result<FilteredDepth, StoreError>;

    /// Reads what a shard knows of sessions, at most `SESSIONS_MAX` of them.
    async fn sessions(&self, shard: ShardId) -> Result<Vec<(SessionId, SessionRecord)>, StoreError>;

    /// Counts the leases that each of these sessions has in a shard; none for those that it does not know.
    async fn leases_of(&self, shard: ShardId, sessions: Vec<SessionId>) -> Result<Vec<usize>, StoreError>;

    /// Says why a message stands where it stands, at the shard's time. Its position counts messages of its shard only.
    async fn explain(&self, shard: ShardId, message: MessageRef) -> Result<(Vec<Cause>, Timestamp), StoreError>;

    /// Says what a dequeue with a filter would meet, at the shard's time.
    async fn preview_dequeue(&self, shard: ShardId, filter: Filter) -> Result<(DequeuePreview, Timestamp), StoreError>;

    /// Reads the times of a step that came now.
    async fn clock(&self) -> Result<StepTime, StoreError>;

    /// Judges the age of tokens by wall time again; answers from which time on tokens are taken, if anything was to reset.
    async fn reset_clock(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Adds a listener; before anything else, and before a later call is answered, it is told the view of every shard
    /// there is.
    fn listen(&self, listener: Arc<dyn QueueListener>);
}

/// What a shard holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardTotals {
    /// Messages and bytes by state.
    pub totals: Totals,
    /// The sequence of the newest message, 0 before the first.
    pub sequence: u64,
    /// The view.
    pub view: ShardStatus,
}
