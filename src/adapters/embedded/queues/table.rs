//! The shards in memory: cores, views, and what their outboxes hold. The committer's own; nobody else sees it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::command::{Read, Seen, Told};
use super::spaces::AnswerSpaces;
use crate::domain::limits::{OUTBOX_BYTES_MAX, OUTBOX_ROWS_MAX};
use crate::domain::queue::command::{MessageRef, NewMessage};
use crate::domain::queue::durable::Header;
use crate::domain::queue::message::MessageKey;
use crate::domain::queue::{Message, QueueId, Settings, Shard, ShardId, State};
use crate::domain::time::Timestamp;
use crate::ports::{ShardTotals, ShardView};

/// The epoch of every shard: a store that opens has all that was acknowledged, so it never rises.
pub const EPOCH: u32 = 1;

/// One shard.
pub struct Kept {
    /// Its core.
    pub core: Shard,
    /// Its header as it was last staged.
    pub header: Header,
    /// Its settings as they were last staged.
    pub settings: Settings,
    /// What it has to offer.
    pub view: ShardView,
    /// What its outbox holds, oldest first.
    outbox: VecDeque<Entry>,
    outbox_rows: u64,
}

/// What one commit changed in a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The number of the commit.
    pub commit: u64,
    /// How many rows.
    pub rows: u32,
    /// The bytes of key and value.
    pub bytes: u32,
}

/// All shards.
#[derive(Default)]
pub struct Table {
    /// The shards there are.
    pub shards: BTreeMap<ShardId, Kept>,
    /// Every queue there ever was, with the number of its shards; none once it was dropped.
    pub queues: BTreeMap<QueueId, Option<u32>>,
    /// The keyspaces of kept answers.
    pub answers: AnswerSpaces,
    /// What is left on disk of dropped queues: sequences by shard, and entries of outboxes.
    pub leftovers: Vec<(ShardId, Vec<u64>, Vec<Entry>)>,
    /// The first commit that each outbox holds.
    oldest: BTreeSet<(u64, ShardId)>,
    outbox_bytes: u64,
}

impl Kept {
    /// A shard whose header is on disk, or will be.
    pub fn new(core: Shard) -> Self {
        let (header, settings) = (core.header(), core.settings().clone());
        let view = view_of(&core, (0, 0), header.clock);
        Self { core, header, settings, view, outbox: VecDeque::new(), outbox_rows: 0 }
    }

    /// Looks at the core again, after commands; so many messages came to be pending by them.
    pub fn look(&mut self, arrived: u64, at: Timestamp) {
        self.view = view_of(&self.core, (self.view.step + 1, self.view.arrived + arrived), at);
    }

    /// Reads.
    pub fn read(&self, read: &Read, at: Timestamp) -> Seen {
        let heads: Vec<Message> = match read {
            Read::Get(message) => self.core.get(message).map(|head| self.core.shown(head)).into_iter().collect(),
            Read::Peek(limit) => self.core.peek().take(*limit).cloned().collect(),
            Read::List(state, after, limit) => {
                let heads = self.core.list(*state, *after).take(*limit);
                heads.map(|head| self.core.shown(head)).collect()
            }
            Read::These(sequences) => {
                sequences.iter().filter_map(|sequence| self.core.message(*sequence)).cloned().collect()
            }
            Read::Totals | Read::Depth(_) | Read::Sessions | Read::Leases(_) | Read::Explain(_) | Read::Prospect(_) => {
                Vec::new()
            }
        };
        let totals = *self.core.totals();
        let totals = ShardTotals { totals, sequence: self.core.sequence(), view: self.view };
        let at = at.max(self.header.clock);
        let told = match read {
            Read::Depth(filter) => Told::Depth(self.core.depth(filter)),
            Read::Sessions => Told::Sessions(self.core.sessions().map(|(id, session)| (id, session.clone())).collect()),
            Read::Leases(sessions) => Told::Leases(self.core.lease_counts(sessions)),
            Read::Explain(message) => Told::Causes(self.core.explain(message, at)),
            Read::Prospect(filter) => Told::Prospect(Box::new(self.core.prospect(filter, at))),
            Read::Get(_) | Read::Peek(_) | Read::List(..) | Read::These(_) | Read::Totals => Told::Nothing,
        };
        Seen { heads, at, totals, told }
    }

