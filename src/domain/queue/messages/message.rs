//! One message as the shard knows it: its head, without payload.
//!
//! What the core decides nothing on (payload, type, trace context) stays with whoever stores the shard; the head has
//! its size and the fingerprint of the whole. Times are the shard's clock.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use uuid::fmt::Hyphenated;

use crate::domain::limits::{
    MESSAGE_ID_BYTES_MAX, METADATA_KEY_BYTES_MAX, METADATA_PAIRS_MAX, METADATA_VALUE_BYTES_MAX, RELEASES_FREE_MAX,
    ROUTING_BYTES_MAX,
};
use crate::domain::queue::command::{InvalidCommandPart, SettleAction, Settlement, UpdateToken};
use crate::domain::queue::messages::key_syntax::KEY_PREFIX;
use crate::domain::queue::messages::state_machine::{MessageState, TransitionInputs, Trigger};
use crate::domain::queue::session_records::SessionId;
use crate::domain::time::Timestamp;

/// The caller's or the server's name of a message, and the token of its enqueue: 1 to 64 bytes, not beginning `m.`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageId(IdRepr);

/// Most ids are UUIDs, and millions of them lie in memory: as a number one takes less than half of what its text takes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum IdRepr {
    /// A UUID whose text is the lower-case one with hyphens.
    Uuid([u8; 16]),
    /// Any other text.
    Text(Box<str>),
}

/// The text of a message id.
#[derive(Clone, Copy)]
pub struct IdText<'a>(IdTextRepr<'a>);

#[derive(Clone, Copy)]
enum IdTextRepr<'a> {
    Borrowed(&'a str),
    Formatted([u8; Hyphenated::LENGTH]),
}

impl MessageId {
    /// Validates an id.
    pub fn new(id: &str) -> Result<Self, InvalidCommandPart> {
        let fits = (1..=MESSAGE_ID_BYTES_MAX).contains(&id.len()) && !id.starts_with(KEY_PREFIX);
        if !fits {
            return Err(InvalidCommandPart::MessageId);
        }
        let uuid = Uuid::try_parse(id).ok().map(|uuid| Self(IdRepr::Uuid(uuid.into_bytes())));
        // The same UUID in another form is another id.
        Ok(uuid.filter(|uuid| *uuid.text() == *id).unwrap_or_else(|| Self(IdRepr::Text(id.into()))))
    }

    /// The text, as it was given.
    pub fn text(&self) -> IdText<'_> {
        IdText(match &self.0 {
            IdRepr::Text(text) => IdTextRepr::Borrowed(text),
            IdRepr::Uuid(bytes) => {
                let mut text = [0; Hyphenated::LENGTH];
                Uuid::from_bytes_ref(bytes).hyphenated().encode_lower(&mut text);
                IdTextRepr::Formatted(text)
            }
        })
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

impl Deref for IdText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            IdTextRepr::Borrowed(text) => text,
            IdTextRepr::Formatted(text) => std::str::from_utf8(text).expect("digits and hyphens"),
        }
    }
}

/// What selects the shard of a message, an exclusivity value or a shard key: 1 to 256 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RoutingValue(Arc<str>);

impl RoutingValue {
    /// Validates a routing value.
    pub fn new(value: &str) -> Result<Self, InvalidCommandPart> {
        let fits = (1..=ROUTING_BYTES_MAX).contains(&value.len());
        if fits { Ok(Self(value.into())) } else { Err(InvalidCommandPart::Routing) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Up to 4 pairs, ordered by key; a key has 1 to 64 bytes, a value at most 256.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Metadata(Box<[(Box<str>, Box<str>)]>);

impl Metadata {
    /// Validates the pairs; a key that comes twice is refused.
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

    /// The pairs, by key.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// How large keys and values are together. O(pairs).
    pub fn bytes(&self) -> usize {
        self.pairs().map(|(key, value)| key.len() + value.len()).sum()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| &**own == key).map(|(_, value)| &**value)
    }
}

/// The rank of a message among pending ones, priority and sequence: lower is served first, FIFO among equals.
pub type Rank = (i64, u64);

/// The place of a message: given inside the store's atomic step, growing within a shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageKey {
    /// The shard's number.
    pub shard: u32,
    /// The shard's epoch when the message arrived.
    pub epoch: u32,
    /// The shard's sequence: unique in the shard, FIFO among equal priorities.
    pub sequence: u64,
}

/// The number of a lease: given at dequeue, unchanged by extensions, growing for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fence {
    /// The shard's epoch at the dequeue.
    pub epoch: u32,
    /// The shard's lease serial, below 2^40.
    pub serial: u64,
}

impl Fence {
    /// The fence as one growing number, with which a worker fences its own resources: `epoch << 40 | serial`, for
    /// epochs below 2^24.
    pub const fn as_u64(self) -> u64 {
        (self.epoch as u64) << 40 | self.serial
    }
}

/// What proves a lease: compared for equality with the lease stored in the message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseToken {
    /// The message.
    pub key: MessageKey,
    /// Its lease.
    pub fence: Fence,
}

/// A running message's lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Its number.
    pub fence: Fence,
    /// When it was given.
    pub since: Timestamp,
    /// When it ends by itself.
    pub expires: Timestamp,
    /// Whether somebody else asked to cancel the message.
    pub cancel_requested: bool,
    /// The session that has it, if it was asked for by one.
    pub session: Option<LeaseSession>,
}

/// A lease as one of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseSession {
    /// The session.
    pub id: SessionId,
    /// The call that it answered.
    pub call: u64,
    /// Whether the session said that it has it: then it ends with the session, or at its own end if that is sooner.
    pub confirmed: bool,
}

