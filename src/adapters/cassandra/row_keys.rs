//! The buckets of an event: pure functions of its key and of settings that its slice froze, so a retry always writes
//! the same row.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, DatasetId, EventId, EventKey, NamespaceId};
use tallystone_domain::namespace::TimePartition;

/// The time bucket and the event bucket of an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BucketKey {
    /// The beginning of the time bucket.
    pub time_bucket: Timestamp,
    /// The event bucket, below the `buckets_per_id` of its counter.
    pub event_bucket: i32,
}

pub fn bucket_key_of(key: &EventKey, partition: TimePartition) -> BucketKey {
    let bucket = xxh3_64(&key.id.to_bytes()) % u64::from(partition.buckets_per_id.max(1));
    BucketKey {
        time_bucket: key.time.floor_to(bucket_width(partition)),
        event_bucket: i32::try_from(bucket).expect("there are at most a few hundred event buckets"),
    }
}

pub fn bucket_width(partition: TimePartition) -> Duration {
    Duration::from_secs(u64::from(partition.seconds_per_bucket))
}

/// Returns the stored form of a dataset's number.
pub fn stored_dataset(dataset: DatasetId) -> i64 {
    i64::from(dataset.0)
}

/// Returns the stored form of a touch shard's number.
pub fn stored_shard(shard: u32) -> i32 {
    i32::try_from(shard).expect("there are few shards")
}

/// Returns the stored form of a namespace's number. Numbers are assigned in sequence, so none has the highest bit.
pub fn stored_namespace(namespace: NamespaceId) -> i64 {
    namespace.0.cast_signed()
}

/// Returns the columns that name a counter.
pub fn stored_counter(counter: &Counter) -> (i64, &str) {
    (stored_namespace(counter.namespace()), counter.name().as_str())
}

/// Encodes the key of a clear register. The bytes sort as keys do, because stores resolve a tie of timestamps in favour
/// of the greater value.
pub fn stored_key(key: &EventKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + key.id.stored_len());
    bytes.extend_from_slice(&(key.time.micros() ^ i64::MIN).to_be_bytes());
    key.id.write_to(&mut bytes);
    bytes
}

/// Decodes the key of a clear register; none if the bytes are malformed.
pub fn key_from(bytes: &[u8]) -> Option<EventKey> {
    let (time, id) = bytes.split_first_chunk::<8>()?;
    let time = Timestamp::from_micros(i64::from_be_bytes(*time) ^ i64::MIN);
    Some(EventKey { time, id: EventId::from_bytes(id)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(time: i64, id: u8) -> EventKey {
        let id = if id == 0 { EventId::Uuid([7; 16]) } else { EventId::text(&"b".repeat(usize::from(id))) };
        EventKey { time: Timestamp::from_micros(time), id }
    }

    proptest! {
        #[test]
        fn registers_sort_as_keys_and_come_back(a in (any::<i64>(), 0_u8..5), b in (any::<i64>(), 0_u8..5)) {
            let (a, b) = (key(a.0, a.1), key(b.0, b.1));
            prop_assert_eq!(stored_key(&a).cmp(&stored_key(&b)), a.cmp(&b));
            prop_assert_eq!(key_from(&stored_key(&a)), Some(a));
        }

        #[test]
        fn a_place_holds_its_event(time in any::<i32>(), id in 0_u8..200, buckets_per_id in 1_u32..9) {
            let key = key(i64::from(time) * 1_000, id);
            let place = bucket_key_of(&key, TimePartition { buckets_per_id, seconds_per_bucket: 20 });
            prop_assert!(place.time_bucket <= key.time && key.time < place.time_bucket + Duration::from_secs(20));
            prop_assert!((0..i32::try_from(buckets_per_id).expect("small")).contains(&place.event_bucket));
        }
    }
}
