//! The queue store: every shard of every queue, one atomic step for each command.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{QueueMemory, StoreError};
use tallystone_domain::queue::activity::LostWork;
use tallystone_domain::queue::clock::StepTime;
use tallystone_domain::queue::counter_names::CountedValue;
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::messages::message::{MessageKey, MessageRef, SessionId};
use tallystone_domain::queue::name::{QueueId, ShardId};
use tallystone_domain::queue::session_records::SessionRecord;
use tallystone_domain::queue::shard::explain::{Cause, DequeuePreview};
use tallystone_domain::queue::shard::{FilterScan, UndeclaredFilter};
use tallystone_domain::queue::tally::ShardCounts;
use tallystone_domain::queue::tally::errors::SignatureCounts;
use tallystone_domain::queue::tally::values::ValueCounts;
use tallystone_domain::queue::totals::Totals;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{
    Command, Durability, MessageHead, MessageState, Refusal, Reply, Shard, ShardSettings, Transition,
};
use tallystone_domain::time::Timestamp;

/// A queue as the store has its shards. The name and the settings are in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreatedQueue {
    /// The queue.
    pub id: QueueId,
    /// The number of its shards.
    pub shards: u32,
    /// The time of the creation of its shards, by the store's time.
    pub created: Timestamp,
}

/// The parts of a message that no rule reads. At most 32 KiB of payload, and 256 bytes for each other part.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MessageBody {
    /// The payload.
    pub payload: Bytes,
    /// The type, as the producer set it.
    pub kind: Option<Box<str>>,
    /// The trace of the message, as W3C `traceparent`.
    pub trace_context: Option<Box<str>>,
}

/// A command, with the body of the message for an enqueue, and the new payload for an update that has one.
#[derive(Clone, Debug)]
pub struct ShardCommand {
    /// The command.
    pub command: Command,
    /// The body of the message of an enqueue; of an update with a payload the payload alone, since type and trace
    /// context stay. Ignored with other commands.
    pub body: MessageBody,
}

impl ShardCommand {
    /// A command without a body.
    pub fn of(command: Command) -> Self {
        Self { command, body: MessageBody::default() }
    }

    /// Whether it is an update that replaces the payload of a message.
    pub fn brings_payload(&self) -> bool {
        matches!(&self.command, Command::Update { update, .. } if update.payload_bytes.is_some())
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

/// The status of a shard at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ShardStatus {
    /// Grows with every command that changes the shard, whichever server sent it, and does not go back while the store
    /// is open. Of two statuses the one with the lower step is older.
    pub step: u64,
    /// Messages of each state, in the order of `State::ALL`.
    pub messages: [u64; MessageState::ALL.len()],
    /// How often a message became pending, or stayed so by an update. It is part of the shard, so all servers agree on
    /// it.
    pub arrived: u64,
    /// The best priority among pending messages.
    pub head: Option<i64>,
    /// Since when the best of them has its place among messages of the same priority: the time of its arrival, by the
    /// shard's time. It decides between shards whose best messages have equal priorities.
    pub head_arrived: Option<Timestamp>,
    /// The age of the oldest ready message, to the second.
    pub ready_for: Option<Duration>,
    /// Whether dequeue is blocked.
    pub blocked: bool,
    /// The version of the settings that the shard has.
    pub settings_version: u64,
    /// The time until the next change without a command; none if there will be none.
    pub next_event_in: Option<Duration>,
    /// Whether that change is no more than the end of a retention, so that no caller waits for it. A store that does
    /// not know says no.
    pub only_retention: bool,
    /// The bytes that the shard takes in the memory of this process; 0 where its store keeps it elsewhere.
    pub memory_bytes: u64,
}

impl ShardStatus {
    /// Pending messages.
    pub fn ready(&self) -> u64 {
        self.messages[MessageState::Pending as usize]
    }
}

/// The result of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardAnswer {
    /// The answer.
    pub reply: Result<Reply, Refusal>,
    /// The messages of the leases of the reply, in their order; empty for other replies.
    pub messages: Vec<StoredMessage>,
    /// The rows applied, in order.
    pub transitions: Vec<Transition>,
    /// The scan of a dequeue whose filter has no index.
    pub walked: Option<FilterScan>,
    /// The shard's time of the command.
    pub at: Timestamp,
    /// The shard after the last command of the call.
    pub view: ShardStatus,
}

