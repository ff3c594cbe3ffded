//! Capacity planning: from a load to settings of a namespace and its dataset, partition sizes, disk and memory.
//!
//! Pure arithmetic on rounded sizes: 60 bytes for an event in a Cassandra partition (100,000 events are about 6 MB),
//! 100 bytes for one in the embedded store before compression. A plan is a starting point; metrics of the running
//! system take precedence. Queues have plans of their own, in `queues`.

pub mod queues;

use std::time::Duration;

use crate::limits::{BUCKETS_PER_ID_MAX, NUM_QUEUES_MAX, PARTITION_BYTES_MAX};
use crate::namespace::{Cardinality, DatasetSettings, RollupSettings, TimePartition};

/// Bytes of an event in a Cassandra partition.
pub const EVENT_PARTITION_BYTES: u64 = 60;
/// Bytes of an event in the embedded store: key, change, touch, and its share of the index.
const EVENT_EMBEDDED_BYTES: u64 = 100;
/// Bytes of a counter's checkpoint, name and registers, on disk.
const COUNTER_DISK_BYTES: u64 = 250;
/// Bytes of a counter in the count cache of a process.
const COUNTER_CACHED_BYTES: u64 = 300;
/// Bytes of a counter that waits in a rollup Set: a name of 32 bytes and the overhead of its entry.
const COUNTER_WAITING_BYTES: u64 = 144;
/// Copies of a row in a Cassandra cluster.
const REPLICAS: u64 = 3;
/// Widths of time buckets, widest first; each divides an hour.
const BUCKET_WIDTHS: [u32; 7] = [600, 300, 120, 60, 30, 20, 10];
/// Widths of time slices in seconds, widest first.
const SLICE_WIDTHS: [u32; 7] = [86_400, 43_200, 21_600, 10_800, 3_600, 600, 60];
/// Retention is at least this many slices, so that dropping one removes only a small part of the events.
const SLICES_LEAST: u64 = 7;
/// Above this many adds per second to one counter, reads of its tail need a smaller accept limit.
const ACCURATE_ADDS_PER_SECOND: u64 = 1_000;

/// A load to plan for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Adds per second, all counters together.
    pub adds_per_second: u64,
    /// The number of counters.
    pub counters: u64,
    /// The declared cardinality; `None`: derived from `counters`.
    pub cardinality: Option<Cardinality>,
    /// How long events are kept.
    pub retention: Duration,
    /// Adds per second to the busiest counter; `None`: a tenth of all adds, or an even share where that is more.
    pub hottest_adds_per_second: Option<u64>,
}

/// The settings and resources that a load needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The cardinality of the namespace.
    pub cardinality: Cardinality,
    pub dataset: DatasetSettings,
    /// The partition settings of the namespace.
    pub partition: TimePartition,
    /// The rollup settings of the namespace.
    pub rollup: RollupSettings,
    /// Adds per second to the busiest counter.
    pub hottest_adds_per_second: u64,
    /// The partition that the busiest counter needs as a hot counter, so that the other counters can keep the default
    /// width of time buckets. `None` if the plan already has that width, or if no partition is large enough.
    pub hot: Option<TimePartition>,
    /// The largest partition, in bytes.
    pub partition_bytes: u64,
    /// The size that the largest partition would have under the published defaults, in bytes.
    pub partition_bytes_by_default: u64,
    /// The number of events kept at the same time.
    pub events: u64,
    /// Disk space of the embedded store, in bytes, before compression.
    pub embedded_bytes: u64,
    /// Disk space of a Cassandra cluster with all three copies, in bytes, before compression.
    pub cassandra_bytes: u64,
    /// The value of `storage.count_cache_bytes` that holds every counter.
    pub count_cache_bytes: u64,
    /// The value of `storage.tail_bytes` that holds every event until it is rolled up.
    pub tail_bytes: u64,
    /// The longest time until a count contains the last write.
    pub converges_within: Duration,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

