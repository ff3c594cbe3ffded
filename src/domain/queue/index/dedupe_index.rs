//! The first replies to enqueues whose token carries its time, kept for the dedupe window.
//!
//! As long as a message exists, the message itself is the record; the index keeps only one bit for it. Only a reply
//! that outlives its message needs a record, which has a hash of the id. A record belongs to the bucket of its token's
//! time, and buckets are dropped whole. So the window and `dedupe_max_bytes` bound the memory. A token older than the
//! kept records is refused, because it may have been answered before.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::{DEDUPE_BUCKET, DEDUPE_RECORD_BYTES};
use crate::queue::allocation::in_shuffled_tree;
use crate::queue::index::memory_count::MemoryCount;
use crate::queue::index::sequence_pages::{MessagesBySequence, Sequences, place};
use crate::queue::index::stubs::Stub;
use crate::queue::messages::first_response::FirstResponse;
use crate::queue::messages::id_hash::{IdHash, IdKey};
use crate::queue::messages::message::MessageHead;
use crate::time::Timestamp;

/// The first reply to a token that carries its time, once its message is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DedupeRecord {
    /// The hash of the id.
    pub id: IdHash,
    /// Whether something else than the id selected the shard.
    pub is_routed: bool,
    /// The time of the token.
    pub time: Timestamp,
    /// The reply.
    pub answer: FirstResponse,
}

impl DedupeRecord {
    /// The record of a message, if its token carries a time.
    pub fn of(message: &MessageHead, key: &IdKey) -> Option<Self> {
        Some(Self {
            id: key.hash(&message.id),
            is_routed: message.routing.is_some(),
            time: message.token_time.get()?,
            answer: FirstResponse::of(message),
        })
    }

    /// The record of a message that is a stub, if its token carries a time.
    pub fn of_stub(stub: &Stub) -> Option<Self> {
        Some(Self { id: stub.id, is_routed: stub.is_routed, time: stub.token_time?, answer: stub.first_response() })
    }
}

/// A reply that has outlived its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutlivedResponse {
    /// The reply.
    pub answer: FirstResponse,
    /// Whether something else than the id selected the shard.
    pub is_routed: bool,
}

/// The kept replies, in buckets by the time of their tokens.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DedupeIndex {
    buckets: BTreeMap<Timestamp, DedupeBucket>,
    bytes: usize,
    /// Replies to tokens before this time are dropped, whatever the window.
    floor: Option<Timestamp>,
    /// The dropped replies above a floor that was lowered.
    untracked: Vec<Untracked>,
    /// The memory of all buckets.
    memory: MemoryCount,
}

/// Replies that were dropped before the floor was lowered: those of messages up to a sequence, to tokens before a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Untracked {
    /// The last sequence.
    pub through: u64,
    /// The time.
    pub before: Timestamp,
}

/// The replies to tokens of one period.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct DedupeBucket {
    /// The messages that still exist, which are their own records.
    living: Sequences,
    /// The replies that have outlived their messages.
    outlived: BTreeMap<(IdHash, Timestamp), OutlivedResponse>,
}

impl DedupeBucket {
    fn len(&self) -> usize {
        self.living.len() + self.outlived.len()
    }

    fn memory_bytes(&self) -> usize {
        const OUTLIVED: usize = in_shuffled_tree(size_of::<((IdHash, Timestamp), OutlivedResponse)>());
        self.living.memory_bytes() + self.outlived.len() * OUTLIVED
    }
}

impl DedupeIndex {
    /// Makes an index without replies; those to tokens before the floor, and the untracked ones, are already dropped.
    pub fn with_floor(floor: Option<Timestamp>, untracked: Vec<Untracked>) -> Self {
        Self { floor, untracked, ..Self::default() }
    }

    /// The bytes of the kept replies. O(1).
    pub fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Returns which replies above the floor are dropped. O(1).
    pub fn untracked(&self) -> &[Untracked] {
        &self.untracked
    }

    fn raise_floor(&mut self, time: Timestamp) {
        self.floor = self.floor.max(Some(time));
        let floor = self.floor;
        self.untracked.retain(|dropped| Some(dropped.before) > floor);
    }

