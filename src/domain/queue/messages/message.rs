//! The head of a message: all that the shard stores of it, without the payload.
//!
//! The store of a shard keeps the parts that do not affect decisions (payload, type, trace context). The head has the
//! payload's size and the fingerprint of the whole message. Times are by the shard's clock.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use crate::limits::{
    METADATA_KEY_BYTES_MAX, METADATA_PAIRS_MAX, METADATA_VALUE_BYTES_MAX, RELEASES_FREE_MAX, ROUTING_BYTES_MAX,
};
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::settlement::{SettleAction, Settlement, UpdateToken};
use crate::queue::messages::state_machine::{MessageState, TransitionInputs, Trigger};
use crate::time::Timestamp;

/// The value that selects the shard of a message, an exclusivity value or a shard key: 1 to 256 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RoutingValue(Arc<str>);

impl RoutingValue {
    /// Validates a routing value.
    pub fn new(value: &str) -> Result<Self, InvalidCommandPart> {
        let fits = (1..=ROUTING_BYTES_MAX).contains(&value.len());
        if fits { Ok(Self(value.into())) } else { Err(InvalidCommandPart::Routing) }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Up to 4 pairs, sorted by key; a key has 1 to 64 bytes, a value at most 256.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Metadata(Box<[(Box<str>, Box<str>)]>);

impl Metadata {
    /// Validates the pairs; refuses a duplicate key.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, InvalidCommandPart> {
        let mut kept: Vec<(Box<str>, Box<str>)> = Vec::new();
        for (key, value) in pairs {
            let fits = (1..=METADATA_KEY_BYTES_MAX).contains(&key.len()) && value.len() <= METADATA_VALUE_BYTES_MAX;
            let known = kept.iter().any(|(other, _)| &**other == key);
            if !fits || known || kept.len() == METADATA_PAIRS_MAX {
                return Err(InvalidCommandPart::Metadata);
            }
            kept.push((key.into(), value.into()));
        }
        kept.sort_unstable();
        Ok(Self(kept.into()))
    }

    /// Iterates over the pairs in the order of keys.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Returns the total bytes of keys and values. O(pairs).
    pub fn bytes(&self) -> usize {
        self.pairs().map(|(key, value)| key.len() + value.len()).sum()
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| &**own == key).map(|(_, value)| &**value)
    }
}

/// The rank of a message among pending ones, priority and sequence: lower is served first, FIFO among equals.
pub type Rank = (i64, u64);

/// The position of a message: assigned inside the store's atomic step, increasing within a shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageKey {
    /// The shard's number.
    pub shard: u32,
    /// The shard's epoch when the message arrived.
    pub epoch: u32,
    /// The shard's sequence: unique in the shard, FIFO among equal priorities.
    pub sequence: u64,
}

/// The key or the id of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MessageRef {
    Key(MessageKey),
    /// By its id. With a routing value, only a message that was routed by that value.
    Id(MessageId, Option<RoutingValue>),
}

/// The number of a lease: assigned at dequeue, unchanged by extensions, always increasing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fence {
    /// The shard's epoch at the dequeue.
    pub epoch: u32,
    /// The shard's lease serial, below 2^40.
    pub serial: u64,
}

impl Fence {
    /// Returns the fence as one increasing number, `epoch << 40 | serial`, for epochs below 2^24. A worker uses it to
    /// fence its own resources.
    pub const fn as_u64(self) -> u64 {
        (self.epoch as u64) << 40 | self.serial
    }
}

/// The proof of a lease: compared for equality with the lease stored in the message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseToken {
    pub key: MessageKey,
    pub fence: Fence,
}

/// The lease of a running message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The number of the lease.
    pub fence: Fence,
    /// The time at which the lease was granted.
    pub since: Timestamp,
    /// The time at which the lease expires.
    pub expires: Timestamp,
    /// Whether another caller requested cancellation of the message.
    pub cancel_requested: bool,
    /// The session that holds the lease, if a session asked for it.
    pub session: Option<LeaseSession>,
}

impl Lease {
    /// The session of the worker that holds the lease. The sessions in which servers repeat calls are nobody's.
    pub fn worker_session(&self) -> Option<LeaseSession> {
        self.session.filter(|own| !own.id.is_of_server())
    }
}

/// The number of a session, generated by the server and never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u128);

/// The session's part of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseSession {
    /// The session that holds the lease.
    pub id: SessionId,
    /// The session's call that got the lease.
    pub call: u64,
    /// Whether the session confirmed the lease. A confirmed lease ends with the session, or at its own end if that is
    /// earlier.
    pub confirmed: bool,
}

/// A worker's report of a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttemptError {
    /// The kind of the failure, for grouping.
    pub signature: Box<str>,
    /// The description, at most 1 KiB.
    pub text: Box<str>,
}

