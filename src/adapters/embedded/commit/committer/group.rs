//! A commit group: one batch, and the reply and the changes in memory of each command.

use hashbrown::{HashMap, HashSet, HashTable};

use crate::counters::slices::WritableSlice;
use crate::disk::writer::{CommitBatch, SyncMode, Writer};
use crate::inbox::admission::{CommandBytes, ReplySender};
use crate::inbox::command::{AppendReplySender, EncodedEvent};
use crate::inbox::queue_command::ApplyReplySender;
use crate::limits::{COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX};
use crate::queues::staged_changes::StagedShards;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, DatasetId, Event, EventId, EventKey};
use tallystone_domain::queue::ShardId;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_domain::rollup::{Checkpoint, TimeSlice};
use tallystone_ports::{
    AppendGuard, AppendOutcome, CreatedQueue, ShardAnswer, StoreError, StoreErrorKind, VerdictOutcome,
};

/// One batch and the commands in it.
pub struct CommitGroup {
    /// The rows.
    pub batch: CommitBatch,
    /// Whether a command waits for the disk.
    pub sync: SyncMode,
    /// The commands, in the order of their arrival.
    pub commands: Vec<StagedCommand>,
    /// The bytes of the commands while they waited.
    pub bytes_waited: CommandBytes,
    /// The number of staged events.
    pub events: usize,
    /// The positions of the staged events: (command, event).
    pub staged: HashTable<(u32, u32)>,
    /// The `as_of` of the staged checkpoints.
    pub as_of: HashMap<(DatasetId, Counter), Timestamp>,
    /// The staged clears.
    pub clears: HashMap<(DatasetId, Counter), EventKey>,
    /// The counters whose names are staged to be listed.
    pub names: HashSet<Counter>,
    /// The staged frontiers.
    pub frontiers: HashMap<DatasetId, Timestamp>,
    /// The staged rows of slices.
    pub slices: HashMap<(DatasetId, Timestamp), TimeSlice>,
    /// The slice that the last event went to.
    pub last_slice: Option<WritableSlice>,
    /// The staged cursors of the history.
    pub history_cursors: HashMap<ShardId, RowPosition>,
    /// The changes of queue shards.
    pub queues: StagedShards,
}

pub enum StagedCommand {
    /// Events, with the outcome of each.
    Append {
        dataset: DatasetId,
        events: Vec<EncodedEvent>,
        outcomes: Vec<Result<AppendOutcome, StoreError>>,
        held: AppendGuard,
        answer: AppendReplySender,
    },
    /// A settlement, with the tombstone that it inserts, if any.
    Settle {
        dataset: DatasetId,
        void: Vec<EncodedEvent>,
        settled: Result<VerdictOutcome, StoreError>,
        answer: ReplySender<VerdictOutcome>,
    },
    /// A frontier.
    PublishLimit {
        dataset: DatasetId,
        to: Timestamp,
        answer: ReplySender<Timestamp>,
    },
    /// Checkpoints that win.
    Roll {
        dataset: DatasetId,
        rolls: Vec<(Counter, Vec<u8>, Checkpoint)>,
        answer: ReplySender<()>,
    },
    /// Commands of a queue shard, with the answer to each.
    Apply {
        answers: Vec<Result<ShardAnswer, StoreError>>,
        answer: ApplyReplySender,
    },
    /// A read of a queue shard that was done.
    ReadShard(ReplySender<()>),
    ListQueues {
        queues: Vec<CreatedQueue>,
        answer: ReplySender<Vec<CreatedQueue>>,
    },
    Watermarks {
        dataset: DatasetId,
        moved: Vec<(u32, Timestamp)>,
        answer: ReplySender<()>,
    },
    /// A piece of the history, with its rows and their bytes.
    History {
        rows: u64,
        row_bytes: u64,
        answer: ReplySender<()>,
    },
    /// A slice after its creation or change of status.
    Slice {
        row: TimeSlice,
        answer: SliceReplySender,
    },
}

/// The sender of the reply to a change of a slice.
pub enum SliceReplySender {
    /// Its creation.
    Created(ReplySender<TimeSlice>),
    /// Its change of status.
    Moved(ReplySender<()>),
}

impl CommitGroup {
    /// An empty group with capacity for a number of commands.
    pub fn new(writer: &Writer, commands: usize) -> Self {
        Self {
            batch: writer.batch(commands),
            sync: SyncMode::No,
            commands: Vec::with_capacity(commands),
            bytes_waited: CommandBytes::default(),
            events: 0,
            staged: HashTable::new(),
            as_of: HashMap::new(),
            clears: HashMap::new(),
            names: HashSet::new(),
            frontiers: HashMap::new(),
            slices: HashMap::new(),
            last_slice: None,
            history_cursors: HashMap::new(),
            queues: StagedShards::default(),
        }
    }

    /// Whether it is time to commit.
    pub fn is_full(&self) -> bool {
        self.events >= COMMIT_EVENTS_MAX || self.batch.bytes() + self.queues.bytes() >= COMMIT_BYTES_MAX
    }

