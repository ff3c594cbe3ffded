//! Encoding of the stubs of a page: column by column, because a start reads millions of them.

use prost::Message as _;

use super::super::{CorruptValue, decode};
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::index::stubs::Stub;
use tallystone_domain::queue::messages::id_hash::IdHash;
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::time::Timestamp;
use tallystone_proto::internal::v1::StoredStubPage;

const WHAT: &str = "page of finished messages";
/// The sequences of a page.
const PAGE: u64 = u64::BITS as u64;
/// The value in place of a time for a token without one.
const NO_TIME: i64 = i64::MIN;

/// Encodes the stubs of a page, in the order of their sequences. Their shard and the page are in its key.
pub fn encode_stub_page(stubs: &[Stub]) -> Vec<u8> {
    let mut page = StoredStubPage::default();
    let count = stubs.len();
    page.ids.reserve(16 * count);
    for stub in stubs {
        let Stub {
            key: MessageKey { shard: _, epoch, sequence },
            state,
            first_state,
            id,
            fingerprint,
            delete_at,
            token_time,
            payload_bytes,
            version,
            attempt,
            key_set,
            is_routed,
        } = *stub;
        let bit = 1 << (sequence % PAGE);
        let masks = [
            (&mut page.finished, true),
            (&mut page.errored, state == MessageState::Errored),
            (&mut page.canceled, state == MessageState::Canceled),
            (&mut page.routed, is_routed),
            (&mut page.pending, first_state == MessageState::Pending),
        ];
        masks.into_iter().filter(|(_, is_so)| *is_so).for_each(|(mask, _)| *mask |= bit);
        page.epoch = epoch;
        page.ids.extend_from_slice(&id.0.to_be_bytes());
        page.fingerprints.push(fingerprint);
        page.delete_at.push(delete_at.micros());
        page.token_times.push(token_time.map_or(NO_TIME, Timestamp::micros));
        page.payload_bytes.push(payload_bytes);
        page.versions.push(version);
        page.attempts.push(attempt);
        page.key_sets.push(key_set);
    }
    page.encode_to_vec()
}

/// Decodes the stubs of a page of a shard.
pub fn decode_stub_page(shard: u32, number: u64, bytes: &[u8]) -> Result<Vec<Stub>, CorruptValue> {
    let page: StoredStubPage = decode(WHAT, bytes)?;
    let count = page.finished.count_ones() as usize;
    let lengths = [
        page.ids.len() / 16,
        page.fingerprints.len(),
        page.delete_at.len(),
        page.token_times.len(),
        page.payload_bytes.len(),
        page.versions.len(),
        page.attempts.len(),
        page.key_sets.len(),
    ];
    let marks = page.errored | page.canceled | page.routed | page.pending;
    let is_whole = lengths.iter().all(|length| *length == count) && page.ids.len().is_multiple_of(16);
    if !is_whole || marks & !page.finished != 0 || page.errored & page.canceled != 0 {
        return Err(CorruptValue::new(WHAT, format!("page {number} has parts that do not fit together")));
    }
    let Some(first) = number.checked_mul(PAGE) else {
        return Err(CorruptValue::new(WHAT, format!("page {number} is beyond the last sequence")));
    };
    let mut places = (0..PAGE).filter(|place| page.finished >> place & 1 != 0);
    let ids =
        page.ids.chunks_exact(16).map(|id| IdHash(id.iter().fold(0, |whole, byte| whole << 8 | u128::from(*byte))));
    let stub = |(at, id): (usize, IdHash)| {
        let place = places.next().unwrap_or_default(); // there are as many as ids
        let has = |mask: u64| mask >> place & 1 != 0;
        let state = match (has(page.errored), has(page.canceled)) {
            (true, _) => MessageState::Errored,
            (false, true) => MessageState::Canceled,
            (false, false) => MessageState::Completed,
        };
        Stub {
            key: MessageKey { shard, epoch: page.epoch, sequence: first + place },
            state,
            first_state: if has(page.pending) { MessageState::Pending } else { MessageState::Invisible },
            id,
            fingerprint: page.fingerprints[at],
            delete_at: Timestamp::from_micros(page.delete_at[at]),
            token_time: Some(page.token_times[at]).filter(|time| *time != NO_TIME).map(Timestamp::from_micros),
            payload_bytes: page.payload_bytes[at],
            version: page.versions[at],
            attempt: page.attempts[at],
            key_set: page.key_sets[at],
            is_routed: has(page.routed),
        }
    };
    Ok(ids.enumerate().map(stub).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stub(place: u64, state: MessageState) -> Stub {
        Stub {
            key: MessageKey { shard: 3, epoch: 7, sequence: 5 * PAGE + place },
            state,
            first_state: if place.is_multiple_of(2) { MessageState::Pending } else { MessageState::Invisible },
            id: IdHash(u128::MAX - u128::from(place)),
            fingerprint: u64::MAX - place,
            delete_at: Timestamp::from_secs(1_700_000_000),
            token_time: (place != 9).then(|| Timestamp::from_micros(-7)),
            payload_bytes: 32_768,
            version: 70_000,
            attempt: 10_000,
            key_set: 64,
            is_routed: place == 9,
        }
    }

    fn stubs() -> Vec<Stub> {
        let states = [MessageState::Completed, MessageState::Canceled, MessageState::Errored];
        [0, 9, 63].into_iter().zip(states).map(|(place, state)| stub(place, state)).collect()
    }

    #[test]
    fn a_page_is_read_as_it_was_stored() {
        assert_eq!(decode_stub_page(3, 5, &encode_stub_page(&stubs())), Ok(stubs()));
        assert_eq!(decode_stub_page(3, 5, &[]), Ok(Vec::new()));
    }

    #[test]
    fn parts_that_do_not_fit_together_are_damaged() {
        let damaged = |change: fn(&mut StoredStubPage)| {
            let mut page: StoredStubPage = decode(WHAT, &encode_stub_page(&stubs())).expect("whole");
            change(&mut page);
            let read = decode_stub_page(3, 5, &page.encode_to_vec());
            read.is_err_and(|why| why.to_string().contains("page 5"))
        };
        assert!(!damaged(|_| ()));
        assert!(damaged(|page| page.finished |= 2) && damaged(|page| page.errored |= 2));
        assert!(damaged(|page| page.errored = page.canceled) && damaged(|page| page.ids.truncate(40)));
        assert!(damaged(|page| page.versions.truncate(2)) && damaged(|page| page.key_sets.push(0)));
        assert!(decode_stub_page(3, 5, &[7]).is_err(), "a cut value");
        let beyond = decode_stub_page(3, u64::MAX / 2, &encode_stub_page(&stubs()));
        assert!(beyond.is_err_and(|why| why.to_string().contains("beyond the last sequence")));
    }
}
