//! The shards in memory: cores and views. Only the committer accesses the table.

use std::collections::BTreeMap;
use std::time::Duration;

use super::keyspaces::DedupeKeyspaces;
use super::outboxes::Outboxes;
use super::stub_pages::DirtyPages;
use tallystone_adapters::codec::queues::settings::QueueRow;
use tallystone_domain::queue::command::NewMessage;
use tallystone_domain::queue::messages::id_hash::IdKey;
use tallystone_domain::queue::messages::message::{MessageKey, MessageRef};
use tallystone_domain::queue::shard::memory::ShardMemory;
use tallystone_domain::queue::shard::restore::ShardHeader;
use tallystone_domain::queue::{MessageHead, MessageState, QueueId, Shard, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{CreatedQueue, ShardStatus, ShardTotals};

/// The epoch of every shard. Startup recovers everything that was acknowledged, so the epoch never rises.
pub const EPOCH: u32 = 1;

/// One shard in memory.
pub struct LoadedShard {
    /// The core of the shard.
    pub shard: Shard,
    /// The header as last staged.
    pub header: ShardHeader,
    /// The version of the settings as last staged.
    pub settings_version: u64,
    /// The view that listeners receive.
    pub view: ShardStatus,
    /// The pages of stubs that are not stored as they are now.
    pub dirty_pages: DirtyPages,
    /// The memory of the shard, as it is part of that of all shards.
    memory: ShardMemory,
}

/// The shards of all queues.
#[derive(Default)]
pub struct ShardTable {
    /// Existing shards.
    pub shards: BTreeMap<ShardId, LoadedShard>,
    /// The row of every queue ever created; `None` once it was dropped.
    pub queues: BTreeMap<QueueId, Option<QueueRow>>,
    /// The keyspaces of first answers to tokens.
    pub answers: DedupeKeyspaces,
    /// Sequences of deleted and dropped queues whose messages are still on disk, in order.
    pub leftovers: Vec<(ShardId, Vec<u64>)>,
    /// The number of values with counts of their own in all shards.
    pub counted_values: usize,
    /// The outboxes of all shards, those of dropped queues included.
    pub outboxes: Outboxes,
    /// The key under which ids are hashed; none before the first queue.
    pub id_key: Option<IdKey>,
    /// The dirty pages that a start has found and not given to their shards yet.
    pub dirty_pages: Vec<(ShardId, u64)>,
    /// The memory of all shards.
    memory: ShardMemory,
}

impl LoadedShard {
    /// Wraps a core whose header and settings are stored or will be.
    pub fn new(core: Shard) -> Self {
        let (header, settings_version) = (core.header(), core.settings_version());
        let view = view_of(&core, 0, header.clock);
        let (dirty_pages, memory) = (DirtyPages::default(), ShardMemory::default());
        Self { shard: core, header, settings_version, view, dirty_pages, memory }
    }

    pub fn totals(&self) -> ShardTotals {
        ShardTotals { totals: *self.shard.totals(), sequence: self.shard.sequence(), view: self.view }
    }

    /// Sequences of all messages, in order. O(n log n).
    pub fn sequences(&self) -> Vec<u64> {
        let mut sequences: Vec<u64> =
            MessageState::ALL.into_iter().flat_map(|state| self.shard.sequences(state, 0)).collect();
        sequences.sort_unstable();
        sequences
    }

    pub fn find(&self, key: MessageKey) -> Option<&MessageHead> {
        self.shard.get(&MessageRef::Key(key))
    }
}

/// The view of a shard, without its memory: [`ShardTable::count_memory`] puts that in.
fn view_of(core: &Shard, step: u64, at: Timestamp) -> ShardStatus {
    ShardStatus {
        step,
        arrived: core.tally().counts().arrivals(),
        messages: core.totals().messages(),
        head: core.head(),
        head_arrived: core.head_arrived(),
        ready_for: core.ready_for(at),
        blocked: core.dequeue_blocked().is_some(),
        settings_version: core.settings_version(),
        next_event_in: core.next_event_in(at),
        only_retention: false,
        memory_bytes: 0,
    }
}

impl ShardTable {
    /// Creates a table without shards.
    pub fn new(queues: BTreeMap<QueueId, Option<QueueRow>>, answers: DedupeKeyspaces) -> Self {
        Self { queues, answers, ..Self::default() }
    }

    /// The memory of all shards. O(1).
    pub fn memory(&self) -> ShardMemory {
        self.memory
    }

    /// Adds shards.
    pub fn add(&mut self, shards: impl IntoIterator<Item = (ShardId, LoadedShard)>) {
        for (id, shard) in shards {
            self.shards.insert(id, shard);
            self.count_memory(id);
        }
    }

    /// Counts the memory of a shard anew after it changed. O(shapes).
    pub fn count_memory(&mut self, shard: ShardId) {
        let Some(kept) = self.shards.get_mut(&shard) else { return };
        let now = kept.shard.memory();
        self.memory += now;
        self.memory -= std::mem::replace(&mut kept.memory, now);
        kept.view.memory_bytes = now.total();
    }

    /// Updates the view of a shard from its core after commands, and returns it.
    pub fn refresh_view(&mut self, shard: ShardId, at: Timestamp) -> Option<ShardStatus> {
        let kept = self.shards.get_mut(&shard)?;
        kept.view = view_of(&kept.shard, kept.view.step + 1, at);
        self.count_memory(shard);
        self.shards.get(&shard).map(|kept| kept.view)
    }

    /// Gives the dirty pages that a start has found to their shards. Those of dropped queues go with their messages.
    pub fn note_dirty_pages(&mut self) {
        for (shard, page) in std::mem::take(&mut self.dirty_pages) {
            if let Some(kept) = self.shards.get_mut(&shard) {
                kept.dirty_pages.add(page, kept.header.clock);
            }
        }
    }

    /// Queues that were not dropped.
    pub fn live(&self) -> Vec<CreatedQueue> {
        let created = |(id, row): (&QueueId, &Option<QueueRow>)| {
            let QueueRow { shards, created } = (*row)?;
            Some(CreatedQueue { id: *id, shards, created })
        };
        self.queues.iter().filter_map(created).collect()
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

    /// Removes a queue; its messages on disk go to `leftovers`, and its outboxes stay.
    pub fn drop_queue(&mut self, queue: QueueId) {
        let shards: Vec<ShardId> = self.shards.range(ShardId::all_of(queue)).map(|(shard, _)| *shard).collect();
        for shard in shards {
            if let Some(kept) = self.shards.remove(&shard) {
                self.counted_values -= kept.shard.tally().own_values();
                self.memory -= kept.memory;
                self.leftovers.push((shard, kept.sequences()));
            }
        }
        self.queues.insert(queue, None);
    }
}
