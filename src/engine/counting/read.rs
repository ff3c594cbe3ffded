//! GetCount and BatchGetCounts: the cache, the rollup store, an inline roll on request, the tail of the log.

use std::sync::Arc;

use futures_util::{StreamExt, stream};

use crate::domain::counter::{Counter, CounterName, NamespaceName};
use crate::domain::fleet::ProtocolRule;
use crate::domain::limits::{CALL_READS_AT_ONCE_MAX, LIMIT_PUBLISH_INTERVAL, TAIL_EVENTS_MAX};
use crate::domain::namespace::{CounterType, Temporality};
use crate::domain::rollup::checkpoint::{clamp_count, is_silent_beyond_ttl};
use crate::domain::rollup::{Checkpoint, TailSum};
use crate::domain::{Reject, Timestamp};
use crate::engine::counting::wait_budget::WaitBudget;
use crate::engine::counting::{
    CountReading, Counting, CountingError, Exactness, Freshness, ReadOptions, is_best_effort,
};
use crate::engine::rolling::cached;
use crate::engine::scopes::NamespaceScope;
use crate::ports::{CachedCount, RollupRow, ScanOrder, ScanRange, StoreError, TailLookup};

/// The page size of the search for the first mutation. Tombstones before it are rare.
const FIRST_MUTATION_PAGE: usize = 16;

impl Counting {
    /// Reads a count.
    pub async fn get(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
        options: ReadOptions,
    ) -> Result<CountReading, CountingError> {
        let scope = self.scope(namespace).await?;
        let counter = scope.counter(name);
        self.read(&scope, &counter, options, WaitBudget::begin(self.context.clock.as_ref()))
            .await
            .map(|read| self.shown_to_callers(read))
    }

    /// Reads several counters at a time, within one time budget. The results have the order of the names.
    pub async fn batch_get(
        &self,
        namespace: &NamespaceName,
        names: Vec<Result<CounterName, Reject>>,
        options: ReadOptions,
    ) -> Result<Vec<Result<CountReading, CountingError>>, CountingError> {
        let scope = self.scope(namespace).await?;
        let budget = WaitBudget::begin(self.context.clock.as_ref());
        let (this, scope) = (self, &scope);
        let read = |name: Result<CounterName, Reject>| async move {
            this.read(scope, &scope.counter(name?), options, budget).await.map(|read| this.shown_to_callers(read))
        };
        Ok(stream::iter(names).map(read).buffered(CALL_READS_AT_ONCE_MAX).collect().await)
    }

    /// A reading as callers see it. A shared store knows the last write only to its step and returns the end of that step.
    /// Rolls and watches wait for that end; callers never see a time later than now.
    pub(super) fn shown_to_callers(&self, reading: CountReading) -> CountReading {
        if self.scopes.fleet.is_none() {
            return reading;
        }
        let now = self.context.now();
        CountReading { last_write_time: reading.last_write_time.map(|written| written.min(now)), ..reading }
    }

    /// Reads a counter of a scope.
    pub(super) async fn read(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
        options: ReadOptions,
        budget: WaitBudget,
    ) -> Result<CountReading, CountingError> {
        scope.counts.reads.increment();
        if is_best_effort(scope) {
            return Ok(self.fast_reading(scope.best_effort_counts.get(counter).await?));
        }
        let up_to_date = match options.freshness {
            Freshness::UpToDate => true,
            Freshness::RolledUp => false,
            Freshness::ByType => scope.namespace.spec.counter_type == CounterType::Accurate,
        };
        let limit = self.limit_for_read(scope, budget).await;
        let mut known = self.load(scope, counter).await?;
        if known.may_have_fallen_silent(scope, limit) {
            known = self.load_from_store(scope, counter).await?;
        }
        let reading = self.rolled_up(scope, counter, &known, limit).await?;
        let (known, mut reading) = if self.must_roll(&reading, &options) {
            self.roll_then_read(scope, counter, &options, budget).await?
        } else {
            (known, reading)
        };
        let unrolled = known.value.last_write_time.is_some_and(|written| written > known.rolled_to);
        let rolled_to = known.rolled_to;
        if up_to_date {
            let as_of = reading.as_of;
            reading = self.with_tail(scope, counter, known, reading, budget).await?;
            reading.as_of = reading.as_of.max(as_of);
        } else if reading.behind || unrolled {
            // The read repairs a counter whose rollup signal was lost, even if the missing events lie below the served `as_of`.
            let newest = reading.last_write_time.unwrap_or(reading.as_of);
            self.scopes.signal(scope, counter, rolled_to.min(reading.as_of).just_after().min(newest), newest);
        }
        if options.at_least_as_of.is_some_and(|wanted| wanted > reading.as_of) {
            reading.behind = true;
        }
        if scope.needs_as_of_floor {
            self.served.as_of_floor.note(counter, reading.as_of);
        }
        Ok(reading)
    }