impl Load {
    /// Computes a plan for the load.
    pub fn plan(&self) -> Plan {
        let hottest = self.hottest();
        let dataset = self.dataset();
        let partition = partition_of(hottest, dataset.seconds_per_slice);
        let rollup = self.rollup(&dataset);
        let partition_bytes = partition_bytes(hottest, partition);
        let kept = dataset.delete_after + dataset.slice_width();
        let events = self.adds_per_second.saturating_mul(kept.as_secs());
        let counters_bytes = self.counters.saturating_mul(COUNTER_DISK_BYTES);
        let disk = |event_bytes: u64| events.saturating_mul(event_bytes).saturating_add(counters_bytes);
        let converges_within = dataset.accept_limit + 3 * Duration::from_millis(u64::from(rollup.coalesce_ms));
        let unrolled = self.adds_per_second.saturating_mul(converges_within.as_secs());
        Plan {
            cardinality: self.cardinality.unwrap_or_else(|| self.cardinality_of_counters()),
            partition,
            hot: hot_instead(hottest, partition, dataset.seconds_per_slice),
            rollup,
            hottest_adds_per_second: hottest,
            partition_bytes,
            partition_bytes_by_default: self::partition_bytes(hottest, TimePartition::default()),
            events,
            embedded_bytes: disk(EVENT_EMBEDDED_BYTES),
            cassandra_bytes: disk(EVENT_PARTITION_BYTES).saturating_mul(REPLICAS),
            count_cache_bytes: self.counters.saturating_mul(COUNTER_CACHED_BYTES),
            tail_bytes: unrolled.saturating_mul(EVENT_EMBEDDED_BYTES).max(16 * 1024 * 1024),
            converges_within,
            warnings: self.warnings(hottest, partition_bytes, &dataset),
            dataset,
        }
    }

    fn hottest(&self) -> u64 {
        let even = self.adds_per_second.div_ceil(self.counters.max(1));
        let guess = even.max(self.adds_per_second / 10);
        self.hottest_adds_per_second.unwrap_or(guess).min(self.adds_per_second)
    }

    /// Chooses the slice width: retention is at least seven slices, and a slice closes one slice width before it is
    /// dropped.
    fn dataset(&self) -> DatasetSettings {
        let retention = self.retention.as_secs().max(80);
        let fits = |width: &&u32| u64::from(**width) * SLICES_LEAST <= retention;
        let seconds_per_slice = SLICE_WIDTHS.iter().find(fits).copied().unwrap_or(10);
        let delete_after = Duration::from_secs(retention);
        let close_after = delete_after - Duration::from_secs(u64::from(seconds_per_slice));
        DatasetSettings { seconds_per_slice, close_after, delete_after, ..DatasetSettings::default() }
    }

    /// Sizes the rollup queues so that a Set holds every counter written until the limit passes its events.
    fn rollup(&self, dataset: &DatasetSettings) -> RollupSettings {
        let defaults = RollupSettings::default();
        let waits = dataset.accept_limit + Duration::from_millis(u64::from(defaults.coalesce_ms));
        let waiting = self.counters.min(self.adds_per_second.saturating_mul(waits.as_secs()));
        let bytes = waiting.saturating_mul(COUNTER_WAITING_BYTES);
        // Doubled, because hashes do not fill queues evenly.
        let queues = bytes.saturating_mul(2).div_ceil(defaults.capacity_bytes);
        let queues = queues.next_power_of_two().clamp(u64::from(defaults.num_queues), u64::from(NUM_QUEUES_MAX));
        let num_queues = u32::try_from(queues).unwrap_or(NUM_QUEUES_MAX);
        let rollup_batch_count = match self.cardinality_of_counters() {
            Cardinality::Low | Cardinality::Medium => defaults.rollup_batch_count,
            Cardinality::High => 4 * defaults.rollup_batch_count,
        };
        RollupSettings { num_queues, rollup_batch_count, ..defaults }
    }

    fn cardinality_of_counters(&self) -> Cardinality {
        match self.counters {
            0..1_000 => Cardinality::Low,
            1_000..=100_000 => Cardinality::Medium,
            _ => Cardinality::High,
        }
    }

