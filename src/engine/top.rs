//! The greatest counters of a namespace, ranked by what the roller writes.
//!
//! A ranking is built by one walk over the checkpoints when it is first asked for, and kept by every roll afterwards. Each
//! touch shard keeps a bounded heap; a counter that sinks below what was once pushed out makes the shard incomplete, and
//! the ranking is then built anew.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::Mutex;

use crate::domain::Timestamp;
use crate::domain::counter::{Counter, CounterName, NamespaceId};
use crate::domain::limits::{TOP_COUNTERS_MAX, TOUCH_SHARDS};

/// What one shard keeps; more than is asked for, so that small changes need no new walk.
const KEPT_MAX: usize = TOP_COUNTERS_MAX + TOP_COUNTERS_MAX / 4;

/// The rankings of all namespaces that were asked for one.
#[derive(Default)]
pub struct TopTables {
    tables: DashMap<NamespaceId, Arc<TopTable>>,
}

/// The ranking of one namespace.
pub struct TopTable {
    shards: Vec<Mutex<Heap>>,
}

#[derive(Default)]
struct Heap {
    ranked: BTreeSet<(Reverse<i128>, CounterName)>,
    values: HashMap<CounterName, (i128, Timestamp)>,
    /// The greatest value that was ever left out.
    left_out: Option<i128>,
}

/// One ranked counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranked {
    /// The counter.
    pub name: CounterName,
    /// Its value.
    pub value: i128,
    /// What the value holds for.
    pub as_of: Timestamp,
}

impl TopTables {
    /// Notes the new value of a counter, if its namespace has a ranking.
    pub fn note(&self, counter: &Counter, value: i128, as_of: Timestamp) {
        if self.tables.is_empty() {
            return;
        }
        if let Some(table) = self.tables.get(&counter.namespace()) {
            table.note(counter, value, as_of);
        }
    }

    /// The ranking of a namespace, if there is one.
    pub fn get(&self, namespace: NamespaceId) -> Option<Arc<TopTable>> {
        self.tables.get(&namespace).map(|table| Arc::clone(&table))
    }

    /// Begins a ranking; rolls are noted in it from now on.
    pub fn begin(&self, namespace: NamespaceId) -> Arc<TopTable> {
        let table = Arc::new(TopTable { shards: (0..TOUCH_SHARDS).map(|_| Mutex::default()).collect() });
        self.tables.insert(namespace, Arc::clone(&table));
        table
    }

    /// Forgets the ranking of a namespace.
    pub fn forget(&self, namespace: NamespaceId) {
        self.tables.remove(&namespace);
    }
}

impl TopTable {
    /// Notes the value of a counter, unless a newer one is known.
    pub fn note(&self, counter: &Counter, value: i128, as_of: Timestamp) {
        self.shards[counter.touch_shard() as usize].lock().note(counter.name(), value, as_of);
    }

    /// The greatest counters; none if too many sank to be sure of the order.
    pub fn top(&self, n: usize) -> Option<Vec<Ranked>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().top(n)?);
        }
        all.sort_by(|a, b| b.value.cmp(&a.value).then_with(|| a.name.cmp(&b.name)));
        all.truncate(n);
        Some(all)
    }
}

impl Heap {
    fn note(&mut self, name: &CounterName, value: i128, as_of: Timestamp) {
        if let Some((old, known)) = self.values.get(name).copied() {
            if known > as_of {
                return;
            }
            self.ranked.remove(&(Reverse(old), name.clone()));
        }
        self.values.insert(name.clone(), (value, as_of));
        self.ranked.insert((Reverse(value), name.clone()));
        if self.ranked.len() > KEPT_MAX
            && let Some((Reverse(least), name)) = self.ranked.pop_last()
        {
            self.values.remove(&name);
            self.left_out = self.left_out.max(Some(least));
        }
    }

    fn top(&self, n: usize) -> Option<Vec<Ranked>> {
        let top: Vec<Ranked> =
            self.ranked.iter().take(n).map(|(Reverse(value), name)| self.ranked_of(*value, name)).collect();
        let least = top.last().map(|ranked| ranked.value);
        match (self.left_out, least) {
            (None, _) => Some(top),
            // One that was left out may be greater than the last of these by now.
            (Some(left_out), Some(least)) if top.len() == n && least >= left_out => Some(top),
            (Some(_), _) => None,
        }
    }

    fn ranked_of(&self, value: i128, name: &CounterName) -> Ranked {
        let as_of = self.values.get(name).map_or(Timestamp::MIN, |(_, as_of)| *as_of);
        Ranked { name: name.clone(), value, as_of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(i: usize) -> Counter {
        Counter::new(NamespaceId(1), CounterName::new(&format!("c{i}")).expect("a valid name"))
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn the_greatest_come_first_and_an_older_value_changes_nothing() {
        let tables = TopTables::default();
        let table = tables.begin(NamespaceId(1));
        tables.note(&counter(1), 5, at(10));
        tables.note(&counter(2), 7, at(10));
        tables.note(&counter(1), 9, at(20));
        tables.note(&counter(1), 1, at(15));
        let top = table.top(10).expect("nothing was left out");
        assert_eq!(top.iter().map(|ranked| ranked.value).collect::<Vec<_>>(), [9, 7]);
    }

    #[test]
    fn a_shard_whose_leaders_sank_is_not_answered_from_memory() {
        let mut heap = Heap::default();
        for i in 0..=KEPT_MAX {
            heap.note(counter(i).name(), 1_000 + i as i128, at(1));
        }
        assert!(heap.top(10).is_some());
        for i in 0..=KEPT_MAX {
            if heap.values.contains_key(counter(i).name()) {
                heap.note(counter(i).name(), 1, at(2));
            }
        }
        assert_eq!(heap.top(10), None);
    }
}
