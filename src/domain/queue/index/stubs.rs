//! Messages that are over, kept without what only the store has: 40 bytes each instead of a head.
//!
//! A page has room for the 64 sequences of a page of messages. What does not fit into a row, such as the 256th version
//! of a message or an end years after those of its page, cannot become a stub: that message keeps its head.

use std::time::Duration;

use crate::limits::DEDUPE_BUCKET;
use crate::queue::allocation::{allocated, on_heap};
use crate::queue::messages::first_response::FirstResponse;
use crate::queue::messages::id_hash::{IdHash, IdKey};
use crate::queue::messages::message::{CountedUnder, MessageExtras, MessageHead, MessageKey, Metadata, OptionalTime};
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::state_machine::MessageState;
use crate::time::Timestamp;

/// A message that is over, as far as rules need it before its head is read from the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stub {
    /// The position of the message.
    pub key: MessageKey,
    /// Completed, canceled or errored.
    pub state: MessageState,
    /// The state that the enqueue returned.
    pub first_state: MessageState,
    /// The hash of its id.
    pub id: IdHash,
    /// A hash of the complete request.
    pub fingerprint: u64,
    /// The time at which the message is deleted.
    pub delete_at: Timestamp,
    /// The time of the token under which the first reply is kept.
    pub token_time: Option<Timestamp>,
    /// The size of the payload in bytes.
    pub payload_bytes: u32,
    /// The version.
    pub version: u64,
    /// The number of the last attempt; 0 if there was none.
    pub attempt: u32,
    /// The set of metadata keys that it is counted under.
    pub key_set: u8,
    /// Whether something else than the id selected the shard.
    pub is_routed: bool,
}

impl Stub {
    /// The stub of a message that is over.
    pub fn of(message: &MessageHead, id_key: &IdKey) -> Self {
        Self {
            key: message.key,
            state: message.state,
            first_state: message.first_state,
            id: id_key.hash(&message.id),
            fingerprint: message.fingerprint,
            delete_at: message.delete_at,
            token_time: message.token_time.get(),
            payload_bytes: message.payload_bytes,
            version: message.version,
            attempt: message.attempt_number(),
            key_set: message.counted.key_set,
            is_routed: message.routing.is_some(),
        }
    }

    /// The first reply to its enqueue.
    pub fn first_response(&self) -> FirstResponse {
        FirstResponse { fingerprint: self.fingerprint, key: self.key, state: self.first_state }
    }

    /// A head that has what the removal of the message looks at. Its id, routing, metadata and most times are not the
    /// message's own.
    pub fn head_to_remove(&self) -> MessageHead {
        MessageHead {
            key: self.key,
            id: MessageId::of_uuid([0; 16]),
            routing: None,
            metadata: Metadata::default(),
            payload_bytes: self.payload_bytes,
            fingerprint: self.fingerprint,
            priority: 0,
            max_attempts: self.attempt,
            attempts_left: 0,
            enqueued_at: self.delete_at,
            ttl_at: OptionalTime::NONE,
            token_time: self.token_time.into(),
            visible_at: self.delete_at,
            state: self.state,
            version: self.version,
            first_state: self.first_state,
            counted: CountedUnder::default(),
            extras: MessageExtras { delete_at: self.delete_at, ..MessageExtras::NONE }.into(),
        }
    }
}

/// The stubs of 64 consecutive sequences.
#[derive(Clone, Debug)]
pub struct StubPage {
    shard: u32,
    epoch: u32,
    /// The first bucket of tokens that rows count from.
    first_bucket: Timestamp,
    /// The end that rows count theirs from.
    first_end: Timestamp,
    held: u64,
    errored: u64,
    canceled: u64,
    routed: u64,
    /// The messages that were pending at first.
    pending: u64,
    rows: Vec<StubRow>,
}

/// The row of one message in a page, in parts of 4 bytes and less so that nothing is lost to alignment. The rows of a
/// page fill an allocation of their class exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct StubRow {
    id: [u32; 4],
    fingerprint: [u32; 2],
    /// Microseconds since the start of the token's bucket; `NO_TOKEN` without a token.
    token: u32,
    /// Microseconds after the first end of the page, or before it: a number of 48 bits.
    delete_after: [u16; 3],
    payload_bytes: u16,
    version: u8,
    attempt: u8,
    key_set: u8,
    /// The bucket of the token, counted from the first one of the page.
    bucket: u8,
}

const NO_TOKEN: u32 = u32::MAX;

/// Pages are equal if they have equal stubs, whatever they count buckets and ends from.
impl PartialEq for StubPage {
    fn eq(&self, other: &Self) -> bool {
        let of_bit = |bit: u32| self.get(0, 1 << bit) == other.get(0, 1 << bit);
        self.held == other.held && (0..u64::BITS).all(of_bit)
    }
}

