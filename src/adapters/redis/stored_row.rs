//! The row of a session in the directory, as the library stores it, and what its steps answer.

use std::collections::{BTreeMap, BTreeSet};

use super::packed::PackedReader;
use super::stored_message::{read_call, read_session};
use super::stored_shard::read_session_id;
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::Ending;
use tallystone_domain::queue::session_rows::{HeartbeatReply, SessionRow};
use tallystone_domain::queue::{QueueId, Refusal, ShardId};

/// The format of the rows that this release reads.
const FORMAT: u8 = 1;
/// In place of an ending: it has not ended.
const ALIVE: u8 = 255;
const NO_SESSION: u8 = 1;
const ENDED: u8 = 2;
const TOO_OLD: u8 = 3;
const BARRED: u8 = 4;
const SHARD_BYTES: usize = 20;

/// A shard, as a row has it.
pub fn pack_shard(shard: ShardId) -> Vec<u8> {
    [&shard.queue.0.to_be_bytes()[..], &shard.number.to_be_bytes()].concat()
}

/// The number of an ending.
pub fn ending_code(how: Ending) -> u8 {
    match how {
        Ending::Closed => 0,
        Ending::Replaced => 1,
        Ending::Expired => 2,
    }
}

fn ending_of(reader: &PackedReader<'_>, code: u8) -> Result<Ending, CorruptValue> {
    let all = [Ending::Closed, Ending::Replaced, Ending::Expired];
    let found = all.into_iter().find(|how| ending_code(*how) == code);
    found.ok_or_else(|| reader.corrupt(format!("ending {code}")))
}

/// How a session ended.
pub fn read_end(bytes: &[u8]) -> Result<Ending, CorruptValue> {
    let mut reader = PackedReader::new("end of a session", bytes);
    let code = reader.byte()?;
    ending_of(&reader, code)
}

/// The shards of a row.
pub fn read_shards(bytes: &[u8]) -> Result<BTreeSet<ShardId>, CorruptValue> {
    let shard = |packed: &[u8; SHARD_BYTES]| {
        let (mut queue, mut number) = ([0; 16], [0; 4]);
        queue.copy_from_slice(&packed[..16]);
        number.copy_from_slice(&packed[16..]);
        ShardId { queue: QueueId(u128::from_be_bytes(queue)), number: u32::from_be_bytes(number) }
    };
    let (all, rest) = bytes.as_chunks::<SHARD_BYTES>();
    if !rest.is_empty() {
        return Err(CorruptValue::new("shards of a session", "the last one is cut"));
    }
    Ok(all.iter().map(shard).collect())
}

/// The position after some ends, and the ends.
pub fn read_ends(next: &[u8], ends: &[u8]) -> Result<(u64, Vec<(SessionId, Ending)>), CorruptValue> {
    let next = PackedReader::new("position of ends", next).whole()?;
    let mut reader = PackedReader::new("ends of sessions", ends);
    let mut read = Vec::new();
    while !reader.is_empty() {
        let (id, code) = (read_session(&mut reader)?, reader.byte()?);
        read.push((id, ending_of(&reader, code)?));
    }
    Ok((next, read))
}

/// A row with its shards.
pub fn read_row(id: &[u8], row: &[u8], shards: &[u8]) -> Result<SessionRow, CorruptValue> {
    let mut reader = PackedReader::new("session of the directory", row);
    let format = reader.byte()?;
    if format != FORMAT {
        return Err(reader.corrupt(format!("format {format}")));
    }
    let _number = reader.whole()?;
    let (lease, heard, kept_until) = (reader.duration()?, reader.time()?, reader.time()?);
    let (how, ended_at) = (reader.byte()?, reader.time()?);
    let ended = if how == ALIVE { None } else { Some((ending_of(&reader, how)?, ended_at)) };
    let (touched, newest_call, floor) = (reader.whole()?, read_call(&mut reader)?, read_call(&mut reader)?);
    let count = reader.byte()?;
    let mut bars = BTreeMap::new();
    for _ in 0..count {
        bars.insert(read_call(&mut reader)?, reader.u32()?);
    }
    let label = std::str::from_utf8(reader.rest()).map_err(|_| reader.corrupt("a label that is not UTF-8"))?;
    Ok(SessionRow {
        id: read_session_id(id)?,
        label: label.into(),
        lease,
        heard,
        kept_until,
        shards: read_shards(shards)?,
        touched,
        newest_call,
        bars,
        floor,
        ended,
    })
}

/// The pulse in an answer.
pub fn read_heartbeat_reply(reader: &mut PackedReader<'_>) -> Result<HeartbeatReply, CorruptValue> {
    Ok(HeartbeatReply { newest_call: read_call(reader)?, touched: reader.whole()? })
}

/// Whether there was room for a shard.
pub fn read_room(reader: &mut PackedReader<'_>) -> Result<bool, CorruptValue> {
    reader.flag()
}

/// The answer of a step: a refusal, or what `read` makes of the rest.
pub fn read_answer<T>(
    bytes: &[u8],
    read: impl FnOnce(&mut PackedReader<'_>) -> Result<T, CorruptValue>,
) -> Result<Result<T, Refusal>, CorruptValue> {
    let mut reader = PackedReader::new("answer of the session directory", bytes);
    Ok(Err(match reader.byte()? {
        0 => return read(&mut reader).map(Ok),
        NO_SESSION => Refusal::SessionNotFound,
        ENDED => {
            let code = reader.byte()?;
            Refusal::SessionEnded(ending_of(&reader, code)?)
        }
        TOO_OLD => Refusal::SequenceTooOld,
        BARRED => Refusal::TryBarred,
        other => return Err(reader.corrupt(format!("answer {other}"))),
    }))
}
