//! What makes a shard durable: the parts that a command changed, and the way back from parts that were stored.
//!
//! A shard is its header, its settings, its messages and its kept answers; all else is an index over these. The heads
//! that a command changed are those of its transitions: a message changes by a row of the table or not at all. So who
//! stores, after each command, the header, those heads (or their absence) and `ShardChanges` can restore an equal shard, one
//! that answers everything alike from then on. Answers below the header's floor may be dropped unasked.

use std::collections::BTreeMap;

use crate::domain::queue::index::dedupe_index::{DedupeIndex, FirstResponse, TokenKey};
use crate::domain::queue::index::id_index::IdIndex;
use crate::domain::queue::index::shard_index::ShardIndex;
use crate::domain::queue::messages::message::{MessageHead, RoutingValue};
use crate::domain::queue::messages::state_machine::MessageState;
use crate::domain::queue::session_records::{SessionId, SessionRecord};
use crate::domain::queue::setup::settings::Settings;
use crate::domain::queue::shard::{ApplyResult, Shard};
use crate::domain::time::Timestamp;

/// What a command changed beside the header and the heads of its transitions.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ShardChanges {
    /// Answers that are kept from now on.
    pub answers: Vec<DedupeRecord>,
    /// The settings, if they are new.
    pub settings: Option<Box<Settings>>,
    /// Messages whose heads have changed without a row: what their sessions confirmed.
    pub heads: Vec<u64>,
    /// Sessions whose records have changed; none for those forgotten.
    pub sessions: Vec<(SessionId, Option<SessionRecord>)>,
    /// Exclusivity values that got a limit of their own, or lost it, in order.
    pub value_limits: Vec<(RoutingValue, Option<u32>)>,
}

/// The first answer to a token that carries its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DedupeRecord {
    /// The id and what routed it.
    pub token: TokenKey,
    /// The token's time.
    pub time: Timestamp,
    /// What was answered.
    pub answer: FirstResponse,
}

/// The few things of a shard that nearly every command changes; small enough to be stored whole each time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardHeader {
    /// The shard's number.
    pub number: u32,
    /// The shard's epoch.
    pub epoch: u32,
    /// The time of the last change.
    pub clock: Timestamp,
    /// The sequence of the last message taken in, 0 before the first.
    pub sequence: u64,
    /// The serial of the last lease, 0 before the first.
    pub serial: u64,
    /// Answers to tokens of earlier times are gone, if any are.
    pub answers_floor: Option<Timestamp>,
    /// Why nothing comes in.
    pub enqueue_blocked: Option<Box<str>>,
    /// Why nothing goes out.
    pub dequeue_blocked: Option<Box<str>>,
    /// When a pending message last came to lie before others that it did not lie before.
    pub moved_at: Timestamp,
    /// For each declared shape that is not filled yet, in their order, up to which sequence it is; none for the others.
    pub shapes_filled: Vec<Option<u64>>,
    /// Once the shard is deleted, how many messages it had; their heads may be dropped unasked.
    pub deleted: Option<u64>,
}

/// Why stored parts make no shard. None of these was ever stored by a sound store: it is damaged or mixed up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShardRestoreError {
    /// The settings contradict each other.
    #[error("the settings contradict each other")]
    Settings,
    /// Another number of shapes than the settings declare.
    #[error("the header speaks of other filter shapes than the settings")]
    Shapes,
    /// A message of another shard, or of a later epoch.
    #[error("message {0} belongs to another shard")]
    Foreign(u64),
    /// A message beyond the last sequence of the header.
    #[error("message {0} lies beyond the last sequence of the header")]
    Beyond(u64),
    /// Two messages of one sequence or of one id.
    #[error("message {0} is there twice, or its id is")]
    Twice(u64),
    /// A running message without a lease, another with one, or a lease beyond the last serial of the header.
    #[error("message {0} has a lease that does not fit")]
    Lease(u64),
    /// More attempts left than there were.
    #[error("message {0} has more attempts left than it had")]
    Attempts(u64),
}

/// A shard that is put together from what was stored, in any order.
#[derive(Debug)]
pub struct ShardRestorer {
    shard: Shard,
    limits: BTreeMap<RoutingValue, u32>,
    shapes_filled: Vec<Option<u64>>,
}

impl ApplyResult {
    /// The sequences of the messages whose heads the command changed; one may come more than once. O(rows).
    pub fn changed_sequences(&self) -> impl Iterator<Item = u64> {
        let rows = self.transitions.iter().map(|row| row.key.sequence);
        rows.chain(self.changes.heads.iter().copied())
    }
}

impl Shard {
    /// The header as it stands. O(1).
    pub fn header(&self) -> ShardHeader {
        ShardHeader {
            number: self.number,
            epoch: self.epoch,
            clock: self.clock,
            sequence: self.sequence,
            serial: self.serial,
            answers_floor: self.dedupe.floor(),
            enqueue_blocked: self.enqueue_blocked.clone(),
            dequeue_blocked: self.dequeue_blocked.clone(),
            moved_at: self.last_moved_ahead_at,
            shapes_filled: self.index.shapes.iter().map(|shape| shape.filled_through).collect(),
            deleted: self.deleted,
        }
    }

    /// The settings it acts on. O(1).
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The message of a sequence, if the shard has it. O(log n).
    pub fn message(&self, sequence: u64) -> Option<&MessageHead> {
        self.messages.get(sequence)
    }
}

impl ShardRestorer {
    /// Begins with what there is one of.
    pub fn new(header: ShardHeader, settings: Settings) -> Result<Self, ShardRestoreError> {
        let ShardHeader {
            number,
            epoch,
            clock,
            sequence,
            serial,
            answers_floor,
            enqueue_blocked,
            dequeue_blocked,
            moved_at,
            shapes_filled,
            deleted,
        } = header;
        let mut shard = Shard::new(number, epoch, settings).map_err(|_| ShardRestoreError::Settings)?;
        (shard.clock, shard.sequence, shard.serial) = (clock, sequence, serial);
        (shard.enqueue_blocked, shard.dequeue_blocked) = (enqueue_blocked, dequeue_blocked);
        (shard.last_moved_ahead_at, shard.deleted) = (moved_at, deleted);
        if shapes_filled.len() != shard.index.shapes.len() {
            return Err(ShardRestoreError::Shapes);
        }
        shard.dedupe = DedupeIndex::with_floor(answers_floor);
        Ok(Self { shard, limits: BTreeMap::new(), shapes_filled })
    }

    /// Adds a message. O(log n + 64), least when they come in the order of their sequence.
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

    /// Adds the limit of an exclusivity value. O(log n).
    pub fn value_limit(&mut self, value: RoutingValue, limit: u32) {
        self.limits.insert(value, limit);
    }

    /// Adds a kept answer; one below the floor of the header is passed over. O(log n), and least memory when its message,
    /// if that exists, was added before.
    pub fn answer(&mut self, kept: DedupeRecord) {
        self.shard.dedupe.restore(kept, &self.shard.messages);
    }

    /// The shard, its indexes made anew. O(n log n).
    pub fn finish(mut self) -> Result<Shard, ShardRestoreError> {
        let shard = &mut self.shard;
        shard.id_index = IdIndex::of(&shard.messages).map_err(ShardRestoreError::Twice)?;
        shard.dedupe.relink_messages(&shard.messages);
        shard.index = ShardIndex::rebuild(&shard.settings, self.limits, self.shapes_filled, &shard.messages);
        shard.messages.iter().for_each(|message| shard.sessions.enter(message));
        shard.sessions.settle_all();
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
