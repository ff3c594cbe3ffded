//! The interfaces between the engine and stores, caches and clocks. Each port's doc comment is a contract with numbered
//! laws; `tests/conformance` runs every law on every backend under those numbers.
//!
//! No vendor type crosses a port. Any task may call any method at any time. A method that is not async blocks its
//! caller no longer than a point read of local storage.

#![warn(missing_docs)]

mod admin_log;
mod backup;
mod catalog;
mod clock;
mod count_cache;
mod error;
mod event_log;
mod experiment_catalog;
mod export;
mod fast_counts;
mod fleet_store;
mod history;
mod key_catalog;
mod limit_publisher;
mod membership;
mod metric;
mod namespace_catalog;
mod operation_directory;
mod queue_catalog;
mod queue_memory;
mod queue_store;
mod rollup_signal;
mod rollup_store;
mod rules;
mod session_directory;
mod store_handle;
mod time_slices;
mod tokens;
mod touches;

use std::collections::BTreeMap;
use std::sync::Arc;

use tallystone_domain::access::AccessKey;
use tallystone_domain::counter::NamespaceName;
use tallystone_experiments::CatalogExperiment;

pub use admin_log::{AdminAction, AdminLog};
pub use backup::{BackupPieces, Backups};
pub use catalog::{Catalog, CatalogChange, CatalogEntry, CatalogRecord};
pub use clock::{BootId, Clock, Entropy};
pub use count_cache::{CacheLease, CountCache, ReplicaLease};
pub use error::{CATALOG_LOST, EffectOutcome, StoreError, StoreErrorKind, text_with_causes};
pub use event_log::{
    AppendGuard, AppendHold, AppendOutcome, EventLog, LogCapabilities, NewEvent, ScanOrder, ScanRange, SliceRow,
    VerdictOutcome,
};
pub use experiment_catalog::{ExperimentChange, ExperimentRecord};
pub use export::ExportSink;
pub use fast_counts::{Expiry, FastAdd, FastAddOutcome, FastCapabilities, FastCounts, Overflow};
pub use fleet_store::{FleetStore, ReadReplicas};
pub use history::{HistoryBatch, HistoryStore, HistoryUsage, QueueShards, RegisterCodec};
pub use key_catalog::{KeyChange, KeyRecord};
pub use limit_publisher::LimitPublisher;
pub use membership::Membership;
pub use metric::{HistogramReading, LabelledCounts, Metric, MetricValue};
pub use namespace_catalog::{CatalogState, NamespaceChange, NamespaceRecord, NamespaceStore};
pub use operation_directory::{
    OperationAuthor, OperationDirectory, OperationEnd, OperationOutcome, OperationPlace, OperationRow,
};
pub use queue_catalog::{QueueCatalog, QueueChange, QueueDeletion, QueueRecord, QueueRequest};
pub use queue_memory::{MemoryLimit, QueueMemory};
pub use queue_store::{
    CreatedQueue, FilteredDepth, FinishedBodies, IdScope, MessageBody, MessagesAt, OutboxPage, OutboxUsage,
    QueueListener, QueueTime, ShardAnswer, ShardCapabilities, ShardCommand, ShardGlance, ShardOutbox, ShardReader,
    ShardReport, ShardStatus, ShardStore, ShardTotals, StoredMessage,
};
pub use rollup_signal::{CounterSignal, RollupSignal, SignalCounts};
pub use rollup_store::{RollWrite, RollupStore};
pub use rules::{NewRule, RuleChange, RuleStore, RulesBefore};
pub use session_directory::{
    EndedSession, NewSession, SessionDirectory, SessionEnds, SessionHeartbeat, SessionRowPage, SessionStep,
};
pub use store_handle::{MEMORY_TOLD_FROM_PERCENT, StoreCheck, StoreDisk, StoreHandle, StoreMemory};
pub use time_slices::TimeSlices;
pub use tokens::{KeyDocument, KeyDocumentError, SigningKeys, TokenFormat};
pub use touches::{Touch, Touches};

/// The stores of a server. Cheap to clone.
#[derive(Clone)]
pub struct Stores {
    /// The event log.
    pub log: Arc<dyn EventLog>,
    /// The index of touched counters.
    pub touches: Arc<dyn Touches>,
    /// The rows of the time slices.
    pub slices: Arc<dyn TimeSlices>,
    /// Checkpoints, bucket records, series, names.
    pub rollups: Arc<dyn RollupStore>,
    /// The cache of checkpoints for namespaces that name no cache cluster.
    pub cache: Arc<dyn CountCache>,
    /// The published limit of each dataset.
    pub progress: Arc<dyn LimitPublisher>,
    /// Best-effort counters of namespaces that name no cache cluster.
    pub fast: Arc<dyn FastCounts>,
    /// The cache clusters that namespaces may name.
    pub caches: Arc<BTreeMap<NamespaceName, CacheCluster>>,
    /// Namespaces and datasets.
    pub catalog: Arc<dyn NamespaceStore>,
    /// API keys.
    pub keys: Arc<dyn Catalog<AccessKey>>,
    /// Experiments.
    pub experiments: Arc<dyn Catalog<CatalogExperiment>>,
    /// Counter rules.
    pub rules: Arc<dyn RuleStore>,
    /// The state that servers share through the store; none where one process owns it.
    pub fleet: Option<SharedStores>,
}

/// The state that the servers of a fleet share. Cheap to clone.
#[derive(Clone)]
pub struct SharedStores {
    /// The members.
    pub members: Arc<dyn Membership>,
    /// Frontiers and repairs of counters.
    pub counters: Arc<dyn FleetStore>,
}

/// The stores of queues. Cheap to clone.
#[derive(Clone)]
pub struct QueueStores {
    /// The shards, as commands change them.
    pub shards: Arc<dyn ShardStore>,
    /// Reads of the same shards.
    pub reader: Arc<dyn ShardReader>,
    /// The time that the steps of the shards use.
    pub time: Arc<dyn QueueTime>,
    /// The counts and the outboxes of the shards.
    pub outbox: Arc<dyn ShardOutbox>,
    /// The catalog.
    pub catalog: Arc<dyn QueueCatalog>,
    /// The parts that servers share besides these; none where one process owns the store.
    pub shared: Option<SharedQueues>,
}

/// The parts that the servers of one queue store share besides shards and catalog. Cheap to clone.
#[derive(Clone)]
pub struct SharedQueues {
    /// The members.
    pub membership: Arc<dyn Membership>,
    /// Purges, redrives and discards.
    pub operations: Arc<dyn OperationDirectory>,
    /// The sessions of all servers.
    pub sessions: Arc<dyn SessionDirectory>,
}

impl QueueStores {
    /// The stores of an engine that keeps the shards in one object, for one process.
    pub fn of(
        store: Arc<impl ShardStore + ShardReader + QueueTime + ShardOutbox>,
        catalog: Arc<dyn QueueCatalog>,
    ) -> Self {
        let (shards, reader, time) = (Arc::clone(&store), Arc::clone(&store), Arc::clone(&store));
        Self { shards, reader, time, outbox: store, catalog, shared: None }
    }
}

/// A cache cluster: servers that several processes share.
#[derive(Clone)]
pub struct CacheCluster {
    /// The cache in front of the checkpoints.
    pub cache: Arc<dyn CountCache>,
    /// Best-effort counters.
    pub fast: Arc<dyn FastCounts>,
}
