//! Best-effort counters of one process: a sharded hash table, bounded in bytes.
//!
//! Each shard is a slab of counters under its own lock, an index into the slab by the counter's hash, and a clock hand.
//! When a shard exceeds its share of the capacity, the hand goes round the slab. It removes counters that expired or
//! were not used since its last pass (second chance). Each insertion also checks two slots for expired counters, so a
//! table of short-lived counters stays small.
//!
//! Invariant: a counter has at most one slot, and a shard holds at most its share of bytes plus one counter.

use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hashbrown::HashTable;
use parking_lot::Mutex;

use tallystone_domain::counter::{Counter, CounterName, NamespaceId};
use tallystone_domain::limits::FAST_SHARDS_MAX;
use tallystone_ports::{Clock, Expiry, FastAdd, FastAddOutcome, FastCapabilities, FastCounts, Overflow, StoreError};

/// A smaller shard is not worthwhile.
const SHARD_BYTES_MIN: usize = 64 * 1024;
/// Bytes of a counter besides its name: the slot, its share of the index, the header of the shared name, slack of both.
const ENTRY_BYTES: usize = std::mem::size_of::<FastTableSlot>() + 48;
/// Slots that an insertion checks for expired counters.
const SLOTS_SWEPT: usize = 2;

/// The table of best-effort counters of one process.
pub struct FastTable {
    clock: Arc<dyn Clock>,
    shards: Box<[Mutex<FastTableShard>]>,
    shard_bytes_max: usize,
}

#[derive(Default)]
struct FastTableShard {
    index: HashTable<u32>,
    slots: Vec<Option<FastTableSlot>>,
    free: Vec<u32>,
    hand: usize,
    bytes: usize,
}

struct FastTableSlot {
    counter: Counter,
    value: i64,
    expires: Option<Duration>,
    used: bool,
}

impl FastTable {
    /// Creates a table that holds about this many bytes of counters.
    pub fn new(clock: Arc<dyn Clock>, capacity_bytes: usize) -> Self {
        let count = (capacity_bytes / SHARD_BYTES_MIN).clamp(1, FAST_SHARDS_MAX);
        let shards = (0..count).map(|_| Mutex::default()).collect();
        Self { clock, shards, shard_bytes_max: capacity_bytes / count }
    }

    /// Returns the bytes of all counters in the table, including expired ones.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }

    fn shard(&self, counter: &Counter) -> &Mutex<FastTableShard> {
        // The index uses the lowest and the highest bits of the hash, so the middle bits select the shard.
        let at = (counter.hash() >> 24) as usize % self.shards.len();
        &self.shards[at]
    }
}

#[async_trait]
impl FastCounts for FastTable {
    fn capabilities(&self) -> FastCapabilities {
        FastCapabilities {
            overflow: Overflow::Stays,
            expiry: Expiry::Exact,
            lists_names: true,
            remembers_tokens: Duration::ZERO,
        }
    }

    async fn add(&self, counter: &Counter, add: FastAdd) -> Result<FastAddOutcome, StoreError> {
        let now = self.clock.elapsed();
        // A TTL beyond the end of the clock means no expiry.
        let expires = add.ttl.and_then(|ttl| now.checked_add(ttl));
        let value = self.shard(counter).lock().add(counter, add.delta, expires, now, self.shard_bytes_max);
        Ok(FastAddOutcome::Applied(value))
    }

    async fn get(&self, counter: &Counter) -> Result<Option<i64>, StoreError> {
        let now = self.clock.elapsed();
        Ok(self.shard(counter).lock().find_live(counter, now).map(|slot| slot.value))
    }

    async fn clear(&self, counter: &Counter) -> Result<(), StoreError> {
        self.shard(counter).lock().remove(counter);
        Ok(())
    }

