//! The greatest counters of a namespace, ranked by what the roller writes.
//!
//! A ranking is built by one walk over the checkpoints when it is first asked for, and kept by every roll afterwards.
//! Until the walk is done it answers nothing. In a fleet other servers roll as well. So there a ranking holds for the
//! time at which its walk began, and is built again when it is asked for later. Each touch shard keeps a bounded heap.
//! A counter that sinks below what was once pushed out makes the shard incomplete, and the ranking is then built again.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;

use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, CounterName, NamespaceId};
use tallystone_domain::limits::{TOP_COUNTERS_KEPT_MAX, TOUCH_SHARDS};
use tallystone_domain::rollup::Checkpoint;
use tallystone_domain::rollup::checkpoint::is_ttl_expired;

/// The rankings of all namespaces that were asked for one.
#[derive(Default)]
pub struct TopTables {
    tables: DashMap<NamespaceId, Arc<TopTable>>,
}

/// The ranking of one namespace.
pub struct TopTable {
    shards: Vec<Mutex<RankingHeap>>,
    complete: AtomicBool,
    /// When its walk began.
    pub started: RankingStart,
}

/// The start of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankingStart {
    /// By elapsed time.
    pub elapsed: Duration,
    /// Every checkpoint read after the start contains all events up to this time.
    pub as_of: Timestamp,
}

#[derive(Default)]
struct RankingHeap {
    ranked: BTreeSet<(Reverse<i128>, CounterName)>,
    values: HashMap<CounterName, RankedValue>,
    /// The greatest value that was ever left out.
    best_left_out: Option<i128>,
    /// The time and TTL of the last check for silent counters, if none was recorded since.
    silence_checked_at: Option<(Timestamp, Duration)>,
}

/// The stored value of a ranked counter.
#[derive(Clone, Copy)]
struct RankedValue {
    value: i128,
    as_of: Timestamp,
    last_event_time: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankedCounter {
    pub name: CounterName,
    pub value: i128,
    /// The `as_of` of the value.
    pub as_of: Timestamp,
}

impl TopTables {
    /// Notes the new checkpoint of a counter, if its namespace has a ranking.
    pub fn note(&self, counter: &Counter, checkpoint: &Checkpoint) {
        if self.tables.is_empty() {
            return;
        }
        if let Some(table) = self.tables.get(&counter.namespace()) {
            table.note(counter, checkpoint);
        }
    }

    /// The ranking of a namespace, if there is one.
    pub fn get(&self, namespace: NamespaceId) -> Option<Arc<TopTable>> {
        self.tables.get(&namespace).map(|table| Arc::clone(&table))
    }

    /// Starts a ranking, which records rolls from now on; none while another one is being built.
    pub fn begin(&self, namespace: NamespaceId, begun: RankingStart) -> Option<Arc<TopTable>> {
        let table = Arc::new(TopTable {
            shards: (0..TOUCH_SHARDS).map(|_| Mutex::default()).collect(),
            complete: AtomicBool::new(false),
            started: begun,
        });
        match self.tables.entry(namespace) {
            Entry::Occupied(held) if !held.get().complete.load(Ordering::Acquire) => return None,
            Entry::Occupied(mut held) => drop(held.insert(Arc::clone(&table))),
            Entry::Vacant(vacant) => drop(vacant.insert(Arc::clone(&table))),
        }
        Some(table)
    }

    /// Forgets a ranking that could not be built.
    pub fn discard(&self, namespace: NamespaceId, table: &Arc<TopTable>) {
        let unfinished = |held: &Arc<TopTable>| Arc::ptr_eq(held, table) && !held.complete.load(Ordering::Acquire);
        self.tables.remove_if(&namespace, |_, held| unfinished(held));
    }

    /// Forgets the ranking of a namespace.
    pub fn forget(&self, namespace: NamespaceId) {
        self.tables.remove(&namespace);
    }
}

impl TopTable {
    /// Notes the checkpoint of a counter, unless a newer one is known.
    pub fn note(&self, counter: &Counter, checkpoint: &Checkpoint) {
        let Checkpoint { count, as_of, last_event_time, .. } = *checkpoint;
        let held = RankedValue { value: count, as_of, last_event_time };
        self.shards[counter.touch_shard() as usize].lock().note(counter.name(), held);
    }

