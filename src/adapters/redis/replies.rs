//! The replies of the functions: the status of the shard, then for each command its answer, the rows that it applied,
//! and the messages of its leases.

use bytes::Bytes;

use super::library::NO_STATE;
use super::packed::{PackedBytes, PackedReader};
use super::stored_message::{read_fence, read_message, read_session, read_static, state_of};
use super::wire::WireReply;
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::queues::history::trigger_of;
use tallystone_domain::queue::command::{Completeness, Cursor, LeaseGrant, ShardCapacity};
use tallystone_domain::queue::messages::message::{AttemptError, LeaseToken, MessageKey, Rank, RoutingValue};
use tallystone_domain::queue::messages::settlement::Settlement;
use tallystone_domain::queue::session_records::Ending;
use tallystone_domain::queue::transition::{EnqueuedMessage, HistoryRow, RowPosition, TransitionDetail};
use tallystone_domain::queue::{InvalidCommandPart, MessageState, Refusal, Reply, Transition};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{ShardStatus, StoredMessage};

/// The form of a command's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerForm {
    Enqueued,
    Leases,
    Recalled,
    Settled,
    Extended,
    Beaten,
    Touched,
    /// Of a discard of one message.
    Discarded,
    Walked,
    Configured,
    Deleted,
    ValueLimitSet,
}

/// The status of a shard, with what only this adapter needs.
#[derive(Clone, Copy, Debug)]
pub struct ReadStatus {
    pub at: Timestamp,
    pub view: ShardStatus,
    pub epoch: u32,
}

/// The answer of one command.
#[derive(Debug)]
pub struct CommandAnswer {
    pub reply: Result<Reply, Refusal>,
    pub transitions: Vec<Transition>,
    pub messages: Vec<StoredMessage>,
    /// How many messages a filter without an index examined.
    pub examined: usize,
}

/// The parts of a reply, taken one after the other.
pub struct ReplyParts {
    parts: std::vec::IntoIter<WireReply>,
    shard: u32,
}

fn corrupt(why: &str) -> CorruptValue {
    CorruptValue::new("reply of a function", why)
}

impl ReplyParts {
    /// Takes a reply of a function on this shard apart. The status comes first.
    pub fn of(reply: WireReply, shard: u32) -> Result<(ReadStatus, Self), CorruptValue> {
        let WireReply::List(parts) = reply else { return Err(corrupt("it is no list")) };
        let mut parts = Self { parts: parts.into_iter(), shard };
        let status = parts.bytes()?;
        Ok((read_status(&status)?, parts))
    }

    /// The next part.
    pub fn bytes(&mut self) -> Result<Bytes, CorruptValue> {
        match self.parts.next() {
            Some(WireReply::Bytes(bytes)) => Ok(bytes),
            Some(_) => Err(corrupt("a part is no text")),
            None => Err(corrupt("it is too short")),
        }
    }

    /// The next part, a list.
    pub fn list(&mut self) -> Result<Vec<Bytes>, CorruptValue> {
        let Some(WireReply::List(items)) = self.parts.next() else { return Err(corrupt("a part is no list")) };
        let texts = items.into_iter().map(|item| match item {
            WireReply::Bytes(bytes) => Ok(bytes),
            WireReply::Nil | WireReply::Int(_) | WireReply::List(_) => Err(corrupt("an item of a list is no text")),
        });
        texts.collect()
    }

    /// How many parts are left.
    pub fn left(&self) -> usize {
        self.parts.len()
    }

    /// The next message.
    pub fn message(&mut self) -> Result<StoredMessage, CorruptValue> {
        let [head, fixed, body] = [self.bytes()?, self.bytes()?, self.bytes()?];
        read_message(self.shard, [&head, &fixed], body)
    }

