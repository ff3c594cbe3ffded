//! Adaptive back-pressure: the parallelism of a batch's reads and the pause after it.
//!
//! The published system waits for a batch to finish and derives the pause from the performance of that batch; so does
//! this module. The parallelism follows the tail latency of the reads (additive increase, multiplicative decrease).

use std::time::Duration;

use tallystone_domain::limits::ROLLUP_READS_AT_ONCE_MAX;
use tallystone_domain::namespace::Cardinality;

/// Reads slower than this at p99 halve the parallelism.
const READ_P99_TARGET: Duration = Duration::from_millis(10);
/// Shorter pauses are accumulated, because timers are no finer.
const PAUSE_MIN: Duration = Duration::from_millis(2);

/// The pace of one queue.
#[derive(Debug)]
pub struct Pacer {
    permits: usize,
    debt: Duration,
}

impl Default for Pacer {
    fn default() -> Self {
        Self { permits: 8, debt: Duration::ZERO }
    }
}

impl Pacer {
    /// The number of partitions that the next batch reads at once.
    pub fn permits(&self, cardinality: Cardinality) -> usize {
        let ceiling = match cardinality {
            Cardinality::Low => ROLLUP_READS_AT_ONCE_MAX / 8,
            Cardinality::Medium => ROLLUP_READS_AT_ONCE_MAX / 2,
            Cardinality::High => ROLLUP_READS_AT_ONCE_MAX,
        };
        self.permits.min(ceiling)
    }

    /// Takes the durations of a batch's reads and of the whole batch. Returns the pause to make; zero is possible.
    pub fn after_batch(&mut self, reads: &mut [Duration], batch: Duration) -> Duration {
        reads.sort_unstable();
        let p99 = reads.get(reads.len().saturating_sub(1) * 99 / 100).copied().unwrap_or_default();
        self.permits = if p99 > READ_P99_TARGET {
            (self.permits / 2).max(1)
        } else {
            (self.permits + 1).min(ROLLUP_READS_AT_ONCE_MAX)
        };
        self.debt += batch / 2;
        if self.debt < PAUSE_MIN { Duration::ZERO } else { std::mem::take(&mut self.debt) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reads_halve_the_parallelism_and_fast_ones_raise_it_by_one() {
        let mut pacer = Pacer::default();
        pacer.after_batch(&mut [Duration::from_millis(1)], Duration::ZERO);
        assert_eq!(pacer.permits(Cardinality::High), 9);
        pacer.after_batch(&mut [Duration::from_millis(11)], Duration::ZERO);
        assert_eq!(pacer.permits(Cardinality::High), 4);
        assert_eq!(Pacer::default().permits(Cardinality::Low), 8);
    }

    #[test]
    fn pauses_are_half_of_the_batches_and_short_ones_are_saved_up() {
        let mut pacer = Pacer::default();
        let millis = Duration::from_millis;
        assert_eq!(pacer.after_batch(&mut [], millis(3)), Duration::ZERO);
        assert_eq!(pacer.after_batch(&mut [], millis(3)), millis(3));
        assert_eq!(pacer.after_batch(&mut [], millis(100)), millis(50));
    }
}
