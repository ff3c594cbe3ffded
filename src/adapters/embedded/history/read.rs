//! Reads of the history. A read looks into each live period; see `HISTORY_PERIODS_MAX`.

use std::collections::{BTreeMap, BTreeSet};

use fjall::Keyspace;

use super::periods::HistoryPeriods;
use super::{hits, key};
use crate::disk::key::KeyRange;
use crate::disk::read::{RawRow, rows};
use crate::error::{ReadError, malformed_key};
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::queues::history::decode_rows;
use tallystone_domain::Timestamp;
use tallystone_domain::history::{HistoryCursor, HistoryGap, HistoryHit, HistoryTerm};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{QueueId, ShardId};
use tallystone_ports::ScanOrder;

/// Reads the rows of a message above a position, in the order of positions.
pub fn trace(
    periods: &HistoryPeriods,
    queue: QueueId,
    message: MessageKey,
    after: Option<RowPosition>,
    limit: usize,
) -> Result<Vec<HistoryRow>, ReadError> {
    let mut found = BTreeMap::new();
    for period in periods.newest_first(Timestamp::MAX) {
        for entry in rows(&period.rows, key::rows_after(queue, message, after), ScanOrder::OldestFirst) {
            for row in rows_of(message, &entry?)? {
                if Some(row.position()) > after {
                    found.insert(row.position(), row);
                }
            }
            while found.len() > limit {
                found.pop_last();
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Reads the row of a message with the greatest position.
pub fn last(periods: &HistoryPeriods, queue: QueueId, message: MessageKey) -> Result<Option<HistoryRow>, ReadError> {
    let mut newest: Option<HistoryRow> = None;
    // The clock of a shard may have gone back, so a newer period does not always have the newer row.
    for period in periods.newest_first(Timestamp::MAX) {
        let entry = rows(&period.rows, key::rows_after(queue, message, None), ScanOrder::NewestFirst).next();
        let found = entry.map(|entry| rows_of(message, &entry?)).transpose()?.unwrap_or_default();
        for row in found {
            if newest.as_ref().is_none_or(|newest| newest.position() < row.position()) {
                newest = Some(row);
            }
        }
    }
    Ok(newest)
}

/// Reads the messages that were enqueued under an id, the newest enqueue first.
pub fn lives(
    periods: &HistoryPeriods,
    queue: QueueId,
    id: &MessageId,
    limit: usize,
) -> Result<Vec<MessageKey>, ReadError> {
    let mut lives = Vec::new();
    for period in periods.newest_first(Timestamp::MAX) {
        for entry in rows(&period.lives, key::lives(queue, id), ScanOrder::OldestFirst) {
            if lives.len() >= limit {
                return Ok(lives);
            }
            let message = found_of(&entry?)?.message;
            if !lives.contains(&message) {
                lives.push(message);
            }
        }
    }
    Ok(lives)
}

/// Reads the rows with a term that lie before a row, newest first.
pub fn find(
    periods: &HistoryPeriods,
    queue: QueueId,
    term: &HistoryTerm,
    before: Option<HistoryHit>,
    limit: usize,
) -> Result<Vec<HistoryHit>, ReadError> {
    let to = before.map_or(Timestamp::MAX, |before| before.at);
    let mut found = Vec::new();
    for period in periods.newest_first(to) {
        if found.len() >= limit {
            break;
        }
        let pages = rows(&period.found, key::hits_until(queue, term, hits::span_end(to)), ScanOrder::OldestFirst);
        found.extend(newest_hits(pages, before, limit - found.len())?.into_iter().rev());
    }
    Ok(found)
}

/// The newest rows of pages that lie before a row. Pages come by their newest rows, newest first, and overlap.
fn newest_hits(
    pages: impl Iterator<Item = Result<RawRow, ReadError>>,
    before: Option<HistoryHit>,
    limit: usize,
) -> Result<BTreeSet<HistoryHit>, ReadError> {
    let place = |hit: &HistoryHit| (hit.at, hit.shard, hit.position);
    let mut newest = BTreeSet::new();
    for page in pages {
        let page = hits_of(&page?)?;
        let is_older = |oldest: &HistoryHit| page.first().is_some_and(|hit| hit < oldest);
        if newest.len() >= limit && newest.first().is_some_and(is_older) {
            break;
        }
        newest.extend(page.into_iter().filter(|hit| before.is_none_or(|before| place(hit) < place(&before))));
        while newest.len() > limit {
            newest.pop_first();
        }
    }
    Ok(newest)
}

/// Reads the gaps of a queue, newest first.
pub fn gaps(periods: &HistoryPeriods, queue: QueueId, limit: usize) -> Result<Vec<HistoryGap>, ReadError> {
    let keyspaces = periods.newest_first(Timestamp::MAX).into_iter().map(|period| period.lives);
    collect(
        keyspaces,
        || key::gaps(queue),
        limit,
        |(key, _)| key::to_gap(key).ok_or_else(|| malformed_key("gap of the history", key)),
    )
}

/// Reads the cursor of a shard.
pub fn cursor(state: &Keyspace, shard: ShardId) -> Result<Option<HistoryCursor>, ReadError> {
    let Some(value) = state.get(key::of_cursor(shard))? else { return Ok(None) };
    let (position, register) = key::to_position(&value)
        .ok_or_else(|| CorruptValue::new("cursor of the history", "a value that is too short"))?;
    Ok(Some(HistoryCursor { position, register: register.into() }))
}

/// The stored form of a cursor.
pub fn encode_cursor(cursor: &HistoryCursor) -> Vec<u8> {
    let mut value = Vec::with_capacity(12 + cursor.register.len());
    key::push_position(&mut value, cursor.position);
    value.extend_from_slice(&cursor.register);
    value
}

/// Reads entries of several keyspaces one after the other.
fn collect<T>(
    keyspaces: impl Iterator<Item = Keyspace>,
    keys: impl Fn() -> KeyRange,
    limit: usize,
    decode: impl Fn(&RawRow) -> Result<T, ReadError>,
) -> Result<Vec<T>, ReadError> {
    let mut found = Vec::new();
    for keyspace in keyspaces {
        if found.len() >= limit {
            break;
        }
        for entry in rows(&keyspace, keys(), ScanOrder::OldestFirst).take(limit - found.len()) {
            found.push(decode(&entry?)?);
        }
    }
    Ok(found)
}

fn rows_of(message: MessageKey, (_, value): &RawRow) -> Result<Vec<HistoryRow>, ReadError> {
    let found = decode_rows(message.shard, value)?;
    if found.is_empty() || found.iter().any(|row| row.transition.key != message) {
        return Err(CorruptValue::new("transition", "rows of another message").into());
    }
    Ok(found)
}

fn hits_of((key, value): &RawRow) -> Result<Vec<HistoryHit>, ReadError> {
    hits::decode(key, value).ok_or_else(|| malformed_key("row of the history", key))
}

fn found_of((key, value): &RawRow) -> Result<HistoryHit, ReadError> {
    key::to_found(key, value).ok_or_else(|| malformed_key("row of the history", key))
}
