//! The keys of queues, big endian; signed numbers have the sign bit flipped. A place begins where neighbours differ.
//!
//! ```text
//! queue.shards    c                                             moment of the last commit, on all clocks
//!                 e queue u128 shard u32 session u128           a session
//!                 g queue u128 shard u32 kind u8 signature      counts of an error signature
//!                 h queue u128 shard u32                        header of a shard
//!                 k queue u128 shard u32 length u8 key kind u8 value    counts of a value of a metadata key
//!                 q queue u128                                  a queue, including dropped ones
//!                 s queue u128 shard u32                        settings of a shard
//!                 v queue u128 shard u32 value; i               limit u32 of an exclusivity value; key that hashes ids
//! queue.heads     place                                         head of a message that is not over
//! queue.over      page-place place-in-page u8                   head of a message that is over
//! queue.stubs     p page-place; d page-place                    stubs of a page; d: they have changed since
//! queue.bodies    place                                         body of a message
//! queue.answers.T queue u128 shard u32 time i64 hash u128       first answer to a token; T: second of its bucket
//! queue.outbox    queue u128 shard u32 epoch u32 last u64 first u64    rows of one commit in a shard, by position
//! kind            0 an own value, 1 none, 2 other, 3 gone
//! place           low half of the sequence u32 | queue u128 | shard u32 | high half u32; page-place: of a page
//! ```

use std::ops::Bound;

use crate::disk::key::{KeyRange, from_sortable, to_sortable};
use tallystone_domain::Timestamp;
use tallystone_domain::queue::counter_names::CountedValue;
use tallystone_domain::queue::messages::id_hash::IdHash;
use tallystone_domain::queue::messages::message::{RoutingValue, SessionId};
use tallystone_domain::queue::transition::RowPosition;
use tallystone_domain::queue::{QueueId, ShardId};

/// Key of the moment of the last commit.
pub const CLOCK: &[u8] = b"c";

/// Key of the key under which ids are hashed.
pub const ID_KEY: &[u8] = b"i";

/// Key of a queue.
pub fn of_queue(queue: QueueId) -> Vec<u8> {
    [&b"q"[..], &queue.0.to_be_bytes()].concat()
}

/// Key of the header of a shard.
pub fn of_header(shard: ShardId) -> Vec<u8> {
    tagged(b'h', shard)
}

/// Key of the settings of a shard.
pub fn of_settings(shard: ShardId) -> Vec<u8> {
    tagged(b's', shard)
}

/// Key of the limit of an exclusivity value.
pub fn of_value_limit(shard: ShardId, value: &RoutingValue) -> Vec<u8> {
    [&tagged(b'v', shard)[..], value.as_str().as_bytes()].concat()
}

/// Decodes the key of the limit of an exclusivity value.
pub fn to_value_limit(key: &[u8]) -> Option<(ShardId, RoutingValue)> {
    let (shard, value) = split_shard(key.get(1..)?)?;
    Some((shard, RoutingValue::new(std::str::from_utf8(value).ok()?).ok()?))
}

/// Key of a session.
pub fn of_session(shard: ShardId, session: SessionId) -> Vec<u8> {
    [&tagged(b'e', shard)[..], &session.0.to_be_bytes()].concat()
}

/// Decodes the key of a session.
pub fn to_session(key: &[u8]) -> Option<(ShardId, SessionId)> {
    let (shard, session) = split_shard(key.get(1..)?)?;
    Some((shard, SessionId(u128::from_be_bytes(session.try_into().ok()?))))
}

/// Key of the counts of a value of a metadata key.
pub fn of_value_counts(shard: ShardId, metadata_key: &str, value: &CountedValue) -> Vec<u8> {
    let length = u8::try_from(metadata_key.len()).expect("metadata keys are short");
    let mut key = tagged(b'k', shard);
    key.push(length);
    key.extend_from_slice(metadata_key.as_bytes());
    push_counted(&mut key, value);
    key
}

/// Decodes the key of the counts of a value.
pub fn to_value_counts(key: &[u8]) -> Option<(ShardId, &str, CountedValue)> {
    let (shard, rest) = split_shard(key.get(1..)?)?;
    let (length, rest) = rest.split_first()?;
    let (metadata_key, value) = rest.split_at_checked(usize::from(*length))?;
    Some((shard, std::str::from_utf8(metadata_key).ok()?, to_counted(value)?))
}

/// Key of the counts of an error signature.
pub fn of_signature_counts(shard: ShardId, signature: &CountedValue) -> Vec<u8> {
    let mut key = tagged(b'g', shard);
    push_counted(&mut key, signature);
    key
}

/// Decodes the key of the counts of an error signature.
pub fn to_signature_counts(key: &[u8]) -> Option<(ShardId, CountedValue)> {
    let (shard, signature) = split_shard(key.get(1..)?)?;
    Some((shard, to_counted(signature)?))
}

