//! Keys of the store, as bytes whose order is the order of their parts.
//!
//! ```text
//! event                               hash u32 | namespace u64 | name | 0 | time i64 | event id
//! bucket record, series step          namespace u64 | name | 0 | time i64
//! name                                namespace u64 | name
//! checkpoint, clear register          dataset u32 | namespace u64 | name
//! dirty-counter index (touch)         shard u8 | step i64 | namespace u64 | name
//! tombstone above the limit           255 | time i64 | namespace u64 | name
//! ```
//! Numbers are big endian; signed numbers have the sign bit flipped. A name has no byte below `%`, so 0 ends it and
//! names sort as their bytes. A prefix of a key is a prefix of its parts.
//!
//! The hash is the upper half of the counter's hash and serves speed only. The store library compares the first four
//! bytes of two keys without following a pointer. Without the hash, all events of a namespace would share them.

use std::ops::Bound;

use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, CounterName, DatasetId, EventId, EventKey, NamespaceId};
use tallystone_ports::Touch;

pub type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

const HASH_BYTES: usize = 4;
const NAME_END: u8 = 0;
const SIGN: u64 = 1 << 63;

/// Key of the name of a counter.
pub fn of_counter(counter: &Counter) -> Vec<u8> {
    let name = counter.name().as_str().as_bytes();
    let mut bytes = Vec::with_capacity(8 + name.len());
    bytes.extend_from_slice(&counter.namespace().0.to_be_bytes());
    bytes.extend_from_slice(name);
    bytes
}

/// Key of a row that exists once per counter and dataset.
pub fn of_row(dataset: DatasetId, counter: &Counter) -> Vec<u8> {
    let name = counter.name().as_str().as_bytes();
    let mut bytes = Vec::with_capacity(4 + 8 + name.len());
    bytes.extend_from_slice(&dataset.0.to_be_bytes());
    bytes.extend_from_slice(&counter.namespace().0.to_be_bytes());
    bytes.extend_from_slice(name);
    bytes
}

/// Common prefix of all keys of a namespace.
pub fn of_namespace(namespace: NamespaceId) -> Vec<u8> {
    namespace.0.to_be_bytes().to_vec()
}

pub fn of_rows(dataset: DatasetId, namespace: NamespaceId) -> KeyRange {
    let from = [&dataset.0.to_be_bytes()[..], &of_namespace(namespace)].concat();
    let mut to = from.clone();
    // Greater than every byte of a name.
    to.push(u8::MAX);
    (Bound::Included(from), Bound::Excluded(to))
}

pub fn of_names(namespace: NamespaceId, prefix: &str) -> KeyRange {
    let mut from = of_namespace(namespace);
    from.extend_from_slice(prefix.as_bytes());
    let mut to = from.clone();
    // Greater than every byte of a name.
    to.push(u8::MAX);
    (Bound::Included(from), Bound::Excluded(to))
}

/// Key outside all namespaces; rewritten whenever rows of the keyspace are removed.
pub const TIDIED: &[u8] = &[0];

/// Decodes the key of the name of a counter.
pub fn to_counter(bytes: &[u8]) -> Option<Counter> {
    let (namespace, name) = bytes.split_first_chunk::<8>()?;
    counter_from(u64::from_be_bytes(*namespace), name)
}

pub fn of_event(counter: &Counter, key: &EventKey) -> Vec<u8> {
    let mut bytes = timed(&hash_of(counter), counter, key.time, key.id.stored_len());
    key.id.write_to(&mut bytes);
    bytes
}

/// Range of the events of a counter with `from <= time <= to`.
pub fn events(counter: &Counter, from: Timestamp, to: Timestamp) -> KeyRange {
    times_behind(&hash_of(counter), counter, from, to)
}

/// Decodes the key of an event.
pub fn to_event(bytes: &[u8]) -> Option<(Counter, EventKey)> {
    let (hash, rest) = bytes.split_first_chunk::<HASH_BYTES>()?;
    let (namespace, rest) = rest.split_first_chunk::<8>()?;
    let end = rest.iter().position(|byte| *byte == NAME_END)?;
    let counter = counter_from(u64::from_be_bytes(*namespace), &rest[..end])?;
    if *hash != hash_of(&counter) {
        return None;
    }
    Some((counter, event_key_from(&rest[end + 1..])?))
}

/// Decodes the key of an event of a given counter.
pub fn to_event_of(counter: &Counter, bytes: &[u8]) -> Option<EventKey> {
    event_key_from(bytes.get(HASH_BYTES + 8 + counter.name().as_str().len() + 1..)?)
}

/// Key of a bucket record or a series step: the key of an event without its hash and event id.
pub fn of_time(counter: &Counter, time: Timestamp) -> Vec<u8> {
    timed(&[], counter, time, 0)
}