    /// Cost: O(counters of the table * log limit).
    async fn names(
        &self,
        namespace: NamespaceId,
        prefix: &str,
        above: Option<&CounterName>,
        limit: usize,
    ) -> Result<Vec<CounterName>, StoreError> {
        let now = self.clock.elapsed();
        let mut lowest = BinaryHeap::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let live = shard.slots.iter().flatten().filter(|slot| !slot.is_expired(now));
            let names = live.filter(|slot| slot.counter.namespace() == namespace).map(|slot| slot.counter.name());
            for name in
                names.filter(|name| name.as_str().starts_with(prefix) && above.is_none_or(|above| *name > above))
            {
                if lowest.len() < limit {
                    lowest.push(name.clone());
                } else if lowest.peek().is_some_and(|highest| name < highest) {
                    lowest.pop();
                    lowest.push(name.clone());
                }
            }
        }
        Ok(lowest.into_sorted_vec())
    }
}

impl FastTableShard {
    fn add(
        &mut self,
        counter: &Counter,
        delta: i64,
        expires: Option<Duration>,
        now: Duration,
        bytes_max: usize,
    ) -> i64 {
        if let Some(slot) = self.find_live(counter, now) {
            slot.value = slot.value.saturating_add(delta);
            slot.expires = expires;
            return slot.value;
        }
        for _ in 0..SLOTS_SWEPT {
            self.sweep(now, SweepMode::Expired);
        }
        let bytes = bytes_of(counter);
        // The hand passes each slot at most twice: first to clear its used mark, then to remove it.
        for _ in 0..2 * self.slots.len() {
            if self.bytes + bytes <= bytes_max {
                break;
            }
            self.sweep(now, SweepMode::Unused);
        }
        self.insert(FastTableSlot { counter: counter.clone(), value: delta, expires, used: true });
        delta
    }

    /// Finds the slot of a counter that has not expired; removes an expired one.
    fn find_live(&mut self, counter: &Counter, now: Duration) -> Option<&mut FastTableSlot> {
        let at = self.find(counter)?;
        if self.slots[at as usize].as_ref().is_some_and(|slot| slot.is_expired(now)) {
            self.remove(counter);
            return None;
        }
        let slot = self.slots[at as usize].as_mut()?;
        slot.used = true;
        Some(slot)
    }

    /// Moves the hand by one slot and removes the counter there if the mode says so.
    fn sweep(&mut self, now: Duration, pass: SweepMode) {
        if self.slots.is_empty() {
            return;
        }
        self.hand = (self.hand + 1) % self.slots.len();
        let Some(slot) = &mut self.slots[self.hand] else { return };
        let goes = slot.is_expired(now)
            || match pass {
                SweepMode::Expired => false,
                SweepMode::Unused => !std::mem::take(&mut slot.used),
            };
        if goes {
            let counter = slot.counter.clone();
            self.remove(&counter);
        }
    }

    fn find(&self, counter: &Counter) -> Option<u32> {
        let held = |at: &u32| self.slots[*at as usize].as_ref().is_some_and(|slot| slot.counter == *counter);
        self.index.find(counter.hash(), held).copied()
    }

    fn insert(&mut self, slot: FastTableSlot) {
        self.bytes += bytes_of(&slot.counter);
        let hash = slot.counter.hash();
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = Some(slot);
                at
            }
            None => {
                self.slots.push(Some(slot));
                u32::try_from(self.slots.len() - 1).expect("a shard has fewer than 2^32 counters in its bytes")
            }
        };
        let slots = &self.slots;
        let hash_of = |at: &u32| slots[*at as usize].as_ref().map_or(0, |slot| slot.counter.hash());
        self.index.insert_unique(hash, at, hash_of);
    }

    fn remove(&mut self, counter: &Counter) {
        let slots = &self.slots;
        let held = |at: &u32| slots[*at as usize].as_ref().is_some_and(|slot| slot.counter == *counter);
        let Ok(entry) = self.index.find_entry(counter.hash(), held) else { return };
        let (at, _) = entry.remove();
        self.slots[at as usize] = None;
        self.free.push(at);
        self.bytes -= bytes_of(counter);
    }
}

