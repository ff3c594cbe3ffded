//! The header of a shard, and its record of a session, as the library stores them.

use super::packed::PackedReader;
use super::stored_message::{read_call, read_session};
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::{Ending, SessionRecord};
use tallystone_domain::queue::totals::{Total, Totals};
use tallystone_domain::time::Timestamp;

/// The format of the headers that this release reads.
const FORMAT: u8 = 4;
/// In place of the format: the shard was dropped.
const DROPPED: u8 = 255;

/// The content of a header.
#[derive(Clone, Copy, Debug)]
pub struct StoredShardHeader {
    pub sequence: u64,
    pub epoch: u32,
    /// The step of its last change.
    pub step: u64,
    pub position: u64,
    pub totals: Totals,
    /// Whether its queue was deleted.
    pub deleted: bool,
}

/// Reads a header; none for a shard that was dropped.
pub fn read_header(bytes: &[u8]) -> Result<Option<StoredShardHeader>, CorruptValue> {
    let mut reader = PackedReader::new("header of a shard", bytes);
    reader.byte()?; // the mark, which only the library judges
    match reader.byte()? {
        DROPPED => return Ok(None),
        FORMAT => {}
        other => return Err(reader.corrupt(format!("format {other}"))),
    }
    let (sequence, _serial) = (reader.whole()?, reader.whole()?);
    let (_flags, _number, epoch) = (reader.byte()?, reader.u32()?, reader.u32()?);
    let _version = reader.whole()?;
    let [_clock, _age] = [0; 2].map(|_: i32| reader.signed());
    let step = reader.whole()?;
    let [_arrived, _moved, _floor] = [0; 3].map(|_: i32| reader.signed());
    let position = reader.whole()?;
    let mut totals = [Total::default(); MessageState::ALL.len()];
    for total in &mut totals {
        *total = Total { messages: reader.whole()?, bytes: reader.whole()? };
    }
    let [_ids, _buckets, _records, _outlived, _oldest, _sessions] = [0; 6].map(|_: i32| reader.signed());
    let deleted = reader.signed()? >= 0;
    Ok(Some(StoredShardHeader { sequence, epoch, step, position, totals: Totals::of_states(totals), deleted }))
}

/// Reads the id of a session that stands alone.
pub fn read_session_id(bytes: &[u8]) -> Result<SessionId, CorruptValue> {
    read_session(&mut PackedReader::new("session id", bytes))
}

/// Reads the record of a session.
pub fn read_session_record(bytes: &[u8]) -> Result<SessionRecord, CorruptValue> {
    let mut reader = PackedReader::new("session", bytes);
    let (has_lease, lease) = (reader.flag()?, reader.duration()?);
    let expires = reader.time_or_none()?.unwrap_or(Timestamp::MAX);
    let how = reader.byte()?;
    let ended_at = reader.time()?;
    let ended = match how {
        0 => Some(Ending::Closed),
        1 => Some(Ending::Replaced),
        2 => Some(Ending::Expired),
        _ => None, // alive
    };
    let (idle_since, _first) = (reader.time()?, reader.double()?);
    let (answered, bars) = (reader.byte()?, reader.byte()?);
    let floor = read_call(&mut reader)?;
    let answered = (0..answered).map(|_| read_call(&mut reader)).collect::<Result<_, _>>()?;
    let bar = |reader: &mut PackedReader<'_>| Ok((read_call(reader)?, reader.u32()?));
    let bars = (0..bars).map(|_| bar(&mut reader)).collect::<Result<_, CorruptValue>>()?;
    let ended = ended.map(|how| (how, ended_at));
    Ok(SessionRecord { lease: has_lease.then_some(lease), expires, ended, answered, bars, floor, idle_since })
}
