//! The commands of the committer. Each command contains the sender of its reply and is answered once.

use fjall::Slice;
use tokio::sync::oneshot;

use super::admission::{AdmissionClass, CommandBytes, CommitLane, ReplySender};
use super::queue_command::QueueStoreCommand;
use crate::disk::backup_snapshot::BackupSnapshot;
use crate::disk::key;
use crate::disk::writer::SyncMode;
use crate::history::entries::{HistoryEntry, HistoryPiece};
use crate::history::periods::DroppedPeriod;
use tallystone_adapters::codec::encode_event;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, DatasetId, Event, EventId, EventKey, NamespaceId};
use tallystone_domain::limits::RULE_PAYLOAD_BYTES_MAX;
use tallystone_domain::rollup::{BucketRecord, SliceStatus, SourceTotal, StepSum, TimeSlice};
use tallystone_domain::rules::Rule;
use tallystone_ports::{
    AppendGuard, AppendOutcome, ExperimentRecord, KeyRecord, NamespaceRecord, NewEvent, RollWrite, RuleChange,
    StoreError, VerdictOutcome,
};

/// The sender of the replies of an append, one for each event.
pub type AppendReplySender = oneshot::Sender<Vec<Result<AppendOutcome, StoreError>>>;

/// One request.
pub enum StoreCommand {
    /// Appends events.
    Append(AppendCommand),
    /// Settles a key.
    Settle(SettleCommand),
    /// Raises a frontier.
    PublishLimit(DatasetId, Timestamp, ReplySender<Timestamp>),
    /// Puts rolls.
    Roll(DatasetId, Vec<RollWrite>, ReplySender<()>),
    /// Raises watermarks.
    Watermarks(DatasetId, Vec<(u32, Timestamp)>, ReplySender<()>),
    /// Creates the row of a slice.
    CreateSlice(TimeSlice, ReplySender<TimeSlice>),
    /// Advances the status of a slice, except to dropped.
    SetStatus(DatasetId, Timestamp, SliceStatus, ReplySender<()>),
    /// Drops a slice and deletes its content.
    DropSlice(DatasetId, Timestamp, ReplySender<()>),
    /// Changes the catalog.
    Catalog(Box<NamespaceRecord>, ReplySender<()>),
    /// Changes the API keys.
    Keys(Box<KeyRecord>, ReplySender<()>),
    /// Changes the experiments.
    Experiments(Box<ExperimentRecord>, ReplySender<()>),
    /// Changes the rules; with the name of the operation. Returns the rule after the change.
    Rules(Box<RuleChange>, &'static str, ReplySender<Option<Rule>>),
    /// Drops periods of a series.
    TrimSeries(u32, Timestamp, ReplySender<()>),
    /// Marks a namespace as forgotten.
    Forget(NamespaceId, ReplySender<()>),
    /// Forgets counters that were silent up to a time each.
    ForgetCounters(DatasetId, Vec<(Counter, Timestamp)>, ReplySender<()>),
    /// Removes up to a number of rows of a forgotten namespace. Returns whether there may be more.
    PurgeRows(NamespaceId, usize, ReplySender<bool>),
    /// Writes a piece of the history.
    History(HistoryCommand),
    /// Lets the periods of the history leave that end at or before a time, and the oldest while it exceeds its size.
    TrimHistory(Timestamp, ReplySender<Vec<DroppedPeriod>>),
    /// Takes a snapshot for a backup.
    Snapshot(ReplySender<BackupSnapshot>),
    Queue(QueueStoreCommand),
}

pub struct AppendCommand {
    pub dataset: DatasetId,
    /// The events, encoded by the caller.
    pub events: Vec<EncodedEvent>,
    /// The guard of the writer, kept until the outcome is decided.
    pub guard: AppendGuard,
    pub answer: AppendReplySender,
}

/// A piece of the history.
pub struct HistoryCommand {
    pub piece: HistoryPiece,
    /// Whether the answer waits for the disk.
    pub sync: SyncMode,
    pub answer: ReplySender<()>,
}

/// A settlement.
pub struct SettleCommand {
    pub dataset: DatasetId,
    pub counter: Counter,
    pub key: EventKey,
    pub answer: ReplySender<VerdictOutcome>,
}

/// An event with its stored form.
pub struct EncodedEvent {
    pub counter: Counter,
    pub event: Event,
    /// The key of its row.
    pub key: Slice,
    /// The value of its row.
    pub value: Slice,
}

impl EncodedEvent {
    pub fn new(new: NewEvent) -> Self {
        let NewEvent { counter, event } = new;
        let key = Slice::from(key::of_event(&counter, &event.key));
        let value = Slice::from(encode_event(event.change, &event.provenance));
        Self { counter, event, key, value }
    }