/// The kind of counters that the passing hand removes.
#[derive(Clone, Copy)]
enum SweepMode {
    Expired,
    Unused,
}

impl FastTableSlot {
    fn is_expired(&self, now: Duration) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

fn bytes_of(counter: &Counter) -> usize {
    ENTRY_BYTES + counter.name().as_str().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manual::ManualClock;
    use tallystone_domain::time::Timestamp;

    const SECOND: Duration = Duration::from_secs(1);

    fn counter(name: &str) -> Counter {
        Counter::new(NamespaceId(1), CounterName::new(name).expect("a valid name"))
    }

    #[tokio::test]
    async fn a_value_stays_at_the_ends_of_64_bits() {
        let (table, _clock) = table(1 << 20);
        for (end, beyond) in [(i64::MAX, 1), (i64::MIN, -1)] {
            let views = counter(&format!("views{end}"));
            for delta in [end, beyond, beyond] {
                assert_eq!(table.add(&views, FastAdd::of(delta, None)).await.expect("an add").value(), end);
            }
            assert_eq!(table.get(&views).await.expect("a read"), Some(end));
        }
    }

    fn table(capacity_bytes: usize) -> (FastTable, ManualClock) {
        let clock = ManualClock::at(Timestamp::from_secs(0));
        (FastTable::new(Arc::new(clock.clone()), capacity_bytes), clock)
    }

    #[tokio::test]
    async fn a_full_table_stays_within_its_bytes_and_keeps_what_is_used() {
        let capacity = 128 * 1024;
        let (table, _) = table(capacity);
        let hot = counter("hot");
        for number in 0..20_000 {
            table.add(&counter(&format!("cold-{number}")), FastAdd::of(1, None)).await.expect("a table does not fail");
            table.add(&hot, FastAdd::of(1, None)).await.expect("a table does not fail");
            assert!(table.bytes() <= capacity + ENTRY_BYTES + 256);
        }
        assert_eq!(table.get(&hot).await.expect("a table does not fail"), Some(20_000));
        assert!(table.bytes() > capacity / 2, "what fits is kept");
    }

    #[tokio::test]
    async fn expired_counters_make_room_without_pressure() {
        let (table, clock) = table(1024 * 1024);
        for number in 0..1_000 {
            table
                .add(&counter(&format!("short-{number}")), FastAdd::of(1, Some(SECOND)))
                .await
                .expect("a table does not fail");
        }
        let full = table.bytes();
        clock.advance(SECOND);
        for number in 0..1_000 {
            table
                .add(&counter(&format!("next-{number}")), FastAdd::of(1, Some(SECOND)))
                .await
                .expect("a table does not fail");
        }
        assert!(table.bytes() < full + full / 2, "{} of {full} bytes", table.bytes());
    }

    #[tokio::test]
    async fn a_table_smaller_than_a_counter_still_counts_the_last_one() {
        let (table, _) = table(1);
        for number in 0..10 {
            let counter = counter(&format!("c-{number}"));
            table.add(&counter, FastAdd::of(5, None)).await.expect("a table does not fail");
            assert_eq!(
                table.add(&counter, FastAdd::of(-3, None)).await.expect("a table does not fail"),
                FastAddOutcome::Applied(2)
            );
        }
        assert!(table.bytes() <= ENTRY_BYTES + 256);
    }

    #[tokio::test]
    async fn adds_of_many_tasks_are_all_counted() {
        let (table, _) = table(1024 * 1024);
        let table = Arc::new(table);
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let table = table.clone();
                tokio::spawn(async move {
                    for _ in 0..1_000 {
                        table.add(&counter("shared"), FastAdd::of(1, None)).await.expect("a table does not fail");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
        assert_eq!(table.get(&counter("shared")).await.expect("a table does not fail"), Some(8_000));
    }
}
