//! Durability of a shard: the parts that a command changed, and the restoration from stored parts.
//!
//! A shard is its header, its settings with their version, its messages and the replies that have outlived theirs;
//! everything else is an index over these. The heads that a command changed are those of its transitions, because a
//! message changes only by a row of the table. After each command a store has to write the header, those heads (or
//! their absence) and `ShardChanges`. It can then restore an equal shard, one that gives the same replies from then on.
//! The store may drop replies below the header's floor on its own.

use std::collections::BTreeMap;

use crate::queue::counter_names::CountedValue;
use crate::queue::index::dedupe_index::{DedupeIndex, DedupeRecord, Untracked};
use crate::queue::index::id_index::IdIndex;
use crate::queue::index::sequence_pages::{StubMisfit, page_of};
use crate::queue::index::shard_index::ShardIndex;
use crate::queue::index::stubs::Stub;
use crate::queue::messages::id_hash::IdKey;
use crate::queue::messages::message::{MessageHead, MessageKey, RoutingValue, SessionId};
use crate::queue::messages::state_machine::{MessageState, Trigger};
use crate::queue::session_records::SessionRecord;
use crate::queue::setup::settings::{Settings, ShardSettings};
use crate::queue::shard::{ApplyResult, Shard};
use crate::queue::tally::errors::SignatureCounts;
use crate::queue::tally::values::ValueCounts;
use crate::queue::tally::{ShardCounts, ShardTally, TallyChanges};
use crate::time::Timestamp;

/// The changes of a command apart from the header and the heads of its transitions.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ShardChanges {
    /// Replies that have outlived their messages. Those of a deleted queue are not listed: the heads that the store
    /// still has are their records.
    pub answers: Vec<DedupeRecord>,
    /// Settings, version and blocks, if they changed. The blocks are in the header too.
    pub settings: Option<Box<ShardSettings>>,
    /// Messages whose heads changed without a row: their sessions confirmed leases, or their retention was shortened.
    pub heads: Vec<u64>,
    /// Sessions whose records changed; `None` for forgotten sessions.
    pub sessions: Vec<(SessionId, Option<SessionRecord>)>,
    /// Exclusivity values whose own limit was set or removed, in order.
    pub value_limits: Vec<(RoutingValue, Option<u32>)>,
    /// Counts that are not in the header.
    pub tally: TallyChanges,
}

/// The small part of a shard that nearly every command changes; small enough to be stored whole each time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardHeader {
    /// The shard's number.
    pub number: u32,
    /// The shard's epoch.
    pub epoch: u32,
    /// The time of the last change.
    pub clock: Timestamp,
    /// The sequence of the last message added, 0 before the first.
    pub sequence: u64,
    /// The serial of the last lease, 0 before the first.
    pub serial: u64,
    /// Replies to tokens of earlier times are dropped; `None` if no reply was dropped.
    pub answers_floor: Option<Timestamp>,
    /// Replies above that time which are dropped too, since an operator has lowered it.
    pub answers_untracked: Vec<Untracked>,
    /// The reason for blocking enqueue, if it is blocked.
    pub enqueue_blocked: Option<Box<str>>,
    /// The reason for blocking dequeue, if it is blocked.
    pub dequeue_blocked: Option<Box<str>>,
    /// The last time at which a pending message moved ahead of others.
    pub moved_at: Timestamp,
    /// For each declared shape in order, the sequence up to which it is filled; `None` for complete shapes.
    pub shapes_filled: Vec<Option<u64>>,
    /// The number of messages at the deletion of the shard; their heads may be dropped by the store.
    pub deleted: Option<u64>,
    /// Since the retention was shortened: the sequence up to which it is applied; `None` when that is done.
    pub shortened_through: Option<u64>,
    /// The counts.
    pub counts: Box<ShardCounts>,
    /// The sets of metadata keys that messages are counted under, in the order of their numbers from 1.
    pub counted_key_sets: Vec<Box<[Box<str>]>>,
}

/// The reason why stored parts do not form a shard. A correct store never stores such parts: it is damaged or mixed up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShardRestoreError {
    /// The settings contradict each other.
    #[error("the settings contradict each other")]
    Settings,
    /// The number of shapes differs from that in the settings.
    #[error("the filter shapes of the header differ from the settings")]
    Shapes,
    /// A message belongs to another shard or to a later epoch.
    #[error("message {0} belongs to another shard")]
    Foreign(u64),
    /// A message lies beyond the last sequence of the header.
    #[error("message {0} is beyond the last sequence of the header")]
    Beyond(u64),
    /// A message that is over does not fit into the page of stubs in which it is stored.
    #[error("message {0} does not fit into its page of finished messages")]
    Unfit(u64),
    /// Two messages have the same sequence or the same id.
    #[error("message {0} or its id is stored twice")]
    Twice(u64),
    /// A running message has no lease, another message has one, or a lease lies beyond the last serial of the header.
    #[error("message {0} has a lease that does not fit")]
    Lease(u64),
    /// A message has more attempts left than its maximum.
    #[error("message {0} has more attempts left than its maximum")]
    Attempts(u64),
    /// The counts of the shard differ from a count of its messages.
    #[error("the counts of the shard differ from a count of its messages")]
    Counts,
}