    /// The limit. If its publisher was idle, the limit is moved once first.
    pub(super) async fn limit_for_read(&self, scope: &NamespaceScope, budget: WaitBudget) -> Timestamp {
        let limit = scope.dataset.limit();
        let due = self.context.now() - scope.dataset.dataset.settings.accept_limit - LIMIT_PUBLISH_INTERVAL * 2;
        if limit >= due {
            return limit;
        }
        let clock = self.context.clock.as_ref();
        scope.dataset.fresh_limit(clock, budget.left(clock)).await
    }

    /// The cached value, or the value in the store, which then fills the cache.
    async fn load(&self, scope: &NamespaceScope, counter: &Counter) -> Result<RolledUpCount, StoreError> {
        // The watermark is read first: every checkpoint read after it contains all events up to it.
        let told = self.as_of_floor(scope, counter);
        let watermark = scope.dataset.watermark(counter.touch_shard());
        if let Some(value) = scope.cache.get(counter).await {
            let coherent = value.checked_at.is_none();
            let is_as_new = value.as_of >= told || !self.rules.keeps(ProtocolRule::NoOlderThanTold);
            if coherent || (value.as_of > Timestamp::MIN && is_as_new) {
                self.context.stats.cache_hits.increment();
                // An older copy of a checkpoint may lack events that newer checkpoints contain.
                let rolled_to = if coherent { value.as_of.max(watermark) } else { value.as_of };
                return Ok(RolledUpCount { value, rolled_to, as_of_floor: told, is_write_time_exact: coherent });
            }
        }
        self.load_from_store(scope, counter).await
    }

    /// The value in the store, which then fills the cache.
    pub(super) async fn load_from_store(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
    ) -> Result<RolledUpCount, StoreError> {
        // The served `as_of` is read before the store, so the store contains everything that made it true.
        let told = self.as_of_floor(scope, counter);
        let watermark = scope.dataset.watermark(counter.touch_shard());
        let limit = scope.dataset.limit();
        self.context.stats.cache_misses.increment();
        let lease = scope.cache.lease(counter).await;
        let checked_at = self.context.now();
        let row = self.scopes.stores.rollups.read(scope.dataset.id(), counter).await?;
        // A repair may have moved a checkpoint back below the served `as_of`. The missing part is rolled up again.
        let told = if row.just_repaired { Timestamp::MIN } else { told };
        let mut value = value_of(&row, checked_at);
        let watermark = row.effective_watermark(watermark);
        let rolled_to = value.as_of.max(watermark);
        // No event can appear at or below a limit that was published before this read. So the checkpoint is exact up to the
        // limit, or up to the first mutation that it lacks.
        let exact_to = match value.last_write_time {
            Some(written) if written > rolled_to => self.unrolled_from(scope, counter, rolled_to).await?,
            Some(_) | None => limit,
        };
        value.as_of = rolled_to.max(limit.min(exact_to));
        scope.cache.fill(counter, value.clone(), lease).await;
        let rolled_to = value.as_of.max(watermark);
        Ok(RolledUpCount { value, rolled_to, as_of_floor: told, is_write_time_exact: false })
    }