    /// The sequences of all its messages. O(n).
    pub fn sequences(&self) -> Vec<u64> {
        let messages = State::ALL.into_iter().flat_map(|state| self.core.list(state, 0));
        messages.map(|message| message.key.sequence).collect()
    }

    /// The message of a key.
    pub fn find(&self, key: MessageKey) -> Option<&Message> {
        self.core.get(&MessageRef::Key(key))
    }
}

fn view_of(core: &Shard, (step, arrived): (u64, u64), at: Timestamp) -> ShardView {
    ShardView {
        step,
        arrived,
        messages: core.totals().messages(),
        head: core.head(),
        ready_for: core.ready_for(at),
        blocked: core.dequeue_blocked().is_some(),
        next_event_in: core.next_event_in(at),
    }
}

impl Table {
    /// No shards yet.
    pub fn new(queues: BTreeMap<QueueId, Option<u32>>, answers: AnswerSpaces) -> Self {
        Self { queues, answers, ..Self::default() }
    }

    /// The queues that were not dropped.
    pub fn live(&self) -> Vec<(QueueId, u32)> {
        self.queues.iter().filter_map(|(queue, shards)| Some((*queue, (*shards)?))).collect()
    }

    /// The longest time for which any shard keeps answers. O(shards).
    pub fn longest_window(&self) -> Duration {
        self.shards.values().map(|kept| kept.core.settings().dedupe_window).max().unwrap_or_default()
    }

    /// The view of a shard, if another one of its queue has taken in a message of this id.
    pub fn taken_elsewhere(&self, shard: ShardId, sent: &NewMessage) -> Option<ShardView> {
        let mut others = self.shards.range(ShardId::all_of(shard.queue)).filter(|(id, _)| **id != shard);
        let taken = others.any(|(_, other)| other.core.has_taken(sent));
        self.shards.get(&shard).filter(|_| taken).map(|kept| kept.view)
    }

    /// Notes a new entry of an outbox; answers the entries that have to go for it. O(log shards) each.
    pub fn note_entry(&mut self, shard: ShardId, entry: Entry) -> Vec<(ShardId, Entry)> {
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

    /// Takes an entry in that is on disk already.
    pub fn push_entry(&mut self, shard: ShardId, entry: Entry) {
        let Some(kept) = self.shards.get_mut(&shard) else { return };
        if kept.outbox.is_empty() {
            self.oldest.insert((entry.commit, shard));
        }
        kept.outbox.push_back(entry);
        kept.outbox_rows += u64::from(entry.rows);
        self.outbox_bytes += u64::from(entry.bytes);
    }

    fn pop_entry(&mut self, shard: ShardId) -> Option<(ShardId, Entry)> {
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

    /// Takes a queue out; what it has on disk is left over.
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

    fn entry(commit: u64, rows: u32, bytes: u32) -> Entry {
        Entry { commit, rows, bytes }
    }

    fn table(shards: u32) -> Table {
        let mut table = Table::default();
        for number in 0..shards {
            let core = Shard::new(number, EPOCH, crate::adapters::embedded::queues::tests::settings());
            table.shards.insert(shard(number), Kept::new(core.expect("valid settings")));
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
        assert_eq!(table.note_entry(shard(0), entry(1, most / 2, 10)), []);
        assert_eq!(table.note_entry(shard(0), entry(2, most / 2, 10)), []);
        assert_eq!(table.note_entry(shard(0), entry(3, 1, 10)), [(shard(0), entry(1, most / 2, 10))]);
        assert_eq!(table.note_entry(shard(0), entry(4, 2 * most, 10)).len(), 2, "one entry may be more than all");
    }

    #[test]
    fn all_outboxes_together_lose_their_oldest_entries() {
        let mut table = table(2);
        let half = u32::try_from(OUTBOX_BYTES_MAX / 2).expect("fits");
        assert_eq!(table.note_entry(shard(0), entry(1, 1, half)), []);
        assert_eq!(table.note_entry(shard(1), entry(2, 1, half)), []);
        assert_eq!(table.note_entry(shard(1), entry(3, 1, 1)), [(shard(0), entry(1, 1, half))]);
        assert_eq!(table.note_entry(shard(0), entry(4, 1, half)), [(shard(1), entry(2, 1, half))]);
    }
}