    /// The answer of the next command. `invalid` is the part of it that is out of range.
    pub fn answer(
        &mut self,
        form: AnswerForm,
        invalid: Option<InvalidCommandPart>,
    ) -> Result<CommandAnswer, CorruptValue> {
        let bytes = self.bytes()?;
        let mut reader = PackedReader::new("answer of a function", &bytes);
        let (rows, messages) = (reader.u16()?, reader.u16()?);
        let mut transitions = Vec::with_capacity(rows.into());
        if rows > 0 {
            let bytes = self.bytes()?;
            let mut reader = PackedReader::new("rows of a function", &bytes);
            for _ in 0..rows {
                transitions.push(read_row(&mut reader, self.shard)?.transition);
            }
        }
        let (reply, examined) = match reader.byte()? {
            0 => {
                let (reply, examined) = read_reply(&mut reader, form, self.shard)?;
                (Ok(reply), examined)
            }
            code => (Err(read_refusal(&mut reader, code, invalid)?), 0),
        };
        let messages = (0..messages).map(|_| self.message()).collect::<Result<_, _>>()?;
        Ok(CommandAnswer { reply, transitions, messages, examined })
    }
}

/// In place of whether there is a next change: it is the end of a retention.
const ONLY_RETENTION: u8 = 2;

/// Reads the status with which every reply begins.
pub fn read_status(bytes: &[u8]) -> Result<ReadStatus, CorruptValue> {
    let mut reader = PackedReader::new("status of a shard", bytes);
    let (at, step) = (reader.time()?, reader.whole()?);
    let mut messages = [0; MessageState::ALL.len()];
    for count in &mut messages {
        *count = reader.whole()?;
    }
    let arrived = reader.whole()?;
    let (has_head, head) = (reader.flag()?, reader.signed()?);
    let (has_oldest, oldest) = (reader.flag()?, reader.time()?);
    let flags = reader.byte()?;
    let (kind_of_next, next) = (reader.byte()?, reader.duration()?);
    let (version, epoch) = (reader.whole()?, reader.whole()?);
    let head_arrived = reader.time()?;
    let view = ShardStatus {
        step,
        messages,
        arrived,
        head: has_head.then_some(head),
        head_arrived: has_head.then_some(head_arrived),
        ready_for: has_oldest.then(|| at.since(oldest)),
        blocked: flags & 2 != 0,
        settings_version: version,
        next_event_in: (kind_of_next > 0).then_some(next),
        only_retention: kind_of_next == ONLY_RETENTION,
        memory_bytes: 0,
    };
    let epoch = u32::try_from(epoch).map_err(|_| reader.corrupt("an epoch that is too large"))?;
    Ok(ReadStatus { at, view, epoch })
}

/// Reads the key of a message.
pub fn read_key(reader: &mut PackedReader<'_>, shard: u32) -> Result<MessageKey, CorruptValue> {
    Ok(MessageKey { shard, epoch: reader.u32()?, sequence: reader.whole()? })
}

fn read_state(reader: &mut PackedReader<'_>) -> Result<MessageState, CorruptValue> {
    let code = reader.byte()?;
    state_of(reader, code)
}

fn read_completeness(reader: &mut PackedReader<'_>) -> Result<Completeness, CorruptValue> {
    match reader.byte()? {
        0 => Ok(Completeness::Complete),
        1 => Ok(Completeness::More),
        2 => Ok(Completeness::Partial),
        other => Err(reader.corrupt(format!("completeness {other}"))),
    }
}

fn read_count(reader: &mut PackedReader<'_>) -> Result<usize, CorruptValue> {
    let count = reader.whole()?;
    usize::try_from(count).map_err(|_| reader.corrupt("a count that is too large"))
}