    /// Returns the time before which replies are dropped; `None` if none was dropped. O(1).
    pub fn floor(&self) -> Option<Timestamp> {
        self.floor
    }

    /// Restores a stored reply that has outlived its message; ignores one that is dropped already. O(log n).
    pub fn restore(&mut self, kept: DedupeRecord) {
        let DedupeRecord { id, is_routed, time, answer } = kept;
        if self.is_dropped(answer.key.sequence, time) {
            return;
        }
        let bucket = self.buckets.entry(time.floor_to(DEDUPE_BUCKET)).or_default();
        let before = bucket.memory_bytes();
        let is_new = bucket.outlived.insert((id, time), OutlivedResponse { answer, is_routed }).is_none();
        self.memory.replace(before, bucket.memory_bytes());
        self.bytes += usize::from(is_new) * DEDUPE_RECORD_BYTES;
    }

    /// After the messages are restored: tracks the replies of which they are the records. O(messages log n).
    pub fn restore_living(&mut self, messages: &MessagesBySequence) {
        let heads = messages.iter().filter_map(|head| Some((head.key.sequence, head.token_time.get()?)));
        let stubs = messages.stubs().filter_map(|stub| Some((stub.key.sequence, stub.token_time?)));
        // Neighbours nearly always lie in one page and one bucket: the mask of such neighbours is tracked at once.
        let mut run: Option<(Timestamp, u64, u64)> = None;
        for (sequence, time) in heads.chain(stubs) {
            if self.is_dropped(sequence, time) {
                continue;
            }
            let (start, (page, bit)) = (time.floor_to(DEDUPE_BUCKET), place(sequence));
            match &mut run {
                Some((of, number, mask)) if (*of, *number) == (start, page) => *mask |= bit,
                Some(_) | None => {
                    let ended = run.replace((start, page, bit));
                    ended.into_iter().for_each(|(start, page, mask)| self.track(start, page, mask));
                }
            }
        }
        run.into_iter().for_each(|(start, page, mask)| self.track(start, page, mask));
    }

    /// Returns whether the reply of which a message is the record is dropped already. O(1).
    pub fn is_dropped(&self, sequence: u64, time: Timestamp) -> bool {
        let is_untracked = |dropped: &Untracked| sequence <= dropped.through && time < dropped.before;
        self.floor.is_some_and(|floor| time < floor) || self.untracked.iter().any(is_untracked)
    }

    /// Tracks the replies of messages: the mask of a page, with tokens of the bucket that starts at a time.
    fn track(&mut self, start: Timestamp, page: u64, mask: u64) {
        let bucket = self.buckets.entry(start).or_default();
        let before = bucket.memory_bytes();
        let new = bucket.living.insert_mask(page, mask);
        self.memory.replace(before, bucket.memory_bytes());
        self.bytes += new * DEDUPE_RECORD_BYTES;
    }

    /// Returns whether replies to tokens of this time may have been dropped. O(1).
    pub fn may_be_dropped(&self, token_time: Timestamp, window: Duration, now: Timestamp) -> bool {
        token_time < now - window || self.floor.is_some_and(|floor| token_time < floor)
    }

    /// Drops the replies to tokens before this time. O(answers forgotten + one bucket).
    pub fn drop_before(&mut self, time: Timestamp, messages: &MessagesBySequence) {
        self.raise_floor(time);
        while let Some(mut oldest) = self.buckets.first_entry()
            && *oldest.key() < time
        {
            let bucket = oldest.get_mut();
            let (before, bytes) = (bucket.len(), bucket.memory_bytes());
            bucket.outlived.retain(|(_, at), _| *at >= time);
            let is_old = |sequence: &u64| token_time_of(messages, *sequence).is_none_or(|at| at < time);
            let past = bucket.living.iter().filter(is_old);
            for sequence in past.collect::<Vec<_>>() {
                bucket.living.remove(sequence);
            }
            let left = bucket.len();
            self.memory.replace(bytes, bucket.memory_bytes());
            self.bytes -= (before - left) * DEDUPE_RECORD_BYTES;
            if left > 0 {
                break;
            }
            oldest.remove();
        }
    }

