//! The first answers to enqueues whose token carries its time, kept for the dedupe window.
//!
//! A record lies in the bucket of its token's time and buckets are dropped whole, so memory is bounded by the window
//! and by `dedupe_max_bytes`. A token older than what is kept is refused: it may have been answered before.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::limits::{DEDUPE_BUCKET, DEDUPE_RECORD_BYTES};
use crate::domain::queue::message::{MessageId, MessageKey, Routing};
use crate::domain::queue::state::State;
use crate::domain::time::Timestamp;

/// A token: the id and what routed it.
pub type TokenKey = (MessageId, Option<Routing>);

/// What the first enqueue with a token was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstAnswer {
    /// The hash of what was sent.
    pub fingerprint: u64,
    /// The key given.
    pub key: MessageKey,
    /// The state answered.
    pub state: State,
}

/// The answers kept, in buckets of their tokens' times.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Answers {
    buckets: BTreeMap<Timestamp, BTreeMap<(TokenKey, Timestamp), FirstAnswer>>,
    bytes: usize,
    /// Answers of tokens before this are gone, whatever the window.
    floor: Option<Timestamp>,
}

impl Answers {
    /// No answers, those of tokens before the floor dropped already.
    pub fn above(floor: Option<Timestamp>) -> Self {
        Self { floor, ..Self::default() }
    }

    /// Tokens before this have no answers any more, if any was dropped. O(1).
    pub fn floor(&self) -> Option<Timestamp> {
        self.floor
    }

    /// Takes an answer back in that was kept before; one below the floor is passed over. O(log n).
    pub fn restore(&mut self, token: TokenKey, time: Timestamp, answer: FirstAnswer) {
        if self.floor.is_some_and(|floor| time < floor) {
            return;
        }
        let before = self.buckets.entry(time.floor_to(DEDUPE_BUCKET)).or_default().insert((token, time), answer);
        if before.is_none() {
            self.bytes += DEDUPE_RECORD_BYTES;
        }
    }

    /// Whether answers to tokens of this time may be gone. O(1).
    pub fn may_have_forgotten(&self, token_time: Timestamp, window: Duration, now: Timestamp) -> bool {
        token_time < now - window || self.floor.is_some_and(|floor| token_time < floor)
    }

    /// Lets no token before this time be answered any more. O(answers forgotten + one bucket).
    pub fn forget_before(&mut self, time: Timestamp) {
        self.floor = self.floor.max(Some(time));
        while let Some(mut oldest) = self.buckets.first_entry()
            && *oldest.key() < time
        {
            let before = oldest.get().len();
            oldest.get_mut().retain(|(_, at), _| *at >= time);
            let left = oldest.get().len();
            self.bytes -= (before - left) * DEDUPE_RECORD_BYTES;
            if left > 0 {
                break;
            }
            oldest.remove();
        }
    }

    /// The first answer to a token. O(log n).
    pub fn get(&self, token: &TokenKey, time: Timestamp) -> Option<&FirstAnswer> {
        self.buckets.get(&time.floor_to(DEDUPE_BUCKET))?.get(&(token.clone(), time))
    }

    /// Whether one more answer fits, if need be in place of those of older buckets. O(1).
    pub fn has_room(&self, time: Timestamp, bytes_max: usize) -> bool {
        let oldest_goes =
            self.buckets.first_key_value().is_some_and(|(start, _)| *start < time.floor_to(DEDUPE_BUCKET));
        oldest_goes || self.bytes + DEDUPE_RECORD_BYTES <= bytes_max
    }

    /// Keeps an answer; the oldest buckets go once their window is over or for want of room. O(log n), and O(1)
    /// amortised for each record dropped.
    pub fn put(&mut self, token: TokenKey, time: Timestamp, answer: FirstAnswer, keep: Keep) {
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
        self.buckets.entry(own).or_default().insert((token, time), answer);
    }
}

/// What bounds the answers kept.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// The shard's clock.
    pub now: Timestamp,
    /// How long answers are kept.
    pub window: Duration,
    /// What they may take, in bytes.
    pub bytes_max: usize,
}