/// Key of a counter and a time after a head, with capacity for an id. The head is the counter's hash or empty.
fn timed(head: &[u8], counter: &Counter, time: Timestamp, id_len: usize) -> Vec<u8> {
    let name = counter.name().as_str().as_bytes();
    let mut bytes = Vec::with_capacity(head.len() + 8 + name.len() + 1 + 8 + id_len);
    bytes.extend_from_slice(head);
    bytes.extend_from_slice(&counter.namespace().0.to_be_bytes());
    bytes.extend_from_slice(name);
    bytes.push(NAME_END);
    bytes.extend_from_slice(&to_sortable(time));
    bytes
}

fn hash_of(counter: &Counter) -> [u8; HASH_BYTES] {
    ((counter.hash() >> 32) as u32).to_be_bytes()
}

/// Range of the bucket records or series steps of a counter with `from <= time <= to`.
pub fn times(counter: &Counter, from: Timestamp, to: Timestamp) -> KeyRange {
    times_behind(&[], counter, from, to)
}

fn times_behind(head: &[u8], counter: &Counter, from: Timestamp, to: Timestamp) -> KeyRange {
    let above =
        if to == Timestamp::MAX { past_counter(head, counter) } else { timed(head, counter, to.just_after(), 0) };
    (Bound::Included(timed(head, counter, from, 0)), Bound::Excluded(above))
}

/// First key after all timed keys of a counter.
fn past_counter(head: &[u8], counter: &Counter) -> Vec<u8> {
    [head, &of_counter(counter), &[NAME_END + 1]].concat()
}

/// Key of a dirty-counter index entry.
pub fn of_touch(counter: &Counter, step: Timestamp) -> Vec<u8> {
    time_shard_key(shard_byte(counter.touch_shard()), step, counter)
}

/// Key of an index entry in a given shard, even if the counter does not hash to it.
pub fn of_touch_in(shard: u32, touch: &Touch) -> Vec<u8> {
    time_shard_key(shard_byte(shard), touch.step, &touch.counter)
}

/// Range of the index entries of a shard with `from <= step <= to`.
pub fn steps(shard: u32, from: Timestamp, to: Timestamp) -> KeyRange {
    time_shard_range(shard_byte(shard), from, to)
}

/// Key of the note that a tombstone was added above the limit. It is no index entry, because it needs no rollup.
pub fn of_void(counter: &Counter, time: Timestamp) -> Vec<u8> {
    time_shard_key(VOIDS, time, counter)
}

/// Range of the notes of tombstones from a time on.
pub fn voids(from: Timestamp) -> KeyRange {
    time_shard_range(VOIDS, from, Timestamp::MAX)
}

/// Greater than every shard of the dirty-counter index.
const VOIDS: u8 = 255;

fn time_shard_key(shard: u8, time: Timestamp, counter: &Counter) -> Vec<u8> {
    let name = counter.name().as_str().as_bytes();
    let mut bytes = Vec::with_capacity(1 + 8 + 8 + name.len());
    bytes.push(shard);
    bytes.extend_from_slice(&to_sortable(time));
    bytes.extend_from_slice(&counter.namespace().0.to_be_bytes());
    bytes.extend_from_slice(name);
    bytes
}

fn time_shard_range(shard: u8, from: Timestamp, to: Timestamp) -> KeyRange {
    let begin = |time: Timestamp| [&[shard], &to_sortable(time)[..]].concat();
    let above = match (to == Timestamp::MAX, shard.checked_add(1)) {
        (false, _) => Bound::Excluded(begin(to.just_after())),
        (true, Some(next)) => Bound::Excluded(vec![next]),
        (true, None) => Bound::Unbounded,
    };
    (Bound::Included(begin(from)), above)
}

/// Decodes the key of a dirty-counter index entry.
pub fn to_touch(bytes: &[u8]) -> Option<Touch> {
    let (_, rest) = bytes.split_first()?;
    let (step, counter) = rest.split_first_chunk::<8>()?;
    Some(Touch { step: from_sortable(*step), counter: to_counter(counter)?, recheck: None })
}

/// Narrows a range to the keys above a key.
pub fn above(range: KeyRange, key: Vec<u8>) -> KeyRange {
    let inside = match &range.0 {
        Bound::Included(from) => *from <= key,
        Bound::Excluded(from) => *from < key,
        Bound::Unbounded => true,
    };
    if inside { (Bound::Excluded(key), range.1) } else { range }
}

/// Narrows a range to the keys below a key.
pub fn below(range: KeyRange, key: Vec<u8>) -> KeyRange {
    let inside = match &range.1 {
        Bound::Included(to) => key <= *to,
        Bound::Excluded(to) => key < *to,
        Bound::Unbounded => true,
    };
    if inside { (range.0, Bound::Excluded(key)) } else { range }
}

