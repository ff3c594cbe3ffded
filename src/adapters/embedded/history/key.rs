//! The keys of the keyspaces of the history.
//!
//! ```text
//! history.T.P     queue u128 shard u32 sequence u64 epoch u32 last distance*    rows of one message in one batch
//! history.N.P     i queue u128 text place                         message that was enqueued under an id
//!                 g queue u128 ~time gap                          a gap; it ends at the time
//!                 n                                               the newest time of a row or gap in the period
//! history.F.P     queue u128 term place hash u64                  a page of rows with a term, by its newest row: see
//!                                                                 `hits`. One of a single row has no hash
//! history.state   c queue u128 shard u32                          cursor of a shard
//!                 s                                               time from which on no row has left
//! P               start of a period in microseconds
//! last distance   epoch u32 position u64 of the last of the rows; varint to the row before. They name the rows.
//! place           ~(time i64 shard u32 epoch u32 position u64): the newest row has the smallest key
//! gap             shard u32 epoch u32 from u64 to u64 from_time i64
//! term            1 | 2 state u8 | 3 signature text | 4 metadata key text, value text
//! text            its bytes after their number as a varint
//! message         epoch u32 sequence u64
//! ```
//! Numbers are big endian; signed numbers have the sign bit flipped; `~` flips every bit.

use std::ops::Bound;

use crate::disk::key::{KeyRange, from_sortable, to_sortable};
use tallystone_adapters::codec::queues::state_code;
use tallystone_domain::history::{HistoryGap, HistoryHit, HistoryTerm};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_domain::queue::{QueueId, ShardId};
use tallystone_domain::time::Timestamp;

/// Key of the newest time of a period.
pub const NEWEST: &[u8] = b"n";
/// Key of the time from which on no row has left.
pub const STARTS_AT: &[u8] = b"s";

const PLACE_BYTES: usize = 8 + 4 + 4 + 8;

/// Key of the cursor of a shard.
pub fn of_cursor(shard: ShardId) -> Vec<u8> {
    [&b"c"[..], &shard.queue.0.to_be_bytes(), &shard.number.to_be_bytes()].concat()
}

/// Key of rows of a message, by their positions in one epoch, oldest first. At least one.
pub fn of_rows(queue: QueueId, message: MessageKey, epoch: u32, positions: &[u64]) -> Vec<u8> {
    let (last, earlier) = positions.split_last().expect("a group has a row");
    let mut key = of_message(queue, message);
    push_position(&mut key, RowPosition { epoch, position: *last });
    let mut next = *last;
    for position in earlier.iter().rev() {
        push_varint(&mut key, next - position);
        next = *position;
    }
    key
}

/// The keys of the rows of a message whose last row lies after a position.
pub fn rows_after(queue: QueueId, message: MessageKey, after: Option<RowPosition>) -> KeyRange {
    let message = of_message(queue, message);
    let from = match after {
        // Keys with the same last row follow the position, which is the shortest of them.
        Some(RowPosition { epoch, position }) => {
            let mut from = message.clone();
            push_position(&mut from, RowPosition { epoch, position: position.saturating_add(1) });
            from
        }
        None => message.clone(),
    };
    (Bound::Included(from), end_of(message))
}

/// Key of a life under an id.
pub fn of_life(queue: QueueId, id: &MessageId, row: &HistoryHit) -> Vec<u8> {
    [of_id(queue, id), place_of(row)].concat()
}

/// The keys of the lives under an id, newest first.
pub fn lives(queue: QueueId, id: &MessageId) -> KeyRange {
    under(of_id(queue, id))
}

/// Key of a page of one row with a term; the begin of the key of a page with more, of which this is the newest.
pub fn of_hits(queue: QueueId, term: &HistoryTerm, newest: &HistoryHit) -> Vec<u8> {
    [term_of(queue, term), place_of(newest)].concat()
}

/// The keys of the pages whose newest row is not newer than a time, by their newest rows, newest first.
pub fn hits_until(queue: QueueId, term: &HistoryTerm, until: Timestamp) -> KeyRange {
    let term = term_of(queue, term);
    let from = [&term[..], &to_sortable(until).map(|byte| !byte)].concat();
    (Bound::Included(from), end_of(term))
}

/// Decodes the place at the end of a key, and the message of its row.
pub fn to_found(key: &[u8], message: &[u8]) -> Option<HistoryHit> {
    let (_, place) = key.split_last_chunk::<PLACE_BYTES>()?;
    let place = place.map(|byte| !byte);
    let (time, rest) = place.split_first_chunk::<8>()?;
    let (shard, rest) = rest.split_first_chunk::<4>()?;
    let (position, rest) = to_position(rest)?;
    let shard = u32::from_be_bytes(*shard);
    let message = to_message(shard, message)?;
    rest.is_empty().then(|| HistoryHit { at: from_sortable(*time), shard, position, message })
}

