//! The cursors of traces and searches as bytes, inside page tokens.

use tallystone_domain::Timestamp;
use tallystone_domain::history::HistoryHit;
use tallystone_domain::history::trace::{LifeCursor, OpenLease};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_engine::history::TraceCursor;

/// The flags before an optional position: there is none, there is one, or there is one of a lease that has expired.
const NONE: u8 = 0;
const RUNNING: u8 = 1;
const EXPIRED: u8 = 2;

/// Writes the cursor of a trace.
pub fn write_trace(cursor: &TraceCursor) -> Vec<u8> {
    let LifeCursor { after, version, is_contiguous, lease } = cursor.at;
    let mut bytes = Vec::new();
    put_key(&mut bytes, cursor.life);
    put_position(&mut bytes, after.map_or(NONE, |_| RUNNING), after.unwrap_or_default());
    bytes.extend(version.to_be_bytes());
    bytes.push(u8::from(is_contiguous));
    let flag = lease.map_or(NONE, |lease| if lease.expired { EXPIRED } else { RUNNING });
    put_position(&mut bytes, flag, lease.map(|lease| lease.row).unwrap_or_default());
    bytes
}

/// Reads the cursor of a trace.
pub fn read_trace(bytes: &[u8]) -> Option<TraceCursor> {
    let mut rest = bytes;
    let life = take_key(&mut rest)?;
    let (has_after, after) = take_position(&mut rest)?;
    let version = u64::from_be_bytes(take(&mut rest)?);
    let [is_contiguous] = take(&mut rest)?;
    let (flag, row) = take_position(&mut rest)?;
    let lease = (flag != NONE).then_some(OpenLease { row, expired: flag == EXPIRED });
    let after = (has_after != NONE).then_some(after);
    let at = LifeCursor { after, version, is_contiguous: is_contiguous != 0, lease };
    rest.is_empty().then_some(TraceCursor { life, at })
}

/// Writes the last hit of a page of a search.
pub fn write_hit(hit: &HistoryHit) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(hit.at.micros().to_be_bytes());
    bytes.extend(hit.shard.to_be_bytes());
    put_position(&mut bytes, RUNNING, hit.position);
    put_key(&mut bytes, hit.message);
    bytes
}

/// Reads the last hit of a page of a search.
pub fn read_hit(bytes: &[u8]) -> Option<HistoryHit> {
    let mut rest = bytes;
    let at = Timestamp::from_micros(i64::from_be_bytes(take(&mut rest)?));
    let shard = u32::from_be_bytes(take(&mut rest)?);
    let (_, position) = take_position(&mut rest)?;
    let message = take_key(&mut rest)?;
    rest.is_empty().then_some(HistoryHit { at, shard, position, message })
}

fn put_key(bytes: &mut Vec<u8>, key: MessageKey) {
    bytes.extend(key.shard.to_be_bytes());
    bytes.extend(key.epoch.to_be_bytes());
    bytes.extend(key.sequence.to_be_bytes());
}

fn take_key(rest: &mut &[u8]) -> Option<MessageKey> {
    let shard = u32::from_be_bytes(take(rest)?);
    let epoch = u32::from_be_bytes(take(rest)?);
    Some(MessageKey { shard, epoch, sequence: u64::from_be_bytes(take(rest)?) })
}

fn put_position(bytes: &mut Vec<u8>, flag: u8, place: RowPosition) {
    bytes.push(flag);
    bytes.extend(place.epoch.to_be_bytes());
    bytes.extend(place.position.to_be_bytes());
}

fn take_position(rest: &mut &[u8]) -> Option<(u8, RowPosition)> {
    let [flag] = take(rest)?;
    let epoch = u32::from_be_bytes(take(rest)?);
    Some((flag, RowPosition { epoch, position: u64::from_be_bytes(take(rest)?) }))
}

fn take<const BYTES: usize>(rest: &mut &[u8]) -> Option<[u8; BYTES]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

/// Writes the index of the next finding.
pub fn write_index(index: usize) -> Vec<u8> {
    (index as u64).to_be_bytes().to_vec()
}

/// Reads the index of the next finding.
pub fn read_index(cursor: &[u8]) -> Option<usize> {
    usize::try_from(u64::from_be_bytes(cursor.try_into().ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: MessageKey = MessageKey { shard: 3, epoch: 1, sequence: u64::MAX };
    const PLACE: RowPosition = RowPosition { epoch: 7, position: 9 };

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let leases =
            [None, Some(OpenLease { row: PLACE, expired: false }), Some(OpenLease { row: PLACE, expired: true })];
        for (after, lease) in [None, Some(PLACE)].into_iter().flat_map(|after| leases.map(|lease| (after, lease))) {
            let at = LifeCursor { after, version: 4, is_contiguous: lease.is_none(), lease };
            let cursor = TraceCursor { life: KEY, at };
            assert_eq!(read_trace(&write_trace(&cursor)), Some(cursor));
        }
        let hit = HistoryHit { at: Timestamp::from_micros(-5), shard: 3, position: PLACE, message: KEY };
        assert_eq!(read_hit(&write_hit(&hit)), Some(hit));
    }

    #[test]
    fn bytes_of_another_length_are_no_cursor() {
        let hit = HistoryHit { at: Timestamp::from_micros(5), shard: 3, position: PLACE, message: KEY };
        let trace = write_trace(&TraceCursor { life: KEY, at: LifeCursor::default() });
        for length in 0..trace.len() {
            assert_eq!(read_trace(&trace[..length]), None);
        }
        assert_eq!(read_trace(&[&trace[..], &[0]].concat()), None);
        assert_eq!(read_hit(&[&write_hit(&hit)[..], &[0]].concat()), None);
        assert_eq!(read_hit(&[]), None);
    }
}
