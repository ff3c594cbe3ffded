//! `ShardOutbox`: the counts of shards, and the streams of rows that the history has not taken over yet.

use async_trait::async_trait;
use bytes::Bytes;

use super::counts::read_counts;
use super::functions::{EMPTY_OUTBOXES, RedisQueues, failure_of};
use super::keys::{named_keys, prefix};
use super::limits::{REDIS_OUTBOX_ENTRIES_READ_MAX, REDIS_REPORT_RETRIES_MAX};
use super::packed::PackedReader;
use super::replies::read_row;
use super::report::REPORT;
use super::wire::{WireCommand, WireReply};
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::limits::OUTBOX_PAGE_ROWS_MAX;
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::name::ShardId;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_ports::{OutboxPage, OutboxUsage, ShardGlance, ShardOutbox, ShardReport, StoreError, StoreErrorKind};

const READ: &str = "read outbox of queue";

#[async_trait]
impl ShardOutbox for RedisQueues {
    async fn report(&self, shard: ShardId, since: Option<u64>) -> Result<ShardReport, StoreError> {
        for _ in 0..REDIS_REPORT_RETRIES_MAX {
            if let Some(report) = self.read_report(shard, since).await? {
                return Ok(report);
            }
        }
        let busy = StoreError::not_applied(StoreErrorKind::Busy, REPORT);
        Err(busy.with_source("counted values keep giving way to new ones while they are read"))
    }

    /// Two plain reads of a shard that has changed, the header first: what changes between them is read again by the
    /// next look.
    async fn glance(&self, shard: ShardId, known: Option<RowPosition>) -> Result<Option<ShardGlance>, StoreError> {
        let Some(header) = self.stored_header(shard, READ).await? else {
            // The read of a shard that is not there says why.
            return self.report(shard, known.map(|known| known.position)).await.map(|_| None);
        };
        let position = RowPosition { epoch: header.epoch, position: header.position };
        if known == Some(position) {
            return Ok(None);
        }
        let key = format!("{}c", prefix(shard)).into_bytes();
        let counts = match self.on_shard(shard, WireCommand { name: "GET", arguments: vec![key] }).await? {
            WireReply::Bytes(counts) => counts,
            WireReply::Nil | WireReply::Int(_) | WireReply::List(_) => Bytes::new(), // nothing was counted yet
        };
        let (messages, bytes) = (header.totals.messages(), header.totals.all().bytes);
        let view = match messages[MessageState::Pending as usize] {
            0 => None,
            _ => Some(self.header(shard, READ).await?.0.view),
        };
        let counts = Box::new(read_counts(&counts, position.position));
        Ok(Some(ShardGlance { position, messages, bytes, counts, view }))
    }

    async fn outbox(&self, shard: ShardId, after: RowPosition, limit: usize) -> Result<OutboxPage, StoreError> {
        let limit = limit.clamp(1, OUTBOX_PAGE_ROWS_MAX);
        // The position comes first: all rows up to it are in what is read then.
        let newest = self.newest_position(shard).await?;
        let (mut rows, mut place) = (Vec::new(), format!("({}-{}", after.epoch, after.position));
        loop {
            // An entry has a row at least.
            let wanted = (limit - rows.len()).min(REDIS_OUTBOX_ENTRIES_READ_MAX);
            let entries = self.entries(shard, &place, wanted).await?;
            let is_end = entries.len() < wanted;
            for (id, entry) in entries {
                let read = read_entry(shard.number, &entry).map_err(|fault| fault.into_store_error(READ))?;
                rows.extend(read.into_iter().filter(|row| row.position() > after));
                place = format!("({id}");
                if rows.len() >= limit {
                    let through = rows.last().map_or(after, HistoryRow::position);
                    return Ok(OutboxPage { through, rows, at: self.caller_time().0 });
                }
            }
            if is_end {
                let last = rows.last().map(HistoryRow::position);
                let through = newest.max(last).unwrap_or(after);
                return Ok(OutboxPage { through, rows, at: self.caller_time().0 });
            }
        }
    }

    async fn forget_outbox(&self, shard: ShardId, through: RowPosition) -> Result<(), StoreError> {
        let least = format!("{}-{}", through.epoch, through.position.saturating_add(1));
        let command =
            WireCommand { name: "XTRIM", arguments: vec![stream_of(shard), b"MINID".to_vec(), least.into_bytes()] };
        self.on_shard(shard, command).await.map(drop)
    }