    /// The highest `as_of` that this server has served of a counter, where it has to be remembered.
    fn as_of_floor(&self, scope: &NamespaceScope, counter: &Counter) -> Timestamp {
        if scope.needs_as_of_floor { self.served.as_of_floor.of(counter) } else { Timestamp::MIN }
    }

    /// The count of the checkpoint, and the time up to which it is complete.
    pub(super) async fn rolled_up(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        known: &RolledUpCount,
        limit: Timestamp,
    ) -> Result<CountReading, StoreError> {
        let RolledUpCount { value: known, rolled_to, as_of_floor: told, is_write_time_exact: exact_now } = known;
        let rolled_to = *rolled_to;
        let written_after = known.last_write_time.is_some_and(|written| written > rolled_to);
        let exact_to = match (written_after, exact_now) {
            (true, _) => self.unrolled_from(scope, counter, rolled_to).await?,
            (false, true) => limit,
            // A cached copy does not know writes that came after it.
            (false, false) => rolled_to,
        };
        // A row found at or below the served `as_of` was not acknowledged at that time. It counts as late from the moment
        // at which a caller learns of it.
        let as_of = rolled_to.max(limit.min(exact_to)).max(scope.least_as_of(limit)).max(*told);
        let cleared = known.clear.as_ref().is_some_and(|clear| clear.time > known.as_of);
        let silent = is_silent_beyond_ttl(known.last_event_time, as_of, scope.ttl_at(as_of));
        let exact = if silent { 0 } else { known.count };
        let (count, saturated) = if cleared { (0, false) } else { clamp_count(exact) };
        // A clear shows before `as_of` has reached it.
        let exactness = if cleared && exact != 0 { Exactness::Estimate } else { Exactness::ExactAsOf };
        Ok(CountReading {
            count,
            saturated,
            as_of,
            checked_at: known.checked_at.unwrap_or_else(|| self.context.now()),
            last_write_time: known.last_write_time,
            behind: known.last_write_time.is_some_and(|written| written > as_of),
            exactness,
        })
    }

    /// The last whole millisecond before the first mutation above a checkpoint. The checkpoint is exact up to there; without
    /// such a mutation it is exact up to every limit.
    ///
    /// This keeps the `as_of` of a counter from going back when an event arrives above a published limit.
    async fn unrolled_from(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        rolled_to: Timestamp,
    ) -> Result<Timestamp, StoreError> {
        let whole = |first: Timestamp| Timestamp::from_millis(first.just_before().millis());
        match self.scopes.stores.log.tail(scope.dataset.id(), counter, rolled_to) {
            TailLookup::Sum(tail) => return Ok(whole(tail.first)),
            TailLookup::Empty => return Ok(rolled_to),
            TailLookup::Unknown => {}
        }
        let mut range = ScanRange {
            after: rolled_to,
            to: Timestamp::MAX,
            order: ScanOrder::OldestFirst,
            beyond: None,
            limit: FIRST_MUTATION_PAGE,
        };
        loop {
            let page = self.scopes.stores.log.scan(scope.dataset.id(), counter, range.clone()).await?;
            match (page.iter().find(|event| event.change.is_mutation()), page.last()) {
                (Some(first), _) => return Ok(whole(first.key.time)),
                (None, Some(last)) if page.len() == FIRST_MUTATION_PAGE => range.beyond = Some(last.key.clone()),
                // All acknowledged events were read after the limit was published, so the checkpoint is exact up to any limit.
                (None, _) => return Ok(Timestamp::MAX),
            }
        }
    }

    fn must_roll(&self, reading: &CountReading, options: &ReadOptions) -> bool {
        let now = self.context.now();
        let stale = options.max_staleness.is_some_and(|most| {
            (reading.behind && now.since(reading.as_of) > most) || now.since(reading.checked_at) > most
        });
        stale || options.at_least_as_of.is_some_and(|wanted| wanted > reading.as_of)
    }

