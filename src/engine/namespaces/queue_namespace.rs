//! The namespace of the counters that queues keep about themselves: its name and its settings.
//!
//! Every server with queues makes it at its start, and several servers at once make one. Only the queues write it;
//! callers read it. The settings of its dataset and of its partitions cannot change later.

use std::sync::Arc;
use std::time::Duration;

use crate::catalog::Author;
use crate::namespaces::{
    DatasetDraft, NamespaceCatalog, NamespaceDraft, NamespaceError, PartitionDraft, RollupDraft, StorageDraft,
};
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::namespace::{Cardinality, CounterType, Namespace, OnNewEpoch, SeriesSettings, Temporality};

/// The name of the namespace, and of its dataset.
const QUEUE_NAMESPACE: &str = "tallystone.queues";

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// Events are kept for a day only: queues report some thousand totals per second, and each total replaces those before
/// it.
const SLICE_SECONDS: u32 = 3_600;
/// A partition holds the reports of one counter: at most 4 per second and shard.
const BUCKET_SECONDS: u32 = 60;
/// Series show a report after the accept limit and this time.
const COALESCE_MS: u32 = 250;
const ACCEPT_LIMIT: Duration = Duration::from_millis(500);
/// The retention of each step of the series.
const SERIES: [SeriesSettings; 3] = [
    SeriesSettings { step_seconds: 10, keep: DAY },
    SeriesSettings { step_seconds: 60, keep: Duration::from_secs(7 * 86_400) },
    SeriesSettings { step_seconds: 3_600, keep: Duration::from_secs(92 * 86_400) },
];

/// The name of the namespace of the counters of queues.
pub fn queue_namespace() -> NamespaceName {
    NamespaceName::new(QUEUE_NAMESPACE).expect("a literal name is valid")
}

impl NamespaceCatalog {
    /// Makes the namespace of the counters of queues, unless it exists. Idempotent, also over several servers.
    pub async fn ensure_queue_namespace(&self) -> Result<Arc<Namespace>, NamespaceError> {
        let author =
            Author { actor: "tallystone".to_owned(), reason: "the namespace of the counters of queues".to_owned() };
        self.ensure(self.queue_namespace_draft(), author).await
    }

    fn queue_namespace_draft(&self) -> NamespaceDraft {
        let store = self.default_store();
        NamespaceDraft {
            description: Some("the counters that queues keep about themselves; only the service writes it".to_owned()),
            counter_type: Some(CounterType::Accurate),
            temporality: Some(Temporality::Cumulative),
            on_new_epoch: Some(OnNewEpoch::Replace),
            cardinality: Some(Cardinality::High),
            storage: StorageDraft {
                // Copies on a cache cluster may be seconds old.
                cache_cluster: Some(store.clone()),
                rollup_cluster: Some(store.clone()),
                event_cluster: Some(store),
                dataset: Some(queue_namespace()),
            },
            dataset: DatasetDraft {
                seconds_per_slice: Some(SLICE_SECONDS),
                close_after: Some(HOUR * 2),
                delete_after: Some(DAY),
                accept_limit: Some(ACCEPT_LIMIT),
                export_before_drop: Some(false),
                ..DatasetDraft::default()
            },
            partition: PartitionDraft { buckets_per_id: Some(1), seconds_per_bucket: Some(BUCKET_SECONDS) },
            rollup: RollupDraft { coalesce_ms: Some(COALESCE_MS), ..RollupDraft::default() },
            series: Some(SERIES.to_vec()),
            ..NamespaceDraft::of(queue_namespace())
        }
    }
}
