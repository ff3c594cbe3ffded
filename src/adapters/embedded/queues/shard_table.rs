//! The shards in memory: cores, views, and the contents of their outboxes. Only the committer accesses the table.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::keyspaces::DedupeKeyspaces;
use crate::adapters::embedded::limits::{OUTBOX_BYTES_MAX, OUTBOX_ROWS_MAX};
use crate::domain::queue::command::NewMessage;
use crate::domain::queue::messages::message::{MessageKey, MessageRef};
use crate::domain::queue::shard::restore::ShardHeader;
use crate::domain::queue::{MessageHead, MessageState, QueueId, Settings, Shard, ShardId};
use crate::domain::time::Timestamp;
use crate::ports::{ShardStatus, ShardTotals};

/// The epoch of every shard. Startup recovers everything that was acknowledged, so the epoch never rises.
pub const EPOCH: u32 = 1;

/// One shard in memory.
pub struct LoadedShard {
    /// The core of the shard.
    pub shard: Shard,
    /// The header as last staged.
    pub header: ShardHeader,
    /// The settings as last staged.
    pub settings: Settings,
    /// The view that listeners receive.
    pub view: ShardStatus,
    /// Entries of the outbox, oldest first.
    outbox: VecDeque<OutboxEntry>,
    outbox_rows: u64,
}

/// Transitions of one commit in a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutboxEntry {
    /// Number of the commit.
    pub commit: u64,
    /// Number of transitions.
    pub rows: u32,
    /// Bytes of key and value.
    pub bytes: u32,
}

/// The shards of all queues.
#[derive(Default)]
pub struct ShardTable {
    /// Existing shards.
    pub shards: BTreeMap<ShardId, LoadedShard>,
    /// Every queue ever created, with its number of shards; `None` once it was dropped.
    pub queues: BTreeMap<QueueId, Option<u32>>,
    /// The keyspaces of first answers to tokens.
    pub answers: DedupeKeyspaces,
    /// Rows of dropped queues that are still on disk: by shard, the sequences and the outbox entries.
    pub leftovers: Vec<(ShardId, Vec<u64>, Vec<OutboxEntry>)>,
    /// The oldest commit in each outbox.
    oldest: BTreeSet<(u64, ShardId)>,
    outbox_bytes: u64,
}

impl LoadedShard {
    /// Wraps a core whose header and settings are stored or will be.
    pub fn new(core: Shard) -> Self {
        let (header, settings) = (core.header(), core.settings().clone());
        let view = view_of(&core, (0, 0), header.clock);
        Self { shard: core, header, settings, view, outbox: VecDeque::new(), outbox_rows: 0 }
    }

    /// Updates the view from the core after commands that made `arrived` messages pending.
    pub fn refresh_view(&mut self, arrived: u64, at: Timestamp) {
        self.view = view_of(&self.shard, (self.view.step + 1, self.view.arrived + arrived), at);
    }

    pub fn totals(&self) -> ShardTotals {
        ShardTotals { totals: *self.shard.totals(), sequence: self.shard.sequence(), view: self.view }
    }

    /// Sequences of all messages. O(n).
    pub fn sequences(&self) -> Vec<u64> {
        let messages = MessageState::ALL.into_iter().flat_map(|state| self.shard.list(state, 0));
        messages.map(|message| message.key.sequence).collect()
    }

    pub fn find(&self, key: MessageKey) -> Option<&MessageHead> {
        self.shard.get(&MessageRef::Key(key))
    }
}

fn view_of(core: &Shard, (step, arrived): (u64, u64), at: Timestamp) -> ShardStatus {
    ShardStatus {
        step,
        arrived,
        messages: core.totals().messages(),
        head: core.head(),
        ready_for: core.ready_for(at),
        blocked: core.dequeue_blocked().is_some(),
        next_event_in: core.next_event_in(at),
    }
}

impl ShardTable {
    /// Creates a table without shards.
    pub fn new(queues: BTreeMap<QueueId, Option<u32>>, answers: DedupeKeyspaces) -> Self {
        Self { queues, answers, ..Self::default() }
    }

    /// Queues that were not dropped, with their numbers of shards.
    pub fn live(&self) -> Vec<(QueueId, u32)> {
        self.queues.iter().filter_map(|(queue, shards)| Some((*queue, (*shards)?))).collect()
    }

    /// The longest dedupe window of all shards. O(shards).
    pub fn longest_window(&self) -> Duration {
        self.shards.values().map(|kept| kept.shard.settings().dedupe_window).max().unwrap_or_default()
    }