    fn warnings(&self, hottest: u64, partition_bytes: u64, dataset: &DatasetSettings) -> Vec<String> {
        let mut warnings = Vec::new();
        if partition_bytes > PARTITION_BYTES_MAX {
            warnings.push(format!(
                "no setting keeps the partitions of a counter with {hottest} adds/s below {PARTITION_BYTES_MAX} \
                 bytes; spread the adds over several counters"
            ));
        }
        if hottest > ACCURATE_ADDS_PER_SECOND {
            warnings.push(format!(
                "an ACCURATE counter with {hottest} adds/s needs a smaller accept_limit than {:?}: every read sums \
                 all younger events",
                dataset.accept_limit
            ));
        }
        if self.cardinality.is_some_and(|said| said != self.cardinality_of_counters()) {
            let counters = self.counters;
            let fits = format!("{:?}", self.cardinality_of_counters()).to_uppercase();
            warnings.push(format!("{counters} counters are {fits} cardinality"));
        }
        if self.retention < Duration::from_secs(80) {
            warnings
                .push("retention is at least 80 s: slices are 10 s wide and close before they are dropped".to_owned());
        }
        warnings
    }
}

/// Chooses partitions of at most half the maximum size, so that twice the load still fits: first narrower buckets, then
/// more.
pub fn partition_of(hottest: u64, seconds_per_slice: u32) -> TimePartition {
    let defaults = TimePartition::default();
    let fits = |partition: TimePartition| partition_bytes(hottest, partition) <= PARTITION_BYTES_MAX / 2;
    let widths = BUCKET_WIDTHS.into_iter().filter(|width| seconds_per_slice.is_multiple_of(*width));
    let mut narrowest = defaults;
    for seconds_per_bucket in widths {
        narrowest = TimePartition { seconds_per_bucket, ..defaults };
        if fits(narrowest) {
            return narrowest;
        }
    }
    while !fits(narrowest) && narrowest.buckets_per_id < BUCKETS_PER_ID_MAX {
        narrowest.buckets_per_id *= 2;
    }
    narrowest
}

/// Returns the event buckets that keep one counter's partitions within half the maximum size, for time buckets of this
/// width. `None` if even the largest allowed number is not enough.
pub fn hot_buckets(adds_per_second: u64, seconds_per_bucket: u32) -> Option<u32> {
    let fits = |buckets_per_id: &u32| {
        let partition = TimePartition { buckets_per_id: *buckets_per_id, seconds_per_bucket };
        partition_bytes(adds_per_second, partition) <= PARTITION_BYTES_MAX / 2
    };
    let doubled = std::iter::successors(Some(1_u32), |buckets| buckets.checked_mul(2));
    doubled.take_while(|buckets| *buckets <= BUCKETS_PER_ID_MAX).find(fits)
}

/// Returns the partition of the busiest counter as a hot counter, if it would otherwise narrow the time buckets of all
/// others.
fn hot_instead(hottest: u64, planned: TimePartition, seconds_per_slice: u32) -> Option<TimePartition> {
    let widest = BUCKET_WIDTHS.into_iter().find(|width| seconds_per_slice.is_multiple_of(*width))?;
    let others = TimePartition { seconds_per_bucket: widest, ..TimePartition::default() };
    if planned == others {
        return None;
    }
    hot_buckets(hottest, widest).map(|buckets_per_id| TimePartition { buckets_per_id, ..others })
}