    /// The event staged under a key in this group; `events` are those of the current command.
    pub fn staged_event(
        &self,
        events: &[EncodedEvent],
        dataset: DatasetId,
        counter: &Counter,
        key: &EventKey,
    ) -> Option<Event> {
        let at = |(command, event): &(u32, u32)| match self.commands.get(*command as usize) {
            Some(
                StagedCommand::Append { dataset, events, .. } | StagedCommand::Settle { dataset, void: events, .. },
            ) => (*dataset, &events[*event as usize]),
            // The current command is not in the list yet.
            Some(_) | None => (dataset, &events[*event as usize]),
        };
        let is = |position: &(u32, u32)| {
            let (of, event) = at(position);
            of == dataset && event.event.key == *key && event.counter == *counter
        };
        self.staged.find(hash_of(counter, key), is).map(|position| at(position).1.event.clone())
    }

    /// Records an event of the current command as staged.
    pub fn note_staged(&mut self, events: &[EncodedEvent], index: usize) {
        let command = self.commands.len() as u32;
        let work = &self.commands;
        let hash_at = |(of, event): &(u32, u32)| match work.get(*of as usize) {
            Some(StagedCommand::Append { events, .. } | StagedCommand::Settle { void: events, .. }) => {
                hash_of_event(&events[*event as usize])
            }
            // The current command is not in the list yet.
            Some(_) | None => hash_of_event(&events[*event as usize]),
        };
        self.staged.insert_unique(hash_of_event(&events[index]), (command, index as u32), hash_at);
        self.events += 1;
    }
}

/// Whether an outcome means that the event is new.
pub fn is_inserted(outcome: &Result<AppendOutcome, StoreError>) -> bool {
    matches!(outcome, Ok(AppendOutcome::Inserted))
}

fn hash_of_event(event: &EncodedEvent) -> u64 {
    hash_of(&event.counter, &event.event.key)
}

fn hash_of(counter: &Counter, key: &EventKey) -> u64 {
    let id = match &key.id {
        // The last half of a UUID is random.
        EventId::Uuid(bytes) => u64::from_be_bytes(bytes[8..].try_into().expect("8 of 16 bytes")),
        EventId::Tagged(bytes) => xxhash_rust::xxh3::xxh3_64(bytes),
    };
    counter.hash() ^ id.rotate_left(23) ^ (key.time.micros() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl StagedCommand {
    /// Replies, once everything is durable and readable. Ends the hold of an append.
    pub fn reply(self) {
        // The caller may have stopped waiting.
        match self {
            Self::Append { outcomes, held, answer, .. } => {
                drop(held);
                let _ = answer.send(outcomes);
            }
            Self::Settle { settled, answer, .. } => drop(answer.send(settled)),
            Self::PublishLimit { to, answer, .. } => drop(answer.send(Ok(to))),
            Self::Apply { answers, answer } => drop(answer.send(answers)),
            Self::ListQueues { queues, answer } => drop(answer.send(Ok(queues))),
            Self::Roll { answer, .. }
            | Self::Watermarks { answer, .. }
            | Self::ReadShard(answer)
            | Self::History { answer, .. }
            | Self::Slice { answer: SliceReplySender::Moved(answer), .. } => drop(answer.send(Ok(()))),
            Self::Slice { row, answer: SliceReplySender::Created(answer) } => drop(answer.send(Ok(row))),
        }
    }

    /// Replies with an unknown outcome. Returns the guards that must be kept.
    pub fn fail(self) -> Option<AppendGuard> {
        let unknown = |op| StoreError::unknown(StoreErrorKind::Unavailable, op);
        // A read may have seen changes that were never committed.
        let not_read = |op| StoreError::not_applied(StoreErrorKind::Unavailable, op);
        // The caller may have stopped waiting.
        match self {
            Self::Append { outcomes, held, answer, .. } => {
                let failed = outcomes.into_iter().map(|outcome| outcome.and_then(|_| Err(unknown("append"))));
                let _ = answer.send(failed.collect());
                return Some(held);
            }
            Self::Settle { answer, .. } => drop(answer.send(Err(unknown("settle")))),
            Self::PublishLimit { answer, .. } => drop(answer.send(Err(unknown("publish")))),
            Self::Roll { answer, .. } => drop(answer.send(Err(unknown("put")))),
            Self::Apply { answers, answer } => {
                // Commands that were refused stay refused.
                let failed = answers.into_iter().map(|applied| applied.and_then(|_| Err(unknown("apply to queue"))));
                let _ = answer.send(failed.collect());
            }
            Self::ReadShard(answer) => drop(answer.send(Err(not_read("read queue")))),
            Self::ListQueues { answer, .. } => drop(answer.send(Err(not_read("list queues")))),
            Self::Watermarks { answer, .. } => drop(answer.send(Err(unknown("put watermarks")))),
            Self::History { answer, .. } => drop(answer.send(Err(unknown("write history")))),
            Self::Slice { answer: SliceReplySender::Created(answer), .. } => {
                drop(answer.send(Err(unknown("create slice"))));
            }
            Self::Slice { answer: SliceReplySender::Moved(answer), .. } => {
                drop(answer.send(Err(unknown("set slice status"))));
            }
        }
        None
    }
}
