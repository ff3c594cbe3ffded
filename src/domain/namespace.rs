//! Namespaces and datasets. A namespace is the unit of configuration; the namespaces of a dataset share slices and
//! closed timestamps.
//!
//! Field names and defaults follow the configuration that Netflix published with its Distributed Counter Abstraction. A
//! namespace's partition settings and TTL are frozen into each time slice at its creation; see `rollup::slice_rules`.

mod hot_counters;
mod setting_table;

use std::time::Duration;

use crate::counter::{DatasetId, NamespaceId, NamespaceName};
use crate::limits::{
    ACCEPT_LIMIT_MIN, BUCKETS_PER_ID_MAX, COALESCE_MS_MAX, COALESCE_MS_MIN, DESCRIPTION_BYTES_MAX, DURATION_MAX,
    FUTURE_LIMIT_FLOOR, NUM_QUEUES_MAX, ROLLUP_BATCH_COUNT_MAX, SERIES_RESOLUTIONS_MAX, STEP,
};
use crate::reason::{Reason, Reject};
use crate::time::Timestamp;

pub use hot_counters::{HotCounter, HotCounters};
pub use setting_table::namespace_settings;

/// The guarantees of a count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CounterType {
    /// Fast, approximate, not durable, not idempotent.
    BestEffort,
    /// Durable, idempotent, visible after the accept limit and a rollup.
    #[default]
    Eventual,
    /// Like `Eventual`, but every read adds the events that are not rolled up yet.
    Accurate,
}

/// The kind of reported value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Temporality {
    /// Callers send deltas.
    #[default]
    Delta,
    /// Sources send their running totals.
    Cumulative,
}

/// The part of a source's count that is kept when the source restarts, which is when its epoch rises.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnNewEpoch {
    /// The source begins at 0 again, and what it counted before stays counted, as Prometheus and OpenTelemetry treat a
    /// counter that was reset. Within an epoch totals only rise.
    #[default]
    Add,
    /// The first total of the new epoch stands for all that the source counted. Totals may fall.
    Replace,
}

/// The approximate number of counters of a namespace; controls the rollup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cardinality {
    /// Below 1,000.
    Low,
    /// Up to 100,000.
    #[default]
    Medium,
    /// Above 100,000.
    High,
}

/// The storage of a namespace. The names are those of clusters in the server's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Storage {
    /// The cluster of the count cache.
    pub cache_cluster: NamespaceName,
    /// The cluster of the rollup store.
    pub rollup_cluster: NamespaceName,
    /// The cluster of the event log.
    pub event_cluster: NamespaceName,
    pub dataset: NamespaceName,
}

macro_rules! settings_with_defaults {
    ($settings:ident, $draft:ident, $path:ident: $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr;)*) => {
        /// Settings of a namespace that have a default. The first namespace of a dataset sets those of the dataset.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $settings {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for $settings {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}
namespace_settings!(dataset settings_with_defaults);
namespace_settings!(partition settings_with_defaults);
namespace_settings!(rollup settings_with_defaults);

/// A dataset in the catalog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dataset {
    /// The dataset's number, never reused.
    pub id: DatasetId,
    /// The dataset's name.
    pub name: NamespaceName,
    pub settings: DatasetSettings,
    /// The cluster name of the store that permanently holds the dataset's events and rollups; `None`: the server's own
    /// store.
    pub cluster: Option<NamespaceName>,
}

/// One resolution at which series are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeriesSettings {
    /// The step, a multiple of 10 s that divides a day.
    pub step_seconds: u32,
    /// The retention of its rows.
    pub keep: Duration,
}

/// The complete set of a namespace's settings that a caller may choose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceSpec {
    pub name: NamespaceName,
    /// Free text for readers.
    pub description: String,
    /// The guarantees of a count.
    pub counter_type: CounterType,
    /// The kind of reported value.
    pub temporality: Temporality,
    /// The effect of a new epoch of a source; `None` in a namespace of deltas, which has no sources.
    pub on_new_epoch: Option<OnNewEpoch>,
    /// A counter restarts from 0 after a longer silence.
    pub ttl: Option<Duration>,
    /// The approximate number of counters.
    pub cardinality: Cardinality,
    /// The storage clusters and the dataset.
    pub storage: Storage,
    pub dataset: DatasetSettings,
    /// The partitioning of events.
    pub partition: TimePartition,
    /// The counters with event buckets of their own.
    pub hot_counters: HotCounters,
    pub rollup: RollupSettings,
    /// The series that are kept, finest first.
    pub series: Vec<SeriesSettings>,
}