impl ShardAnswer {
    /// The result of a command that never reached its shard.
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

/// The number of matching messages by state; or, for an undeclared filter, the nearest declared shape.
pub type FilteredDepth = Result<[u64; MessageState::ALL.len()], UndeclaredFilter>;

/// A receiver of the news of shards.
pub trait QueueListener: Send + Sync + 'static {
    /// Receives the status of a shard. Called from any thread; must not block. Calls may come late and out of order:
    /// the step says which status is newer.
    fn changed(&self, shard: ShardId, view: ShardStatus);

    /// Receives the key of a running message whose cancellation was requested. Called from any thread; must not block.
    /// The worker also hears of it when it extends its lease or sends a heartbeat, so it may be lost.
    fn cancel_requested(&self, _shard: ShardId, _key: MessageKey) {}

    /// Receives what a store has lost of a shard: it came back with fewer steps than this process was answered. Called
    /// once for each loss, from any thread; must not block.
    fn work_lost(&self, _shard: ShardId, _lost: LostWork) {}

    /// Whether dequeues wait here for messages of a shard, so that its status matters. Called from any thread; must not
    /// block.
    fn awaits(&self, _shard: ShardId) -> bool {
        false
    }
}

/// The scope in which an id is one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdScope {
    /// In its queue, in whatever shard.
    Queue,
    /// In its shard.
    Shard,
}

/// The part of the body that a store has of a message that is completed or canceled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinishedBodies {
    /// All of it.
    Kept,
    /// All but the payload. Its size stays in the head of the message.
    WithoutPayload,
}

/// The parts of the laws of its ports that a store offers, where stores differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardCapabilities {
    /// Whether the answer to a command that was applied can be lost on its way, so that its effect is unknown.
    pub answers_may_be_lost: bool,
    /// The scope in which an id is one message: law 11 holds for `IdScope::Queue` only.
    pub ids: IdScope,
    /// The part that is left of the body of a message that is completed or canceled: law 4 holds as far as this says.
    pub finished_bodies: FinishedBodies,
    /// How exactly the age of the oldest ready message is known.
    pub ready_age_precision: Duration,
    /// The most leases that one heartbeat confirms; the others keep their own ends until the next one.
    pub heartbeat_leases: usize,
    /// Whether `durability` is that of the moment: it may change while the store is open, and law 12 holds for each
    /// moment.
    pub durability_may_fall: bool,
}

impl ShardCapabilities {
    /// The capabilities of a store that narrows no law.
    pub const WHOLE: Self = Self {
        answers_may_be_lost: false,
        ids: IdScope::Queue,
        finished_bodies: FinishedBodies::Kept,
        ready_age_precision: Duration::from_secs(1),
        heartbeat_leases: usize::MAX,
        durability_may_fall: false,
    };
}