    /// Ends the scan: every counter is recorded.
    pub fn complete(&self) {
        self.complete.store(true, Ordering::Release);
    }

    /// The greatest counters as seen at `as_of`; none while the walk is under way, and none if too many sank to be sure
    /// of the order. Cost: O(n + shards), with a TTL also O(kept) for each shard that changed or is seen at another
    /// time.
    pub fn top(&self, n: usize, as_of: Timestamp, ttl: Option<Duration>) -> Option<Vec<RankedCounter>> {
        if !self.complete.load(Ordering::Acquire) {
            return None;
        }
        let mut heaps: Vec<_> = self.shards.iter().map(Mutex::lock).collect();
        if let Some(ttl) = ttl {
            heaps.iter_mut().for_each(|heap| heap.expire_silent(as_of, ttl));
        }
        greatest(&heaps, n)
    }
}

/// The greatest counters of some heaps; none if a counter that was left out may belong to them by now.
fn greatest(heaps: &[impl Deref<Target = RankingHeap>], n: usize) -> Option<Vec<RankedCounter>> {
    let mut rest: Vec<_> = heaps.iter().map(|heap| heap.ranked.iter()).collect();
    // The next unused entry of each heap.
    let mut first: BinaryHeap<_> =
        rest.iter_mut().enumerate().filter_map(|(at, rest)| Some(Reverse((rest.next()?, at)))).collect();
    let mut top = Vec::with_capacity(n.min(TOP_COUNTERS_KEPT_MAX));
    while top.len() < n
        && let Some(Reverse(((Reverse(value), name), at))) = first.pop()
    {
        top.push(heaps[at].ranked_of(*value, name));
        first.extend(rest[at].next().map(|next| Reverse((next, at))));
    }
    let least = top.last().map(|ranked| ranked.value).filter(|_| top.len() == n);
    let is_sure =
        |heap: &RankingHeap| heap.best_left_out.is_none_or(|left_out| least.is_some_and(|least| least >= left_out));
    heaps.iter().all(|heap| is_sure(heap)).then_some(top)
}

impl RankingHeap {
    fn note(&mut self, name: &CounterName, new: RankedValue) {
        self.silence_checked_at = None;
        if let Some(known) = self.values.get(name).copied() {
            if known.as_of > new.as_of {
                return;
            }
            self.ranked.remove(&(Reverse(known.value), name.clone()));
        }
        self.values.insert(name.clone(), new);
        self.ranked.insert((Reverse(new.value), name.clone()));
        if self.ranked.len() > TOP_COUNTERS_KEPT_MAX
            && let Some((Reverse(least), name)) = self.ranked.pop_last()
        {
            self.values.remove(&name);
            self.best_left_out = self.best_left_out.max(Some(least));
        }
    }

    /// Counters silent for longer than the TTL count as 0.
    fn expire_silent(&mut self, as_of: Timestamp, ttl: Duration) {
        if self.silence_checked_at.replace((as_of, ttl)) == Some((as_of, ttl)) {
            return;
        }
        let silent = |held: &RankedValue| held.value != 0 && is_ttl_expired(held.last_event_time, as_of, Some(ttl));
        for (name, held) in self.values.iter_mut().filter(|(_, held)| silent(held)) {
            self.ranked.remove(&(Reverse(held.value), name.clone()));
            held.value = 0;
            self.ranked.insert((Reverse(0), name.clone()));
        }
    }