    /// The approximate bytes of the waiting event, including the guard of the writer.
    pub fn bytes(&self) -> usize {
        let id = match &self.event.key.id {
            EventId::Uuid(_) => 0,
            EventId::Tagged(bytes) => bytes.len(),
        };
        let text = self.counter.name().as_str().len() + self.event.provenance.as_str().len() + id;
        size_of::<Self>() + size_of::<(Counter, Timestamp)>() + self.key.len() + self.value.len() + text
    }
}

/// The bytes of a waiting command besides its events.
const COMMAND_BYTES: usize = 256;

impl StoreCommand {
    pub fn class(&self) -> AdmissionClass {
        match self {
            Self::Append(_) | Self::Settle(_) => AdmissionClass::Intake,
            Self::Queue(command) => command.class(),
            Self::PublishLimit(..)
            | Self::Roll(..)
            | Self::Watermarks(..)
            | Self::CreateSlice(..)
            | Self::SetStatus(..)
            | Self::DropSlice(..)
            | Self::Catalog(..)
            | Self::Keys(..)
            | Self::Experiments(..)
            | Self::Rules(..)
            | Self::TrimSeries(..)
            | Self::Forget(..)
            | Self::ForgetCounters(..)
            | Self::PurgeRows(..)
            | Self::History(_)
            | Self::TrimHistory(..)
            | Self::Snapshot(_) => AdmissionClass::Upkeep,
        }
    }

    pub fn lane(&self) -> CommitLane {
        match self {
            Self::Queue(command) => command.lane(),
            // Overtaking does not affect a batch: its hold keeps the limit back and its slices exist before it is sent.
            // Of an event and a tombstone with one key, the first to arrive wins.
            Self::Append(append) if append.events.len() > 1 => CommitLane::Batches,
            // One lane, so that the remaining commands of one caller, and those of the server itself, keep the order of
            // arrival. What two callers do at the same time has no order.
            Self::Append(_)
            | Self::Settle(_)
            | Self::PublishLimit(..)
            | Self::Roll(..)
            | Self::Watermarks(..)
            | Self::CreateSlice(..)
            | Self::SetStatus(..)
            | Self::DropSlice(..)
            | Self::Catalog(..)
            | Self::Keys(..)
            | Self::Experiments(..)
            | Self::Rules(..)
            | Self::TrimSeries(..)
            | Self::Forget(..)
            | Self::ForgetCounters(..)
            | Self::PurgeRows(..)
            | Self::TrimHistory(..)
            | Self::Snapshot(_) => CommitLane::General,
            // Nobody waits for it.
            Self::History(_) => CommitLane::Bulk,
        }
    }

    /// The number of its events or shard commands.
    pub fn items(&self) -> usize {
        match self {
            Self::Append(append) => append.events.len(),
            Self::Roll(_, writes, _) => writes.len(),
            Self::History(command) => command.piece.entries.len(),
            Self::Queue(command) => command.items(),
            Self::Settle(_)
            | Self::PublishLimit(..)
            | Self::Watermarks(..)
            | Self::CreateSlice(..)
            | Self::SetStatus(..)
            | Self::DropSlice(..)
            | Self::Catalog(..)
            | Self::Keys(..)
            | Self::Experiments(..)
            | Self::Rules(..)
            | Self::TrimSeries(..)
            | Self::Forget(..)
            | Self::ForgetCounters(..)
            | Self::PurgeRows(..)
            | Self::TrimHistory(..)
            | Self::Snapshot(_) => 1,
        }
    }

