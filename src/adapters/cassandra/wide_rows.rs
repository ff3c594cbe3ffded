//! Warns of counters that are too hot for the partitions of their namespace, and suggests a fix: event buckets of their
//! own, else narrower buckets for all counters of the namespace.
//!
//! Every roll carries the event counts of its time buckets, so the check reads nothing. A partition is one event bucket
//! of one time bucket; the check assumes that events spread evenly over event buckets.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;

use crate::limits::WIDE_COUNTERS_TOLD_MAX;
use crate::slices::CqlSlice;
use tallystone_domain::Timestamp;
use tallystone_domain::capacity::{EVENT_PARTITION_BYTES, hot_buckets, partition_of};
use tallystone_domain::counter::{Counter, DatasetId};
use tallystone_domain::limits::PARTITION_BYTES_MAX;
use tallystone_domain::namespace::TimePartition;
use tallystone_domain::rollup::BucketRecord;
use tallystone_ports::RollWrite;

/// The detector, with the warnings that it has already given.
pub struct WideRowDetector {
    /// The last slice with a warning, by its beginning, for each counter.
    warned_slices: Cache<(DatasetId, Counter), Timestamp>,
    warnings: AtomicU64,
}

/// A time bucket with too many events, and the suggested fix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OversizedPartition {
    adds_per_second: u64,
    partition_bytes: u64,
    advice: PartitionAdvice,
}

/// A suggested fix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PartitionAdvice {
    /// Event buckets for this counter only: this many.
    HotCounter(u32),
    /// Other buckets for all counters of the namespace.
    WholeNamespace(TimePartition),
}

impl fmt::Display for PartitionAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HotCounter(buckets) => {
                write!(f, "name it in hot_counters of its namespace, with buckets_per_id {buckets}")
            }
            Self::WholeNamespace(TimePartition { seconds_per_bucket, buckets_per_id }) => write!(
                f,
                "set seconds_per_bucket of its namespace to {seconds_per_bucket} and buckets_per_id to {buckets_per_id}"
            ),
        }
    }
}

impl Default for WideRowDetector {
    fn default() -> Self {
        Self { warned_slices: Cache::new(WIDE_COUNTERS_TOLD_MAX), warnings: AtomicU64::new(0) }
    }
}

impl WideRowDetector {
    /// Returns the number of warnings so far, at most one for each counter and slice.
    pub fn warning_count(&self) -> u64 {
        self.warnings.load(Ordering::Relaxed)
    }

    /// Warns of a bucket with too many events, once for each counter and slice.
    pub fn check_bucket(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        slice: &CqlSlice,
        partition: TimePartition,
        bucket: &BucketRecord,
        as_of: Timestamp,
    ) {
        let slice_seconds = slice.last().just_after().since(slice.start()).as_secs();
        let seconds_per_slice = u32::try_from(slice_seconds).unwrap_or(u32::MAX);
        let Some(found) = too_wide(partition, seconds_per_slice, bucket, as_of) else { return };
        let key = (dataset, counter.clone());
        if self.warned_slices.get(&key) == Some(slice.start()) {
            return;
        }
        self.warned_slices.insert(key, slice.start());
        self.warnings.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            counter = %counter.tag(),
            adds_per_second = found.adds_per_second,
            partition_bytes = found.partition_bytes,
            "a counter is too hot for its partitions, which should stay below {PARTITION_BYTES_MAX} bytes: {}; \
             effective from the next new slice",
            found.advice,
        );
    }
}

/// Returns the buckets of a roll that may have too many events under any settings.
pub fn oversized_buckets(write: &RollWrite) -> impl Iterator<Item = &BucketRecord> {
    let buckets = write.finished_buckets.iter().chain(&write.checkpoint.open_bucket);
    buckets.filter(|bucket| bucket.rows.saturating_mul(EVENT_PARTITION_BYTES) > PARTITION_BYTES_MAX)
}

fn too_wide(
    partition: TimePartition,
    seconds_per_slice: u32,
    bucket: &BucketRecord,
    as_of: Timestamp,
) -> Option<OversizedPartition> {
    let rows = bucket.rows.div_ceil(u64::from(partition.buckets_per_id.max(1)));
    let partition_bytes = rows.saturating_mul(EVENT_PARTITION_BYTES);
    if partition_bytes <= PARTITION_BYTES_MAX {
        return None;
    }
    let width = Duration::from_secs(u64::from(partition.seconds_per_bucket));
    let seconds = as_of.since(bucket.start).min(width).as_secs().max(1);
    let adds_per_second = bucket.rows.div_ceil(seconds);
    let advice = match hot_buckets(adds_per_second, partition.seconds_per_bucket) {
        Some(buckets) => PartitionAdvice::HotCounter(buckets),
        None => PartitionAdvice::WholeNamespace(partition_of(adds_per_second, seconds_per_slice)),
    };
    Some(OversizedPartition { adds_per_second, partition_bytes, advice })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(0);

    fn bucket(rows: u64) -> BucketRecord {
        BucketRecord { start: START, rows, sum: 0, clear: None, digest: 0 }
    }

    #[test]
    fn a_bucket_is_too_wide_beyond_the_largest_partition_and_the_advice_holds_it() {
        let partition = TimePartition { seconds_per_bucket: 600, buckets_per_id: 4 };
        let most = PARTITION_BYTES_MAX / EVENT_PARTITION_BYTES * 4;
        let at = START + Duration::from_secs(3_600);
        assert_eq!(too_wide(partition, 86_400, &bucket(most), at), None);
        let found = too_wide(partition, 86_400, &bucket(most + 1), at).expect("one more event is too many");
        assert_eq!(found.adds_per_second, 1_166, "over the ten minutes of the bucket, though the roll came later");
        let PartitionAdvice::HotCounter(buckets) = found.advice else { panic!("{found:?}") };
        let rows = (most + 1).div_ceil(u64::from(buckets));
        assert!(rows * EVENT_PARTITION_BYTES <= PARTITION_BYTES_MAX / 2, "{buckets} event buckets");
    }

    #[test]
    fn a_bucket_that_has_just_begun_is_judged_by_the_time_that_it_took() {
        let partition = TimePartition { seconds_per_bucket: 600, buckets_per_id: 1 };
        let found = too_wide(partition, 86_400, &bucket(200_000), START + Duration::from_secs(100));
        let found = found.expect("the bucket is too wide");
        assert_eq!((found.adds_per_second, found.advice), (2_000, PartitionAdvice::HotCounter(16)));
        assert!(found.advice.to_string().contains("in hot_counters of its namespace, with buckets_per_id 16"));
    }

    #[test]
    fn a_counter_that_no_event_buckets_hold_wants_narrower_time_buckets() {
        let partition = TimePartition { seconds_per_bucket: 3_600, buckets_per_id: 4 };
        let found = too_wide(partition, 86_400, &bucket(40_000_000), START + Duration::from_secs(3_600));
        let advice = found.expect("the bucket is too wide").advice;
        let PartitionAdvice::WholeNamespace(TimePartition { seconds_per_bucket, buckets_per_id }) = advice else {
            panic!("{advice:?}")
        };
        assert!(seconds_per_bucket < 3_600 && buckets_per_id >= 4, "{advice}");
    }
}