    async fn outboxes(&self) -> Result<Vec<ShardId>, StoreError> {
        let (mut found, mut bytes, mut longest) = (Vec::new(), 0, 0);
        for (queue, known) in self.all_registered(READ).await? {
            for number in 0..known.shards {
                let shard = ShardId { queue, number };
                let (entries, own) = self.outbox_size(shard).await?;
                if entries > 0 {
                    found.push(shard);
                }
                bytes += own;
                longest = longest.max(entries);
            }
        }
        *self.outbox_usage.lock() = usage_of(bytes, longest, self.options.outbox_entries);
        Ok(found)
    }

    /// As `outboxes` found it last.
    fn outbox_usage(&self) -> OutboxUsage {
        *self.outbox_usage.lock()
    }
}

/// The fill of all outboxes. Each has a bound of entries, so the fullest says how much of what they may have they have.
fn usage_of(bytes: u64, longest: u64, entries_max: u64) -> OutboxUsage {
    let share = u128::from(entries_max.max(1));
    let capacity = u128::from(bytes) * share / u128::from(longest.max(1));
    let capacity = if longest == 0 { EMPTY_OUTBOXES.capacity } else { u64::try_from(capacity).unwrap_or(u64::MAX) };
    OutboxUsage { bytes, capacity }
}

fn stream_of(shard: ShardId) -> Vec<u8> {
    format!("{}o", prefix(shard)).into_bytes()
}

/// The rows of one entry: those of one call.
fn read_entry(shard: u32, bytes: &[u8]) -> Result<Vec<HistoryRow>, CorruptValue> {
    let mut reader = PackedReader::new("entry of an outbox", bytes);
    let mut rows = Vec::new();
    while !reader.is_empty() {
        rows.push(read_row(&mut reader, shard)?);
    }
    Ok(rows)
}

impl RedisQueues {
    /// A plain command on a key of a shard.
    async fn on_shard(&self, shard: ShardId, command: WireCommand) -> Result<WireReply, StoreError> {
        let [route, _] = named_keys(shard);
        self.ask(&route, command, READ).await
    }

    /// The entries and the bytes of an outbox.
    async fn outbox_size(&self, shard: ShardId) -> Result<(u64, u64), StoreError> {
        let [route, _] = named_keys(shard);
        let length = WireCommand { name: "XLEN", arguments: vec![stream_of(shard)] };
        let usage = WireCommand { name: "MEMORY", arguments: vec![b"USAGE".to_vec(), stream_of(shard)] };
        let mut sizes = [0; 2];
        for (size, answer) in sizes.iter_mut().zip(self.wire.send(&route, vec![length, usage]).await) {
            *size = match answer.map_err(|failure| failure_of(failure, READ))? {
                WireReply::Int(number) => u64::try_from(number).unwrap_or(0),
                WireReply::Nil | WireReply::Bytes(_) | WireReply::List(_) => 0, // there is no outbox
            };
        }
        Ok(sizes.into())
    }

    /// The position of the newest row; none for a shard that is not there, whose outbox may still be.
    async fn newest_position(&self, shard: ShardId) -> Result<Option<RowPosition>, StoreError> {
        let header = self.stored_header(shard, READ).await?;
        Ok(header.map(|header| RowPosition { epoch: header.epoch, position: header.position }))
    }

    /// Entries after a place, at most `wanted`, with their ids.
    async fn entries(
        &self,
        shard: ShardId,
        place: &str,
        wanted: usize,
    ) -> Result<Vec<(String, bytes::Bytes)>, StoreError> {
        let count = wanted.to_string().into_bytes();
        let arguments = vec![stream_of(shard), place.into(), b"+".to_vec(), b"COUNT".to_vec(), count];
        let corrupt = || CorruptValue::new("outbox", "entries of another form").into_store_error(READ);
        let WireReply::List(entries) = self.on_shard(shard, WireCommand { name: "XRANGE", arguments }).await? else {
            return Err(corrupt());
        };
        let read = entries.into_iter().map(|entry| {
            let WireReply::List(entry) = entry else { return Err(corrupt()) };
            let [WireReply::Bytes(id), WireReply::List(fields)] = &entry[..] else { return Err(corrupt()) };
            let [_, WireReply::Bytes(rows)] = &fields[..] else { return Err(corrupt()) };
            Ok((String::from_utf8_lossy(id).into_owned(), rows.clone()))
        });
        read.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fill_is_that_of_the_fullest_outbox() {
        assert_eq!(usage_of(0, 0, 100), EMPTY_OUTBOXES);
        assert_eq!(usage_of(5_000, 50, 100), OutboxUsage { bytes: 5_000, capacity: 10_000 });
        assert_eq!(usage_of(5_000, 100, 100), OutboxUsage { bytes: 5_000, capacity: 5_000 });
    }
}
