//! The draft of a namespace: the settings that a caller sent, and their completion.
//!
//! A draft contains only the settings that were sent. Resolving it gives a complete spec: the settings of an existing
//! dataset come from the dataset, the storage of a live namespace stays, and all others keep their value in an update
//! and get their default in a new namespace. So a request need not repeat the settings of its dataset, and a
//! contradiction is still detected.

use std::time::Duration;

use crate::catalog::ResetRow;
use crate::namespaces::Clusters;
use tallystone_domain::access::{AccessDenial, AskedName, CallRights};
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::limits::FUTURE_LIMIT_FLOOR;
use tallystone_domain::namespace::{
    Cardinality, CounterType, Dataset, DatasetSettings, HotCounters, NamespaceSpec, OnNewEpoch, RollupSettings,
    SeriesSettings, Storage, Temporality, TimePartition, namespace_settings,
};

/// The settings of a namespace in a request; `None` for those left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceDraft {
    pub name: NamespaceName,
    /// Free text.
    pub description: Option<String>,
    pub counter_type: Option<CounterType>,
    /// The temporality of its reports.
    pub temporality: Option<Temporality>,
    /// The effect of a new epoch of a source.
    pub on_new_epoch: Option<OnNewEpoch>,
    /// A counter silent for longer counts from 0 again; 0: never.
    pub ttl: Option<Duration>,
    /// The approximate number of counters.
    pub cardinality: Option<Cardinality>,
    pub storage: StorageDraft,
    /// The settings of its dataset.
    pub dataset: DatasetDraft,
    /// How events are partitioned.
    pub partition: PartitionDraft,
    /// The counters with event buckets of their own.
    pub hot_counters: Option<HotCounters>,
    /// How rollups run.
    pub rollup: RollupDraft,
    /// The stored series.
    pub series: Option<Vec<SeriesSettings>>,
}

/// The storage of a namespace in a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StorageDraft {
    /// The cluster of the count cache.
    pub cache_cluster: Option<NamespaceName>,
    /// The cluster of the rollup store.
    pub rollup_cluster: Option<NamespaceName>,
    /// The cluster of the event log.
    pub event_cluster: Option<NamespaceName>,
    pub dataset: Option<NamespaceName>,
}

macro_rules! draft {
    ($settings:ident, $draft:ident, $path:ident: $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr;)*) => {
        /// Plain settings in a request; `None` for those left out.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $draft {
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

        impl $draft {
            /// Takes what was left out from other settings.
            fn or(self, base: &$settings) -> $settings {
                $settings { $($field: self.$field.unwrap_or(base.$field),)* }
            }
        }

        impl From<$settings> for $draft {
            fn from(settings: $settings) -> Self {
                Self { $($field: Some(settings.$field),)* }
            }
        }
    };
}
namespace_settings!(dataset draft);
namespace_settings!(partition draft);
namespace_settings!(rollup draft);

/// The values of settings that no caller sent; a server may choose its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceDefaults {
    /// The cluster of rollups and events.
    pub cluster: NamespaceName,
    /// The cluster of the count cache.
    pub cache_cluster: NamespaceName,
    /// The clusters that a namespace may name.
    pub clusters: Clusters,
    pub dataset: NamespaceName,
    pub dataset_settings: DatasetSettings,
    pub partition: TimePartition,
    pub rollup: RollupSettings,
}

impl Default for NamespaceDefaults {
    fn default() -> Self {
        Self {
            cluster: NamespaceName::new("embedded").expect("a literal name is valid"),
            cache_cluster: NamespaceName::new("embedded").expect("a literal name is valid"),
            clusters: Clusters::default(),
            dataset: NamespaceName::new("default").expect("a literal name is valid"),
            dataset_settings: DatasetSettings::default(),
            partition: TimePartition::default(),
            rollup: RollupSettings::default(),
        }
    }
}

impl NamespaceDraft {
    /// A draft that says nothing but the name.
    pub fn of(name: NamespaceName) -> Self {
        Self {
            name,
            description: None,
            counter_type: None,
            temporality: None,
            on_new_epoch: None,
            ttl: None,
            cardinality: None,
            storage: StorageDraft::default(),
            dataset: DatasetDraft::default(),
            partition: PartitionDraft::default(),
            hot_counters: None,
            rollup: RollupDraft::default(),
            series: None,
        }
    }

    /// The dataset that the namespace belongs to; `live` is where it is kept already.
    pub(super) fn dataset_name(&self, live: Option<&Storage>, defaults: &NamespaceDefaults) -> NamespaceName {
        let kept = live.map_or(&defaults.dataset, |storage| &storage.dataset);
        self.storage.dataset.as_ref().unwrap_or(kept).clone()
    }

