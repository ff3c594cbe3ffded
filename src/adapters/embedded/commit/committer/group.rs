//! A commit group: one batch, and the reply and the changes in memory of each command.

use hashbrown::{HashMap, HashSet, HashTable};

use crate::adapters::embedded::commit::command::{AppendReplySender, CommandBytes, EncodedEvent, ReplySender};
use crate::adapters::embedded::commit::writer::{CommitBatch, SyncMode, Writer};
use crate::adapters::embedded::counters::slices::WritableSlice;
use crate::adapters::embedded::queues::staged_changes::{PendingQueueReply, StagedShards};
use crate::domain::Timestamp;
use crate::domain::counter::{Counter, DatasetId, Event, EventId, EventKey};
use crate::domain::limits::{COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX};
use crate::domain::rollup::{Checkpoint, TimeSlice};
use crate::ports::{AppendGuard, AppendOutcome, StoreError, StoreErrorKind, VerdictOutcome};

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
    /// The changes of queue shards.
    pub queues: StagedShards,
}

/// One staged command.
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
    Publish { dataset: DatasetId, to: Timestamp, answer: ReplySender<Timestamp> },
    /// Checkpoints that win.
    Roll { dataset: DatasetId, rolls: Vec<(Counter, Vec<u8>, Checkpoint)>, answer: ReplySender<()> },
    /// Commands of queues.
    Queue(PendingQueueReply),
    /// Watermarks.
    Watermarks { dataset: DatasetId, moved: Vec<(u32, Timestamp)>, answer: ReplySender<()> },
    /// A slice after its creation or change of status.
    Slice { row: TimeSlice, answer: SliceReplySender },
}

/// The sender of the reply to a change of a slice.
pub enum SliceReplySender {
    /// Its creation.
    Created(ReplySender<TimeSlice>),
    /// Its change of status.
    Moved(ReplySender<()>),
}

/// A reply whose effects are durable and readable.
pub enum CommittedReply {
    Append(AppendReplySender, Vec<Result<AppendOutcome, StoreError>>),
    Settle(ReplySender<VerdictOutcome>, Result<VerdictOutcome, StoreError>),
    Publish(ReplySender<Timestamp>, Timestamp),
    Queue(PendingQueueReply),
    Created(ReplySender<TimeSlice>, TimeSlice),
    Done(ReplySender<()>),
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
    /// The reply, once everything is durable and readable. Ends the hold of an append.
    pub fn into_reply(self) -> CommittedReply {
        match self {
            Self::Append { outcomes, held, answer, .. } => {
                drop(held);
                CommittedReply::Append(answer, outcomes)
            }
            Self::Settle { settled, answer, .. } => CommittedReply::Settle(answer, settled),
            Self::Publish { to, answer, .. } => CommittedReply::Publish(answer, to),
            Self::Queue(waiting) => CommittedReply::Queue(waiting),
            Self::Roll { answer, .. }
            | Self::Watermarks { answer, .. }
            | Self::Slice { answer: SliceReplySender::Moved(answer), .. } => CommittedReply::Done(answer),
            Self::Slice { row, answer: SliceReplySender::Created(answer) } => CommittedReply::Created(answer, row),
        }
    }

    /// Replies with an unknown outcome. Returns the guards that must be kept.
    pub fn fail(self) -> Option<AppendGuard> {
        let unknown = |op| StoreError::unknown(StoreErrorKind::Unavailable, op);
        // The caller may have stopped waiting.
        match self {
            Self::Append { outcomes, held, answer, .. } => {
                let failed = outcomes.into_iter().map(|outcome| match outcome {
                    Ok(_) => Err(unknown("append")),
                    Err(error) => Err(error),
                });
                let _ = answer.send(failed.collect());
                return Some(held);
            }
            Self::Settle { answer, .. } => drop(answer.send(Err(unknown("settle")))),
            Self::Publish { answer, .. } => drop(answer.send(Err(unknown("publish")))),
            Self::Roll { answer, .. } => drop(answer.send(Err(unknown("put")))),
            Self::Queue(waiting) => waiting.fail(),
            Self::Watermarks { answer, .. } => drop(answer.send(Err(unknown("put watermarks")))),
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

impl CommittedReply {
    /// Sends the reply. The caller may have stopped waiting.
    pub fn send(self) {
        match self {
            Self::Append(answer, outcomes) => drop(answer.send(outcomes)),
            Self::Settle(answer, settled) => drop(answer.send(settled)),
            Self::Publish(answer, to) => drop(answer.send(Ok(to))),
            Self::Queue(waiting) => waiting.send(),
            Self::Created(answer, row) => drop(answer.send(Ok(row))),
            Self::Done(answer) => drop(answer.send(Ok(()))),
        }
    }
}