impl Eq for StubPage {}

impl StubPage {
    /// A page without stubs, for messages like this one.
    pub fn new(stub: &Stub) -> Self {
        let MessageKey { shard, epoch, .. } = stub.key;
        Self {
            shard,
            epoch,
            first_bucket: Timestamp::MIN,
            first_end: stub.delete_at,
            held: 0,
            errored: 0,
            canceled: 0,
            routed: 0,
            pending: 0,
            rows: Vec::new(),
        }
    }

    /// The mask of the sequences that have a stub.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The mask of those in a state in which messages are over.
    pub fn in_state(&self, state: MessageState) -> u64 {
        match state {
            MessageState::Errored => self.held & self.errored,
            MessageState::Canceled => self.held & self.canceled,
            MessageState::Completed => self.held & !(self.errored | self.canceled),
            MessageState::Invisible | MessageState::Pending | MessageState::Running => 0,
        }
    }

    /// The bytes of the payloads of those in a mask.
    pub fn payload_bytes(&self, mask: u64) -> impl Iterator<Item = u32> {
        let rows = (0..u64::BITS).map(|place| 1 << place).filter(|bit| self.held & bit != 0).zip(&self.rows);
        rows.filter(move |(bit, _)| mask & bit != 0).map(|(_, row)| u32::from(row.payload_bytes))
    }

    /// The bytes of the page.
    pub fn memory_bytes(&self) -> usize {
        allocated(size_of::<Self>()) + on_heap(self.rows.capacity() * size_of::<StubRow>())
    }

    fn index(&self, bit: u64) -> usize {
        (self.held & (bit - 1)).count_ones() as usize
    }

    /// Adds the stub of a bit that has none; returns whether it fits.
    pub fn insert(&mut self, bit: u64, stub: &Stub) -> bool {
        if self.held == 0 {
            *self = Self::new(stub);
        }
        let Some(row) = self.row_of(stub) else { return false };
        let index = self.index(bit);
        self.rows.insert(index, row);
        self.held |= bit;
        let masks = [
            (&mut self.errored, stub.state == MessageState::Errored),
            (&mut self.canceled, stub.state == MessageState::Canceled),
            (&mut self.routed, stub.is_routed),
            (&mut self.pending, stub.first_state == MessageState::Pending),
        ];
        for (mask, is_so) in masks {
            *mask = if is_so { *mask | bit } else { *mask & !bit };
        }
        true
    }

    /// Counts buckets from the earliest one of the rows and this one, if all of them are near enough to each other.
    fn count_from(&mut self, start: Timestamp) -> bool {
        let with_token = |row: &&StubRow| row.token != NO_TOKEN;
        let of_rows = self.rows.iter().filter(with_token).map(|row| self.bucket_of(row));
        let (first, last) = of_rows.fold((start, start), |(first, last), bucket| (first.min(bucket), last.max(bucket)));
        if buckets_between(first, last).is_none() {
            return false;
        }
        let before = self.first_bucket;
        for row in self.rows.iter_mut().filter(|row| row.token != NO_TOKEN) {
            let bucket = before + DEDUPE_BUCKET * u32::from(row.bucket);
            row.bucket = buckets_between(first, bucket).expect("it lies between the first and the last");
        }
        self.first_bucket = first;
        true
    }

    fn bucket_of(&self, row: &StubRow) -> Timestamp {
        self.first_bucket + DEDUPE_BUCKET * u32::from(row.bucket)
    }

    fn row_of(&mut self, stub: &Stub) -> Option<StubRow> {
        let of_page = (stub.key.shard, stub.key.epoch) == (self.shard, self.epoch);
        let first_is_known = matches!(stub.first_state, MessageState::Pending | MessageState::Invisible);
        if !of_page || !first_is_known || !stub.state.is_terminal() {
            return None;
        }
        let (bucket, token) = match stub.token_time {
            None => (0, NO_TOKEN),
            Some(time) => {
                let start = time.floor_to(DEDUPE_BUCKET);
                // Nearly always the buckets of a page are counted from one that suits this row too.
                let counted =
                    |page: &Self| buckets_between(page.first_bucket, start).filter(|_| start >= page.first_bucket);
                let bucket = counted(self).or_else(|| self.count_from(start).then(|| counted(self)).flatten());
                (bucket?, u32::try_from(time.since(start).as_micros()).ok()?)
            }
        };
        Some(StubRow {
            id: parts_of(stub.id.0),
            fingerprint: halves_of(stub.fingerprint),
            token,
            delete_after: self.delete_after(stub.delete_at)?,
            payload_bytes: u16::try_from(stub.payload_bytes).ok()?,
            version: u8::try_from(stub.version).ok()?,
            attempt: u8::try_from(stub.attempt).ok()?,
            key_set: stub.key_set,
            bucket,
        })
    }