    /// Fills in what was left out: from the settings to keep, or else with the defaults. The storage of a live
    /// namespace stays in any case.
    pub(super) fn resolve(
        self,
        live: Option<&NamespaceSpec>,
        kept: Option<&NamespaceSpec>,
        dataset: Option<&Dataset>,
        defaults: &NamespaceDefaults,
    ) -> NamespaceSpec {
        let live_storage = live.map(|spec| &spec.storage);
        let store = dataset.and_then(|dataset| dataset.cluster.as_ref()).unwrap_or(&defaults.cluster);
        let storage = Storage {
            dataset: self.dataset_name(live_storage, defaults),
            cache_cluster: cluster(
                self.storage.cache_cluster,
                live_storage.map(|kept| &kept.cache_cluster),
                &defaults.cache_cluster,
            ),
            rollup_cluster: cluster(self.storage.rollup_cluster, live_storage.map(|kept| &kept.rollup_cluster), store),
            event_cluster: cluster(self.storage.event_cluster, live_storage.map(|kept| &kept.event_cluster), store),
        };
        let dataset = self.dataset.resolve(dataset.map(|dataset| &dataset.settings), &defaults.dataset_settings);
        let temporality = or_kept(self.temporality, kept, |kept| kept.temporality);
        // What is kept goes with the temporality, so that a change of that is refused as such.
        let kept_epochs = kept.and_then(|kept| kept.on_new_epoch).unwrap_or_default();
        let is_cumulative = temporality == Temporality::Cumulative;
        NamespaceSpec {
            name: self.name,
            description: or_kept(self.description, kept, |kept| kept.description.clone()),
            counter_type: or_kept(self.counter_type, kept, |kept| kept.counter_type),
            temporality,
            on_new_epoch: self.on_new_epoch.or(is_cumulative.then_some(kept_epochs)),
            ttl: or_kept(self.ttl.map(|ttl| (!ttl.is_zero()).then_some(ttl)), kept, |kept| kept.ttl),
            cardinality: or_kept(self.cardinality, kept, |kept| kept.cardinality),
            storage,
            partition: match kept {
                Some(kept) => self.partition.or(&kept.partition),
                None => self.partition.resolve(dataset.seconds_per_slice, &defaults.partition),
            },
            dataset,
            hot_counters: or_kept(self.hot_counters, kept, |kept| kept.hot_counters.clone()),
            rollup: self.rollup.or(kept.map_or(&defaults.rollup, |kept| &kept.rollup)),
            series: or_kept(self.series, kept, |kept| kept.series.clone()),
        }
    }
}

fn or_kept<T: Default>(said: Option<T>, kept: Option<&NamespaceSpec>, of: impl Fn(&NamespaceSpec) -> T) -> T {
    said.unwrap_or_else(|| kept.map(of).unwrap_or_default())
}

/// The settings of a live namespace that have a default, and how each returns to it.
pub(super) const WITH_DEFAULT: [ResetRow<NamespaceSpec>; 7] = [
    ("description", |own, base| own.description.clone_from(&base.description)),
    ("ttl", |own, base| own.ttl = base.ttl),
    ("counter_cardinality", |own, base| own.cardinality = base.cardinality),
    ("time_partition", |own, base| own.partition = base.partition),
    ("rollup", |own, base| own.rollup = base.rollup),
    ("series", |own, base| own.series.clone_from(&base.series)),
    ("hot_counters", |own, base| own.hot_counters = base.hot_counters.clone()),
];

/// The settings of `WITH_DEFAULT` that have parts.
pub(super) const WITH_PARTS: [&str; 4] = ["time_partition", "rollup", "series", "hot_counters"];

impl DatasetDraft {
    fn resolve(self, known: Option<&DatasetSettings>, defaults: &DatasetSettings) -> DatasetSettings {
        let mut dataset = self.or(known.unwrap_or(defaults));
        if known.is_none() && self.future_limit.is_none() {
            dataset.future_limit = dataset.accept_limit.max(FUTURE_LIMIT_FLOOR);
        }
        dataset
    }
}

impl PartitionDraft {
    /// A time bucket is never wider than a slice, so a short slice takes its own width as the default.
    fn resolve(self, seconds_per_slice: u32, defaults: &TimePartition) -> TimePartition {
        let narrower = defaults.seconds_per_bucket.min(seconds_per_slice);
        self.or(&TimePartition { seconds_per_bucket: narrower, ..*defaults })
    }
}

impl From<NamespaceSpec> for NamespaceDraft {
    fn from(spec: NamespaceSpec) -> Self {
        Self {
            name: spec.name,
            description: Some(spec.description),
            counter_type: Some(spec.counter_type),
            temporality: Some(spec.temporality),
            on_new_epoch: spec.on_new_epoch,
            ttl: Some(spec.ttl.unwrap_or_default()),
            cardinality: Some(spec.cardinality),
            storage: StorageDraft {
                cache_cluster: Some(spec.storage.cache_cluster),
                rollup_cluster: Some(spec.storage.rollup_cluster),
                event_cluster: Some(spec.storage.event_cluster),
                dataset: Some(spec.storage.dataset),
            },
            dataset: spec.dataset.into(),
            partition: spec.partition.into(),
            hot_counters: Some(spec.hot_counters),
            rollup: spec.rollup.into(),
            series: Some(spec.series),
        }
    }
}

fn cluster(said: Option<NamespaceName>, kept: Option<&NamespaceName>, default: &NamespaceName) -> NamespaceName {
    said.unwrap_or_else(|| kept.unwrap_or(default).clone())
}

impl AskedName for NamespaceDraft {
    fn check_rights(&self, rights: &CallRights) -> Result<(), AccessDenial> {
        self.name.check_rights(rights)
    }
}