/// A namespace in the catalog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// The namespace's number, never reused.
    pub id: NamespaceId,
    /// The number of its dataset.
    pub dataset_id: DatasetId,
    /// The version of the settings, counted from 1.
    pub version: u64,
    /// The settings of the namespace.
    pub spec: NamespaceSpec,
    /// The time of creation.
    pub created: Timestamp,
    /// The time of the last change.
    pub updated: Timestamp,
    /// The principal that made it, whose quota it counts for; none where callers show no key, and before quotas were
    /// kept.
    pub made_by: Option<Box<str>>,
}

impl DatasetSettings {
    /// Returns the width of a time slice.
    pub fn slice_width(&self) -> Duration {
        Duration::from_secs(u64::from(self.seconds_per_slice))
    }
}

impl NamespaceSpec {
    /// Makes a namespace with every setting at its default, in the dataset `default` of the cluster `embedded`.
    pub fn with_defaults(name: NamespaceName) -> Self {
        let cluster = NamespaceName::new("embedded").expect("a literal name is valid");
        let dataset = NamespaceName::new("default").expect("a literal name is valid");
        Self {
            name,
            description: String::new(),
            counter_type: CounterType::default(),
            temporality: Temporality::default(),
            on_new_epoch: None,
            ttl: None,
            cardinality: Cardinality::default(),
            storage: Storage {
                cache_cluster: cluster.clone(),
                rollup_cluster: cluster.clone(),
                event_cluster: cluster,
                dataset,
            },
            dataset: DatasetSettings::default(),
            partition: TimePartition::default(),
            hot_counters: HotCounters::default(),
            rollup: RollupSettings::default(),
            series: Vec::new(),
        }
    }

    /// Checks every setting and the consistency between settings. The error lists all faults at once.
    pub fn validate(&self) -> Result<(), Reject> {
        let mut faults = Vec::new();
        self.dataset.check(&mut faults);
        self.check_partition(&mut faults);
        self.hot_counters.check(&mut faults);
        self.rollup.check(&mut faults);
        self.check_series(&mut faults);
        self.check_durations(&mut faults);
        if self.description.len() > DESCRIPTION_BYTES_MAX {
            faults.push(format!(
                "description has {} bytes; shorten it to {DESCRIPTION_BYTES_MAX}",
                self.description.len()
            ));
        }
        match self.ttl {
            Some(ttl) if ttl < STEP => {
                faults.push("ttl must be at least 10 s; raise it, or omit it for no ttl".to_owned());
            }
            Some(_) if self.temporality == Temporality::Cumulative => {
                faults.push("a cumulative namespace has no ttl; omit it".to_owned());
            }
            Some(_) | None => {}
        }
        if self.temporality == Temporality::Cumulative && self.counter_type == CounterType::BestEffort {
            faults.push("a cumulative namespace cannot be BEST_EFFORT".to_owned());
        }
        if self.temporality == Temporality::Delta && self.on_new_epoch.is_some() {
            faults.push("on_new_epoch is a setting of a cumulative namespace; omit it, or set temporality".to_owned());
        }
        if faults.is_empty() { Ok(()) } else { Err(Reject::new(Reason::InvalidSettings, faults.join("; "))) }
    }

    fn check_partition(&self, faults: &mut Vec<String>) {
        let width = self.partition.seconds_per_bucket;
        if width == 0 || !width.is_multiple_of(10) || !self.dataset.seconds_per_slice.is_multiple_of(width) {
            faults.push(format!(
                "seconds_per_bucket is {width}; it must be a multiple of 10 that divides seconds_per_slice ({})",
                self.dataset.seconds_per_slice
            ));
        }
        let buckets = self.partition.buckets_per_id;
        if buckets == 0 || buckets > BUCKETS_PER_ID_MAX {
            faults.push(format!("buckets_per_id is {buckets}; 1 to {BUCKETS_PER_ID_MAX} are allowed"));
        }
    }

    /// Stores keep microseconds, so a finer duration would not be read back as it was sent.
    fn check_durations(&self, faults: &mut Vec<String>) {
        let dataset = &self.dataset;
        let mut durations = vec![
            ("close_after", dataset.close_after),
            ("delete_after", dataset.delete_after),
            ("accept_limit", dataset.accept_limit),
            ("future_limit", dataset.future_limit),
        ];
        durations.extend(self.ttl.map(|ttl| ("ttl", ttl)));
        durations.extend(self.series.iter().map(|series| ("series keep", series.keep)));
        for (what, duration) in durations {
            if duration.subsec_nanos() % 1_000 != 0 {
                faults.push(format!("{what} is {duration:?}; it must be whole microseconds"));
            }
            if duration > DURATION_MAX {
                faults.push(format!("{what} is {duration:?}; at most {DURATION_MAX:?} are allowed"));
            }
        }
    }