    /// Moves the limit and rolls the counter as far as the time budget allows, then reads it again.
    async fn roll_then_read(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
        options: &ReadOptions,
        budget: WaitBudget,
    ) -> Result<(RolledUpCount, CountReading), CountingError> {
        let clock = self.context.clock.as_ref();
        let wanted = options.at_least_as_of.unwrap_or(Timestamp::MIN);
        let closable = scope.dataset.closing.closed(self.context.now());
        if closable > scope.dataset.limit() {
            scope.dataset.limit_at_least(wanted.min(closable), clock, budget.left(clock)).await;
        }
        let mut known = self.load_from_store(scope, counter).await?;
        // At the limit, no event is left for a roll.
        if known.rolled_to < scope.dataset.limit() {
            self.roll_inline(scope, counter, budget.left(clock)).await;
            known = self.load_from_store(scope, counter).await?;
        }
        let reading = self.rolled_up(scope, counter, &known, scope.dataset.limit()).await?;
        Ok((known, reading))
    }

    /// Adds the tail of the log to a checkpoint.
    async fn with_tail(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
        known: RolledUpCount,
        reading: CountReading,
        budget: WaitBudget,
    ) -> Result<CountReading, CountingError> {
        let RolledUpCount { value: known, rolled_to, .. } = known;
        if scope.namespace.spec.temporality == Temporality::Delta {
            match self.scopes.stores.log.tail(scope.dataset.id(), counter, rolled_to) {
                TailLookup::Sum(tail) if tail_sum_suffices(scope, &tail) => {
                    let ttl = scope.ttl_at(tail.first);
                    let mut base = Checkpoint::empty(known.as_of);
                    base.count = known.count;
                    base.last_event_time = known.last_event_time;
                    let value = tail.value_after(&base, ttl);
                    let last = known.last_write_time.max(Some(tail.last));
                    return Ok(self.up_to_date(scope, reading, value, last, Exactness::UpToDate));
                }
                TailLookup::Empty => {
                    let (value, last) = (i128::from(reading.count), reading.last_write_time);
                    let saturated = reading.saturated;
                    let reading = self.up_to_date(scope, reading, value, last, Exactness::UpToDate);
                    return Ok(CountReading { saturated: saturated && reading.count != 0, ..reading });
                }
                TailLookup::Sum(_) | TailLookup::Unknown => {}
            }
        }
        self.scan_tail(scope, counter, reading, budget).await
    }

    /// Adds the tail event by event. A tail that is too long is rolled up first.
    async fn scan_tail(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
        reading: CountReading,
        budget: WaitBudget,
    ) -> Result<CountReading, CountingError> {
        let (folded, more) = self.fold_tail(scope, counter).await?;
        let (folded, more) = if more {
            self.roll_inline(scope, counter, budget.left(self.context.clock.as_ref())).await;
            self.fold_tail(scope, counter).await?
        } else {
            (folded, more)
        };
        let exactness = if more { Exactness::Partial } else { Exactness::UpToDate };
        let last = reading.last_write_time.max(folded.last_event_time);
        let (count, saturated) = clamp_count(folded.count);
        let silent = is_silent_beyond_ttl(last, scope.dataset.limit(), scope.ttl_at(scope.dataset.limit()));
        let (count, saturated) = if silent { (0, false) } else { (count, saturated) };
        let behind = last.is_some_and(|written| written > reading.as_of);
        Ok(CountReading { count, saturated, last_write_time: last, behind, exactness, ..reading })
    }

    /// The same scope, with slices that other servers may have made for acknowledged events. Earlier slices can exist while
    /// the limit lies before the first slice known here; later slices can exist if the limit stands still for long.
    async fn with_all_slices(
        &self,
        scope: &Arc<NamespaceScope>,
        last: Option<Timestamp>,
    ) -> Result<Arc<NamespaceScope>, StoreError> {
        let dataset = &scope.dataset;
        let earlier = dataset.limit() <= scope.first_time();
        let later = last.is_some_and(|last| last >= scope.covered_to());
        if self.scopes.fleet.is_none() || !(earlier || later) {
            return Ok(Arc::clone(scope));
        }
        dataset.slices.refresh(self.scopes.stores.slices.as_ref()).await?;
        let known = self.scopes.scope_by_id(scope.namespace.id).await?;
        Ok(known.unwrap_or_else(|| Arc::clone(scope)))
    }