fn read_reply(reader: &mut PackedReader<'_>, form: AnswerForm, shard: u32) -> Result<(Reply, usize), CorruptValue> {
    let reply = match form {
        AnswerForm::Enqueued => Reply::Enqueued {
            key: read_key(reader, shard)?,
            state: read_state(reader)?,
            already_enqueued: reader.flag()?,
        },
        AnswerForm::Leases | AnswerForm::Recalled => return read_leases(reader, shard),
        AnswerForm::Settled => Reply::Settled(Settlement { state: read_state(reader)?, version: reader.whole()? }),
        AnswerForm::Extended => Reply::Extended { expires_in: reader.duration()?, cancel_requested: reader.flag()? },
        AnswerForm::Beaten => {
            let expires_in = reader.duration()?;
            let token = |reader: &mut PackedReader<'_>| {
                Ok(LeaseToken { key: read_key(reader, shard)?, fence: read_fence(reader)? })
            };
            let count = reader.u16()?;
            let cancel_requested = (0..count).map(|_| token(reader)).collect::<Result<_, CorruptValue>>()?;
            Reply::Beaten { expires_in, cancel_requested }
        }
        AnswerForm::Touched => Reply::Touched { count: read_count(reader)?, completeness: read_completeness(reader)? },
        AnswerForm::Discarded => Reply::Walked { count: read_count(reader)?, next: None },
        AnswerForm::Walked => {
            let (count, has_next, next) = (read_count(reader)?, reader.flag()?, reader.whole()?);
            Reply::Walked { count, next: has_next.then_some(next) }
        }
        AnswerForm::Configured => Reply::Configured,
        AnswerForm::ValueLimitSet => Reply::ValueLimitSet,
        AnswerForm::Deleted => Reply::Deleted { messages: reader.whole()? },
    };
    Ok((reply, 0))
}

fn read_leases(reader: &mut PackedReader<'_>, shard: u32) -> Result<(Reply, usize), CorruptValue> {
    let first = reader.byte()?;
    if first == NO_STATE {
        return Ok((Reply::Unanswered, 0));
    }
    let completeness = read_completeness(&mut PackedReader::new("completeness", &[first]))?;
    let examined = usize::from(reader.u16()?);
    let cursor = if reader.flag()? {
        let priority = reader.double()?;
        let priority = if priority == f64::NEG_INFINITY { i64::MIN } else { priority as i64 };
        let (after, since) = ((priority, reader.whole()?), reader.time()?);
        Some(Cursor { after, inside: read_inside(reader)?, since })
    } else {
        None
    };
    let count = reader.u16()?;
    let mut leases = Vec::with_capacity(count.into());
    for _ in 0..count {
        let token = LeaseToken { key: read_key(reader, shard)?, fence: read_fence(reader)? };
        let attempt_number = reader.u16()?.into();
        leases.push(LeaseGrant { token, attempt_number, expires_in: reader.duration()? });
    }
    Ok((Reply::Leases { leases, completeness, cursor }, examined))
}

/// The value that a walk is in, and the last rank that it examined there.
fn read_inside(reader: &mut PackedReader<'_>) -> Result<Option<(RoutingValue, Rank)>, CorruptValue> {
    if !reader.flag()? {
        return Ok(None);
    }
    let rank = (reader.signed()?, reader.whole()?);
    let value = RoutingValue::new(reader.text()?).map_err(|_| reader.corrupt("a value of an illegal form"))?;
    Ok(Some((value, rank)))
}