    /// Returns the view of `shard` if another shard of its queue has enqueued a message with this id.
    pub fn duplicate_in_other_shard(&self, shard: ShardId, sent: &NewMessage) -> Option<ShardStatus> {
        let mut others = self.shards.range(ShardId::all_of(shard.queue)).filter(|(id, _)| **id != shard);
        let taken = others.any(|(_, other)| other.shard.has_enqueued(sent));
        self.shards.get(&shard).filter(|_| taken).map(|kept| kept.view)
    }

    /// Adds an outbox entry; returns the entries beyond the bounds, which the caller has to remove. O(log shards) each.
    pub fn add_entry(&mut self, shard: ShardId, entry: OutboxEntry) -> Vec<(ShardId, OutboxEntry)> {
        self.push_entry(shard, entry);
        let mut gone = Vec::new();
        while let Some(kept) = self.shards.get(&shard)
            && kept.outbox_rows > OUTBOX_ROWS_MAX
            && kept.outbox.len() > 1
        {
            gone.extend(self.pop_entry(shard));
        }
        while self.outbox_bytes > OUTBOX_BYTES_MAX
            && let Some((_, oldest)) = self.oldest.first().copied()
        {
            gone.extend(self.pop_entry(oldest));
        }
        gone
    }

    /// Adds an entry that is on disk already.
    pub fn push_entry(&mut self, shard: ShardId, entry: OutboxEntry) {
        let Some(kept) = self.shards.get_mut(&shard) else { return };
        if kept.outbox.is_empty() {
            self.oldest.insert((entry.commit, shard));
        }
        kept.outbox.push_back(entry);
        kept.outbox_rows += u64::from(entry.rows);
        self.outbox_bytes += u64::from(entry.bytes);
    }

    fn pop_entry(&mut self, shard: ShardId) -> Option<(ShardId, OutboxEntry)> {
        let kept = self.shards.get_mut(&shard)?;
        let entry = kept.outbox.pop_front()?;
        kept.outbox_rows -= u64::from(entry.rows);
        self.outbox_bytes -= u64::from(entry.bytes);
        self.oldest.remove(&(entry.commit, shard));
        if let Some(next) = kept.outbox.front() {
            self.oldest.insert((next.commit, shard));
        }
        Some((shard, entry))
    }

    /// Removes a queue; its rows on disk go to `leftovers`.
    pub fn drop_queue(&mut self, queue: QueueId) {
        let shards: Vec<ShardId> = self.shards.range(ShardId::all_of(queue)).map(|(shard, _)| *shard).collect();
        for shard in shards {
            let mut entries = Vec::new();
            while let Some((_, entry)) = self.pop_entry(shard) {
                entries.push(entry);
            }
            if let Some(kept) = self.shards.remove(&shard) {
                self.leftovers.push((shard, kept.sequences(), entries));
            }
        }
        self.queues.insert(queue, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(commit: u64, rows: u32, bytes: u32) -> OutboxEntry {
        OutboxEntry { commit, rows, bytes }
    }

    fn table(shards: u32) -> ShardTable {
        let mut table = ShardTable::default();
        for number in 0..shards {
            let core = Shard::new(number, EPOCH, crate::adapters::embedded::queues::tests::settings());
            table.shards.insert(shard(number), LoadedShard::new(core.expect("valid settings")));
        }
        table
    }

    fn shard(number: u32) -> ShardId {
        ShardId { queue: QueueId(1), number }
    }

    #[test]
    fn an_outbox_keeps_its_newest_rows_and_never_loses_the_last_entry() {
        let mut table = table(1);
        let most = u32::try_from(OUTBOX_ROWS_MAX).expect("small");
        assert_eq!(table.add_entry(shard(0), entry(1, most / 2, 10)), []);
        assert_eq!(table.add_entry(shard(0), entry(2, most / 2, 10)), []);
        assert_eq!(table.add_entry(shard(0), entry(3, 1, 10)), [(shard(0), entry(1, most / 2, 10))]);
        assert_eq!(table.add_entry(shard(0), entry(4, 2 * most, 10)).len(), 2, "one entry may be more than all");
    }

    #[test]
    fn all_outboxes_together_lose_their_oldest_entries() {
        let mut table = table(2);
        let half = u32::try_from(OUTBOX_BYTES_MAX / 2).expect("fits");
        assert_eq!(table.add_entry(shard(0), entry(1, 1, half)), []);
        assert_eq!(table.add_entry(shard(1), entry(2, 1, half)), []);
        assert_eq!(table.add_entry(shard(1), entry(3, 1, 1)), [(shard(0), entry(1, 1, half))]);
        assert_eq!(table.add_entry(shard(0), entry(4, 1, half)), [(shard(1), entry(2, 1, half))]);
    }
}