/// The keys of a queue under a tag that begins the keys of its shards.
pub fn of_tag(tag: u8, queue: QueueId) -> KeyRange {
    let key = |number| tagged(tag, ShardId { queue, number });
    // No queue has u32::MAX shards, so the exclusive bound loses none.
    (Bound::Included(key(0)), Bound::Excluded(key(u32::MAX)))
}

fn push_counted(key: &mut Vec<u8>, value: &CountedValue) {
    match value {
        CountedValue::Own(own) => {
            key.push(0);
            key.extend_from_slice(own.as_bytes());
        }
        CountedValue::None => key.push(1),
        CountedValue::Other => key.push(2),
        CountedValue::Gone => key.push(3),
    }
}

fn to_counted(bytes: &[u8]) -> Option<CountedValue> {
    match bytes.split_first()? {
        (0, own) => Some(CountedValue::Own(std::str::from_utf8(own).ok()?.into())),
        (1, []) => Some(CountedValue::None),
        (2, []) => Some(CountedValue::Other),
        (3, []) => Some(CountedValue::Gone),
        _ => None, // written by no build
    }
}

pub fn all(tag: u8) -> KeyRange {
    (Bound::Included(vec![tag]), Bound::Excluded(vec![tag + 1]))
}

pub fn everything() -> KeyRange {
    (Bound::Unbounded, Bound::Unbounded)
}

