//! Pages of the rows that have a term. A row has an entry for each of its terms, so pages instead of single entries
//! spare most of what the history writes.
//!
//! ```text
//! value   message hit*                 the message of the newest row, then the other rows, newest first
//! hit     time position epoch sequence of the row, the row, the message and the message: how far each lies below
//!                                      that of the row before, as a varint. All but the time are signed
//! ```
//! A page has rows of one shard, one epoch and one `SPAN` of time, so a search for rows before one need not read newer
//! spans. A batch that is written again may cut its pages elsewhere. So the key of a page names all of its rows, by a
//! hash of its value, and no page takes the place of one with other rows. Readers drop what they find twice.

use std::time::Duration;

use hashbrown::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::key;
use crate::limits::HISTORY_HITS_MAX;
use tallystone_domain::history::{HistoryHit, HistoryTerm};
use tallystone_domain::queue::QueueId;
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_domain::time::Timestamp;

/// The rows of a page lie in one such span, counted from 1970.
const SPAN: Duration = Duration::from_secs(1);

/// The rows of one shard by period, term, epoch and span.
#[derive(Default)]
pub struct HitGroups(HashMap<HitGroup, Vec<HistoryHit>>);

#[derive(PartialEq, Eq, Hash)]
struct HitGroup {
    period: Timestamp,
    term: HistoryTerm,
    epoch: u32,
    span: Timestamp,
}

impl HitGroups {
    /// Adds a row with a term.
    pub fn add(&mut self, period: Timestamp, term: HistoryTerm, hit: HistoryHit) {
        let group = HitGroup { period, term, epoch: hit.position.epoch, span: hit.at.floor_to(SPAN) };
        self.0.entry(group).or_default().push(hit);
    }

    /// Calls `push` with each page: its period, its term, and its rows, newest first.
    pub fn into_pages(self, mut push: impl FnMut(Timestamp, &HistoryTerm, &[HistoryHit])) {
        for (group, mut hits) in self.0 {
            hits.sort_unstable_by(|one, other| other.cmp(one));
            hits.dedup();
            hits.chunks(HISTORY_HITS_MAX).for_each(|page| push(group.period, &group.term, page));
        }
    }
}

/// No page with a row before this time has a row that is newer than the time returned.
pub fn span_end(before: Timestamp) -> Timestamp {
    before.floor_to(SPAN) + SPAN
}

/// Key and value of a page: at least one row, newest first, of one shard, epoch and span.
pub fn encode(queue: QueueId, term: &HistoryTerm, hits: &[HistoryHit]) -> (Vec<u8>, Vec<u8>) {
    let first = hits.first().expect("a page has a row");
    let mut value = key::message_value(first.message);
    for [newer, hit] in hits.array_windows() {
        key::push_varint(&mut value, newer.at.micros().abs_diff(hit.at.micros()));
        key::push_varint(&mut value, distance(newer.position.position, hit.position.position));
        key::push_varint(&mut value, distance(newer.message.epoch.into(), hit.message.epoch.into()));
        key::push_varint(&mut value, distance(newer.message.sequence, hit.message.sequence));
    }
    let mut key = key::of_hits(queue, term, first);
    if hits.len() > 1 {
        key.extend_from_slice(&xxh3_64(&value).to_be_bytes());
    }
    (key, value)
}

/// Decodes a page. The newest row comes first.
pub fn decode(key: &[u8], value: &[u8]) -> Option<Vec<HistoryHit>> {
    let (message, mut rest) = value.split_at_checked(key::MESSAGE_BYTES)?;
    let key = if rest.is_empty() {
        key
    } else {
        let (key, hash) = key.split_last_chunk()?;
        (u64::from_be_bytes(*hash) == xxh3_64(value)).then_some(key)?
    };
    let mut hit = key::to_found(key, message)?;
    let mut hits = vec![hit];
    while !rest.is_empty() {
        let mut next = || key::take_varint(&mut rest);
        let (time, position, epoch, sequence) = (next()?, next()?, next()?, next()?);
        let RowPosition { epoch: row_epoch, position: newer } = hit.position;
        let position = RowPosition { epoch: row_epoch, position: at_distance(newer, position) };
        let MessageKey { shard, epoch: newer_epoch, sequence: newer } = hit.message;
        let epoch = u32::try_from(at_distance(newer_epoch.into(), epoch)).ok()?;
        let message = MessageKey { shard, epoch, sequence: at_distance(newer, sequence) };
        let at = Timestamp::from_micros(hit.at.micros().checked_sub_unsigned(time)?);
        hit = HistoryHit { at, position, message, ..hit };
        hits.push(hit);
    }
    Some(hits)
}