    /// Its approximate bytes while it waits, in the column of its class.
    pub fn bytes(&self) -> CommandBytes {
        let more = match self {
            Self::Append(append) => append.events.iter().map(EncodedEvent::bytes).sum(),
            Self::Roll(_, writes, _) => writes.iter().map(bytes_of_roll).sum(),
            Self::History(command) => command.piece.bytes + command.piece.entries.len() * size_of::<HistoryEntry>(),
            Self::Queue(command) => command.bytes(),
            Self::CreateSlice(slice, _) => slice.versions.len() * size_of::<(NamespaceId, u64)>(),
            Self::Rules(..) => size_of::<RuleChange>() + RULE_PAYLOAD_BYTES_MAX,
            Self::Settle(_)
            | Self::PublishLimit(..)
            | Self::Watermarks(..)
            | Self::SetStatus(..)
            | Self::DropSlice(..)
            | Self::Catalog(..)
            | Self::Keys(..)
            | Self::Experiments(..)
            | Self::TrimSeries(..)
            | Self::Forget(..)
            | Self::ForgetCounters(..)
            | Self::PurgeRows(..)
            | Self::TrimHistory(..)
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
        // The caller may have stopped waiting.
        match self {
            Self::Append(append) => {
                let failed = append.events.iter().map(|_| Err(error("append"))).collect();
                let _ = append.answer.send(failed);
            }
            Self::Settle(settle) => drop(settle.answer.send(Err(error("settle")))),
            Self::PublishLimit(_, _, answer) => drop(answer.send(Err(error("publish")))),
            Self::Roll(_, _, answer) => drop(answer.send(Err(error("put")))),
            Self::Watermarks(_, _, answer) => drop(answer.send(Err(error("put watermarks")))),
            Self::CreateSlice(_, answer) => drop(answer.send(Err(error("create slice")))),
            Self::SetStatus(_, _, _, answer) => drop(answer.send(Err(error("set slice status")))),
            Self::DropSlice(_, _, answer) => drop(answer.send(Err(error("drop slice")))),
            Self::Catalog(_, answer) => drop(answer.send(Err(error("commit")))),
            Self::Keys(_, answer) => drop(answer.send(Err(error("commit key")))),
            Self::Experiments(_, answer) => drop(answer.send(Err(error("commit experiment")))),
            Self::Rules(_, op, answer) => drop(answer.send(Err(error(op)))),
            Self::TrimSeries(_, _, answer) => drop(answer.send(Err(error("trim series")))),
            Self::Forget(_, answer) => drop(answer.send(Err(error("forget")))),
            Self::ForgetCounters(_, _, answer) => drop(answer.send(Err(error("forget counters")))),
            Self::PurgeRows(_, _, answer) => drop(answer.send(Err(error("forget")))),
            Self::History(command) => drop(command.answer.send(Err(error("write history")))),
            Self::TrimHistory(_, answer) => drop(answer.send(Err(error("trim history")))),
            Self::Snapshot(answer) => drop(answer.send(Err(error("back up")))),
            Self::Queue(command) => command.fail(error),
        }
    }
}

/// The approximate bytes of a waiting roll: the checkpoint with all its sources, and its finished records.
fn bytes_of_roll(write: &RollWrite) -> usize {
    let sources = write.checkpoint.sources.keys().map(|name| name.len() + size_of::<(Box<str>, SourceTotal)>());
    size_of::<RollWrite>()
        + write.counter.name().as_str().len()
        + sources.sum::<usize>()
        + write.finished_buckets.len() * size_of::<BucketRecord>()
        + (write.finished_steps.len() + write.checkpoint.open_steps.len()) * size_of::<StepSum>()
}