    fn ranked_of(&self, value: i128, name: &CounterName) -> RankedCounter {
        let as_of = self.values.get(name).map_or(Timestamp::MIN, |held| held.as_of);
        RankedCounter { name: name.clone(), value, as_of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: RankingStart = RankingStart { elapsed: Duration::ZERO, as_of: Timestamp::MIN };

    fn counter(i: usize) -> Counter {
        Counter::new(NamespaceId(1), CounterName::new(&format!("c{i}")).expect("a valid name"))
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn checkpoint(count: i128, as_of: i64) -> Checkpoint {
        let as_of = at(as_of);
        Checkpoint { count, last_event_time: Some(as_of), ..Checkpoint::empty(as_of) }
    }

    #[test]
    fn the_greatest_come_first_and_an_older_value_changes_nothing() {
        let tables = TopTables::default();
        let table = tables.begin(NamespaceId(1), BEGUN).expect("no other is being built");
        table.complete();
        tables.note(&counter(1), &checkpoint(5, 10));
        tables.note(&counter(2), &checkpoint(7, 10));
        tables.note(&counter(1), &checkpoint(9, 20));
        tables.note(&counter(1), &checkpoint(1, 15));
        let top = table.top(10, at(20), None).expect("nothing was left out");
        assert_eq!(top.iter().map(|ranked| ranked.value).collect::<Vec<_>>(), [9, 7]);
    }

    #[test]
    fn a_ranking_is_answered_only_when_its_walk_is_done_and_built_by_one_walk_at_once() {
        let tables = TopTables::default();
        let table = tables.begin(NamespaceId(1), BEGUN).expect("no other is being built");
        tables.note(&counter(1), &checkpoint(5, 10));
        assert_eq!(table.top(10, at(10), None), None, "others may be greater");
        assert!(tables.begin(NamespaceId(1), BEGUN).is_none());
        tables.discard(NamespaceId(1), &table);
        let table = tables.begin(NamespaceId(1), BEGUN).expect("the first was given up");
        table.complete();
        assert_eq!(table.top(10, at(10), None), Some(Vec::new()));
        assert!(tables.begin(NamespaceId(1), BEGUN).is_some(), "a finished one may be built anew");
    }

    #[test]
    fn a_counter_silent_for_longer_than_the_ttl_counts_nothing() {
        let tables = TopTables::default();
        let table = tables.begin(NamespaceId(1), BEGUN).expect("no other is being built");
        table.complete();
        tables.note(&counter(1), &checkpoint(9, 1_000));
        tables.note(&counter(2), &checkpoint(2, 5_000));
        let ttl = Some(Duration::from_secs(3));
        let values =
            |as_of| table.top(2, as_of, ttl).expect("complete").iter().map(|one| one.value).collect::<Vec<_>>();
        assert_eq!(values(at(4_000)), [9, 2]);
        assert_eq!(values(at(4_001)), [2, 0]);
    }

    #[test]
    fn shards_are_ranked_as_one_however_many_are_asked_for() {
        let tables = TopTables::default();
        let table = tables.begin(NamespaceId(1), BEGUN).expect("no other is being built");
        table.complete();
        let value = |i: usize| (i * 7_919 % 1_009) as i128;
        for i in 0..2_000 {
            tables.note(&counter(i), &checkpoint(value(i), 10));
        }
        let mut all: Vec<(Reverse<i128>, CounterName)> =
            (0..2_000).map(|i| (Reverse(value(i)), counter(i).name().clone())).collect();
        all.sort();
        for n in [0, 1, 10, 1_000, 2_000, 3_000] {
            let top = table.top(n, at(10), None).expect("nothing was left out");
            let ranked: Vec<_> = top.into_iter().map(|one| (Reverse(one.value), one.name)).collect();
            assert_eq!(ranked, all[..n.min(2_000)]);
        }
    }

    #[test]
    fn a_counter_that_is_noted_after_a_look_falls_silent_at_the_same_time_too() {
        let tables = TopTables::default();
        let table = tables.begin(NamespaceId(1), BEGUN).expect("no other is being built");
        table.complete();
        let ttl = Some(Duration::from_secs(3));
        assert_eq!(table.top(1, at(9_000), ttl), Some(Vec::new()));
        tables.note(&counter(1), &checkpoint(9, 1_000));
        let top = table.top(1, at(9_000), ttl).expect("complete");
        assert_eq!(top[0].value, 0);
    }

    #[test]
    fn a_shard_whose_leaders_sank_is_not_answered_from_memory() {
        let mut heap = RankingHeap::default();
        let held = |value, as_of| RankedValue { value, as_of: at(as_of), last_event_time: None };
        for i in 0..=TOP_COUNTERS_KEPT_MAX {
            heap.note(counter(i).name(), held(1_000 + i as i128, 1));
        }
        assert!(greatest(&[&heap], 10).is_some());
        for i in 0..=TOP_COUNTERS_KEPT_MAX {
            if heap.values.contains_key(counter(i).name()) {
                heap.note(counter(i).name(), held(1, 2));
            }
        }
        assert_eq!(greatest(&[&heap], 10), None);
    }
}