/// The shards of all queues, as commands change them. Their store also answers [`ShardReader`] and [`QueueTime`].
///
/// Laws of the three ports:
/// 1. A command is one atomic step of its shard: shards are linearizable, and the commands of one call are steps in
///    their order. Its answer comes when the step is durable.
/// 2. A shard answers as `domain::queue::Shard` does (except for law 11), at the store's time of the step. That time
///    never goes backwards, even across restarts. A store outside this process that was restarted lets nothing expire
///    for 15 s, and gives out nothing of an exclusive queue for as long if it may have lost work. The next event of a
///    status may be reported too early, never too late.
/// 3. A command refused with `EffectOutcome::NotApplied` left no trace. The other commands of its call are unaffected.
/// 4. A message has the body of its first enqueue, byte by byte, for as long as it exists. The body of a repeated or
///    refused enqueue is not kept. If the store's `capabilities` say so, the payload goes when the message is completed
///    or canceled: readers then show it as empty, with its size. An errored message keeps its body, because it may be
///    redriven.
/// 5. `create` makes empty shards, all or none, durably. Of an id that exists it changes nothing; of one that was
///    dropped it is a `Conflict`.
/// 6. After `drop_queue` every command and read of the queue is refused with `Conflict` and `NotApplied`, as for a
///    queue that never existed. Its messages and bodies are deleted in the end. Dropping an unknown queue changes
///    nothing.
/// 7. Every listener receives the status of a shard after each command of this process that changed it, before that
///    command is answered. After a command of another process the status may come late or not at all. Statuses may be
///    merged: the newest counts. The same holds for `cancel_requested`, in the step that notes the request, and it is
///    not merged.
/// 8. A read sees every step that was answered before it began. A failed read is an error, never a shorter answer.
/// 9. With no room left, enqueues are refused with `ShardCapacity` and `NotApplied`; what takes messages out goes on.
/// 10. `queues` answers exactly the queues that were created and not dropped, each with the time of its creation,
///     durably: the time of a step that came then.
/// 11. Unless the store's `capabilities` say that an id belongs to its shard, it is one message of its queue, in
///     whatever shard: an enqueue of an id that another shard has, or whose token another shard keeps the answer to, is
///     refused with `TokenReused`, if anything but the id routed either of the two.
/// 12. `durability` promises no more than holds for every answer. It does not change while the store is open, unless
///     the `capabilities` say that it is that of the moment.
/// 13. `clock` is the time of a step that came now, and changes nothing. `reset_clock` does nothing unless the age of
///     tokens is judged by a time more than a minute ahead of wall time; then it is judged by wall time from the next
///     step on, and tokens of before the time that it answers are refused as too old, durably.
/// 19. The settings of a shard never go back, durably: a version that is not above that of the shard changes nothing,
///     and is answered as if it had. `create` states the first version.
#[async_trait]
pub trait ShardStore: Send + Sync + 'static {
    /// The durability of an answer; none where queues end with the process.
    fn durability(&self) -> Option<Durability>;

    /// The laws that this store narrows, and how. They do not change while the store is open.
    fn capabilities(&self) -> ShardCapabilities {
        ShardCapabilities::WHOLE
    }

    /// The memory of all queues; none where no bound is set to what they take in this process. Cheap.
    fn memory(&self) -> Option<QueueMemory> {
        None
    }

    /// Creates the shards 0 to `shards` - 1 of a queue, each with these settings.
    async fn create(&self, queue: QueueId, shards: u32, settings: ShardSettings) -> Result<(), StoreError>;

    /// Drops a queue with all its shards.
    async fn drop_queue(&self, queue: QueueId) -> Result<(), StoreError>;

    /// All queues, in the order of their ids.
    async fn queues(&self) -> Result<Vec<CreatedQueue>, StoreError>;

    /// Applies commands to a shard, each with its own answer, in the order of the call. The commands continue if the
    /// caller stops waiting after the first poll.
    async fn apply(&self, shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>>;

    /// Adds a listener. It first receives the status of every shard, before any later call is answered.
    fn listen(&self, listener: Arc<dyn QueueListener>);
}

/// Reads of shards. Laws 2, 6 and 8 of [`ShardStore`] hold for each.
#[async_trait]
pub trait ShardReader: Send + Sync + 'static {
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

    /// Counts the messages of a shard that meet a filter, by state in the order of `State::ALL`: exact, and answered
    /// for declared shapes that are filled only.
    async fn depth(&self, shard: ShardId, filter: Filter) -> Result<FilteredDepth, StoreError>;

    /// Reads the sessions of a shard, at most `SESSIONS_MAX`.
    async fn sessions(&self, shard: ShardId) -> Result<Vec<(SessionId, SessionRecord)>, StoreError>;

    /// Counts the leases of each session in a shard; 0 for a session that the shard does not know.
    async fn leases_of(&self, shard: ShardId, sessions: Vec<SessionId>) -> Result<Vec<usize>, StoreError>;

    /// Explains the state of a message at the shard's time. Its position counts messages of its shard only.
    async fn explain(&self, shard: ShardId, message: MessageRef) -> Result<(Vec<Cause>, Timestamp), StoreError>;

    /// Says what a dequeue with this filter would find, at the shard's time.
    async fn preview_dequeue(&self, shard: ShardId, filter: Filter) -> Result<(DequeuePreview, Timestamp), StoreError>;
}

/// The counts of a shard at one position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardReport {
    /// The place of the newest row.
    pub position: RowPosition,
    /// The shard's time of the read. All rows up to it are counted.
    pub at: Timestamp,
    /// Messages and payload bytes by state; 0 once the queue is being deleted.
    pub totals: Totals,
    /// The counts of the whole shard.
    pub counts: Box<ShardCounts>,
    /// Counts by value of a metadata key: those that changed after the asked position.
    pub values: Vec<(Box<str>, CountedValue, ValueCounts)>,
    /// Counts by error signature: those that changed after the asked position.
    pub signatures: Vec<(CountedValue, SignatureCounts)>,
}

impl ShardReport {
    /// The report of a shard. O(values).
    pub fn of(shard: &Shard, since: Option<u64>, at: Timestamp) -> Self {
        let tally = shard.tally();
        Self {
            position: shard.position(),
            at,
            totals: *shard.totals(),
            counts: Box::new(tally.counts().clone()),
            values: tally.values_after(since),
            signatures: tally.signatures().changed_after(since).collect(),
        }
    }
}

