//! Counts of what the engine did, for the metrics page. Plain numbers; the page gives them names and units.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One growing number.
#[derive(Default, Debug)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds one.
    pub fn one(&self) {
        self.add(1);
    }

    /// Adds some.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds a duration, in microseconds.
    pub fn add_time(&self, duration: Duration) {
        self.add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the engine did since it started.
#[derive(Default, Debug)]
pub struct Stats {
    /// Adds, clears and totals that were applied.
    pub writes_applied: Count,
    /// Writes whose token had been applied before.
    pub writes_repeated: Count,
    /// Verdicts that were given.
    pub verdicts: Count,
    /// Verdicts that wrote or found a void.
    pub verdicts_void: Count,
    /// Reads served from the cache.
    pub cache_hits: Count,
    /// Reads that went to the rollup store.
    pub cache_misses: Count,
    /// Rolls that a read ran itself.
    pub inline_rolls: Count,
    /// Rolls that wrote a checkpoint.
    pub rolls_written: Count,
    /// Rolls that found nothing new.
    pub rolls_empty: Count,
    /// Rolls that failed and are tried again.
    pub rolls_failed: Count,
    /// Events folded by rolls.
    pub events_folded: Count,
    /// Rollup batches.
    pub batches: Count,
    /// Time spent in rollup batches, in microseconds.
    pub batch_micros: Count,
    /// Pauses after rollup batches, in microseconds.
    pub pause_micros: Count,
    /// Signals for which a Set had no room.
    pub signals_lost: Count,
    /// Signals for other servers that nobody is known to take.
    pub signals_unsent: Count,
    /// Signals of other servers that were taken in.
    pub signals_taken: Count,
    /// Touches read again after a restart or a lost signal.
    pub touches_replayed: Count,
    /// Limits published.
    pub limits_published: Count,
    /// Rows that reached the log after their bucket was rolled up and were taken into the count by a repair.
    pub late_rows: Count,
    /// Counters that were repaired, once for each bucket that differed.
    pub repairs: Count,
    /// Buckets that were compared because of a recheck mark.
    pub buckets_rechecked: Count,
    /// Buckets that were over for the seal delay and were read from all replicas and compared.
    pub buckets_sealed: Count,
    /// Times the buckets of a touch shard could not be sealed and are tried again.
    pub seals_failed: Count,
    /// Lapses of this server's own lease.
    pub leases_lapsed: Count,
    /// Other members that this server has seen lapse.
    pub members_lapsed: Count,
    /// Slices dropped.
    pub slices_dropped: Count,
    /// Slices past their time that something still needs.
    pub slices_kept_back: Count,
    /// Messages that were taken in.
    pub messages_enqueued: Count,
    /// Enqueues whose id had been taken in before.
    pub messages_repeated: Count,
    /// Leases that were given.
    pub leases_given: Count,
    /// Messages that were completed.
    pub messages_completed: Count,
    /// Leases that were settled, repeats included.
    pub leases_settled: Count,
    /// Looks of dequeues that found nothing.
    pub dequeues_empty: Count,
    /// Leases that were given while another shard of the queue had a better message.
    pub leases_out_of_rank: Count,
    /// Messages whose window was over and that became ready.
    pub messages_promoted: Count,
    /// Those of them that became ready more than a second after their time.
    pub promotions_late: Count,
    /// By how much they came after their time, at most, in microseconds.
    pub promotion_lag_micros: Count,
    /// Commands that were sent to shards.
    pub queue_commands: Count,
    /// Store calls that brought them.
    pub queue_store_calls: Count,
    /// Events acknowledged at or below a limit that was told while they were held; must stay 0.
    pub acknowledged_below_limit: Count,
}