fn read_refusal(
    reader: &mut PackedReader<'_>,
    code: u8,
    invalid: Option<InvalidCommandPart>,
) -> Result<Refusal, CorruptValue> {
    if matches!(code, 15 | 16) {
        let reason = String::from_utf8_lossy(reader.rest()).into();
        return Ok(if code == 15 { Refusal::EnqueueBlocked(reason) } else { Refusal::DequeueBlocked(reason) });
    }
    let number = reader.whole()?;
    let unknown = |reader: &PackedReader<'_>| reader.corrupt(format!("refusal {code} with {number}"));
    Ok(match code {
        1 => Refusal::Invalid(match number {
            0 => invalid.ok_or_else(|| unknown(reader))?,
            1 => InvalidCommandPart::Priority,
            2 => InvalidCommandPart::TokenTime,
            3 => InvalidCommandPart::Session,
            4 => InvalidCommandPart::CountedKeySets,
            5 => InvalidCommandPart::Invisibility,
            6 => InvalidCommandPart::ExclusivityValue,
            _ => return Err(unknown(reader)),
        }),
        2 => Refusal::NotFound,
        3 => {
            let state = u8::try_from(number).map_err(|_| unknown(reader))?;
            Refusal::WrongState(state_of(reader, state)?)
        }
        4 => Refusal::VersionMismatch(number),
        5 => Refusal::LeaseLost,
        6 => Refusal::TokenReused,
        7 => Refusal::TokenExpired,
        8 => Refusal::NotEmpty,
        9 => Refusal::ValueHeld,
        10 => Refusal::SessionNotFound,
        11 => Refusal::SessionEnded(match number {
            0 => Ending::Closed,
            1 => Ending::Replaced,
            2 => Ending::Expired,
            _ => return Err(unknown(reader)),
        }),
        12 => Refusal::SequenceTooOld,
        13 => Refusal::TryBarred,
        14 => Refusal::Deleted,
        17 => Refusal::Full(match number {
            0 => ShardCapacity::Messages,
            1 => ShardCapacity::Bytes,
            2 => ShardCapacity::Answers,
            3 => ShardCapacity::Sessions,
            4 => ShardCapacity::ValueLimits,
            _ => return Err(unknown(reader)),
        }),
        _ => return Err(unknown(reader)),
    })
}

/// Reads a row of a shard; rows of the outbox have the message of an enqueue.
pub fn read_row(reader: &mut PackedReader<'_>, shard: u32) -> Result<HistoryRow, CorruptValue> {
    let has = reader.byte()?;
    let trigger = reader.byte()?;
    let trigger = trigger_of(trigger.into()).ok_or_else(|| reader.corrupt("a trigger"))?;
    let state = |reader: &mut PackedReader<'_>| match reader.byte()? {
        NO_STATE => Ok(None),
        code => state_of(reader, code).map(Some),
    };
    let (from, to) = (state(reader)?, state(reader)?);
    let key = read_key(reader, shard)?;
    let (version, at) = (reader.u40()?, reader.time()?);
    let position = RowPosition { epoch: reader.u32()?, position: reader.whole()? };
    let attempt = reader.u16()?.into();
    let fence = if has & 1 != 0 { Some(read_fence(reader)?) } else { None };
    let session = if has & 2 != 0 { Some(read_session(reader)?) } else { None };
    let session = session.filter(|id| !id.is_of_server()); // the history shows workers
    let worker = if has & 4 != 0 { Some(reader.text()?.into()) } else { None };
    let reason = if has & 8 != 0 { Some(reader.text()?.into()) } else { None };
    let error = if has & 16 != 0 {
        Some(Box::new(AttemptError { signature: reader.text()?.into(), text: reader.text()?.into() }))
    } else {
        None
    };
    let since = if has & 64 != 0 { Some(reader.time()?) } else { None };
    let enqueued = if has & 32 != 0 { Some(Box::new(read_enqueued(reader)?)) } else { None };
    let detail = TransitionDetail { position, attempt, since, fence, session, worker, reason, error };
    Ok(HistoryRow { transition: Transition { key, version, trigger, from, to, at, detail }, enqueued })
}

fn read_enqueued(reader: &mut PackedReader<'_>) -> Result<EnqueuedMessage, CorruptValue> {
    let (priority, payload_bytes) = (reader.signed()?, reader.u32()?);
    let keys_bytes = usize::from(reader.u16()?);
    let mut keys = PackedReader::new("counted keys of a row", reader.raw(keys_bytes)?);
    let mut counted_keys = Vec::new();
    while !keys.is_empty() {
        counted_keys.push(keys.text()?.into());
    }
    let static_bytes = usize::from(reader.u16()?);
    let part = read_static(reader.raw(static_bytes)?)?;
    let (id, metadata, kind) = (part.id, part.metadata, part.kind);
    Ok(EnqueuedMessage { id, metadata, kind, priority, payload_bytes, counted_keys })
}

/// A cursor at the beginning of a list.
pub fn list_request(state: MessageState, after: u64, limit: usize) -> Vec<u8> {
    PackedBytes::default().byte(state as u8).whole(after).whole(limit as u64).0
}