    /// The distance of an end from the first one, if 48 bits have room for it: some four years.
    fn delete_after(&self, end: Timestamp) -> Option<[u16; 3]> {
        const ROOM: i64 = 1 << 47;
        let after = end.micros().checked_sub(self.first_end.micros())?;
        (-ROOM..ROOM).contains(&after).then_some([(after >> 32) as u16, (after >> 16) as u16, after as u16])
    }

    fn end_of(&self, row: &StubRow) -> Timestamp {
        let [high, middle, low] = row.delete_after.map(i64::from);
        // The sign is the highest of 48 bits.
        let after = (high << 48 | middle << 32 | low << 16) >> 16;
        Timestamp::from_micros(self.first_end.micros() + after)
    }

    /// The stub of a sequence of the page, if it has one.
    pub fn get(&self, sequence: u64, bit: u64) -> Option<Stub> {
        if self.held & bit == 0 {
            return None;
        }
        let row = self.rows.get(self.index(bit))?;
        let has = |mask: u64| mask & bit != 0;
        let state = match (has(self.errored), has(self.canceled)) {
            (true, _) => MessageState::Errored,
            (false, true) => MessageState::Canceled,
            (false, false) => MessageState::Completed,
        };
        let token = (row.token != NO_TOKEN).then(|| self.bucket_of(row) + Duration::from_micros(u64::from(row.token)));
        Some(Stub {
            key: MessageKey { shard: self.shard, epoch: self.epoch, sequence },
            state,
            first_state: if has(self.pending) { MessageState::Pending } else { MessageState::Invisible },
            id: row.id(),
            fingerprint: whole_of(row.fingerprint),
            delete_at: self.end_of(row),
            token_time: token,
            payload_bytes: u32::from(row.payload_bytes),
            version: u64::from(row.version),
            attempt: u32::from(row.attempt),
            key_set: row.key_set,
            is_routed: has(self.routed),
        })
    }

    /// The hash of the id of a bit's message, if it has a stub.
    pub fn id_of(&self, bit: u64) -> Option<IdHash> {
        let row = self.rows.get(self.index(bit)).filter(|_| self.held & bit != 0)?;
        Some(row.id())
    }

    /// Removes the stub of a bit.
    pub fn remove(&mut self, bit: u64) {
        if self.held & bit == 0 {
            return;
        }
        self.rows.remove(self.index(bit));
        self.held &= !bit;
        if self.rows.len() <= self.rows.capacity() / 2 {
            self.rows.shrink_to_fit();
        }
    }

    /// The earliest time at which one of them is deleted. O(64).
    pub fn first_end(&self) -> Option<Timestamp> {
        self.ends().min()
    }

    /// The ends of the stubs, in the order of their sequences.
    pub fn ends(&self) -> impl Iterator<Item = Timestamp> {
        self.rows.iter().map(|row| self.end_of(row))
    }
}

impl StubRow {
    fn id(&self) -> IdHash {
        let [a, b, c, d] = self.id.map(u128::from);
        IdHash(a << 96 | b << 64 | c << 32 | d)
    }
}

/// The number of buckets from one to a later one, if a row has room for it.
fn buckets_between(first: Timestamp, later: Timestamp) -> Option<u8> {
    u8::try_from(later.since(first).as_micros() / DEDUPE_BUCKET.as_micros()).ok()
}

/// The four parts of 128 bits; the casts truncate on purpose.
const fn parts_of(whole: u128) -> [u32; 4] {
    [(whole >> 96) as u32, (whole >> 64) as u32, (whole >> 32) as u32, whole as u32]
}

/// The two halves of 64 bits; the casts truncate on purpose.
const fn halves_of(whole: u64) -> [u32; 2] {
    [(whole >> 32) as u32, whole as u32]
}

