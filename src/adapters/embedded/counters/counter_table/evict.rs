//! Bounds the memory of the table: events leave once the limit has passed them, rows when they are unused.
//!
//! Rows are evicted by second chance (clock): a pass marks every row unused, and the next pass drops the rows that are
//! still unused. A pass covers one sixteenth of a shard, so it frees little more than needed. Counters with recent
//! events stay. A shard can therefore exceed its byte limit with nothing to drop, so each call earns a bounded number
//! of entries that a pass may visit.

use super::{CounterTable, CounterTableShard, SHARDS};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::DatasetId;

const PARTS: u8 = 16;

/// Entries that a pass may visit for each call, on average. At this rate, one full round of passes needs one call for
/// every eighth counter. A shard therefore exceeds its byte limit by at most an eighth while anything can be dropped.
const VISITS_PER_CALL: usize = 256;

impl CounterTable {
    /// Number of shards that a full sweep visits.
    pub const SHARDS: usize = SHARDS;

    /// Drops the events of one shard at or below each dataset's new floor.
    pub fn sweep(&self, shard: usize, floors: &[(DatasetId, Timestamp)]) {
        let mut shard = self.shards[shard % SHARDS].lock();
        for (dataset, floor) in floors {
            shard.raise_floor(*dataset, *floor);
        }
        let stamp = shard.next_stamp();
        let (mut tails, mut entries) = (0, 0);
        shard.entries.retain(|entry| {
            let Some((_, floor)) = floors.iter().find(|(dataset, _)| *dataset == entry.dataset) else { return true };
            let (newest, bytes) = entry.tail.remove(Timestamp::MIN, *floor);
            if let Some(newest) = newest {
                entry.disk_to = entry.disk_to.max(newest);
                entry.stamp = stamp;
                tails += bytes;
            }
            let stays = !entry.tail.is_empty() || entry.row.is_some();
            if !stays {
                entries += entry.own_bytes();
            }
            stays
        });
        shard.tail_bytes -= tails;
        shard.entry_bytes -= entries;
    }
}

impl CounterTableShard {
    /// Drops unused rows until the shard is within its byte limit, or until the visit credit is used up.
    pub(super) fn evict(&mut self, bytes_max: usize) {
        if self.entry_bytes <= bytes_max {
            self.visit_credit = 0;
            return;
        }
        let round = 2 * usize::from(PARTS) * self.entries.len();
        self.visit_credit = (self.visit_credit + VISITS_PER_CALL).min(round);
        while self.entry_bytes > bytes_max && self.visit_credit > 0 && self.visit_credit >= self.entries.len() {
            self.visit_credit -= self.entries.len().max(1);
            self.evict_part();
        }
    }

    fn evict_part(&mut self) {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        self.next_part = (self.next_part + 1) % PARTS;
        let turn = u64::from(self.next_part);
        let mut freed = 0;
        self.entries.retain(|entry| {
            if (entry.counter.hash() >> 48) % u64::from(PARTS) != turn {
                return true;
            }
            if std::mem::take(&mut entry.used) {
                return true;
            }
            freed += entry.drop_row();
            let stays = !entry.tail.is_empty();
            if !stays {
                freed += entry.own_bytes();
            }
            stays
        });
        self.entry_bytes -= freed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::counter_row::CounterRow;
    use crate::counters::counter_table::LoadedRow;
    use tallystone_domain::counter::{Change, Counter, CounterName, Event, EventId, EventKey, NamespaceId, Provenance};

    const DATASET: DatasetId = DatasetId(1);

    fn counter(number: usize) -> Counter {
        let name = CounterName::new(&format!("c{number}")).expect("a valid name");
        Counter::new(NamespaceId(1), name)
    }

    fn load(memory: &CounterTable, counter: &Counter) {
        let ticket = memory.begin_load(DATASET, counter);
        memory.end_load(DATASET, counter, ticket, LoadedRow { row: CounterRow::default(), disk_to: Timestamp::MIN });
    }

    fn entries(memory: &CounterTable) -> usize {
        memory.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    #[test]
    fn rows_in_use_once_leave_when_memory_is_short_and_little_more() {
        let memory = CounterTable::new(1024 * 1024);
        for number in 0..50_000 {
            load(&memory, &counter(number));
        }
        let (_, rows) = memory.bytes();
        assert!(rows <= 1024 * 1024 * 5 / 4, "{rows} bytes");
        assert!(rows >= 1024 * 1024 / 2, "{rows} bytes: what fits stays");
        assert!(entries(&memory) < 10_000);
    }

    #[test]
    fn counters_that_cannot_leave_cost_a_call_little() {
        let memory = CounterTable::new(0);
        let key = EventKey { time: Timestamp::from_micros(5), id: EventId::text("t") };
        let event = Event { key, change: Change::Add(1), provenance: Provenance::default() };
        for number in 0..SHARDS * 600 {
            memory.publish(DATASET, &counter(number), &event);
        }
        let looks_before: usize = memory.shards.iter().map(|shard| shard.lock().looks).sum();
        let calls = 10_000;
        for number in 0..calls {
            load(&memory, &counter(number));
        }
        let looks: usize = memory.shards.iter().map(|shard| shard.lock().looks).sum();
        let visits_per_call = (looks - looks_before) * 600 / calls;
        assert!(visits_per_call <= 2 * VISITS_PER_CALL, "{visits_per_call}");
        assert!(looks > looks_before, "it looks all the same");
    }
}
