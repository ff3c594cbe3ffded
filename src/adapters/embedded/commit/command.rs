//! What callers ask of the committer. Each command carries the way to its caller; it is answered once.

use std::ops::{AddAssign, SubAssign};

use fjall::Slice;
use tokio::sync::oneshot;

use crate::adapters::codec::encode_event;
use crate::adapters::embedded::backup::BackupSnapshot;
use crate::adapters::embedded::disk::key;
use crate::adapters::embedded::queues::command::QueueStoreCommand;
use crate::domain::Timestamp;
use crate::domain::counter::{Counter, DatasetId, Event, EventId, EventKey, NamespaceId};
use crate::domain::rollup::{BucketRecord, SliceStatus, SourceTotal, StepSum, TimeSlice};
use crate::ports::{AppendGuard, AppendOutcome, NamespaceRecord, NewEvent, RollWrite, StoreError, VerdictOutcome};

/// The way to the caller. A caller that went away is no error.
pub type ReplySender<T> = oneshot::Sender<Result<T, StoreError>>;

/// The way to the caller of an append, who gets an answer for each event.
pub type AppendReplySender = oneshot::Sender<Vec<Result<AppendOutcome, StoreError>>>;

/// One request.
pub enum StoreCommand {
    /// Appends events.
    Append(AppendCommand),
    /// Settles a key.
    Settle(SettleCommand),
    /// Raises a frontier.
    Publish(DatasetId, Timestamp, ReplySender<Timestamp>),
    /// Puts rolls.
    Roll(DatasetId, Vec<RollWrite>, ReplySender<()>),
    /// Raises watermarks.
    Watermarks(DatasetId, Vec<(u32, Timestamp)>, ReplySender<()>),
    /// Creates the row of a slice.
    CreateSlice(TimeSlice, ReplySender<TimeSlice>),
    /// Moves a slice on, but not to its end.
    SetStatus(DatasetId, Timestamp, SliceStatus, ReplySender<()>),
    /// Drops a slice and deletes what it holds.
    DropSlice(DatasetId, Timestamp, ReplySender<()>),
    /// Changes the catalog.
    Catalog(Box<NamespaceRecord>, ReplySender<()>),
    /// Drops periods of a series.
    TrimSeries(u32, Timestamp, ReplySender<()>),
    /// Marks a namespace as forgotten.
    Forget(NamespaceId, ReplySender<()>),
    /// Removes rows of a forgotten namespace, at most so many; answers whether there may be more.
    PurgeRows(NamespaceId, usize, ReplySender<bool>),
    /// Fixes the present state for a backup.
    Snapshot(ReplySender<BackupSnapshot>),
    /// Whatever is asked of queues.
    Queue(QueueStoreCommand),
}

/// An append.
pub struct AppendCommand {
    /// The dataset.
    pub dataset: DatasetId,
    /// The events, encoded by the caller.
    pub events: Vec<EncodedEvent>,
    /// What the writer keeps alive until the outcome is decided.
    pub guard: AppendGuard,
    /// The way to the caller.
    pub answer: AppendReplySender,
}

/// A settlement.
pub struct SettleCommand {
    /// The dataset.
    pub dataset: DatasetId,
    /// The counter.
    pub counter: Counter,
    /// The key.
    pub key: EventKey,
    /// The way to the caller.
    pub answer: ReplySender<VerdictOutcome>,
}

/// An event with its stored form.
pub struct EncodedEvent {
    /// The counter.
    pub counter: Counter,
    /// The event.
    pub event: Event,
    /// The key of its row.
    pub key: Slice,
    /// The value of its row.
    pub value: Slice,
}

impl EncodedEvent {
    /// Encodes an event.
    pub fn new(new: NewEvent) -> Self {
        let NewEvent { counter, event } = new;
        let key = Slice::from(key::of_event(&counter, &event.key));
        let value = Slice::from(encode_event(event.change, &event.provenance));
        Self { counter, event, key, value }
    }

    /// About what the event takes while it waits, the writer's note of it included.
    pub fn bytes(&self) -> usize {
        let id = match &self.event.key.id {
            EventId::Uuid(_) => 0,
            EventId::Tagged(bytes) => bytes.len(),
        };
        let text = self.counter.name().as_str().len() + self.event.provenance.as_str().len() + id;
        size_of::<Self>() + size_of::<(Counter, Timestamp)>() + self.key.len() + self.value.len() + text
    }
}

/// How a command may be turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmissionClass {
    /// Takes in new events: the first to be turned away.
    Intake,
    /// Works off what was taken in, or keeps the store in order.
    Upkeep,
}

/// What goes before what: a settlement frees what others wait for, an enqueue only adds to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum CommitLane {
    /// Settlements, extensions and heartbeats of queues.
    Settlements,
    /// Dequeues and sweeps, what is asked of counters but batches of adds, and what changes the shape of the store.
    General,
    /// Batches of adds. What one client streams is no reason for a single add to wait.
    Batches,
    /// Enqueues, reads, and what walks over a queue.
    Bulk,
}

impl CommitLane {
    /// How many there are.
    pub const COUNT: usize = 4;
}

/// The bytes of commands, by how these may be turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CommandBytes {
    /// Of commands that take in new events.
    pub intake: usize,
    /// Of all others.
    pub upkeep: usize,
}

impl SubAssign for CommandBytes {
    fn sub_assign(&mut self, less: Self) {
        self.intake -= less.intake;
        self.upkeep -= less.upkeep;
    }
}

impl AddAssign for CommandBytes {
    fn add_assign(&mut self, more: Self) {
        self.intake += more.intake;
        self.upkeep += more.upkeep;
    }
}

