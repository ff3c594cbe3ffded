//! The rows of the tables of the history: pure functions of the row that they record, cell timestamp included. So a
//! repeat writes equal cells, and no clock can hide one row behind another.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::limits::{HISTORY_CHUNK_POSITIONS, HISTORY_PERIOD};
use crate::value::{Bind as _, CqlRow};
use tallystone_adapters::codec::queues::history::encode_row;
use tallystone_domain::history::{HistoryCursor, HistoryGap, HistoryTerm};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{QueueId, ShardId};
use tallystone_domain::time::{Timestamp, micros_of};

/// A partition of the rows with a term in a shard, in the order in which rows are found, backwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FoundChunk {
    /// The time of its rows, in tens of minutes since 1970.
    pub period: i64,
    /// The epoch of its rows.
    pub epoch: i64,
    /// The positions of its rows, divided by `HISTORY_CHUNK_POSITIONS`.
    pub chunk: i64,
}

impl FoundChunk {
    /// The partition of a row.
    pub fn of(row: &HistoryRow) -> Self {
        let RowPosition { epoch, position } = row.position();
        let chunk = stored_number(position / HISTORY_CHUNK_POSITIONS);
        Self { period: period_of(row.transition.at), epoch: i64::from(epoch), chunk }
    }

    /// The cell timestamp of its row in `history_chunks`. It is the same for all rows of the partition, so that of
    /// several writes the one that expires last stays.
    fn timestamp(self) -> i64 {
        self.period.saturating_mul(micros_of(HISTORY_PERIOD))
    }
}

/// The rows of the tables that some rows of a shard need, by partition where a partition has several.
#[derive(Default)]
pub struct HistoryWrites {
    pub trace: BTreeMap<MessageKey, Vec<CqlRow>>,
    pub ids: Vec<CqlRow>,
    pub found: BTreeMap<(String, FoundChunk), Vec<CqlRow>>,
    /// The bytes of the records in `trace`.
    pub record_bytes: u64,
}

impl HistoryWrites {
    /// The rows of the tables for rows of a shard that live for `ttl` seconds.
    pub fn of(shard: ShardId, rows: &[HistoryRow], ttl: i32) -> Self {
        let mut writes = Self::default();
        for row in rows {
            writes.push(shard, row, ttl);
        }
        writes
    }

    fn push(&mut self, shard: ShardId, row: &HistoryRow, ttl: i32) {
        let transition = &row.transition;
        let (queue, number, at) = (stored_queue(shard.queue), i64::from(shard.number), transition.at.micros());
        let (epoch, position) = stored_position(row.position());
        let (key_epoch, sequence) = stored_message(transition.key);
        let record = encode_row(row);
        self.record_bytes += record.len() as u64;
        let key_shard = i64::from(transition.key.shard);
        let columns = (queue, key_shard, key_epoch, sequence, epoch, position, record, ttl, at).bind();
        self.trace.entry(transition.key).or_default().push(columns);
        if let Some(message) = &row.enqueued {
            let id = stored_id(&message.id);
            self.ids.push((queue, id, at, number, epoch, position, key_epoch, sequence, ttl, at).bind());
        }
        let chunk = FoundChunk::of(row);
        for term in HistoryTerm::of(row) {
            let term = stored_term(&term);
            let (period, of_epoch) = (chunk.period, chunk.chunk);
            let key = (queue, term.as_str(), number, period, epoch, of_epoch).bind();
            let columns = [key, (at, position, key_epoch, sequence, ttl, at).bind()].concat();
            self.found.entry((term, chunk)).or_default().push(columns);
        }
    }
}

/// The row of `history_chunks` for a partition.
pub fn chunk_row(shard: ShardId, term: &str, chunk: FoundChunk, ttl: i32) -> CqlRow {
    let FoundChunk { period, epoch, chunk: of_epoch } = chunk;
    let (queue, number) = (stored_queue(shard.queue), i64::from(shard.number));
    (queue, term, number, period, epoch, of_epoch, ttl, chunk.timestamp()).bind()
}

/// The row of a gap.
pub fn gap_row(queue: QueueId, gap: HistoryGap, ttl: i32) -> CqlRow {
    let HistoryGap { shard, epoch, from_position, to_position, from_time, to_time } = gap;
    let (from_position, to_position) = (stored_number(from_position), stored_number(to_position));
    let (queue, to_time) = (stored_queue(queue), to_time.micros());
    let (shard, epoch) = (i64::from(shard), i64::from(epoch));
    (queue, shard, to_time, epoch, from_position, to_position, from_time.micros(), ttl, to_time).bind()
}

/// The row of a cursor. Its timestamp is its position, so it never goes back in its epoch.
pub fn cursor_row(shard: ShardId, cursor: &HistoryCursor) -> CqlRow {
    let (epoch, position) = stored_position(cursor.position);
    let (queue, number) = (stored_queue(shard.queue), i64::from(shard.number));
    (position, position, cursor.register.to_vec(), queue, number, epoch).bind()
}