/// The bytes of the stored form of a message.
pub const MESSAGE_BYTES: usize = 4 + 8;

/// The stored form of the message of a row.
pub fn message_value(message: MessageKey) -> Vec<u8> {
    [&message.epoch.to_be_bytes()[..], &message.sequence.to_be_bytes()].concat()
}

/// Key of a gap.
pub fn of_gap(queue: QueueId, gap: &HistoryGap) -> Vec<u8> {
    let HistoryGap { shard, epoch, from_position, to_position, from_time, to_time } = gap;
    let mut key = of_gaps(queue);
    key.extend(to_sortable(*to_time).map(|byte| !byte));
    key.extend_from_slice(&shard.to_be_bytes());
    key.extend_from_slice(&epoch.to_be_bytes());
    key.extend_from_slice(&from_position.to_be_bytes());
    key.extend_from_slice(&to_position.to_be_bytes());
    key.extend_from_slice(&to_sortable(*from_time));
    key
}

/// The keys of the gaps of a queue, newest first.
pub fn gaps(queue: QueueId) -> KeyRange {
    under(of_gaps(queue))
}

/// Decodes the key of a gap.
pub fn to_gap(key: &[u8]) -> Option<HistoryGap> {
    let (to_time, rest) = key.get(1 + 16..)?.split_first_chunk::<8>()?;
    let (shard, rest) = rest.split_first_chunk::<4>()?;
    let (RowPosition { epoch, position: from_position }, rest) = to_position(rest)?;
    let (to_position, rest) = rest.split_first_chunk::<8>()?;
    Some(HistoryGap {
        shard: u32::from_be_bytes(*shard),
        epoch,
        from_position,
        to_position: u64::from_be_bytes(*to_position),
        from_time: from_sortable(rest.try_into().ok()?),
        to_time: from_sortable(to_time.map(|byte| !byte)),
    })
}

/// Appends a position.
pub fn push_position(bytes: &mut Vec<u8>, position: RowPosition) {
    bytes.extend_from_slice(&position.epoch.to_be_bytes());
    bytes.extend_from_slice(&position.position.to_be_bytes());
}

/// Decodes a position, and returns the bytes after it.
pub fn to_position(bytes: &[u8]) -> Option<(RowPosition, &[u8])> {
    let (epoch, rest) = bytes.split_first_chunk::<4>()?;
    let (position, rest) = rest.split_first_chunk::<8>()?;
    Some((RowPosition { epoch: u32::from_be_bytes(*epoch), position: u64::from_be_bytes(*position) }, rest))
}

fn of_message(queue: QueueId, message: MessageKey) -> Vec<u8> {
    let MessageKey { shard, epoch, sequence } = message;
    let mut key = Vec::with_capacity(64);
    key.extend_from_slice(&queue.0.to_be_bytes());
    key.extend_from_slice(&shard.to_be_bytes());
    key.extend_from_slice(&sequence.to_be_bytes());
    key.extend_from_slice(&epoch.to_be_bytes());
    key
}

fn to_message(shard: u32, bytes: &[u8]) -> Option<MessageKey> {
    let (epoch, sequence) = bytes.split_first_chunk::<4>()?;
    let sequence = u64::from_be_bytes(sequence.try_into().ok()?);
    Some(MessageKey { shard, epoch: u32::from_be_bytes(*epoch), sequence })
}

fn of_id(queue: QueueId, id: &MessageId) -> Vec<u8> {
    let mut key = [&b"i"[..], &queue.0.to_be_bytes()].concat();
    push_text(&mut key, &id.text());
    key
}

fn of_gaps(queue: QueueId) -> Vec<u8> {
    [&b"g"[..], &queue.0.to_be_bytes()].concat()
}

fn term_of(queue: QueueId, term: &HistoryTerm) -> Vec<u8> {
    let mut key = queue.0.to_be_bytes().to_vec();
    match term {
        HistoryTerm::Enqueued => key.push(1),
        HistoryTerm::Entered(state) => {
            key.extend([2, u8::try_from(state_code(*state)).expect("there are six states")]);
        }
        HistoryTerm::Error(signature) => {
            key.push(3);
            push_text(&mut key, signature);
        }
        HistoryTerm::Value { key: of, value } => {
            key.push(4);
            push_text(&mut key, of);
            push_text(&mut key, value);
        }
    }
    key
}

fn push_text(key: &mut Vec<u8>, text: &str) {
    push_varint(key, text.len() as u64);
    key.extend_from_slice(text.as_bytes());
}