/// The origin of a cancellation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CanceledBy {
    /// The worker canceled the message.
    Worker,
    /// Another caller canceled the message, for this reason.
    Request(Box<str>),
    /// A purge of the queue.
    Purge,
    /// The message's TTL ended before it was leased.
    Ttl,
}

/// The place of a message in the counts: a set of metadata keys of its shard, and for each key which value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CountedUnder {
    /// The number of the set; 0 is the empty set.
    pub key_set: u8,
    /// Two bits for each key of the set, the first key lowest.
    pub values: u8,
}

/// Under which value of a key a message is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountedAs {
    /// Its own value.
    Own,
    /// `~other`, because its value found no room.
    Other,
    /// `~none`, because it has no such key.
    None,
}

impl CountedUnder {
    /// Sets the value of a key of the set; `index` is below 4.
    pub fn set(&mut self, index: usize, counted_as: CountedAs) {
        let bits = match counted_as {
            CountedAs::None => 0,
            CountedAs::Own => 1,
            CountedAs::Other => 2,
        };
        self.values |= bits << (2 * index);
    }

    /// The value of a key of the set; `index` is below 4.
    pub fn of_key(self, index: usize) -> CountedAs {
        match self.values >> (2 * index) & 3 {
            1 => CountedAs::Own,
            2 => CountedAs::Other,
            _ => CountedAs::None, // 3 is never set
        }
    }
}

/// An optional time in the size of a plain time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionalTime(Timestamp);

impl OptionalTime {
    /// The missing time, represented by `Timestamp::MIN`.
    pub const NONE: Self = Self(Timestamp::MIN);

    /// Returns the time, if there is one.
    pub fn get(self) -> Option<Timestamp> {
        (self.0 != Timestamp::MIN).then_some(self.0)
    }
}

impl From<Option<Timestamp>> for OptionalTime {
    fn from(time: Option<Timestamp>) -> Self {
        time.map_or(Self::NONE, Self)
    }
}

/// One message of a shard. Rarely used parts are in its extras, which dereference as if they were fields of the
/// message.
#[derive(Clone, PartialEq, Eq)]
pub struct MessageHead {
    /// The position of the message.
    pub key: MessageKey,
    /// The name of the message.
    pub id: MessageId,
    /// The value that selected the shard, unless the id did.
    pub routing: Option<RoutingValue>,
    pub metadata: Metadata,
    /// The size of the payload, which is stored elsewhere, in bytes.
    pub payload_bytes: u32,
    /// A hash of the complete request.
    pub fingerprint: u64,
    /// The priority; lower is served first.
    pub priority: i64,
    /// The maximum number of attempts.
    pub max_attempts: u32,
    /// The number of attempts left.
    pub attempts_left: u32,
    /// The time of the enqueue.
    pub enqueued_at: Timestamp,
    /// The time at which the message is canceled, counted from its visible time. Its first lease removes it.
    pub ttl_at: OptionalTime,
    /// The time of the token under which the first reply is kept.
    pub token_time: OptionalTime,
    /// The time from which the message may be served.
    pub visible_at: Timestamp,
    pub state: MessageState,
    /// The version, incremented by each change; its only use is to order the message's history.
    pub version: u64,
    /// The state that the enqueue returned.
    pub first_state: MessageState,
    /// The place of the message in the counts, fixed at its enqueue.
    pub counted: CountedUnder,
    /// The rarely used parts.
    pub extras: OptionalExtras,
}

/// The rarely used parts of a message: special settings, and its history since the first lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageExtras {
    /// The requested lease duration.
    pub lease_duration: Option<Duration>,
    /// The number of released leases.
    pub releases: u32,
    /// The time of the first lease.
    pub first_leased_at: Option<Timestamp>,
    /// The time at which the message became terminal; missing before.
    pub ended_at: OptionalTime,
    /// The time at which a terminal message is deleted.
    pub delete_at: Timestamp,
    /// The lease of a running message.
    pub lease: Option<Lease>,
    /// The last lease if it expired and no lease followed; it may still complete the message.
    pub expired_lease: Option<Fence>,
    /// The last settlement and its reply, for repeats.
    pub last_settlement: Option<(Fence, SettleAction, Settlement)>,
    /// The cancellation of the message; for a running message, the requested cancellation.
    pub canceled_by: Option<CanceledBy>,
    /// The error of the last failure.
    pub error: Option<AttemptError>,
    /// The last updates that had a token, with their replies, for repeats; newest last, at most 8.
    pub updates: Vec<(UpdateToken, Settlement)>,
    /// The metadata of the enqueue, once an update has replaced them, if the message is counted by some of them.
    pub counted_metadata: Option<Metadata>,
}