/// Decodes the key of a queue.
pub fn to_queue(key: &[u8]) -> Option<QueueId> {
    Some(QueueId(u128::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

/// Decodes the key of a header or of settings.
pub fn to_shard(key: &[u8]) -> Option<ShardId> {
    let (shard, rest) = split_shard(key.get(1..)?)?;
    rest.is_empty().then_some(shard)
}

/// Key of the head and of the body of a message.
pub fn of_message(shard: ShardId, sequence: u64) -> [u8; 28] {
    let mut key = [0; 28];
    // The two halves of the sequence; the casts truncate on purpose.
    key[..4].copy_from_slice(&(sequence as u32).to_be_bytes());
    key[4..20].copy_from_slice(&shard.queue.0.to_be_bytes());
    key[20..24].copy_from_slice(&shard.number.to_be_bytes());
    key[24..].copy_from_slice(&((sequence >> 32) as u32).to_be_bytes());
    key
}

/// Decodes the key of a head or of a body.
pub fn to_message(key: &[u8]) -> Option<(ShardId, u64)> {
    let (low, rest) = key.split_first_chunk::<4>()?;
    let (shard, high) = split_shard(rest)?;
    let high: [u8; 4] = high.try_into().ok()?;
    Some((shard, u64::from(u32::from_be_bytes(high)) << 32 | u64::from(u32::from_be_bytes(*low))))
}

/// Key of the head of a message that is over.
pub fn of_over(shard: ShardId, sequence: u64) -> [u8; 29] {
    let mut key = [0; 29];
    key[..28].copy_from_slice(&of_message(shard, sequence / PAGE));
    key[28] = u8::try_from(sequence % PAGE).expect("a page has 64 sequences");
    key
}

/// Decodes the key of the head of a message that is over.
pub fn to_over(key: &[u8]) -> Option<(ShardId, u64)> {
    let (place, page_place) = key.split_last()?;
    let (shard, page) = to_message(page_place)?;
    (u64::from(*place) < PAGE).then_some((shard, page.checked_mul(PAGE)? + u64::from(*place)))
}

/// The heads of the messages of a page that are over.
pub fn over_in_page(shard: ShardId, page: u64) -> KeyRange {
    let place = of_message(shard, page);
    (Bound::Included([&place[..], &[0]].concat()), Bound::Included([&place[..], &[u8::MAX]].concat()))
}

/// The tags of the keys of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageTag {
    /// The stubs are not stored as they are now.
    Dirty = b'd' as isize,
    /// The stubs.
    Stubs = b'p' as isize,
}

/// Key of a page of stubs.
pub fn of_page(tag: PageTag, shard: ShardId, page: u64) -> Vec<u8> {
    [&[tag as u8][..], &of_message(shard, page)].concat()
}

/// Decodes the key of a page of stubs.
pub fn to_page(key: &[u8]) -> Option<(ShardId, u64)> {
    to_message(key.get(1..)?)
}

/// The sequences of a page.
const PAGE: u64 = 64;

/// Key of the first answer to a token.
pub fn of_answer(shard: ShardId, id: IdHash, time: Timestamp) -> Vec<u8> {
    let mut key = of_shard(shard);
    key.extend_from_slice(&to_sortable(time));
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

/// Decodes the key of the first answer to a token.
pub fn to_answer(key: &[u8]) -> Option<(ShardId, IdHash, Timestamp)> {
    let (shard, rest) = split_shard(key)?;
    let (time, rest) = rest.split_first_chunk::<8>()?;
    let id = u128::from_be_bytes(rest.try_into().ok()?);
    Some((shard, IdHash(id), from_sortable(*time)))
}

/// Key of the rows of a commit in a shard, from the first position to the last.
pub fn of_outbox(shard: ShardId, last: RowPosition, first: u64) -> Vec<u8> {
    let mut key = of_shard(shard);
    key.extend_from_slice(&last.epoch.to_be_bytes());
    key.extend_from_slice(&last.position.to_be_bytes());
    key.extend_from_slice(&first.to_be_bytes());
    key
}

/// Decodes the key of the rows of a commit in a shard.
pub fn to_outbox(key: &[u8]) -> Option<(ShardId, RowPosition, u64)> {
    let (shard, rest) = split_shard(key)?;
    let (epoch, rest) = rest.split_first_chunk::<4>()?;
    let (position, first) = rest.split_first_chunk::<8>()?;
    let last = RowPosition { epoch: u32::from_be_bytes(*epoch), position: u64::from_be_bytes(*position) };
    Some((shard, last, u64::from_be_bytes(first.try_into().ok()?)))
}

/// The commits of a shard whose last row is after a position.
pub fn outbox_after(shard: ShardId, after: RowPosition) -> KeyRange {
    let next = RowPosition { position: after.position + 1, ..after };
    let last = RowPosition { epoch: u32::MAX, position: u64::MAX };
    (Bound::Included(of_outbox(shard, next, 0)), Bound::Included(of_outbox(shard, last, u64::MAX)))
}

fn of_shard(shard: ShardId) -> Vec<u8> {
    [&shard.queue.0.to_be_bytes()[..], &shard.number.to_be_bytes()].concat()
}

fn tagged(tag: u8, shard: ShardId) -> Vec<u8> {
    [&[tag][..], &of_shard(shard)].concat()
}

fn split_shard(bytes: &[u8]) -> Option<(ShardId, &[u8])> {
    let (queue, rest) = bytes.split_first_chunk::<16>()?;
    let (number, rest) = rest.split_first_chunk::<4>()?;
    Some((ShardId { queue: QueueId(u128::from_be_bytes(*queue)), number: u32::from_be_bytes(*number) }, rest))
}

#[cfg(test)]
mod tests {
    use std::ops::RangeBounds as _;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_are_read_as_they_were_written(
            (queue, number, sequence, rows) in any::<(u128, u32, u64, u32)>(),
            micros in any::<i64>(),
            id in "[a-l][ -~]{0,63}",
            routing in proptest::option::of("[ -~]{1,256}"),
        ) {
            let shard = ShardId { queue: QueueId(queue), number };
            prop_assert_eq!(to_message(&of_message(shard, sequence)), Some((shard, sequence)));
            let last = RowPosition { epoch: rows, position: sequence };
            prop_assert_eq!(to_outbox(&of_outbox(shard, last, 7)), Some((shard, last, 7)));
            for value in [CountedValue::Own(id.as_str().into()), CountedValue::None, CountedValue::Other, CountedValue::Gone] {
                let key = of_value_counts(shard, &id, &value);
                prop_assert_eq!(to_value_counts(&key), Some((shard, &*id, value.clone())));
                prop_assert_eq!(to_signature_counts(&of_signature_counts(shard, &value)), Some((shard, value)));
            }
            prop_assert_eq!(to_shard(&of_header(shard)), Some(shard));
            prop_assert_eq!(to_shard(&of_settings(shard)), Some(shard));
            prop_assert_eq!(to_queue(&of_queue(shard.queue)), Some(shard.queue));
            let key = of_session(shard, SessionId(queue));
            prop_assert!(of_tag(b'e', shard.queue).contains(&key) || shard.number == u32::MAX);
            prop_assert_eq!(to_session(&key), Some((shard, SessionId(queue))));
            if let Some(value) = routing.as_deref().map(|value| RoutingValue::new(value).expect("a valid value")) {
                let key = of_value_limit(shard, &value);
                prop_assert!(of_tag(b'v', shard.queue).contains(&key) || shard.number == u32::MAX);
                prop_assert_eq!(to_value_limit(&key), Some((shard, value)));
            }
            prop_assert_eq!(to_over(&of_over(shard, sequence)), Some((shard, sequence)));
            prop_assert!(over_in_page(shard, sequence / PAGE).contains(&of_over(shard, sequence).to_vec()));
            prop_assert_eq!(to_page(&of_page(PageTag::Dirty, shard, sequence)), Some((shard, sequence)));
            let (id, time) = (IdHash(queue), Timestamp::from_micros(micros));
            prop_assert_eq!(to_answer(&of_answer(shard, id, time)), Some((shard, id, time)));
        }

        #[test]
        fn what_is_no_key_is_not_read_as_one(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some((shard, sequence)) = to_message(&bytes) {
                prop_assert_eq!(&of_message(shard, sequence)[..], &bytes[..]);
            }
            if let Some((shard, sequence)) = to_over(&bytes) {
                prop_assert_eq!(&of_over(shard, sequence)[..], &bytes[..]);
            }
            if let Some((shard, id, time)) = to_answer(&bytes) {
                prop_assert_eq!(&of_answer(shard, id, time)[..], &bytes[..]);
            }
            if let Some((shard, last, first)) = to_outbox(&bytes) {
                prop_assert_eq!(&of_outbox(shard, last, first)[..], &bytes[..]);
            }
        }
    }
}