/// Returns whether a range is empty; the store library does not accept empty ranges.
pub fn is_empty(range: &KeyRange) -> bool {
    match range {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}

/// Encodes a time as bytes that sort as the time does.
pub fn to_sortable(time: Timestamp) -> [u8; 8] {
    (time.micros() as u64 ^ SIGN).to_be_bytes()
}

/// Decodes `to_sortable`.
pub fn from_sortable(bytes: [u8; 8]) -> Timestamp {
    Timestamp::from_micros((u64::from_be_bytes(bytes) ^ SIGN) as i64)
}

fn shard_byte(shard: u32) -> u8 {
    u8::try_from(shard).expect("there are 64 touch shards")
}

fn counter_from(namespace: u64, name: &[u8]) -> Option<Counter> {
    let name = CounterName::new(std::str::from_utf8(name).ok()?).ok()?;
    Some(Counter::new(NamespaceId(namespace), name))
}

fn event_key_from(bytes: &[u8]) -> Option<EventKey> {
    let (time, id) = bytes.split_first_chunk::<8>()?;
    Some(EventKey { time: from_sortable(*time), id: EventId::from_bytes(id)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counter() -> impl Strategy<Value = Counter> {
        (0..3_u64, "[a-c][a-c%~]{0,3}").prop_map(|(namespace, name)| {
            Counter::new(NamespaceId(namespace), CounterName::new(&name).expect("a valid name"))
        })
    }

    fn event_key() -> impl Strategy<Value = EventKey> {
        let time = prop_oneof![Just(i64::MIN), -3..3_i64, Just(i64::MAX)];
        (time, "[ab]{0,2}")
            .prop_map(|(micros, id)| EventKey { time: Timestamp::from_micros(micros), id: EventId::text(&id) })
    }

    proptest! {
        #[test]
        fn keys_of_events_sort_by_hash_namespace_name_time_and_id(
            one in counter(), one_key in event_key(), other in counter(), other_key in event_key()
        ) {
            let parts = |counter: &Counter, key: &EventKey| {
                (hash_of(counter), counter.namespace(), counter.name().clone(), key.clone())
            };
            prop_assert_eq!(
                of_event(&one, &one_key).cmp(&of_event(&other, &other_key)),
                parts(&one, &one_key).cmp(&parts(&other, &other_key))
            );
        }

        #[test]
        fn a_key_is_read_as_it_was_written(counter in counter(), key in event_key()) {
            let bytes = of_event(&counter, &key);
            prop_assert_eq!(to_event(&bytes), Some((counter.clone(), key.clone())));
            prop_assert_eq!(to_event_of(&counter, &bytes), Some(key.clone()));
            prop_assert_eq!(to_counter(&of_counter(&counter)), Some(counter.clone()));
            let touch = Touch { step: key.time, counter: counter.clone(), recheck: None };
            prop_assert_eq!(to_touch(&of_touch(&counter, key.time)), Some(touch));
        }

        #[test]
        fn a_range_of_times_holds_exactly_its_rows(
            counter in counter(), other in counter(), key in event_key(), from in -3..3_i64, to in -3..3_i64
        ) {
            let (from, to) = (Timestamp::from_micros(from), Timestamp::from_micros(to));
            for (from, to) in [(from, to), (Timestamp::MIN, to), (from, Timestamp::MAX)] {
                let expected = other == counter && from <= key.time && key.time <= to;
                let range = events(&counter, from, to);
                prop_assert_eq!(!is_empty(&range) && contains(&range, &of_event(&other, &key)), expected);
                let range = times(&counter, from, to);
                prop_assert_eq!(!is_empty(&range) && contains(&range, &of_time(&other, key.time)), expected);
            }
        }

        #[test]
        fn beyond_a_key_is_strictly_beyond(counter in counter(), at in event_key(), key in event_key()) {
            let all = || events(&counter, Timestamp::MIN, Timestamp::MAX);
            let bytes = of_event(&counter, &key);
            prop_assert_eq!(contains(&above(all(), of_event(&counter, &at)), &bytes), key > at);
            prop_assert_eq!(contains(&below(all(), of_event(&counter, &at)), &bytes), key < at);
        }
    }

    fn contains(range: &KeyRange, key: &[u8]) -> bool {
        let above = match &range.0 {
            Bound::Included(from) => key >= from.as_slice(),
            Bound::Excluded(from) => key > from.as_slice(),
            Bound::Unbounded => true,
        };
        let below = match &range.1 {
            Bound::Included(to) => key <= to.as_slice(),
            Bound::Excluded(to) => key < to.as_slice(),
            Bound::Unbounded => true,
        };
        above && below
    }
}
