//! Rolling counters: checkpoint and watermark, then the log up to the limit, then the new checkpoint.

use std::time::Duration;

use futures_util::stream::{self, StreamExt};

use crate::rolling::{FoldStart, Roller};
use crate::scopes::NamespaceScope;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::Counter;
use tallystone_domain::rollup::RollupRow;
use tallystone_ports::{CacheLease, RollWrite, StoreError, StoreErrorKind};

/// One counter read and folded, not yet written.
struct PreparedRoll {
    counter: Counter,
    lease: CacheLease,
    row: RollupRow,
    read_at: Timestamp,
    /// None if nothing is new.
    write: Option<RollWrite>,
    read_duration: Duration,
}

/// The time up to which a counter is rolled up, or an error.
pub type RollResult = Result<Timestamp, StoreError>;

impl Roller {
    /// Rolls counters of one namespace up to the limit, reading at most `permits` at once, and writes them together.
    ///
    /// Returns the time up to which each is rolled up, in the order of the counters, and appends the durations of the
    /// reads.
    pub async fn roll(
        &self,
        scope: &NamespaceScope,
        counters: &[Counter],
        permits: usize,
        reads: &mut Vec<Duration>,
    ) -> Vec<RollResult> {
        let limit = scope.dataset.limit();
        // Boxed one by one: a batch in one piece is so large that the allocator asks the system for it each time, and
        // the pages that come back have to be cleared first. It was most of the time of a roll, in bursts of 3 to 6 ms.
        let reading: Vec<_> = counters.iter().map(|counter| Box::pin(self.prepare(scope, counter, limit))).collect();
        let mut prepared: Vec<Result<Box<PreparedRoll>, StoreError>> = Vec::with_capacity(counters.len());
        let mut reading = stream::iter(reading).buffered(permits.max(1));
        while let Some(one) = reading.next().await {
            prepared.push(one);
        }
        let mut writes = Vec::with_capacity(prepared.len());
        for prepared in prepared.iter_mut().flatten() {
            reads.push(prepared.read_duration);
            writes.extend(prepared.write.clone());
        }
        let written = if writes.is_empty() {
            Ok(())
        } else {
            self.context.stats.rolls_written.add(writes.len() as u64);
            self.scopes.stores.rollups.put(scope.dataset.id(), writes).await
        };
        let mut answers = Vec::with_capacity(prepared.len());
        for prepared in prepared {
            answers.push(self.conclude(scope, prepared, &written, limit).await);
        }
        answers
    }

    async fn prepare(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        limit: Timestamp,
    ) -> Result<Box<PreparedRoll>, StoreError> {
        let began = self.context.clock.elapsed();
        // The watermark is read before the checkpoint: all events up to it were in the checkpoint before it moved.
        let watermark = scope.dataset.watermark(counter.touch_shard());
        let lease = scope.cache.lease(counter).await;
        let read_at = self.context.now();
        let row = self.scopes.stores.rollups.read(scope.dataset.id(), counter).await?;
        // The first roll on a repaired value reaches at least as far as every roll on the value before the repair, on
        // which watermarks may have moved. Those rolls read their limits before the repair was written.
        let limit = if row.just_repaired { scope.dataset.stored_limit(&self.scopes.stores).await? } else { limit };
        let start = FoldStart::of(&row, watermark);
        let write = if start.base.as_of < limit { self.fold_log(scope, counter, start, limit).await? } else { None };
        let took = self.context.clock.elapsed().saturating_sub(began);
        Ok(Box::new(PreparedRoll { counter: counter.clone(), lease, row, read_at, write, read_duration: took }))
    }

    /// Folds the events of the log in (base.as_of, limit]; none if there are no events.
    async fn fold_log(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        start: FoldStart,
        limit: Timestamp,
    ) -> Result<Option<RollWrite>, StoreError> {
        if scope.covered_to() <= limit {
            // An unknown slice is never an empty one.
            return Err(StoreError::not_applied(StoreErrorKind::Unavailable, "roll beyond the known slices"));
        }
        let folded = self.fold_pages(scope, counter, start, limit, usize::MAX).await?;
        if folded.events == 0 {
            self.context.stats.rolls_empty.increment();
            return Ok(None);
        }
        self.context.stats.events_folded.add(folded.events);
        let rolled = folded.folder.finish(limit);
        Ok(Some(RollWrite {
            counter: counter.clone(),
            checkpoint: self.with_roller(rolled.checkpoint),
            finished_buckets: rolled.finished_buckets,
            finished_steps: rolled.finished_steps,
        }))
    }

    /// Fills the cache, ranks the counter and wakes its watchers, once the batch is written.
    async fn conclude(
        &self,
        scope: &NamespaceScope,
        prepared: Result<Box<PreparedRoll>, StoreError>,
        written: &Result<(), StoreError>,
        limit: Timestamp,
    ) -> RollResult {
        let prepared = prepared?;
        let Some(write) = prepared.write else { return Ok(limit) };
        if let Err(error) = written {
            return Err(error.alike());
        }
        let checkpoint = &write.checkpoint;
        let value = prepared.row.to_cached_with(checkpoint, prepared.read_at);
        scope.cache.fill(&prepared.counter, value, prepared.lease).await;
        if scope.needs_as_of_floor {
            // A reader may have filled the cache with an older value, which a woken watcher must not see.
            self.served.as_of_floor.note(&prepared.counter, checkpoint.as_of);
        }
        self.served.rankings.note(&prepared.counter, checkpoint);
        self.served.watchers.wake(&prepared.counter);
        Ok(checkpoint.as_of)
    }
}
