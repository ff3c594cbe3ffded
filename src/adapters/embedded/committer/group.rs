//! What is committed together: one batch, and for each command what to publish and to answer once it is committed.

use hashbrown::{HashMap, HashSet, HashTable};

use crate::adapters::embedded::command::{Answer, AppendAnswer, Prepared, Weight};
use crate::adapters::embedded::queues::staged::{Staged, Waiting};
use crate::adapters::embedded::slices::Place;
use crate::adapters::embedded::writer::{Batch, Sync, Writer};
use crate::domain::Timestamp;
use crate::domain::counter::{Counter, DatasetId, Event, EventId, EventKey};
use crate::domain::limits::{COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX};
use crate::domain::rollup::{Checkpoint, TimeSlice};
use crate::ports::{Appended, Held, Settled, StoreError, StoreErrorKind};

/// One batch and the commands in it.
pub struct Group {
    /// The rows.
    pub batch: Batch,
    /// Whether anybody waits for the disk.
    pub sync: Sync,
    /// The commands, in the order of their arrival.
    pub work: Vec<Work>,
    /// The bytes of the commands while they waited.
    pub bytes_waited: Weight,
    /// How many events are staged.
    pub events: usize,
    /// Where the staged events stand in `work`: (command, event).
    pub staged: HashTable<(u32, u32)>,
    /// How far the staged checkpoints go.
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
    pub place: Option<Place>,
    /// What changed in shards of queues.
    pub queues: Staged,
}

/// One staged command.
pub enum Work {
    /// Events, with the outcome of each.
    Append {
        dataset: DatasetId,
        events: Vec<Prepared>,
        outcomes: Vec<Result<Appended, StoreError>>,
        held: Held,
        answer: AppendAnswer,
    },
    /// A settlement, with the void that it inserts, if it does.
    Settle { dataset: DatasetId, void: Vec<Prepared>, settled: Result<Settled, StoreError>, answer: Answer<Settled> },
    /// A frontier.
    Publish { dataset: DatasetId, to: Timestamp, answer: Answer<Timestamp> },
    /// Checkpoints that win.
    Roll { dataset: DatasetId, rolls: Vec<(Counter, Vec<u8>, Checkpoint)>, answer: Answer<()> },
    /// Whatever was asked of queues.
    Queue(Waiting),
    /// Watermarks.
    Watermarks { dataset: DatasetId, moved: Vec<(u32, Timestamp)>, answer: Answer<()> },
    /// A slice that was made or moved on, as it is then.
    Slice { row: TimeSlice, answer: SliceAnswer },
}

/// The way to the caller of a change of a slice.
pub enum SliceAnswer {
    /// It was to be made.
    Created(Answer<TimeSlice>),
    /// It was to move on.
    Moved(Answer<()>),
}

/// An answer whose effects are durable and readable.
pub enum Ready {
    Append(AppendAnswer, Vec<Result<Appended, StoreError>>),
    Settle(Answer<Settled>, Result<Settled, StoreError>),
    Publish(Answer<Timestamp>, Timestamp),
    Queue(Waiting),
    Created(Answer<TimeSlice>, TimeSlice),
    Done(Answer<()>),
}

impl Group {
    /// An empty group for about so many commands.
    pub fn new(writer: &Writer, commands: usize) -> Self {
        Self {
            batch: writer.batch(commands),
            sync: Sync::No,
            work: Vec::with_capacity(commands),
            bytes_waited: Weight::default(),
            events: 0,
            staged: HashTable::new(),
            as_of: HashMap::new(),
            clears: HashMap::new(),
            names: HashSet::new(),
            frontiers: HashMap::new(),
            slices: HashMap::new(),
            place: None,
            queues: Staged::default(),
        }
    }

    /// Whether it is time to commit.
    pub fn is_full(&self) -> bool {
        self.events >= COMMIT_EVENTS_MAX || self.batch.bytes() + self.queues.bytes() >= COMMIT_BYTES_MAX
    }

    /// The event that was staged under a key in this group; `events` are those of the command at work.
    pub fn staged_event(
        &self,
        events: &[Prepared],
        dataset: DatasetId,
        counter: &Counter,
        key: &EventKey,
    ) -> Option<Event> {
        let at = |(command, event): &(u32, u32)| match self.work.get(*command as usize) {
            Some(Work::Append { dataset, events, .. } | Work::Settle { dataset, void: events, .. }) => {
                (*dataset, &events[*event as usize])
            }
            // The command at work is not in the list yet.
            Some(_) | None => (dataset, &events[*event as usize]),
        };
        let is = |position: &(u32, u32)| {
            let (of, event) = at(position);
            of == dataset && event.event.key == *key && event.counter == *counter
        };
        self.staged.find(hash_of(counter, key), is).map(|position| at(position).1.event.clone())
    }

    /// Notes that an event of the command at work is staged.
    pub fn note_staged(&mut self, events: &[Prepared], index: usize) {
        let command = self.work.len() as u32;
        let work = &self.work;
        let hash_at = |(of, event): &(u32, u32)| match work.get(*of as usize) {
            Some(Work::Append { events, .. } | Work::Settle { void: events, .. }) => {
                hash_of_event(&events[*event as usize])
            }
            // The command at work is not in the list yet.
            Some(_) | None => hash_of_event(&events[*event as usize]),
        };
        self.staged.insert_unique(hash_of_event(&events[index]), (command, index as u32), hash_at);
        self.events += 1;
    }
}

/// Whether an outcome means that the event is new.
pub fn is_inserted(outcome: &Result<Appended, StoreError>) -> bool {
    matches!(outcome, Ok(Appended::Inserted))
}

fn hash_of_event(event: &Prepared) -> u64 {
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

impl Work {
    /// The answer, once all is durable and readable. Ends the hold of an append.
    pub fn ready(self) -> Ready {
        match self {
            Self::Append { outcomes, held, answer, .. } => {
                drop(held);
                Ready::Append(answer, outcomes)
            }
            Self::Settle { settled, answer, .. } => Ready::Settle(answer, settled),
            Self::Publish { to, answer, .. } => Ready::Publish(answer, to),
            Self::Queue(waiting) => Ready::Queue(waiting),
            Self::Roll { answer, .. }
            | Self::Watermarks { answer, .. }
            | Self::Slice { answer: SliceAnswer::Moved(answer), .. } => Ready::Done(answer),
            Self::Slice { row, answer: SliceAnswer::Created(answer) } => Ready::Created(answer, row),
        }
    }

    /// Answers that nobody knows what happened; hands back what must stay held.
    pub fn fail(self) -> Option<Held> {
        let unknown = |op| StoreError::unknown(StoreErrorKind::Unavailable, op);
        // A caller that stopped waiting has nobody to tell.
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
            Self::Slice { answer: SliceAnswer::Created(answer), .. } => {
                drop(answer.send(Err(unknown("create slice"))));
            }
            Self::Slice { answer: SliceAnswer::Moved(answer), .. } => {
                drop(answer.send(Err(unknown("set slice status"))));
            }
        }
        None
    }
}

impl Ready {
    /// Sends the answer. A caller that stopped waiting has nobody to tell.
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
