//! The entries of batches: what is written for their rows, gaps and cursors, in pieces of a bounded size.

use fjall::Slice;
use hashbrown::HashMap;

use super::hits::{self, HitGroups};
use super::key;
use super::periods::{HistoryPeriods, PeriodOf, PlaceError};
use crate::disk::library::Library;
use crate::limits::{HISTORY_GROUP_ROWS_MAX, HISTORY_PIECE_BYTES_MAX, HISTORY_PLACEMENTS_MAX};
use tallystone_adapters::codec::queues::history::encode_rows;
use tallystone_domain::Timestamp;
use tallystone_domain::history::{HistoryCursor, HistoryHit, HistoryTerm};
use tallystone_domain::queue::ShardId;
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::transition::HistoryRow;
use tallystone_ports::HistoryBatch;

/// The keyspace of an entry within its period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HistoryTable {
    Rows,
    Lives,
    Found,
}

/// A row of a keyspace.
pub struct HistoryEntry {
    /// The start of its period.
    pub period: Timestamp,
    /// Its keyspace.
    pub table: HistoryTable,
    pub key: Slice,
    pub value: Slice,
}

/// Entries that are committed together.
#[derive(Default)]
pub struct HistoryPiece {
    /// The entries, those of one period mostly next to each other.
    pub entries: Vec<HistoryEntry>,
    /// The cursors of batches whose entries are in this piece or in earlier ones.
    pub cursors: Vec<(ShardId, HistoryCursor)>,
    /// The bytes of entries and cursors.
    pub bytes: usize,
    /// The number of rows.
    pub rows: u64,
    /// The bytes of the encoded rows.
    pub row_bytes: u64,
}

/// The rows of one message in one batch, of one period and epoch.
type RowGroup = (Timestamp, MessageKey, u32);

impl HistoryPiece {
    fn push(&mut self, period: Timestamp, table: HistoryTable, key: Vec<u8>, value: Vec<u8>) {
        self.bytes += key.len() + value.len();
        self.entries.push(HistoryEntry { period, table, key: key.into(), value: value.into() });
    }
}

/// Encodes batches, and creates the periods that they need; `rest` runs between two keyspaces. The last piece has the
/// last cursor.
pub fn encode(
    periods: &HistoryPeriods,
    library: &Library,
    batches: Vec<HistoryBatch>,
    rest: impl Fn(),
) -> Result<Vec<HistoryPiece>, PlaceError> {
    let mut pieces = vec![HistoryPiece::default()];
    let place = |at| place(periods, library, at, &rest);
    for HistoryBatch { shard, rows, gaps, cursor } in batches {
        for gap in gaps {
            let piece = open_piece(&mut pieces);
            piece.push(place(gap.to_time)?, HistoryTable::Lives, key::of_gap(shard.queue, &gap), Vec::new());
        }
        let mut groups: HashMap<RowGroup, Vec<&HistoryRow>> = HashMap::new();
        let mut hits = HitGroups::default();
        for row in &rows {
            let group = (place(row.transition.at)?, row.transition.key, row.position().epoch);
            HistoryTerm::of(row).into_iter().for_each(|term| hits.add(group.0, term, hit_of(shard, row)));
            let grouped = groups.entry(group).or_default();
            grouped.push(row);
            if grouped.len() == HISTORY_GROUP_ROWS_MAX {
                let rows = std::mem::take(grouped);
                push_group(open_piece(&mut pieces), shard, group, rows);
            }
        }
        for (group, rows) in groups.into_iter().filter(|(_, rows)| !rows.is_empty()) {
            push_group(open_piece(&mut pieces), shard, group, rows);
        }
        hits.into_pages(|period, term, page| {
            let (key, value) = hits::encode(shard.queue, term, page);
            open_piece(&mut pieces).push(period, HistoryTable::Found, key, value);
        });
        let piece = open_piece(&mut pieces);
        piece.bytes += cursor.register.len();
        piece.cursors.push((shard, cursor));
    }
    Ok(pieces)
}

/// The last piece, if it has room.
fn open_piece(pieces: &mut Vec<HistoryPiece>) -> &mut HistoryPiece {
    if pieces.last().is_none_or(|piece| piece.bytes >= HISTORY_PIECE_BYTES_MAX) {
        pieces.push(HistoryPiece::default());
    }
    pieces.last_mut().expect("there is one")
}

fn place(periods: &HistoryPeriods, library: &Library, at: Timestamp, rest: impl Fn()) -> Result<Timestamp, PlaceError> {
    for _ in 0..HISTORY_PLACEMENTS_MAX {
        match periods.place(at) {
            PeriodOf::Known(start) => return Ok(start),
            PeriodOf::Missing(start) => periods.make(library, start, &rest)?,
        }
    }
    Err(PlaceError::Leaving)
}

fn push_group(piece: &mut HistoryPiece, shard: ShardId, group: RowGroup, mut rows: Vec<&HistoryRow>) {
    let (period, message, epoch) = group;
    rows.sort_by_key(|row| row.position());
    rows.dedup_by_key(|row| row.position());
    let positions: Vec<u64> = rows.iter().map(|row| row.position().position).collect();
    let value = encode_rows(rows.iter().copied());
    piece.rows += rows.len() as u64;
    piece.row_bytes += value.len() as u64;
    piece.push(period, HistoryTable::Rows, key::of_rows(shard.queue, message, epoch, &positions), value);
    for row in rows {
        if let Some(enqueued) = &row.enqueued {
            let key = key::of_life(shard.queue, &enqueued.id, &hit_of(shard, row));
            piece.push(period, HistoryTable::Lives, key, key::message_value(message));
        }
    }
}

fn hit_of(shard: ShardId, row: &HistoryRow) -> HistoryHit {
    let transition = &row.transition;
    HistoryHit { at: transition.at, shard: shard.number, position: row.position(), message: transition.key }
}