/// The view of a shard that lists of queues show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardGlance {
    /// The place of the newest row.
    pub position: RowPosition,
    /// Messages by state at this position, in the order of `MessageState::ALL`; 0 once the queue is being deleted.
    pub messages: [u64; MessageState::ALL.len()],
    /// The bytes of all payloads at this position.
    pub bytes: u64,
    /// The counts of the whole shard at this position, or a little later.
    pub counts: Box<ShardCounts>,
    /// The status at this position, or a little later, if messages are ready.
    pub view: Option<ShardStatus>,
}

impl ShardGlance {
    /// The glance at a shard with this status; none at the known position.
    pub fn of(shard: &Shard, view: ShardStatus, known: Option<RowPosition>) -> Option<Self> {
        (known != Some(shard.position())).then(|| Self {
            position: shard.position(),
            messages: shard.totals().messages(),
            bytes: shard.totals().all().bytes,
            counts: Box::new(shard.tally().counts().clone()),
            view: (view.ready() > 0).then_some(view),
        })
    }
}

/// Rows of an outbox, in the order of their positions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxPage {
    /// The rows. Positions that are missing between two of them, or before the first, are not in the outbox any more.
    pub rows: Vec<HistoryRow>,
    /// The position up to which the rows are complete: beyond it there may be more.
    pub through: RowPosition,
    /// The shard's time of the read.
    pub at: Timestamp,
}

/// The fill of all outboxes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OutboxUsage {
    /// Bytes of all outboxes.
    pub bytes: u64,
    /// The most bytes that the outboxes may have before the largest gives way.
    pub capacity: u64,
}

/// The outboxes of shards: rows that the history has not taken over yet.
///
/// Laws, besides 1, 2 and 8 of [`ShardStore`]:
/// 14. `report` returns the totals at one position, and of the counts by value and by signature at least those that
///     changed after the asked position. Two reports at one position have equal counts.
/// 15. Each row that a command applied to a shard is in its outbox, in the step that applied it, if the settings keep
///     its history. It leaves by `forget_outbox`, or because the outboxes together are too large; then the oldest of
///     the largest leave first. Commands are never refused for it.
/// 16. The positions of a shard are 1, 2, 3 and so on in an epoch, and go on across restarts.
/// 17. The outbox of a dropped queue stays until it is forgotten, or leaves because the outboxes together are too
///     large. `outboxes` lists every shard that has rows.
/// 18. A store recounts the levels of each shard when it is opened. They equal those of the counts.
/// 20. `glance` answers what `report` and `totals` say, and none if the shard is at the known position. It costs no
///     more than they do, and no more than one plain read at the known position.
#[async_trait]
pub trait ShardOutbox: Send + Sync + 'static {
    /// Reads the counts of a shard. `since` is the position of an earlier report; without one all counts are returned.
    async fn report(&self, shard: ShardId, since: Option<u64>) -> Result<ShardReport, StoreError>;

    /// Reads what lists of queues show of a shard, if it is not at the known position any more.
    async fn glance(&self, shard: ShardId, known: Option<RowPosition>) -> Result<Option<ShardGlance>, StoreError>;

    /// Reads the rows after a position, at most `limit` and `OUTBOX_PAGE_ROWS_MAX` rounded up to whole commits.
    async fn outbox(&self, shard: ShardId, after: RowPosition, limit: usize) -> Result<OutboxPage, StoreError>;

    /// Removes the rows up to a position.
    async fn forget_outbox(&self, shard: ShardId, through: RowPosition) -> Result<(), StoreError>;

    /// Lists the shards whose outboxes have rows, those of dropped queues included. O(shards).
    async fn outboxes(&self) -> Result<Vec<ShardId>, StoreError>;

    /// The fill of all outboxes. Never blocks.
    fn outbox_usage(&self) -> OutboxUsage;
}

/// The time of a queue store, which its steps use. Law 13 of [`ShardStore`].
#[async_trait]
pub trait QueueTime: Send + Sync + 'static {
    /// Reads the times of a step that came now.
    async fn clock(&self) -> Result<StepTime, StoreError>;

    /// Judges the age of tokens by wall time again. Returns the time from which tokens are accepted, if a reset was
    /// needed.
    async fn reset_clock(&self) -> Result<Option<Timestamp>, StoreError>;
}

/// The totals of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardTotals {
    /// Messages and bytes by state.
    pub totals: Totals,
    /// The sequence of the newest message, 0 before the first.
    pub sequence: u64,
    /// The view.
    pub view: ShardStatus,
}