    /// The checkpoint with at most 10,000 events after it, and whether more exist.
    async fn fold_tail(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
    ) -> Result<(Checkpoint, bool), StoreError> {
        let (scope, _, base) = self.tail_base(scope, counter).await?;
        let as_of = base.as_of;
        let folded = self.roller.fold_pages(&scope, counter, base, Timestamp::MAX, TAIL_EVENTS_MAX).await?;
        Ok((folded.folder.finish(folded.newest.unwrap_or(as_of)).checkpoint, folded.more))
    }

    /// The checkpoint with all events after it.
    pub(super) async fn fold_whole_tail(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
    ) -> Result<Checkpoint, StoreError> {
        let (scope, _, base) = self.tail_base(scope, counter).await?;
        let as_of = base.as_of;
        let folded = self.roller.fold_pages(&scope, counter, base, Timestamp::MAX, usize::MAX).await?;
        Ok(folded.folder.finish(folded.newest.unwrap_or(as_of)).checkpoint)
    }

    /// The scope with every slice in which the tail may lie, the row of the counter, and the checkpoint to fold the tail on.
    /// A cached last write cannot tell the slices: it is seconds old, and slices may have been made since.
    pub(super) async fn tail_base(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
    ) -> Result<(Arc<NamespaceScope>, RollupRow, Checkpoint), StoreError> {
        // Watermark first: what is acknowledged up to it is in every checkpoint that is read from here on.
        let watermark = scope.dataset.watermark(counter.touch_shard());
        let row = self.scopes.stores.rollups.read(scope.dataset.id(), counter).await?;
        let scope = self.with_all_slices(scope, row.last_write_time).await?;
        let base = row.base(watermark);
        Ok((scope, row, base))
    }

    fn up_to_date(
        &self,
        scope: &NamespaceScope,
        reading: CountReading,
        value: i128,
        last: Option<Timestamp>,
        exactness: Exactness,
    ) -> CountReading {
        let limit = scope.dataset.limit();
        let silent = is_silent_beyond_ttl(last, limit, scope.ttl_at(limit));
        let (count, saturated) = if silent { (0, false) } else { clamp_count(value) };
        let behind = last.is_some_and(|written| written > reading.as_of);
        CountReading { count, saturated, last_write_time: last, behind, exactness, ..reading }
    }
}

/// The state of a counter before a read looks at the log.
pub(super) struct RolledUpCount {
    value: CachedCount,
    /// The value contains every acknowledged event up to this time.
    rolled_to: Timestamp,
    /// The highest `as_of` served of the counter before this read.
    as_of_floor: Timestamp,
    /// Whether the last write time stays exact, and is not only a copy.
    is_write_time_exact: bool,
}

impl RolledUpCount {
    /// Whether the last write of a cached copy is older than the TTL by now.
    fn may_have_fallen_silent(&self, scope: &NamespaceScope, limit: Timestamp) -> bool {
        let silent_at = |time| is_silent_beyond_ttl(self.value.last_event_time, time, scope.ttl_at(time));
        !self.is_write_time_exact && silent_at(limit) && !silent_at(self.rolled_to)
    }
}

/// Whether the sum of a tail suffices: one TTL holds throughout, and no silence inside the tail can restart the count.
fn tail_sum_suffices(scope: &NamespaceScope, tail: &TailSum) -> bool {
    scope.rules.one_ttl_holds(tail.first, tail.last) && tail.holds_under(scope.ttl_at(tail.first))
}

/// The cache value of a row.
fn value_of(row: &RollupRow, now: Timestamp) -> CachedCount {
    match &row.checkpoint {
        Some(checkpoint) => cached(row, checkpoint, now),
        None => cached(row, &Checkpoint::empty(Timestamp::MIN), now),
    }
}
