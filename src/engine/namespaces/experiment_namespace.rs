//! The namespace of the totals of experiments: its name and its settings.
//!
//! A server makes it when it first watches an experiment, and several servers at once make one. Only the service writes
//! it; callers read it.

use std::sync::Arc;
use std::time::Duration;

use crate::catalog::Author;
use crate::namespaces::{DatasetDraft, NamespaceCatalog, NamespaceDraft, NamespaceError, PartitionDraft, StorageDraft};
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::namespace::{Cardinality, CounterType, Namespace, OnNewEpoch, SeriesSettings, Temporality};

/// The name of the namespace, and of its dataset.
const EXPERIMENT_NAMESPACE: &str = "tallystone.experiments";

const DAY: Duration = Duration::from_secs(86_400);
/// A counter has one total a minute.
const SLICE_SECONDS: u32 = 86_400;
const BUCKET_SECONDS: u32 = 86_400;
/// The retention of each step of the series.
const SERIES: [SeriesSettings; 2] = [
    SeriesSettings { step_seconds: 60, keep: Duration::from_secs(31 * 86_400) },
    SeriesSettings { step_seconds: 3_600, keep: Duration::from_secs(366 * 86_400) },
];

/// The name of the namespace of the totals of experiments.
pub fn experiment_namespace() -> NamespaceName {
    NamespaceName::new(EXPERIMENT_NAMESPACE).expect("a literal name is valid")
}

/// The shortest step of the series that reaches so far back.
pub fn experiment_step(age: Duration) -> Duration {
    let [minutes, hours] = SERIES;
    let reaches = if minutes.keep > age { minutes } else { hours };
    Duration::from_secs(reaches.step_seconds.into())
}

impl NamespaceCatalog {
    /// Makes the namespace of the totals of experiments, unless it exists. Idempotent, also over several servers.
    pub async fn ensure_experiment_namespace(&self) -> Result<Arc<Namespace>, NamespaceError> {
        let author =
            Author { actor: "tallystone".to_owned(), reason: "the namespace of the totals of experiments".to_owned() };
        self.ensure(self.experiment_namespace_draft(), author).await
    }

    fn experiment_namespace_draft(&self) -> NamespaceDraft {
        let store = self.default_store();
        NamespaceDraft {
            description: Some("the totals of experiments, minute by minute; only the service writes it".to_owned()),
            counter_type: Some(CounterType::Accurate),
            temporality: Some(Temporality::Cumulative),
            on_new_epoch: Some(OnNewEpoch::Replace),
            cardinality: Some(Cardinality::High),
            storage: StorageDraft {
                // Copies on a cache cluster may be seconds old.
                cache_cluster: Some(store.clone()),
                rollup_cluster: Some(store.clone()),
                event_cluster: Some(store),
                dataset: Some(experiment_namespace()),
            },
            dataset: DatasetDraft {
                seconds_per_slice: Some(SLICE_SECONDS),
                close_after: Some(DAY * 2),
                delete_after: Some(DAY * 7),
                export_before_drop: Some(false),
                ..DatasetDraft::default()
            },
            partition: PartitionDraft { buckets_per_id: Some(1), seconds_per_bucket: Some(BUCKET_SECONDS) },
            series: Some(SERIES.to_vec()),
            ..NamespaceDraft::of(experiment_namespace())
        }
    }
}
