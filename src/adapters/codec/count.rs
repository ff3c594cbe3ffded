//! The encoding of a count in a cache that several servers share.

use prost::Message;

use super::{CorruptValue, decode, pair_from, pair_of, wide_from, wide_of};
use tallystone_domain::Timestamp;
use tallystone_domain::rollup::CachedCount;
use tallystone_proto::internal::v1::StoredCount;

/// Encodes a count. The result is never empty, because an empty value is a placeholder.
pub fn encode_count(value: &CachedCount) -> Vec<u8> {
    StoredCount {
        count: Some(wide_of(value.count)),
        as_of: value.as_of.micros(),
        last_event_time: value.last_event_time.map(Timestamp::micros),
        clear: value.clear.as_ref().map(pair_of),
        last_write_time: value.last_write_time.map(Timestamp::micros),
        checked_at: value.checked_at.map(Timestamp::micros),
    }
    .encode_to_vec()
}

/// Decodes a count. A count without `checked_at` is refused: it would claim to be the current value of the store.
pub fn decode_count(bytes: &[u8]) -> Result<CachedCount, CorruptValue> {
    const WHAT: &str = "count";
    let stored: StoredCount = decode(WHAT, bytes)?;
    let checked_at = stored.checked_at.ok_or_else(|| CorruptValue::new(WHAT, "no time at which it was read"))?;
    Ok(CachedCount {
        count: wide_from(WHAT, stored.count)?,
        as_of: Timestamp::from_micros(stored.as_of),
        last_event_time: stored.last_event_time.map(Timestamp::from_micros),
        clear: stored.clear.map(|pair| pair_from(WHAT, pair)).transpose()?,
        last_write_time: stored.last_write_time.map(Timestamp::from_micros),
        checked_at: Some(Timestamp::from_micros(checked_at)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use tallystone_domain::counter::{EventId, EventKey};

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            count in any::<i128>(),
            as_of in any::<i64>(),
            times in any::<[Option<i64>; 2]>(),
            clear in proptest::option::of((any::<i64>(), "[a-z]{1,9}")),
            checked_at in any::<i64>(),
        ) {
            let key = |(time, id): (i64, String)| EventKey { time: Timestamp::from_micros(time), id: EventId::text(&id) };
            let value = CachedCount {
                count,
                as_of: Timestamp::from_micros(as_of),
                last_event_time: times[0].map(Timestamp::from_micros),
                clear: clear.map(key),
                last_write_time: times[1].map(Timestamp::from_micros),
                checked_at: Some(Timestamp::from_micros(checked_at)),
            };
            prop_assert!(!encode_count(&value).is_empty());
            prop_assert_eq!(decode_count(&encode_count(&value)), Ok(value));
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode_count(&bytes);
        }
    }

    #[test]
    fn a_value_that_says_no_time_of_reading_is_none_of_ours() {
        assert!(decode_count(&[]).is_err());
        let coherent = CachedCount {
            count: 1,
            as_of: Timestamp::MIN,
            last_event_time: None,
            clear: None,
            last_write_time: None,
            checked_at: None,
        };
        assert!(decode_count(&encode_count(&coherent)).is_err());
    }
}
