//! The first answers to enqueues whose token carries its time, kept for the dedupe window.
//!
//! As long as its message exists the message is the record; what is kept here of it is a bit. A record lies in the bucket
//! of its token's time and buckets are dropped whole, so memory is bounded by the window and by `dedupe_max_bytes`. A token older than what is kept is refused: it may have been answered before.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::limits::{DEDUPE_BUCKET, DEDUPE_RECORD_BYTES};
use crate::domain::queue::index::sequence_pages::{MessagesBySequence, Sequences};
use crate::domain::queue::messages::message::{MessageHead, MessageId, MessageKey, RoutingValue};
use crate::domain::queue::messages::state_machine::MessageState;
use crate::domain::queue::shard_restore::DedupeRecord;
use crate::domain::time::Timestamp;

/// A token: the id and what routed it.
pub type TokenKey = (MessageId, Option<RoutingValue>);

/// What the first enqueue with a token was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstResponse {
    /// The hash of what was sent.
    pub fingerprint: u64,
    /// The key given.
    pub key: MessageKey,
    /// The state answered.
    pub state: MessageState,
}

impl FirstResponse {
    /// The first answer to the enqueue of a message.
    pub fn of(message: &MessageHead) -> Self {
        Self { fingerprint: message.fingerprint, key: message.key, state: message.first_state }
    }
}

/// The answers kept, in buckets of their tokens' times.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DedupeIndex {
    buckets: BTreeMap<Timestamp, DedupeBucket>,
    bytes: usize,
    /// Answers of tokens before this are gone, whatever the window.
    floor: Option<Timestamp>,
}

/// The answers to tokens of one stretch of time.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct DedupeBucket {
    /// The messages that exist still: they are their answers themselves.
    living: Sequences,
    /// The answers that have outlived their messages.
    outlived: BTreeMap<(TokenKey, Timestamp), FirstResponse>,
}

impl DedupeBucket {
    fn len(&self) -> usize {
        self.living.len() + self.outlived.len()
    }
}

impl DedupeIndex {
    /// No answers, those of tokens before the floor dropped already.
    pub fn with_floor(floor: Option<Timestamp>) -> Self {
        Self { floor, ..Self::default() }
    }

    /// Tokens before this have no answers any more, if any was dropped. O(1).
    pub fn floor(&self) -> Option<Timestamp> {
        self.floor
    }

    /// Takes an answer back in that was kept before; one below the floor is passed over. O(log n).
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

    /// After a restoration: leaves the answers whose messages came after them to these. O(answers).
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

    /// Whether answers to tokens of this time may be gone. O(1).
    pub fn may_be_dropped(&self, token_time: Timestamp, window: Duration, now: Timestamp) -> bool {
        token_time < now - window || self.floor.is_some_and(|floor| token_time < floor)
    }

    /// Lets no token before this time be answered any more. O(answers forgotten + one bucket).
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

    /// The same, and later ones are answered again even if they were not until now: somebody gives up what was promised of
    /// them while the clock was ahead.
    pub fn reset_floor(&mut self, time: Timestamp, messages: &MessagesBySequence) {
        self.drop_before(time, messages);
        self.floor = Some(time);
    }

    /// The first answer to a token whose message is gone, and what routed that; the answer to any other is the message's to
    /// give. O(log n).
    pub fn get(&self, id: &MessageId, time: Timestamp) -> Option<(&Option<RoutingValue>, &FirstResponse)> {
        let outlived = &self.buckets.get(&time.floor_to(DEDUPE_BUCKET))?.outlived;
        if outlived.is_empty() {
            return None;
        }
        let of_id = outlived.range(((id.clone(), None), Timestamp::MIN)..).take_while(|(((of, _), _), _)| of == id);
        let mut of_time = of_id.filter(|((_, at), _)| *at == time);
        of_time.next().map(|(((_, routing), _), answer)| (routing, answer))
    }

    /// Keeps the answer to a message that is about to go, if it is kept. O(log n).
    pub fn detach_message(&mut self, message: &MessageHead) {
        let Some(time) = message.token_time.get() else { return };
        let Some(bucket) = self.buckets.get_mut(&time.floor_to(DEDUPE_BUCKET)) else { return };
        if bucket.living.remove(message.key.sequence) {
            let token = (message.id.clone(), message.routing.clone());
            bucket.outlived.insert((token, time), FirstResponse::of(message));
        }
    }

    /// Whether one more answer fits, if need be in place of those of older buckets. O(1).
    pub fn has_room(&self, time: Timestamp, bytes_max: usize) -> bool {
        let oldest_goes =
            self.buckets.first_key_value().is_some_and(|(start, _)| *start < time.floor_to(DEDUPE_BUCKET));
        oldest_goes || self.bytes + DEDUPE_RECORD_BYTES <= bytes_max
    }

    /// Keeps the answer to a message; the oldest buckets go once their window is over or for want of room. O(log n), and
    /// O(1) amortised for each record dropped.
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

/// Whether this is the answer to a message that exists.
fn is_response_of_message(answer: FirstResponse, time: Timestamp, messages: &MessagesBySequence) -> bool {
    let found = messages.get(answer.key.sequence);
    found.is_some_and(|message| message.token_time.get() == Some(time) && FirstResponse::of(message) == answer)
}

/// What bounds the answers kept.
#[derive(Clone, Copy, Debug)]
pub struct DedupeLimits {
    /// The time by which the age of tokens is judged.
    pub now: Timestamp,
    /// How long answers are kept.
    pub window: Duration,
    /// What they may take, in bytes.
    pub bytes_max: usize,
}