impl MessageExtras {
    /// The extras of a message without special settings that was never leased.
    pub const NONE: Self = Self {
        lease_duration: None,
        releases: 0,
        first_leased_at: None,
        ended_at: OptionalTime::NONE,
        delete_at: Timestamp::MAX,
        lease: None,
        expired_lease: None,
        last_settlement: None,
        canceled_by: None,
        error: None,
        updates: Vec::new(),
        counted_metadata: None,
    };
}

/// The extras of a message; they take no memory until they are first written.
#[derive(Clone)]
pub struct OptionalExtras(Option<Box<MessageExtras>>);

impl OptionalExtras {
    /// The extras, if they take memory.
    pub(super) fn held(&self) -> Option<&MessageExtras> {
        self.0.as_deref()
    }
}

impl From<MessageExtras> for OptionalExtras {
    fn from(course: MessageExtras) -> Self {
        Self((course != MessageExtras::NONE).then(|| Box::new(course)))
    }
}

impl Deref for OptionalExtras {
    type Target = MessageExtras;

    fn deref(&self) -> &MessageExtras {
        static NONE: MessageExtras = MessageExtras::NONE;
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for OptionalExtras {
    fn deref_mut(&mut self) -> &mut MessageExtras {
        self.0.get_or_insert_with(|| Box::new(MessageExtras::NONE))
    }
}

impl PartialEq for OptionalExtras {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for OptionalExtras {}

impl Deref for MessageHead {
    type Target = MessageExtras;

    fn deref(&self) -> &MessageExtras {
        &self.extras
    }
}

impl DerefMut for MessageHead {
    fn deref_mut(&mut self) -> &mut MessageExtras {
        &mut self.extras
    }
}

impl MessageHead {
    /// Returns the rank among pending messages: lower is served first.
    pub fn rank(&self) -> Rank {
        (self.priority, self.key.sequence)
    }

    /// Removes the TTL of a message that was leased: it is for a message that no worker has taken.
    pub fn end_ttl_once_leased(&mut self) {
        if self.first_leased_at.is_some() {
            self.ttl_at = OptionalTime::NONE;
        }
    }

    /// Moves the end of the TTL with the time from which the message can be served, so that what is left of the TTL
    /// stays.
    pub fn move_ttl(&mut self, before: Timestamp, after: Timestamp) {
        self.ttl_at = self.ttl_at.get().map(|ttl_at| after + ttl_at.since(before)).into();
    }

    /// Replaces the metadata. What the message is counted under stays that of the enqueue.
    pub fn replace_metadata(&mut self, metadata: Metadata) {
        let before = std::mem::replace(&mut self.metadata, metadata);
        if self.counted.key_set != 0 && self.counted_metadata.is_none() {
            self.counted_metadata = Some(before);
        }
    }

    /// Returns the metadata by which the message is counted: those of its enqueue.
    pub fn metadata_at_enqueue(&self) -> &Metadata {
        self.extras.counted_metadata.as_ref().unwrap_or(&self.metadata)
    }

    /// Returns the time since which a pending message has been ready. Each return to pending restarts it; a change of
    /// its priority does not.
    pub fn ready_since(&self) -> Timestamp {
        self.visible_at
    }

    /// Returns the number of the running or last attempt; 0 before the first.
    pub fn attempt_number(&self) -> u32 {
        self.max_attempts - self.attempts_left
    }

    /// Returns the next timer of the message: its time and trigger.
    pub fn next_due(&self) -> Option<(Timestamp, Trigger)> {
        match self.state {
            MessageState::Invisible => match self.ttl_at.get() {
                Some(ttl_at) if ttl_at <= self.visible_at => Some((ttl_at, Trigger::TtlOver)),
                Some(_) | None => Some((self.visible_at, Trigger::WindowOver)),
            },
            MessageState::Pending => self.ttl_at.get().map(|ttl_at| (ttl_at, Trigger::TtlOver)),
            MessageState::Running => self.lease.map(|lease| (lease.expires, Trigger::LeaseOver)),
            MessageState::Completed | MessageState::Canceled | MessageState::Errored => {
                Some((self.delete_at, Trigger::RetentionOver))
            }
        }
    }

    /// Returns the inputs for the transition table; `waits` says whether the command leaves an invisibility that has
    /// not ended.
    pub fn transition_inputs(&self, waits: bool) -> TransitionInputs {
        TransitionInputs {
            state: Some(self.state),
            delayed: waits,
            cancel_requested: self.lease.is_some_and(|lease| lease.cancel_requested),
            attempts_left: self.attempts_left > 0,
            releases_left: self.releases < RELEASES_FREE_MAX,
            lease_expired: self.expired_lease.is_some(),
        }
    }
}

/// Omits the metadata, the id and the error's text, because those may be personal data.
impl fmt::Debug for MessageHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("key", &self.key)
            .field("state", &self.state)
            .field("version", &self.version)
            .field("rank", &self.rank())
            .field("due", &self.next_due())
            .finish_non_exhaustive()
    }
}