/// How far a number lies below another one, with the sign in the lowest bit.
const fn distance(from: u64, below: u64) -> u64 {
    let signed = from.wrapping_sub(below).cast_signed();
    ((signed << 1) ^ (signed >> 63)).cast_unsigned()
}

const fn at_distance(from: u64, distance: u64) -> u64 {
    from.wrapping_sub((distance >> 1) ^ (distance & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::collections::BTreeSet;

    use super::*;

    const QUEUE: QueueId = QueueId(7);

    fn any_hit() -> impl Strategy<Value = HistoryHit> {
        let number = || prop_oneof![0..4_u64, any::<u64>()];
        let at = prop_oneof![0..3_000_000_i64, any::<i64>()];
        (at, number(), number(), 0..4_u32).prop_map(|(at, position, sequence, epoch)| HistoryHit {
            at: Timestamp::from_micros(at),
            shard: 3,
            position: RowPosition { epoch: 5 + epoch % 2, position },
            message: MessageKey { shard: 3, epoch, sequence },
        })
    }

    proptest! {
        #[test]
        fn pages_hold_each_row_once_and_say_where_to_look_for_it(hits in prop::collection::vec(any_hit(), 0..300)) {
            let mut groups = HitGroups::default();
            let add = |hit: &HistoryHit| groups.add(Timestamp::MIN, HistoryTerm::Enqueued, *hit);
            hits.iter().chain(hits.first()).for_each(add);
            let (mut found, mut keys) = (Vec::new(), BTreeSet::new());
            groups.into_pages(|_, term, page| {
                let (key, value) = encode(QUEUE, term, page);
                assert_eq!(decode(&key, &value).as_deref(), Some(page));
                assert!(page.is_sorted_by(|newer, hit| newer > hit) && page.len() <= HISTORY_HITS_MAX);
                for hit in page {
                    let range = key::hits_until(QUEUE, term, span_end(hit.at));
                    assert!(std::ops::RangeBounds::contains(&range, &key), "{hit:?} in {page:?}");
                }
                found.extend_from_slice(page);
                assert!(keys.insert(key), "a key for each page");
            });
            let sorted = |mut list: Vec<HistoryHit>| {
                list.sort_unstable();
                list
            };
            let mut wanted = sorted(hits);
            wanted.dedup();
            prop_assert_eq!(sorted(found), wanted);
        }

        #[test]
        fn a_page_with_other_rows_has_another_key_and_a_damaged_one_is_noticed(
            hits in prop::collection::vec(any_hit(), 2..9),
            damage in (0..200_usize, 1..=u8::MAX),
        ) {
            let mut groups = HitGroups::default();
            hits.iter().for_each(|hit| groups.add(Timestamp::MIN, HistoryTerm::Enqueued, *hit));
            groups.into_pages(|_, term, page| {
                let (key, value) = encode(QUEUE, term, page);
                for length in 1..page.len() {
                    assert_ne!(encode(QUEUE, term, &page[..length]).0, key);
                }
                if page.len() > 1 {
                    let mut damaged = value.clone();
                    damaged[damage.0 % value.len()] ^= damage.1;
                    assert_eq!(decode(&key, &damaged), None);
                    assert_eq!(decode(&key, &value[..value.len() - 1]), None);
                }
            });
        }
    }

    #[test]
    fn a_value_of_one_row_is_a_page() {
        let message = MessageKey { shard: 3, epoch: 1, sequence: 9 };
        let position = RowPosition { epoch: 1, position: 4 };
        let hit = HistoryHit { at: Timestamp::from_secs(5), shard: 3, position, message };
        let key = key::of_hits(QUEUE, &HistoryTerm::Enqueued, &hit);
        assert_eq!(encode(QUEUE, &HistoryTerm::Enqueued, &[hit]), (key.clone(), key::message_value(message)));
        assert_eq!(decode(&key, &key::message_value(message)), Some(vec![hit]));
        assert_eq!(decode(&key, &[key::message_value(message), vec![0]].concat()), None);
        assert_eq!((decode(&key, b""), decode(b"short", &key::message_value(message))), (None, None));
    }
}
