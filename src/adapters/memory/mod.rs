//! The plainest possible stores: ordered maps under one lock. The oracle of every suite; nothing survives the process.
//!
//! Correctness over speed: a scan may look at every event of its counter. Only `FastTable`, the table of best-effort
//! counters, is built for production; the other types are for tests, simulations and comparisons. Invariant: each call
//! is one critical section, so its effects appear at once and law 1 of the event log holds trivially.

mod admin_log;
mod cache;
mod catalog;
mod entries;
mod event_log;
mod fast_counts;
mod history;
mod membership;
mod operations;
mod outboxes;
mod queues;
mod rollups;
mod rules;
mod sessions;
mod slices;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;

use parking_lot::Mutex;

use crate::Opened;
use crate::manual::ManualClock;
use tallystone_domain::access::AccessKey;
use tallystone_domain::counter::{Counter, CounterName, DatasetId, Event, EventKey, NamespaceId};
use tallystone_domain::rollup::{BucketRecord, Checkpoint, SliceStatus, StepSum, TimeSlice};
use tallystone_domain::time::Timestamp;
use tallystone_experiments::CatalogExperiment;
use tallystone_ports::{Clock, QueueStores, SharedQueues, StoreHandle, Stores};

pub use admin_log::AdminLogTable;
pub use cache::MemoryCache;
pub use catalog::{Catalog, QueueCatalog};
pub use entries::MemoryEntryCatalog;
pub use fast_counts::FastTable;
pub use history::MemoryHistory;
pub use membership::MemoryMembership;
pub use operations::MemoryOperations;
pub use queues::MemoryQueues;
pub use rules::MemoryRules;
pub use sessions::MemorySessions;

/// The bytes of best-effort counters that `stores` keeps.
const FAST_BYTES: usize = 64 * 1024 * 1024;

/// Fresh, empty stores. The TTL of best-effort counters never runs out in them; see `stores_on`.
pub fn stores() -> Stores {
    stores_on(Arc::new(ManualClock::at(Timestamp::from_secs(0))))
}

/// Fresh, empty stores whose best-effort counters expire by this clock.
pub fn stores_on(clock: Arc<dyn Clock>) -> Stores {
    let store = Arc::new(MemoryStore::default());
    Stores {
        log: store.clone(),
        touches: store.clone(),
        slices: store.clone(),
        rollups: store.clone(),
        progress: store,
        cache: Arc::new(MemoryCache::default()),
        fast: Arc::new(FastTable::new(clock, FAST_BYTES)),
        caches: Arc::default(),
        catalog: Arc::new(Catalog::default()),
        keys: Arc::new(MemoryEntryCatalog::<AccessKey>::default()),
        experiments: Arc::new(MemoryEntryCatalog::<CatalogExperiment>::default()),
        rules: Arc::new(MemoryRules::default()),
        fleet: None,
    }
}

/// Fresh, empty stores of queues whose time is that of the clock.
pub fn queue_stores(clock: Arc<dyn Clock>) -> QueueStores {
    QueueStores::of(Arc::new(MemoryQueues::new(clock)), Arc::new(QueueCatalog::default()))
}

/// The same, for several servers of this process: they follow each other through the catalog.
pub fn shared_queue_stores(clock: Arc<dyn Clock>) -> QueueStores {
    let (membership, operations) = (Arc::new(MemoryMembership::default()), Arc::new(MemoryOperations::default()));
    let sessions = Arc::new(MemorySessions::new(Arc::clone(&clock)));
    let shared = SharedQueues { membership, operations, sessions };
    let stores = QueueStores::of(Arc::new(MemoryQueues::new(clock)), Arc::new(QueueCatalog::shared()));
    QueueStores { shared: Some(shared), ..stores }
}

/// Opens stores for both roles in the memory of this process.
pub fn open(clock: &Arc<dyn Clock>) -> Opened {
    Opened {
        counters: Some(stores_on(Arc::clone(clock))),
        queues: Some(queue_stores(Arc::clone(clock))),
        history: Some(Arc::new(MemoryHistory::default())),
        cache: None,
        backups: None,
        handle: Arc::new(MemoryHandle),
    }
}

/// The memory of this process. It always answers, and there is nothing to close.
struct MemoryHandle;

#[async_trait]
impl StoreHandle for MemoryHandle {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn description(&self) -> String {
        "the memory of this process".to_owned()
    }

    async fn close(&self) {}
}

/// Event log, touches, slices, rollups and progress: one state, because an append changes most of it at once.
#[derive(Default)]
pub struct MemoryStore {
    state: Mutex<MemoryStoreState>,
}

#[derive(Default)]
struct MemoryStoreState {
    events: BTreeMap<(DatasetId, Counter), BTreeMap<EventKey, Event>>,
    /// (dataset, touch shard, step, counter).
    touches: BTreeSet<(DatasetId, u32, Timestamp, Counter)>,
    watermarks: BTreeMap<(DatasetId, u32), Timestamp>,
    slices: BTreeMap<(DatasetId, Timestamp), TimeSlice>,
    rows: BTreeMap<(DatasetId, Counter), MemoryRollupRow>,
    buckets: BTreeMap<(DatasetId, Counter, Timestamp), BucketRecord>,
    /// By (counter, step in seconds, start).
    steps: BTreeMap<(Counter, u32, Timestamp), StepSum>,
    names: BTreeSet<(NamespaceId, CounterName)>,
    forgotten: BTreeSet<NamespaceId>,
    limits: BTreeMap<DatasetId, Timestamp>,
}

#[derive(Clone, Default)]
struct MemoryRollupRow {
    checkpoint: Option<Checkpoint>,
    clear: Option<EventKey>,
    last_write_time: Option<Timestamp>,
}

impl MemoryStoreState {
    /// The slice that a time falls into, if it has a row.
    fn slice_at(&self, dataset: DatasetId, time: Timestamp) -> Option<&TimeSlice> {
        let (_, slice) = self.slices.range((dataset, Timestamp::MIN)..=(dataset, time)).next_back()?;
        (time < slice.end).then_some(slice)
    }

    /// Whether events may be written at a time: its slice has a row and was not dropped.
    fn takes_events_at(&self, dataset: DatasetId, time: Timestamp) -> bool {
        self.slice_at(dataset, time).is_some_and(|slice| slice.status != SliceStatus::Dropped)
    }
}