fn place_of(row: &HistoryHit) -> Vec<u8> {
    let mut place = Vec::with_capacity(PLACE_BYTES);
    place.extend_from_slice(&to_sortable(row.at));
    place.extend_from_slice(&row.shard.to_be_bytes());
    push_position(&mut place, row.position);
    place.iter_mut().for_each(|byte| *byte = !*byte);
    place
}

fn under(prefix: Vec<u8>) -> KeyRange {
    (Bound::Included(prefix.clone()), end_of(prefix))
}

/// The end of the keys with a prefix. What follows the prefix is shorter than this end, or a smaller number.
fn end_of(mut prefix: Vec<u8>) -> Bound<Vec<u8>> {
    prefix.extend([u8::MAX; 64]);
    Bound::Included(prefix)
}

/// Appends a number in as many groups of seven bits as it needs, the lowest first.
pub fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes such a number from the start of the bytes.
pub fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let group = u64::from(byte & 0x7f);
        if group << shift >> shift != group {
            return None;
        }
        number |= group << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: QueueId = QueueId(7);

    fn found(at: i64, shard: u32, position: u64) -> HistoryHit {
        let message = MessageKey { shard, epoch: 3, sequence: position };
        HistoryHit { at: Timestamp::from_micros(at), shard, position: RowPosition { epoch: 2, position }, message }
    }

    #[test]
    fn keys_of_found_rows_go_from_the_newest_to_the_oldest() {
        let rows = [found(-5, 9, 9), found(0, 0, 7), found(0, 1, 1), found(0, 1, 2), found(i64::MAX, 0, 0)];
        let keys: Vec<Vec<u8>> = rows.iter().map(|row| of_hits(QUEUE, &HistoryTerm::Enqueued, row)).collect();
        assert!(keys.is_sorted_by(|one, next| one > next), "{keys:?}");
        for (row, key) in rows.iter().zip(&keys) {
            assert_eq!(to_found(key, &message_value(row.message)), Some(*row));
            assert_eq!(to_found(&key[1..], &message_value(row.message)).map(|found| found.at), Some(row.at));
            assert_eq!(to_found(key, b"short"), None);
        }
        assert_eq!(to_found(b"short", b""), None);
    }

    #[test]
    fn a_number_is_taken_as_it_was_appended() {
        for number in (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, u64::MAX >> bit]) {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, number);
            let mut rest = &bytes[..];
            assert_eq!((take_varint(&mut rest), rest.len()), (Some(number), 0));
            assert_eq!(take_varint(&mut &bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(take_varint(&mut &[&[0xff; 9][..], &[2]].concat()[..]), None, "more than 64 bits");
        assert_eq!(take_varint(&mut &[0x80; 12][..]), None, "no end");
    }

    #[test]
    fn no_term_begins_another_one() {
        let value = |key: &str, value: &str| HistoryTerm::Value { key: key.into(), value: value.into() };
        let error = |signature: &str| HistoryTerm::Error(signature.into());
        let terms = [error("a"), error("ab"), error(""), value("a", "bc"), value("ab", "c"), value("a", "b")];
        for one in &terms {
            for other in terms.iter().filter(|other| *other != one) {
                assert!(!term_of(QUEUE, one).starts_with(&term_of(QUEUE, other)), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_gap_is_read_from_its_key() {
        let (from_time, to_time) = (Timestamp::from_secs(-1), Timestamp::from_secs(9));
        let gap = HistoryGap { shard: 3, epoch: 2, from_position: 1 << 40, to_position: u64::MAX, from_time, to_time };
        let key = of_gap(QUEUE, &gap);
        assert_eq!(to_gap(&key), Some(gap));
        assert_eq!(to_gap(&key[..key.len() - 1]), None);
    }

    #[test]
    fn the_key_of_rows_names_exactly_these() {
        let message = MessageKey { shard: 1, epoch: 1, sequence: 1 };
        let sets: [&[u64]; 6] = [&[9], &[8, 9], &[7, 9], &[7, 8, 9], &[1, 9], &[1, 300, 309]];
        let keys: Vec<Vec<u8>> = sets.iter().map(|set| of_rows(QUEUE, message, 1, set)).collect();
        for (at, key) in keys.iter().enumerate() {
            assert!(keys.iter().skip(at + 1).all(|other| other != key), "{:?}", sets[at]);
        }
        let range = |position| rows_after(QUEUE, message, Some(RowPosition { epoch: 1, position }));
        let within = |range: &KeyRange, key: &Vec<u8>| std::ops::RangeBounds::contains(range, key);
        assert!(keys.iter().all(|key| within(&range(8), key)));
        assert_eq!(keys.iter().filter(|key| within(&range(9), key)).count(), 1);
    }
}