/// What a waiting command takes beside its events.
const COMMAND_BYTES: usize = 256;

impl StoreCommand {
    /// How it may be turned away.
    pub fn class(&self) -> AdmissionClass {
        match self {
            Self::Append(_) | Self::Settle(_) => AdmissionClass::Intake,
            Self::Queue(ask) => ask.class(),
            Self::Publish(..)
            | Self::Roll(..)
            | Self::Watermarks(..)
            | Self::CreateSlice(..)
            | Self::SetStatus(..)
            | Self::DropSlice(..)
            | Self::Catalog(..)
            | Self::TrimSeries(..)
            | Self::Forget(..)
            | Self::PurgeRows(..)
            | Self::Snapshot(_) => AdmissionClass::Upkeep,
        }
    }

    /// What it goes before.
    pub fn lane(&self) -> CommitLane {
        match self {
            Self::Queue(ask) => ask.lane(),
            // What overtakes a batch changes nothing for it: its hold keeps the limit back, its slices are there before it
            // is sent, and of an event and a void with one key the first to come stands.
            Self::Append(append) if append.events.len() > 1 => CommitLane::Batches,
            // One lane, so that the order of what is left is that of arrival.
            Self::Append(_)
            | Self::Settle(_)
            | Self::Publish(..)
            | Self::Roll(..)
            | Self::Watermarks(..)
            | Self::CreateSlice(..)
            | Self::SetStatus(..)
            | Self::DropSlice(..)
            | Self::Catalog(..)
            | Self::TrimSeries(..)
            | Self::Forget(..)
            | Self::PurgeRows(..)
            | Self::Snapshot(_) => CommitLane::General,
        }
    }

    /// How many events or commands of shards it brings.
    pub fn items(&self) -> usize {
        match self {
            Self::Append(append) => append.events.len(),
            Self::Roll(_, writes, _) => writes.len(),
            Self::Queue(ask) => ask.items(),
            Self::Settle(_)
            | Self::Publish(..)
            | Self::Watermarks(..)
            | Self::CreateSlice(..)
            | Self::SetStatus(..)
            | Self::DropSlice(..)
            | Self::Catalog(..)
            | Self::TrimSeries(..)
            | Self::Forget(..)
            | Self::PurgeRows(..)
            | Self::Snapshot(_) => 1,
        }
    }

    /// About what it takes while it waits, in the column of its class.
    pub fn bytes(&self) -> CommandBytes {
        let more = match self {
            Self::Append(append) => append.events.iter().map(EncodedEvent::bytes).sum(),
            Self::Roll(_, writes, _) => writes.iter().map(bytes_of_roll).sum(),
            Self::Queue(ask) => ask.bytes(),
            Self::CreateSlice(slice, _) => slice.versions.len() * size_of::<(NamespaceId, u64)>(),
            Self::Settle(_)
            | Self::Publish(..)
            | Self::Watermarks(..)
            | Self::SetStatus(..)
            | Self::DropSlice(..)
            | Self::Catalog(..)
            | Self::TrimSeries(..)
            | Self::Forget(..)
            | Self::PurgeRows(..)
            | Self::Snapshot(_) => 0,
        };
        let bytes = COMMAND_BYTES + more;
        match self.class() {
            AdmissionClass::Intake => CommandBytes { intake: bytes, upkeep: 0 },
            AdmissionClass::Upkeep => CommandBytes { intake: 0, upkeep: bytes },
        }
    }

    /// Answers with a failure.
    pub fn fail(self, error: impl Fn(&'static str) -> StoreError) {
        // A caller that stopped waiting has nobody to tell.
        match self {
            Self::Append(append) => {
                let failed = append.events.iter().map(|_| Err(error("append"))).collect();
                let _ = append.answer.send(failed);
            }
            Self::Settle(settle) => drop(settle.answer.send(Err(error("settle")))),
            Self::Publish(_, _, answer) => drop(answer.send(Err(error("publish")))),
            Self::Roll(_, _, answer) => drop(answer.send(Err(error("put")))),
            Self::Watermarks(_, _, answer) => drop(answer.send(Err(error("put watermarks")))),
            Self::CreateSlice(_, answer) => drop(answer.send(Err(error("create slice")))),
            Self::SetStatus(_, _, _, answer) => drop(answer.send(Err(error("set slice status")))),
            Self::DropSlice(_, _, answer) => drop(answer.send(Err(error("drop slice")))),
            Self::Catalog(_, answer) => drop(answer.send(Err(error("commit")))),
            Self::TrimSeries(_, _, answer) => drop(answer.send(Err(error("trim series")))),
            Self::Forget(_, answer) => drop(answer.send(Err(error("forget")))),
            Self::PurgeRows(_, _, answer) => drop(answer.send(Err(error("forget")))),
            Self::Snapshot(answer) => drop(answer.send(Err(error("back up")))),
            Self::Queue(ask) => ask.fail(error),
        }
    }
}

/// About what a roll takes while it waits: the checkpoint with all its sources, and the records it finishes.
fn bytes_of_roll(write: &RollWrite) -> usize {
    let sources = write.checkpoint.sources.keys().map(|name| name.len() + size_of::<(Box<str>, SourceTotal)>());
    size_of::<RollWrite>()
        + write.counter.name().as_str().len()
        + sources.sum::<usize>()
        + write.finished_buckets.len() * size_of::<BucketRecord>()
        + (write.finished_steps.len() + write.checkpoint.open_steps.len()) * size_of::<StepSum>()
}
