//! The first replies to enqueues whose token carries its time, kept for the dedupe window.
//!
//! As long as a message exists, the message itself is the record; the index keeps only one bit for it. A record belongs
//! to the bucket of its token's time, and buckets are dropped whole. So the window and `dedupe_max_bytes` bound the
//! memory. A token older than the kept records is refused, because it may have been answered before.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::{DEDUPE_BUCKET, DEDUPE_RECORD_BYTES};
use crate::queue::index::sequence_pages::{MessagesBySequence, Sequences};
use crate::queue::messages::message::{MessageHead, MessageKey, RoutingValue};
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::state_machine::MessageState;
use crate::time::Timestamp;

/// A token: the id and its routing value.
pub type TokenKey = (MessageId, Option<RoutingValue>);

/// The reply to the first enqueue with a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstResponse {
    /// The hash of the request.
    pub fingerprint: u64,
    /// The assigned key.
    pub key: MessageKey,
    /// The replied state.
    pub state: MessageState,
}

impl FirstResponse {
    /// Makes the first reply to the enqueue of a message.
    pub fn of(message: &MessageHead) -> Self {
        Self { fingerprint: message.fingerprint, key: message.key, state: message.first_state }
    }
}

/// The first reply to a token that carries its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DedupeRecord {
    /// The id and its routing value.
    pub token: TokenKey,
    /// The time of the token.
    pub time: Timestamp,
    /// The reply.
    pub answer: FirstResponse,
}

/// The kept replies, in buckets by the time of their tokens.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DedupeIndex {
    buckets: BTreeMap<Timestamp, DedupeBucket>,
    bytes: usize,
    /// Replies to tokens before this time are dropped, whatever the window.
    floor: Option<Timestamp>,
}

/// The replies to tokens of one period.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct DedupeBucket {
    /// The messages that still exist, which are their own records.
    living: Sequences,
    /// The replies that have outlived their messages.
    outlived: BTreeMap<(TokenKey, Timestamp), FirstResponse>,
}

impl DedupeBucket {
    fn len(&self) -> usize {
        self.living.len() + self.outlived.len()
    }
}

impl DedupeIndex {
    /// Makes an index without replies; those to tokens before the floor are already dropped.
    pub fn with_floor(floor: Option<Timestamp>) -> Self {
        Self { floor, ..Self::default() }
    }

    /// Returns the time before which replies are dropped; `None` if none was dropped. O(1).
    pub fn floor(&self) -> Option<Timestamp> {
        self.floor
    }

    /// Restores a stored reply; ignores one below the floor. O(log n).
    pub fn restore(&mut self, kept: DedupeRecord, messages: &MessagesBySequence) {
        let DedupeRecord { token, time, answer } = kept;
        if self.floor.is_some_and(|floor| time < floor) {
            return;
        }
        let bucket = self.buckets.entry(time.floor_to(DEDUPE_BUCKET)).or_default();
        let before = bucket.len();
        if is_response_of_message(answer, time, messages) {
            bucket.living.insert(answer.key.sequence);
        } else {
            bucket.outlived.insert((token, time), answer);
        }
        self.bytes += (bucket.len() - before) * DEDUPE_RECORD_BYTES;
    }

    /// After a restoration: replaces replies by their messages where the messages were restored later. O(answers).
    pub fn relink_messages(&mut self, messages: &MessagesBySequence) {
        for bucket in self.buckets.values_mut() {
            let DedupeBucket { living, outlived } = bucket;
            outlived.retain(|(_, time), answer| {
                let lives = is_response_of_message(*answer, *time, messages);
                if lives {
                    living.insert(answer.key.sequence);
                }
                !lives
            });
        }
    }

    /// Returns whether replies to tokens of this time may have been dropped. O(1).
    pub fn may_be_dropped(&self, token_time: Timestamp, window: Duration, now: Timestamp) -> bool {
        token_time < now - window || self.floor.is_some_and(|floor| token_time < floor)
    }