    /// The same, and also lowers the floor to this time. An operator thereby waives the promises made while the clock
    /// was ahead. `newest` is the sequence of the newest message.
    pub fn reset_floor(&mut self, time: Timestamp, messages: &MessagesBySequence, newest: u64) {
        self.drop_before(time, messages);
        if let Some(before) = self.floor.filter(|floor| *floor > time) {
            self.untracked.push(Untracked { through: newest, before });
        }
        self.floor = Some(time);
    }

    /// Returns the first reply to a token whose message no longer exists. For other tokens the message has the reply.
    /// `hash` is asked for the hash of the id only if there is such a reply of the token's time. O(log n).
    pub fn get(&self, time: Timestamp, hash: impl FnOnce() -> IdHash) -> Option<&OutlivedResponse> {
        let outlived = &self.buckets.get(&time.floor_to(DEDUPE_BUCKET))?.outlived;
        if outlived.is_empty() { None } else { outlived.get(&(hash(), time)) }
    }

    /// Keeps the reply for a message that is about to be removed, if the reply is tracked. Returns the record that
    /// outlives the message. O(log n).
    pub fn detach_message(&mut self, sequence: u64, record: Option<DedupeRecord>) -> Option<DedupeRecord> {
        let kept = record?;
        let is_dropped = self.is_dropped(sequence, kept.time);
        let bucket = self.buckets.get_mut(&kept.time.floor_to(DEDUPE_BUCKET))?;
        let before = bucket.memory_bytes();
        if !bucket.living.remove(sequence) {
            return None;
        }
        if is_dropped {
            self.bytes -= DEDUPE_RECORD_BYTES;
            self.memory.replace(before, bucket.memory_bytes());
            return None;
        }
        let DedupeRecord { id, is_routed, time, answer } = kept;
        bucket.outlived.insert((id, time), OutlivedResponse { answer, is_routed });
        self.memory.replace(before, bucket.memory_bytes());
        Some(kept)
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
        self.drop_outlived(keep.now, keep.window);
        while let Some((&start, _)) = self.buckets.first_key_value()
            && start < own
            && self.bytes + DEDUPE_RECORD_BYTES > keep.bytes_max
        {
            self.drop_first();
        }
        let (page, bit) = place(sequence);
        self.track(own, page, bit);
    }

    /// Drops the buckets whose tokens are all older than the window. Returns whether there were any. O(1) amortized for
    /// each dropped reply.
    pub fn drop_outlived(&mut self, now: Timestamp, window: Duration) -> bool {
        let mut any = false;
        while let Some((&start, _)) = self.buckets.first_key_value()
            && start + DEDUPE_BUCKET <= now - window
        {
            self.drop_first();
            any = true;
        }
        any
    }

    /// Drops all replies to tokens older than the window that have outlived their messages, and keeps none of such
    /// tokens from then on: no caller is given them any more. Without it they stay until their bucket is over. Returns
    /// whether there were any. O(outlived replies of the buckets that begin before the window).
    pub fn drop_all_outlived(&mut self, now: Timestamp, window: Duration) -> bool {
        let mut any = self.drop_outlived(now, window);
        let before = now - window;
        self.raise_floor(before);
        for (_, bucket) in self.buckets.range_mut(..before).filter(|(_, bucket)| !bucket.outlived.is_empty()) {
            let (count, bytes) = (bucket.len(), bucket.memory_bytes());
            bucket.outlived.retain(|(_, at), _| *at >= before);
            let dropped = count - bucket.len();
            any |= dropped > 0;
            self.bytes -= dropped * DEDUPE_RECORD_BYTES;
            self.memory.replace(bytes, bucket.memory_bytes());
        }
        any
    }

    fn drop_first(&mut self) {
        if let Some((start, bucket)) = self.buckets.pop_first() {
            self.bytes -= bucket.len() * DEDUPE_RECORD_BYTES;
            self.memory.remove(bucket.memory_bytes());
            self.raise_floor(start + DEDUPE_BUCKET);
        }
    }
}

fn token_time_of(messages: &MessagesBySequence, sequence: u64) -> Option<Timestamp> {
    match messages.get(sequence) {
        Some(head) => head.token_time.get(),
        None => messages.stub(sequence)?.token_time,
    }
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