    fn check_series(&self, faults: &mut Vec<String>) {
        if self.series.len() > SERIES_RESOLUTIONS_MAX {
            faults.push(format!("series names {} steps; at most {SERIES_RESOLUTIONS_MAX}", self.series.len()));
        }
        for series in &self.series {
            let step = series.step_seconds;
            if step == 0 || !step.is_multiple_of(10) || !86_400_u32.is_multiple_of(step) {
                faults.push(format!("series step {step} s must be a multiple of 10 s that divides a day"));
            }
            if series.keep < Duration::from_secs(u64::from(step)) {
                faults.push(format!("series of step {step} s must be kept for at least one step"));
            }
        }
        if !self.series.windows(2).all(|pair| pair[0].step_seconds < pair[1].step_seconds) {
            faults.push("series steps must be in ascending order, without duplicates".to_owned());
        }
    }
}

impl DatasetSettings {
    fn check(&self, faults: &mut Vec<String>) {
        let slice = self.seconds_per_slice;
        if slice == 0 || !slice.is_multiple_of(10) {
            faults.push(format!("seconds_per_slice is {slice}; it must be a multiple of 10"));
        }
        if self.accept_limit < ACCEPT_LIMIT_MIN || self.accept_limit > self.slice_width() {
            faults.push(format!(
                "accept_limit is {:?}; it must be at least {ACCEPT_LIMIT_MIN:?} and at most one slice",
                self.accept_limit
            ));
        }
        if self.future_limit > self.slice_width() {
            faults.push(format!("future_limit is {:?}; it must be at most one slice", self.future_limit));
        }
        if self.slice_width() >= self.close_after || self.close_after >= self.delete_after {
            faults.push(format!(
                "close_after ({:?}) must lie between the slice width ({:?}) and delete_after ({:?})",
                self.close_after,
                self.slice_width(),
                self.delete_after
            ));
        }
    }
}

impl RollupSettings {
    fn check(&self, faults: &mut Vec<String>) {
        if self.num_queues == 0 || self.num_queues > NUM_QUEUES_MAX {
            faults.push(format!("num_queues is {}; 1 to {NUM_QUEUES_MAX} are allowed", self.num_queues));
        }
        if !(COALESCE_MS_MIN..=COALESCE_MS_MAX).contains(&self.coalesce_ms) {
            faults.push(format!(
                "coalesce_ms is {}; {COALESCE_MS_MIN} to {COALESCE_MS_MAX} are allowed",
                self.coalesce_ms
            ));
        }
        if self.capacity_bytes < 4_096 {
            faults.push(format!("capacity_bytes is {}; at least 4096", self.capacity_bytes));
        }
        if self.rollup_batch_count == 0 || self.rollup_batch_count > ROLLUP_BATCH_COUNT_MAX {
            faults.push(format!(
                "rollup_batch_count is {}; 1 to {ROLLUP_BATCH_COUNT_MAX} are allowed",
                self.rollup_batch_count
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> NamespaceSpec {
        NamespaceSpec::with_defaults(NamespaceName::new("shop").expect("a valid name"))
    }

    #[test]
    fn the_published_defaults_are_valid() {
        spec().validate().expect("the defaults are valid");
    }

    #[test]
    fn a_contradiction_names_every_fault() {
        let mut spec = spec();
        spec.partition.seconds_per_bucket = 7;
        spec.dataset.close_after = Duration::from_secs(60);
        spec.rollup.num_queues = 0;
        let reject = spec.validate().expect_err("three faults");
        for word in ["seconds_per_bucket", "close_after", "num_queues"] {
            assert!(reject.message.contains(word), "{}", reject.message);
        }
    }

    #[test]
    fn durations_are_whole_microseconds_of_at_most_a_century() {
        let mut spec = spec();
        spec.ttl = Some(Duration::from_micros(10_000_001));
        spec.dataset.delete_after = DURATION_MAX;
        spec.validate().expect("both are at the edge");
        spec.ttl = Some(Duration::from_nanos(10_000_000_001));
        spec.dataset.delete_after = DURATION_MAX + Duration::from_micros(1);
        let reject = spec.validate().expect_err("both are beyond");
        assert!(reject.message.contains("ttl") && reject.message.contains("delete_after"), "{}", reject.message);
    }

    #[test]
    fn an_accept_limit_of_half_a_second_is_the_least() {
        let mut spec = spec();
        spec.dataset.accept_limit = Duration::from_millis(500);
        assert!(spec.validate().is_ok());
        spec.dataset.accept_limit = Duration::from_millis(499);
        assert!(spec.validate().is_err());
    }
}