    /// Drops the replies to tokens before this time. O(answers forgotten + one bucket).
    pub fn drop_before(&mut self, time: Timestamp, messages: &MessagesBySequence) {
        self.floor = self.floor.max(Some(time));
        while let Some(mut oldest) = self.buckets.first_entry()
            && *oldest.key() < time
        {
            let bucket = oldest.get_mut();
            let before = bucket.len();
            bucket.outlived.retain(|(_, at), _| *at >= time);
            let is_old = |message: &MessageHead| message.token_time.get().is_none_or(|at| at < time);
            let past = bucket.living.iter().filter(|sequence| messages.get(*sequence).is_none_or(is_old));
            for sequence in past.collect::<Vec<_>>() {
                bucket.living.remove(sequence);
            }
            let left = bucket.len();
            self.bytes -= (before - left) * DEDUPE_RECORD_BYTES;
            if left > 0 {
                break;
            }
            oldest.remove();
        }
    }

    /// The same, and also lowers the floor to this time. An operator thereby waives the promises made while the clock
    /// was ahead.
    pub fn reset_floor(&mut self, time: Timestamp, messages: &MessagesBySequence) {
        self.drop_before(time, messages);
        self.floor = Some(time);
    }

    /// Returns the first reply to a token whose message no longer exists, with the message's routing value. For other
    /// tokens the message has the reply. O(log n).
    pub fn get(&self, id: &MessageId, time: Timestamp) -> Option<(&Option<RoutingValue>, &FirstResponse)> {
        let outlived = &self.buckets.get(&time.floor_to(DEDUPE_BUCKET))?.outlived;
        if outlived.is_empty() {
            return None;
        }
        let of_id = outlived.range(((id.clone(), None), Timestamp::MIN)..).take_while(|(((of, _), _), _)| of == id);
        let mut of_time = of_id.filter(|((_, at), _)| *at == time);
        of_time.next().map(|(((_, routing), _), answer)| (routing, answer))
    }

    /// Keeps the reply for a message that is about to be removed, if the reply is tracked. O(log n).
    pub fn detach_message(&mut self, message: &MessageHead) {
        let Some(time) = message.token_time.get() else { return };
        let Some(bucket) = self.buckets.get_mut(&time.floor_to(DEDUPE_BUCKET)) else { return };
        if bucket.living.remove(message.key.sequence) {
            let token = (message.id.clone(), message.routing.clone());
            bucket.outlived.insert((token, time), FirstResponse::of(message));
        }
    }

    /// Returns whether one more reply fits, if necessary in place of those in older buckets. O(1).
    pub fn has_room(&self, time: Timestamp, bytes_max: usize) -> bool {
        let oldest_goes =
            self.buckets.first_key_value().is_some_and(|(start, _)| *start < time.floor_to(DEDUPE_BUCKET));
        oldest_goes || self.bytes + DEDUPE_RECORD_BYTES <= bytes_max
    }

    /// Tracks the reply for a message. Drops the oldest buckets after their window, or when the memory bound is
    /// reached. O(log n), and O(1) amortized for each dropped record.
    pub fn put(&mut self, sequence: u64, time: Timestamp, keep: DedupeLimits) {
        let own = time.floor_to(DEDUPE_BUCKET);
        while let Some((&start, bucket)) = self.buckets.first_key_value() {
            let end = start + DEDUPE_BUCKET;
            let outlived = end <= keep.now - keep.window;
            let in_the_way = self.bytes + DEDUPE_RECORD_BYTES > keep.bytes_max && start < own;
            if !(outlived || in_the_way) {
                break;
            }
            self.bytes -= bucket.len() * DEDUPE_RECORD_BYTES;
            self.floor = self.floor.max(Some(end));
            self.buckets.remove(&start);
        }
        self.bytes += DEDUPE_RECORD_BYTES;
        self.buckets.entry(own).or_default().living.insert(sequence);
    }
}

/// Returns whether this is the reply for an existing message.
fn is_response_of_message(answer: FirstResponse, time: Timestamp, messages: &MessagesBySequence) -> bool {
    let found = messages.get(answer.key.sequence);
    found.is_some_and(|message| message.token_time.get() == Some(time) && FirstResponse::of(message) == answer)
}

/// The bounds of the kept replies.
#[derive(Clone, Copy, Debug)]
pub struct DedupeLimits {
    /// The time that judges the age of tokens.
    pub now: Timestamp,
    /// The duration for which replies are kept.
    pub window: Duration,
    /// The memory bound in bytes.
    pub bytes_max: usize,
}