/// What a worker says about a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttemptError {
    /// What kind of failure it is, to group by.
    pub signature: Box<str>,
    /// What happened, at most 1 KiB.
    pub text: Box<str>,
}

/// Why a message was canceled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CanceledBy {
    /// Its worker.
    Worker,
    /// Anyone else, with the reason given.
    Request(Box<str>),
    /// A purge of the queue.
    Purge,
    /// Nobody took it before its TTL was over.
    Ttl,
}

/// A time that may be missing, in no more room than a time takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionalTime(Timestamp);

impl OptionalTime {
    /// Missing: the first of all times stands for it.
    pub const NONE: Self = Self(Timestamp::MIN);

    /// The time, if there is one.
    pub fn get(self) -> Option<Timestamp> {
        (self.0 != Timestamp::MIN).then_some(self.0)
    }
}

impl From<Option<Timestamp>> for OptionalTime {
    fn from(time: Option<Timestamp>) -> Self {
        time.map_or(Self::NONE, Self)
    }
}

/// One message of a shard. What most messages do not have is in its course, whose parts are read and written as if they
/// were the message's own.
#[derive(Clone, PartialEq, Eq)]
pub struct MessageHead {
    /// Its place.
    pub key: MessageKey,
    /// Its name.
    pub id: MessageId,
    /// What selected its shard, if anything but the id did.
    pub routing: Option<RoutingValue>,
    /// Its metadata.
    pub metadata: Metadata,
    /// The size of what is stored elsewhere, in bytes.
    pub payload_bytes: u32,
    /// A hash of everything the caller sent.
    pub fingerprint: u64,
    /// Lower is served first.
    pub priority: i64,
    /// How often it may be tried.
    pub max_attempts: u32,
    /// How often it may still be tried.
    pub attempts_left: u32,
    /// When it arrived.
    pub enqueued_at: Timestamp,
    /// When it is canceled unless somebody has it.
    pub ttl_at: OptionalTime,
    /// The time of the token that its first answer is kept for.
    pub token_time: OptionalTime,
    /// When it may be served.
    pub visible_at: Timestamp,
    /// Where it stands.
    pub state: MessageState,
    /// The number of its last change; it orders the message's history and nothing else.
    pub version: u64,
    /// The state its enqueue answered.
    pub first_state: MessageState,
    /// What it wished and went through beyond that.
    pub extras: OptionalExtras,
}

/// What a message wished beyond the usual, and what became of it since it was first leased.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageExtras {
    /// The lease duration it asks for.
    pub lease_duration: Option<Duration>,
    /// How many of its leases were released.
    pub releases: u32,
    /// When it was first leased.
    pub first_leased_at: Option<Timestamp>,
    /// When it came to its end, once terminal; missing where that was before such times were kept.
    pub ended_at: OptionalTime,
    /// When it is forgotten, once terminal.
    pub delete_at: Timestamp,
    /// Its lease while it runs.
    pub lease: Option<Lease>,
    /// The lease that ended by expiry, while there was none since: it may still complete.
    pub expired_lease: Option<Fence>,
    /// The last settlement and its answer, for repeats.
    pub last_settlement: Option<(Fence, SettleAction, Settlement)>,
    /// Why it was canceled; while it runs, why that is asked for.
    pub canceled_by: Option<CanceledBy>,
    /// What its last failure said.
    pub error: Option<AttemptError>,
    /// The last updates that had a token and their answers, for repeats; the newest last, at most 8.
    pub updates: Vec<(UpdateToken, Settlement)>,
}

impl MessageExtras {
    /// That of a message that waits for its first lease and wished nothing.
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
    };
}

/// The course of a message; it takes no room until something is written to it.
#[derive(Clone)]
pub struct OptionalExtras(Option<Box<MessageExtras>>);

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
    /// The rank among pending messages: lower is served first.
    pub fn rank(&self) -> Rank {
        (self.priority, self.key.sequence)
    }

    /// Since when it has been ready, while it is pending: whatever brings it back makes it ready anew.
    pub fn ready_since(&self) -> Timestamp {
        self.visible_at
    }

    /// The number of the attempt that runs, or of the last one; 0 before the first.
    pub fn attempt_number(&self) -> u32 {
        self.max_attempts - self.attempts_left
    }

    /// What time alone does to it next, and when.
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

    /// What the transition table asks, given whether the command leaves a window ahead.
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

/// Without the metadata, the id and the error's text: those may be about people.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_id_reads_as_it_was_given(text in "[a-l0-9-][ -~]{0,63}", uuid in any::<u128>()) {
            let uuid = Uuid::from_u128(uuid);
            let upper = uuid.to_string().to_uppercase();
            for text in [text, uuid.to_string(), upper, uuid.simple().to_string(), uuid.urn().to_string()] {
                let id = MessageId::new(&text).expect("a legal id");
                prop_assert_eq!((&*id.text(), id.to_string()), (&*text, text.clone()));
            }
        }
    }

    #[test]
    fn forms_of_one_uuid_are_different_ids_and_only_its_usual_text_takes_no_memory_of_its_own() {
        let uuid = "0189d3f1-0000-7000-8000-00000000000a";
        let forms = [uuid.to_owned(), uuid.to_uppercase(), uuid.replace('-', ""), format!("{{{uuid}}}")];
        let ids: BTreeSet<_> = forms.iter().map(|form| MessageId::new(form).expect("a legal id")).collect();
        assert_eq!(ids.len(), forms.len());
        assert_eq!(ids.iter().filter(|id| matches!(id.0, IdRepr::Uuid(_))).count(), 1);
    }
}
