//! `ShardOutbox`: the counts of shards, and the streams of rows that the history has not taken over yet.

use async_trait::async_trait;

use super::calls::RedisQueues;
use super::counts::{read_counts, read_signatures, read_values};
use super::keys::{named_keys, prefix};
use super::limits::REDIS_OUTBOX_ENTRIES_READ_MAX;
use super::packed::{PackedBytes, PackedReader};
use super::replies::read_row;
use super::stored_shard::read_header;
use super::wire::{WireCommand, WireReply};
use crate::adapters::codec::CorruptValue;
use crate::domain::limits::OUTBOX_PAGE_ROWS_MAX;
use crate::domain::queue::name::ShardId;
use crate::domain::queue::transition::{HistoryRow, RowPosition};
use crate::ports::{OutboxPage, OutboxUsage, ShardOutbox, ShardReport, StoreError};

const REPORT: &str = "read counts of queue";
const READ: &str = "read outbox of queue";

#[async_trait]
impl ShardOutbox for RedisQueues {
    async fn report(&self, shard: ShardId, since: Option<u64>) -> Result<ShardReport, StoreError> {
        let corrupt = |fault: CorruptValue| fault.into_store_error(REPORT);
        let (status, mut parts) = self.see((shard, REPORT), "report", vec![since_request(since)]).await?;
        let header = parts.bytes().and_then(|bytes| read_header(&bytes)).map_err(corrupt)?;
        let header = header.ok_or_else(|| corrupt(CorruptValue::new("header of a shard", "it is a tombstone")))?;
        let counts = read_counts(&parts.bytes().map_err(corrupt)?, header.position);
        let signatures = read_signatures(&parts.list().map_err(corrupt)?, since).map_err(corrupt)?;
        let mut names: Vec<(usize, String)> = Vec::new();
        for pair in parts.list().map_err(corrupt)?.chunks(2) {
            let [name, number] = [0, 1].map(|at| pair.get(at).and_then(|text| std::str::from_utf8(text).ok()));
            let number = number.and_then(|number| number.parse().ok());
            let known = number.zip(name.map(str::to_owned));
            names.push(known.ok_or_else(|| corrupt(CorruptValue::new("counted keys", "no number of a name")))?);
        }
        names.sort_unstable();
        let mut values = Vec::new();
        for (_, name) in names {
            values.append(&mut read_values(&name, &parts.list().map_err(corrupt)?, since).map_err(corrupt)?);
        }
        values.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        let position = RowPosition { epoch: status.epoch, position: header.position };
        let counts = Box::new(counts);
        Ok(ShardReport { position, at: status.at, totals: header.totals, counts, values, signatures })
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
        let mut found = Vec::new();
        for (queue, known) in self.all_registered(READ).await? {
            for number in 0..known.shards {
                let shard = ShardId { queue, number };
                let command = WireCommand { name: "XLEN", arguments: vec![stream_of(shard)] };
                if self.on_shard(shard, command).await? != WireReply::Int(0) {
                    found.push(shard);
                }
            }
        }
        Ok(found)
    }

    fn outbox_usage(&self) -> OutboxUsage {
        OutboxUsage::default()
    }
}

/// The position after which values and signatures are wanted; before every position for all of them.
fn since_request(since: Option<u64>) -> Vec<u8> {
    let since = since.map_or(-1, |since| i64::try_from(since).unwrap_or(i64::MAX));
    PackedBytes::default().signed(since).0
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

    /// The position of the newest row; none for a shard that is not there, whose outbox may still be.
    async fn newest_position(&self, shard: ShardId) -> Result<Option<RowPosition>, StoreError> {
        let [header, _] = named_keys(shard);
        match self.on_shard(shard, WireCommand { name: "GET", arguments: vec![header] }).await? {
            WireReply::Bytes(bytes) => {
                let header = read_header(&bytes).map_err(|fault| fault.into_store_error(READ))?;
                Ok(header.map(|header| RowPosition { epoch: header.epoch, position: header.position }))
            }
            WireReply::Nil | WireReply::Int(_) | WireReply::List(_) => Ok(None),
        }
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
