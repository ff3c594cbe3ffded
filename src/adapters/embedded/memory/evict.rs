//! How memory stays bounded: events leave once the limit has passed them, rows once nobody asked for them.
//!
//! Rows are evicted by second chance: a look marks every row unused, the next look drops those still unused. A look
//! covers one part in sixteen of a shard, so that it stays short.

use super::{Memory, SHARDS, Shard};
use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;

const PARTS: u8 = 16;

impl Memory {
    /// How many shards a whole sweep takes.
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

impl Shard {
    /// Drops rows that nobody uses until the shard is within its bytes, or every row had its second chance.
    pub(super) fn evict(&mut self, bytes_max: usize) {
        let mut looks = 0;
        while self.entry_bytes > bytes_max && looks < 2 * PARTS {
            self.evict_part();
            looks += 1;
        }
    }

    fn evict_part(&mut self) {
        self.turn = (self.turn + 1) % PARTS;
        let turn = u64::from(self.turn);
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