/// Assembles a shard from stored parts, in any order of messages, sessions, limits and replies.
#[derive(Debug)]
pub struct ShardRestorer {
    shard: Shard,
    limits: BTreeMap<RoutingValue, u32>,
    shapes_filled: Vec<Option<u64>>,
    id_key: IdKey,
}

impl ApplyResult {
    /// Returns the sequences of the messages whose heads the command changed; a sequence may be repeated. O(rows).
    pub fn changed_sequences(&self) -> impl Iterator<Item = u64> {
        let rows = self.transitions.iter().map(|row| row.key.sequence);
        rows.chain(self.changes.heads.iter().copied())
    }

    /// Returns the sequence of the message that an update changed; none if it was refused, repeated or changed nothing.
    pub fn updated_message(&self) -> Option<u64> {
        self.transitions.iter().find(|row| row.trigger == Trigger::Update).map(|row| row.key.sequence)
    }
}

impl Shard {
    /// Returns the present header. O(1).
    pub fn header(&self) -> ShardHeader {
        ShardHeader {
            number: self.number,
            epoch: self.epoch,
            clock: self.clock,
            sequence: self.sequence,
            serial: self.serial,
            answers_floor: self.dedupe.floor(),
            answers_untracked: self.dedupe.untracked().to_vec(),
            enqueue_blocked: self.enqueue_blocked.clone(),
            dequeue_blocked: self.dequeue_blocked.clone(),
            moved_at: self.last_moved_ahead_at,
            shapes_filled: self.index.shapes.iter().map(|shape| shape.filled_through).collect(),
            deleted: self.deleted,
            shortened_through: self.shortened_through,
            counts: Box::new(self.tally.counts().clone()),
            counted_key_sets: self.tally.key_sets().to_vec(),
        }
    }

    /// Returns the settings in force. O(1).
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the version of settings and blocks; 0 is older than every version of a catalog. O(1).
    pub fn settings_version(&self) -> u64 {
        self.settings_version
    }

    /// The record of the reply to a message's token, if the shard still keeps it: for a store that removes the message
    /// of a deleted queue. O(1).
    pub fn answer_of(&self, message: &MessageHead) -> Option<DedupeRecord> {
        let kept = DedupeRecord::of(message, self.id_index.key());
        kept.filter(|kept| !self.dedupe.is_dropped(message.key.sequence, kept.time))
    }

    /// Whether there is a message of a sequence, a stub included. O(log n).
    pub fn has_message(&self, sequence: u64) -> bool {
        self.messages.get(sequence).is_some() || self.messages.is_stub(sequence)
    }

    /// Returns the head of a sequence, if its message exists and is no stub. O(log n).
    pub fn message(&self, sequence: u64) -> Option<&MessageHead> {
        self.messages.get(sequence)
    }
}

impl ShardRestorer {
    /// Begins with the header, the settings and their version.
    pub fn new(header: ShardHeader, settings: Settings, version: u64) -> Result<Self, ShardRestoreError> {
        let ShardHeader {
            number,
            epoch,
            clock,
            sequence,
            serial,
            answers_floor,
            answers_untracked,
            enqueue_blocked,
            dequeue_blocked,
            moved_at,
            shapes_filled,
            deleted,
            shortened_through,
            counts,
            counted_key_sets,
        } = header;
        let mut shard = Shard::new(number, epoch, settings).map_err(|_| ShardRestoreError::Settings)?;
        (shard.clock, shard.sequence, shard.serial) = (clock, sequence, serial);
        shard.settings_version = version;
        (shard.enqueue_blocked, shard.dequeue_blocked) = (enqueue_blocked, dequeue_blocked);
        (shard.last_moved_ahead_at, shard.deleted) = (moved_at, deleted);
        shard.shortened_through = shortened_through;
        if shapes_filled.len() != shard.index.shapes.len() {
            return Err(ShardRestoreError::Shapes);
        }
        shard.dedupe = DedupeIndex::with_floor(answers_floor, answers_untracked);
        shard.tally = ShardTally::of(*counts, counted_key_sets);
        shard.tally.declare_keys(&shard.settings.count_by, |_| true);
        Ok(Self { shard, limits: BTreeMap::new(), shapes_filled, id_key: IdKey::default() })
    }

    /// Makes a shard that keeps stubs of messages that are over, with ids hashed under this key.
    pub fn with_stubs(self, id_key: IdKey) -> Self {
        Self { shard: self.shard.with_stubs(id_key), id_key, ..self }
    }