/// The size of a counter's largest partition: one event bucket of a time bucket.
fn partition_bytes(adds_per_second: u64, partition: TimePartition) -> u64 {
    let events = adds_per_second.saturating_mul(u64::from(partition.seconds_per_bucket));
    events.div_ceil(u64::from(partition.buckets_per_id)).saturating_mul(EVENT_PARTITION_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::counter::{CounterName, NamespaceName};
    use crate::namespace::{HotCounter, NamespaceSpec};

    fn load(adds_per_second: u64, counters: u64) -> Load {
        let retention = Duration::from_secs(7 * 86_400);
        Load { adds_per_second, counters, cardinality: None, retention, hottest_adds_per_second: None }
    }

    #[test]
    fn a_counter_with_2000_adds_a_second_and_four_event_buckets_wants_buckets_of_120_seconds() {
        let plan = load(2_000, 1).plan();
        assert_eq!((plan.partition.seconds_per_bucket, plan.partition.buckets_per_id), (120, 4));
        assert!(plan.partition_bytes <= PARTITION_BYTES_MAX / 2, "{}", plan.partition_bytes);
        assert!(plan.partition_bytes_by_default > PARTITION_BYTES_MAX, "600 s would be too wide");
        assert_eq!(plan.partition_bytes_by_default, 2_000 * 600 / 4 * 60);
    }

    #[test]
    fn a_counter_with_2000_adds_a_second_wants_16_event_buckets_of_its_own_in_buckets_of_600_seconds() {
        let hot = load(2_000, 1).plan().hot.expect("the planned buckets are narrower than by default");
        assert_eq!((hot.seconds_per_bucket, hot.buckets_per_id), (600, 16));
        assert!(partition_bytes(2_000, hot) <= PARTITION_BYTES_MAX / 2);
        let narrower = TimePartition { buckets_per_id: 8, ..hot };
        assert!(partition_bytes(2_000, narrower) > PARTITION_BYTES_MAX / 2, "half as many are too few");
        assert_eq!(load(10_000_000, 1).plan().hot, None, "nothing is enough");
        assert_eq!((hot_buckets(0, 600), hot_buckets(u64::MAX, 10)), (Some(1), None));
    }

    #[test]
    fn a_load_that_the_published_defaults_carry_gets_them() {
        let plan = load(1_000, 50_000).plan();
        assert_eq!((plan.partition, plan.hot), (TimePartition::default(), None));
        assert_eq!(plan.dataset, DatasetSettings::default());
        assert_eq!((plan.cardinality, plan.warnings.len()), (Cardinality::Medium, 0), "{:?}", plan.warnings);
        assert_eq!(plan.converges_within, Duration::from_secs(35));
    }

    #[test]
    fn what_no_setting_carries_is_said() {
        let plan = load(10_000_000, 1).plan();
        assert!(plan.warnings[0].contains("spread the adds over several counters"), "{:?}", plan.warnings);
        let said = Load { cardinality: Some(Cardinality::Low), ..load(10, 5_000) }.plan();
        assert!(said.warnings[0].contains("MEDIUM"), "{:?}", said.warnings);
    }

    #[test]
    fn disk_is_what_is_kept_and_the_slice_that_is_being_written() {
        let plan = load(100, 10).plan();
        assert_eq!(plan.events, 100 * 8 * 86_400);
        assert_eq!(plan.embedded_bytes, plan.events * 100 + 10 * 250);
        assert_eq!(plan.cassandra_bytes, (plan.events * 60 + 10 * 250) * 3);
    }

    proptest! {
        #[test]
        fn every_plan_is_made_of_settings_that_are_taken(
            adds_per_second in 0..u64::MAX,
            counters in 0..u64::MAX,
            retention in 0..3_000_000_000_u64,
            hottest in proptest::option::of(0..u64::MAX),
        ) {
            let retention = Duration::from_secs(retention);
            let load = Load { adds_per_second, counters, cardinality: None, retention, hottest_adds_per_second: hottest };
            let plan = load.plan();
            let mut spec = NamespaceSpec::with_defaults(NamespaceName::new("shop").expect("a valid name"));
            (spec.dataset, spec.partition, spec.rollup) = (plan.dataset, plan.partition, plan.rollup);
            if let Some(hot) = plan.hot {
                prop_assert!(partition_bytes(plan.hottest_adds_per_second, hot) <= PARTITION_BYTES_MAX / 2);
                let counter_name = CounterName::new("hottest").expect("a valid name");
                spec.hot_counters = [HotCounter { counter_name, buckets_per_id: hot.buckets_per_id }].into_iter().collect();
            }
            prop_assert!(spec.validate().is_ok(), "{:?}", spec.validate());
            let too_large = plan.partition_bytes > PARTITION_BYTES_MAX;
            prop_assert_eq!(too_large, plan.warnings.iter().any(|warning| warning.contains("spread the adds")));
        }
    }
}