fn whole_of([high, low]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(1_700_000_000 + seconds)
    }

    fn stub(sequence: u64) -> Stub {
        Stub {
            key: MessageKey { shard: 3, epoch: 1, sequence },
            state: MessageState::Completed,
            first_state: MessageState::Pending,
            id: IdHash(u128::MAX - u128::from(sequence)),
            fingerprint: u64::MAX - sequence,
            delete_at: at(3_600),
            token_time: Some(at(0)),
            payload_bytes: 100,
            version: 3,
            attempt: 1,
            key_set: 0,
            is_routed: false,
        }
    }

    fn any_stub() -> impl Strategy<Value = Stub> {
        let states = (0..3_usize, any::<bool>(), any::<bool>(), any::<u8>());
        let ends = prop_oneof![-(1_i64 << 47)..1 << 47, any::<i64>()];
        let times = (ends, proptest::option::of(0..100_000_000_000_i64));
        let numbers = (any::<u128>(), any::<u64>(), 0..=32_768_u32, 1..300_u64, 0..300_u32);
        (0..64_u64, states, times, numbers).prop_map(|(sequence, states, (end, token), numbers)| {
            let (state, waited, is_routed, key_set) = states;
            let (id, fingerprint, payload_bytes, version, attempt) = numbers;
            let state = [MessageState::Completed, MessageState::Canceled, MessageState::Errored][state];
            let first_state = if waited { MessageState::Pending } else { MessageState::Invisible };
            let token_time = token.map(|micros| at(0) + Duration::from_micros(micros.cast_unsigned()));
            let (delete_at, id) = (Timestamp::from_micros(end), IdHash(id));
            let (fingerprint, payload_bytes) = (fingerprint, payload_bytes);
            let shown = Stub { state, first_state, id, fingerprint, delete_at, token_time, ..stub(sequence) };
            Stub { payload_bytes, version, attempt, key_set, is_routed, ..shown }
        })
    }

    proptest! {
        #[test]
        fn a_page_gives_back_what_it_took(stubs in prop::collection::vec((any_stub(), any::<bool>()), 0..200)) {
            let mut page = StubPage::new(&stub(0));
            let mut wanted: [Option<Stub>; 64] = [None; 64];
            for (stub, stays) in stubs {
                let place = usize::try_from(stub.key.sequence).expect("small");
                let bit = 1 << place;
                page.remove(bit);
                wanted[place] = None;
                if stays {
                    let fits = page.insert(bit, &stub);
                    let is_small = stub.version < 256 && stub.attempt < 256;
                    prop_assert!(!fits || is_small, "a number is not cut");
                    prop_assert!(fits || !is_small || stub.token_time.is_some() || page.delete_after(stub.delete_at).is_none());
                    wanted[place] = fits.then_some(stub);
                }
                for (place, wanted) in (0_u64..).zip(&wanted) {
                    prop_assert_eq!(page.get(place, 1 << place), *wanted);
                    prop_assert_eq!(page.id_of(1 << place), wanted.map(|stub| stub.id));
                }
                prop_assert_eq!(page.first_end(), wanted.iter().flatten().map(|stub| stub.delete_at).min());
                prop_assert_eq!(page.held().count_ones() as usize, wanted.iter().flatten().count());
            }
        }
    }

    #[test]
    fn a_row_takes_40_bytes_and_a_page_of_them_an_allocation() {
        assert_eq!((size_of::<StubRow>(), allocated(64 * 40)), (40, 64 * 40));
    }

    #[test]
    fn ends_within_four_years_of_the_first_fit_into_a_page() {
        let mut page = StubPage::new(&stub(0));
        let years = |count: i64| at(count * 365 * 86_400);
        for (bit, end) in [(1, years(0)), (2, years(4)), (4, years(-4)), (8, years(0) + Duration::from_micros(1))] {
            assert!(page.insert(bit, &Stub { delete_at: end, ..stub(0) }));
            assert_eq!(page.get(0, bit).map(|stub| stub.delete_at), Some(end));
        }
        for end in [years(5), years(-5), Timestamp::MAX, Timestamp::MIN] {
            assert!(!page.insert(16, &Stub { delete_at: end, ..stub(0) }), "it keeps its head");
        }
        assert_eq!(page.first_end(), Some(years(-4)));
    }

    #[test]
    fn tokens_within_42_hours_of_each_other_fit_into_a_page_whatever_came_first() {
        let of = |hours: i64| Stub { token_time: Some(at(hours * 3_600)), ..stub(0) };
        for [first, second, third] in [[0, 21, 42], [42, 0, 21], [21, 42, 0]] {
            let mut page = StubPage::new(&stub(0));
            assert!(page.insert(1, &Stub { token_time: None, ..stub(0) }));
            for (bit, hours) in [(2, first), (4, second), (8, third)] {
                assert!(page.insert(bit, &of(hours)));
            }
            assert!(!page.insert(16, &of(43)) && !page.insert(16, &of(-1)), "it keeps its head");
            page.remove(if first == 42 { 2 } else { 8 });
            let times: Vec<_> = (0..4).filter_map(|bit| page.get(0, 1 << bit)?.token_time).collect();
            assert_eq!(times.len(), 2);
        }
    }

    #[test]
    fn what_is_not_over_or_came_in_another_epoch_gets_no_stub() {
        let mut page = StubPage::new(&stub(0));
        let running = Stub { state: MessageState::Running, ..stub(0) };
        let mut earlier = stub(0);
        assert!(page.insert(2, &stub(1)) && !page.insert(1, &running));
        earlier.key.epoch = 0;
        assert!(!page.insert(1, &earlier));
    }
}