    /// Adds a message. O(log n + 64), cheapest in the order of sequences.
    pub fn message(&mut self, message: MessageHead) -> Result<(), ShardRestoreError> {
        let sequence = message.key.sequence;
        self.check(&message)?;
        match self.shard.messages.insert(message) {
            Some(_) => Err(ShardRestoreError::Twice(sequence)),
            None => Ok(()),
        }
    }

    /// Adds a session. O(log n).
    pub fn session(&mut self, id: SessionId, session: SessionRecord) {
        self.shard.sessions.restore(id, session);
    }

    /// Adds the own limit of an exclusivity value. O(log n).
    pub fn value_limit(&mut self, value: RoutingValue, limit: u32) {
        self.limits.insert(value, limit);
    }

    /// Adds messages that are over without their heads. O(log n + 64) for those of a page that come one after the
    /// other.
    pub fn stubs(&mut self, stubs: &[Stub]) -> Result<(), ShardRestoreError> {
        for Stub { key: MessageKey { shard, epoch, sequence }, .. } in stubs {
            if *shard != self.shard.number || *epoch > self.shard.epoch {
                return Err(ShardRestoreError::Foreign(*sequence));
            }
            if *sequence == 0 || *sequence > self.shard.sequence {
                return Err(ShardRestoreError::Beyond(*sequence));
            }
        }
        let page = |stub: &Stub| page_of(stub.key.sequence);
        for stubs in stubs.chunk_by(|one, other| page(one) == page(other)) {
            self.shard.messages.insert_stubs(stubs).map_err(|misfit| match misfit {
                StubMisfit::Twice(sequence) => ShardRestoreError::Twice(sequence),
                StubMisfit::Unfit(sequence) => ShardRestoreError::Unfit(sequence),
            })?;
        }
        Ok(())
    }

    /// Whether the queue has declared shapes, which count messages by their metadata.
    pub fn has_shapes(&self) -> bool {
        !self.shapes_filled.is_empty()
    }

    /// Adds the reply to the token of a message of a deleted queue, which the store has not removed yet. O(log n).
    pub fn answer_of(&mut self, message: &MessageHead) {
        let kept = DedupeRecord::of(message, &self.id_key);
        let dedupe = &self.shard.dedupe;
        let kept = kept.filter(|kept| !dedupe.is_dropped(message.key.sequence, kept.time));
        kept.into_iter().for_each(|kept| self.answer(kept));
    }

    /// Adds a reply that has outlived its message; ignores one below the floor of the header. O(log n).
    pub fn answer(&mut self, kept: DedupeRecord) {
        self.shard.dedupe.restore(kept);
    }

    /// Adds the counts of a value of a metadata key. O(log n).
    pub fn value_counts(&mut self, key: Box<str>, value: CountedValue, counts: ValueCounts, changed_at: u64) {
        self.shard.tally.restore_value(key, value, counts, changed_at);
    }

    /// Adds the counts of an error signature. O(log n).
    pub fn signature_counts(&mut self, signature: CountedValue, counts: SignatureCounts) {
        self.shard.tally.restore_signature(signature, counts);
    }

    /// Builds the indexes and returns the shard. O(n log n).
    pub fn finish(mut self) -> Result<Shard, ShardRestoreError> {
        let shard = &mut self.shard;
        shard.id_index = IdIndex::of(&shard.messages, self.id_key).map_err(ShardRestoreError::Twice)?;
        shard.dedupe.restore_living(&shard.messages);
        shard.index = ShardIndex::rebuild(&shard.settings, self.limits, self.shapes_filled, &shard.messages);
        for message in shard.messages.iter() {
            shard.sessions.enter(message);
            if message.state.is_terminal() {
                shard.ended.note(message.key.sequence);
            }
        }
        shard.sessions.settle_all();
        // A deleted shard has no messages any more, and its counts stay for the history of its positions.
        let agrees =
            |shard: &Shard| shard.tally.agrees_with(&shard.index.totals, shard.messages.iter(), shard.messages.stubs());
        if shard.deleted.is_none() && !agrees(shard) {
            return Err(ShardRestoreError::Counts);
        }
        Ok(self.shard)
    }

    fn check(&self, message: &MessageHead) -> Result<(), ShardRestoreError> {
        let Shard { number, epoch, sequence: last, serial, .. } = &self.shard;
        let key = message.key;
        if key.shard != *number || key.epoch > *epoch {
            return Err(ShardRestoreError::Foreign(key.sequence));
        }
        if key.sequence == 0 || key.sequence > *last {
            return Err(ShardRestoreError::Beyond(key.sequence));
        }
        let fence_fits = message.lease.is_none_or(|lease| {
            let fence = lease.fence;
            fence.epoch < *epoch || (fence.epoch == *epoch && fence.serial <= *serial)
        });
        if !fence_fits || message.lease.is_some() != (message.state == MessageState::Running) {
            return Err(ShardRestoreError::Lease(key.sequence));
        }
        if message.attempts_left > message.max_attempts {
            return Err(ShardRestoreError::Attempts(key.sequence));
        }
        Ok(())
    }
}
