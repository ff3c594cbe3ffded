//! The count cache in a map.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;

use tallystone_domain::counter::Counter;
use tallystone_domain::rollup::CachedCount;
use tallystone_ports::{CacheLease, CountCache, ReplicaLease};

/// A cache without eviction: it forgets only deleted entries.
#[derive(Default)]
pub struct MemoryCache {
    state: Mutex<MemoryCacheState>,
}

#[derive(Default)]
struct MemoryCacheState {
    /// Number of the last lease or delete.
    clock: u64,
    values: BTreeMap<Counter, CachedCount>,
    deleted: BTreeMap<Counter, u64>,
}

#[async_trait]
impl CountCache for MemoryCache {
    async fn get(&self, counter: &Counter) -> Option<CachedCount> {
        self.state.lock().values.get(counter).cloned()
    }

    async fn lease(&self, _counter: &Counter) -> CacheLease {
        let mut state = self.state.lock();
        state.clock += 1;
        let replica = ReplicaLease { number: state.clock, held_as_of: None };
        CacheLease { replicas: vec![Some(replica)], ..CacheLease::default() }
    }

    async fn fill(&self, counter: &Counter, value: CachedCount, lease: CacheLease) {
        let Some(replica) = lease.replicas.first().copied().flatten() else { return };
        let mut state = self.state.lock();
        let stale = state.deleted.get(counter).is_some_and(|deleted| *deleted > replica.number);
        let older = state.values.get(counter).is_some_and(|held| held.as_of > value.as_of);
        if !stale && !older {
            state.values.insert(counter.clone(), value);
        }
    }

    async fn delete(&self, counter: &Counter) -> bool {
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        state.deleted.insert(counter.clone(), now);
        state.values.remove(counter);
        true
    }
}