/// The stored form of a queue.
pub fn stored_queue(queue: QueueId) -> Uuid {
    Uuid::from_u128(queue.0)
}

/// The stored form of an id.
pub fn stored_id(id: &MessageId) -> String {
    id.to_string()
}

/// The columns that name a message in its shard.
pub fn stored_message(key: MessageKey) -> (i64, i64) {
    (i64::from(key.epoch), stored_number(key.sequence))
}

/// The columns of a position.
pub fn stored_position(RowPosition { epoch, position }: RowPosition) -> (i64, i64) {
    (i64::from(epoch), stored_number(position))
}

/// A position from its columns; none if they are malformed.
pub fn position_from(epoch: i64, position: i64) -> Option<RowPosition> {
    Some(RowPosition { epoch: u32::try_from(epoch).ok()?, position: u64::try_from(position).ok()? })
}

/// A message from its columns; none if they are malformed.
pub fn message_from(shard: u32, epoch: i64, sequence: i64) -> Option<MessageKey> {
    Some(MessageKey { shard, epoch: u32::try_from(epoch).ok()?, sequence: u64::try_from(sequence).ok()? })
}

/// Positions and sequences count what has happened, and never come near the greatest number.
pub fn stored_number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The period of a time.
pub fn period_of(at: Timestamp) -> i64 {
    at.micros().div_euclid(micros_of(HISTORY_PERIOD))
}

/// The stored form of a term. Two terms have different forms: the length of a key says where its value begins.
pub fn stored_term(term: &HistoryTerm) -> String {
    match term {
        HistoryTerm::Enqueued => "enqueued".to_owned(),
        HistoryTerm::Entered(state) => format!("entered:{state}"),
        HistoryTerm::Error(signature) => format!("error:{signature}"),
        HistoryTerm::Value { key, value } => format!("value:{}:{key}={value}", key.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::queue::transition::{Transition, TransitionDetail};
    use tallystone_domain::queue::{MessageState, Trigger};

    fn row(position: u64, at: Timestamp) -> HistoryRow {
        let detail = TransitionDetail { position: RowPosition { epoch: 3, position }, ..TransitionDetail::default() };
        let key = MessageKey { shard: 1, epoch: 2, sequence: 9 };
        let (from, to) = (Some(MessageState::Pending), Some(MessageState::Running));
        let transition = Transition { key, version: 2, trigger: Trigger::Dequeue, from, to, at, detail };
        HistoryRow { transition, enqueued: None }
    }

    #[test]
    fn terms_have_forms_of_their_own() {
        let value = |key: &str, value: &str| HistoryTerm::Value { key: key.into(), value: value.into() };
        let mut terms = vec![
            HistoryTerm::Enqueued,
            HistoryTerm::Error("pending".into()),
            HistoryTerm::Error("".into()),
            value("a", "b=c"),
            value("a=b", "c"),
            value("a", ""),
            value("", "a="),
        ];
        terms.extend(MessageState::ALL.map(HistoryTerm::Entered));
        let forms: std::collections::BTreeSet<String> = terms.iter().map(stored_term).collect();
        assert_eq!(forms.len(), terms.len());
        // Stored for ever.
        assert_eq!(stored_term(&value("tenant", "acme")), "value:6:tenant=acme");
        assert_eq!(stored_term(&HistoryTerm::Entered(MessageState::Errored)), "entered:errored");
    }

    #[test]
    fn a_partition_of_a_term_is_bounded_in_time_and_in_positions() {
        let chunk = |position, secs| FoundChunk::of(&row(position, Timestamp::from_secs(secs)));
        let first = chunk(16_384, 1_200);
        assert_eq!(first, FoundChunk { period: 2, epoch: 3, chunk: 1 });
        assert_eq!(chunk(32_767, 1_799), first);
        assert_ne!(chunk(32_768, 1_799), first);
        assert_ne!(chunk(32_767, 1_800), first);
        assert_eq!(chunk(1, -1).period, -1, "before 1970 as well");
        assert_eq!(first.timestamp(), Timestamp::from_secs(1_200).micros());
    }

    #[test]
    fn a_row_is_written_the_same_whenever_it_is_written() {
        let shard = ShardId { queue: QueueId(5), number: 1 };
        let (one, other) = (row(7, Timestamp::from_secs(50)), row(8, Timestamp::from_secs(40)));
        let alone = HistoryWrites::of(shard, std::slice::from_ref(&one), 60);
        let both = HistoryWrites::of(shard, &[other, one.clone()], 60);
        let of_one = &alone.trace[&one.transition.key][0];
        assert!(both.trace[&one.transition.key].contains(of_one));
        for (partition, rows) in &alone.found {
            assert!(both.found[partition].contains(&rows[0]));
        }
        // The last two values are the lifetime and the cell timestamp, which is the time of the row.
        let ends = |row: &CqlRow| row[row.len() - 2..].to_vec();
        assert_eq!(ends(of_one), (60_i32, one.transition.at.micros()).bind());
    }
}
