//! A histogram of durations, from hundredths of a second to a week. Observing takes no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tallystone_ports::HistogramReading;

/// The upper bounds of all histograms of queues, in microseconds.
const BOUNDS_MICROS: [u64; 15] = [
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    900_000_000,
    3_600_000_000,
    21_600_000_000,
    86_400_000_000,
    604_800_000_000,
];

/// How long something took, how often.
#[derive(Default, Debug)]
pub struct DurationHistogram {
    /// For each bound the durations above the bound before it; the last ones are above all bounds.
    buckets: [AtomicU64; BOUNDS_MICROS.len() + 1],
    sum_micros: AtomicU64,
}

impl DurationHistogram {
    /// Adds a duration. O(1).
    pub fn observe(&self, duration: Duration) {
        self.observe_times(duration, 1);
    }

    /// Adds the same duration several times. O(1).
    pub fn observe_times(&self, duration: Duration, times: u64) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].fetch_add(times, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros.saturating_mul(times), Ordering::Relaxed);
    }

    /// Whether nothing was observed.
    pub fn is_empty(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.load(Ordering::Relaxed) == 0)
    }

    /// Returns what was observed, in seconds.
    pub fn read(&self) -> HistogramReading {
        let bounds = BOUNDS_MICROS.map(|bound| bound as f64 / 1e6).into_iter().chain([f64::INFINITY]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let sum = self.sum_micros.load(Ordering::Relaxed) as f64 / 1e6;
        HistogramReading { sum, buckets: bounds.zip(counts).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_up_to_the_first_bound_that_it_does_not_pass() {
        let histogram = DurationHistogram::default();
        assert!(histogram.is_empty());
        let cases = [(0, 0), (10_000, 0), (10_001, 1), (1_000_000, 4), (604_800_000_000, 14), (604_800_000_001, 15)];
        for (micros, bucket) in cases {
            let before = histogram.read().buckets[bucket].1;
            histogram.observe(Duration::from_micros(micros));
            assert_eq!(histogram.read().buckets[bucket].1, before + 1, "{micros}");
        }
        histogram.observe_times(Duration::from_secs(5), 3);
        let read = histogram.read();
        assert_eq!((read.buckets[6], read.buckets.len()), ((10.0, 3), 16));
        assert!(read.sum > 1_209_600.0 && read.buckets[15].0.is_infinite(), "{read:?}");
    }
}
