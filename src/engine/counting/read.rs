//! GetCount and BatchGetCounts: the steps of a read. `domain/rollup/read_plan.rs` decides which step comes next.

use std::sync::Arc;

use futures_util::{StreamExt, stream};

use crate::counting::wait_budget::WaitBudget;
use crate::counting::{Counting, CountingError, is_best_effort};
use crate::rolling::FoldStart;
use crate::scopes::NamespaceScope;
use tallystone_domain::counter::{Counter, CounterName, Event, NamespaceName};
use tallystone_domain::limits::{CALL_READS_AT_ONCE_MAX, LIMIT_PUBLISH_INTERVAL, TAIL_EVENTS_MAX};
use tallystone_domain::namespace::CounterType;
use tallystone_domain::rollup::{
    Checkpoint, CountReading, FoldedTail, Freshness, ReadAnswer, ReadOptions, ReadPlan, ReadRules, ReadStep, RollupRow,
    StateBefore,
};
use tallystone_domain::{Reject, Timestamp};
use tallystone_ports::{CacheLease, ScanOrder, ScanRange, StoreError};

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

    /// A reading as callers see it. A shared store knows the last write only to its step and returns the end of that
    /// step. Rolls and watches wait for that end; callers never see a time later than now.
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
        // Read before the count: a count that is read later contains everything up to this time, too.
        let reported_to = self.queues_reported_to(scope);
        if is_best_effort(scope) {
            return Ok(self.fast_reading(scope.best_effort_counts.get(counter).await?));
        }
        let is_up_to_date = match options.freshness {
            Freshness::UpToDate => true,
            Freshness::RolledUp => false,
            Freshness::ByType => scope.namespace.spec.counter_type == CounterType::Accurate,
        };
        self.limit_for_read(scope, budget).await;
        let mut plan = ReadPlan::new(self.read_rules(scope, is_up_to_date), options);
        let (ReadAnswer { reading, signal }, _row) = self.carry_out(scope, counter, &mut plan, budget).await?;
        if let Some((oldest, newest)) = signal {
            self.scopes.signal(scope, counter, oldest, newest);
        }
        if scope.needs_as_of_floor {
            self.served.as_of_floor.note(counter, reading.as_of);
        }
        Ok(CountReading { reported_to, ..reading })
    }

    /// The time up to which all mutations of queues are in the log, for the counters of queues.
    pub(super) fn queues_reported_to(&self, scope: &NamespaceScope) -> Option<Timestamp> {
        scope.is_of_queues.then(|| self.scopes.queues_reported_to()).flatten()
    }

    /// The rolled-up reading of a counter, and the row from which it comes.
    pub(super) async fn read_with_row(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
    ) -> Result<(CountReading, RollupRow), CountingError> {
        let budget = WaitBudget::begin(self.context.clock.as_ref());
        self.limit_for_read(scope, budget).await;
        let mut plan = ReadPlan::of_row(self.read_rules(scope, false));
        let (answer, found) = self.carry_out(scope, counter, &mut plan, budget).await?;
        let FoundRow { row, .. } = found.expect("a plan that begins with the row reads it");
        Ok((answer.reading, row))
    }

    fn read_rules<'a>(&self, scope: &'a NamespaceScope, is_up_to_date: bool) -> ReadRules<'a> {
        let temporality = scope.namespace.spec.temporality;
        ReadRules { fold: &scope.rules, temporality, is_up_to_date, protocol: self.rules }
    }

    /// Performs the steps of a plan. Returns the answer, and the row if one was read.
    async fn carry_out(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
        plan: &mut ReadPlan<'_>,
        budget: WaitBudget,
    ) -> Result<(ReadAnswer, Option<FoundRow>), CountingError> {
        let (context, stores) = (&self.context, &self.scopes.stores);
        let (clock, dataset) = (context.clock.as_ref(), &scope.dataset);
        let (mut lease, mut found) = (CacheLease::default(), None);
        loop {
            match plan.next(|| context.now()) {
                ReadStep::ReadCache => {
                    let before = self.state_before(scope, counter);
                    if plan.read_cache(scope.cache.get(counter).await, before) {
                        context.stats.cache_hits.increment();
                    }
                }
                ReadStep::ReadRow => {
                    let before = self.state_before(scope, counter);
                    context.stats.cache_misses.increment();
                    lease = scope.cache.lease(counter).await;
                    let checked_at = context.now();
                    let row = stores.rollups.read(dataset.id(), counter).await?;
                    plan.read_row(&row, checked_at, before);
                    found = Some(FoundRow { row, watermark: before.watermark });
                }
                ReadStep::LookAtTail(after) => plan.look_at_tail(stores.log.tail(dataset.id(), counter, after)),
                ReadStep::FindFirst(after) => plan.find_first(self.first_mutation(scope, counter, after).await?),
                ReadStep::FoldTail => {
                    let row = match found.take() {
                        Some(found) => found,
                        None => self.find_row(scope, counter).await?,
                    };
                    plan.fold_tail(self.fold_tail(scope, counter, row).await?);
                }
                ReadStep::FillCache(value) => scope.cache.fill(counter, value, std::mem::take(&mut lease)).await,
                ReadStep::MoveLimit(wanted) => {
                    let closable = dataset.closing.closed(context.now());
                    if closable > dataset.limit() {
                        dataset.limit_at_least(wanted.min(closable), clock, budget.left(clock)).await;
                    }
                    plan.move_limit(dataset.limit());
                }
                ReadStep::Roll => {
                    self.roll_inline(scope, counter, budget.left(clock)).await;
                    plan.roll();
                }
                ReadStep::Answer(answer) => return Ok((answer, found)),
            }
        }
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

    /// The state that a look at the cache or at the row is judged by.
    fn state_before(&self, scope: &NamespaceScope, counter: &Counter) -> StateBefore {
        let as_of_floor = if scope.needs_as_of_floor { self.served.as_of_floor.of(counter) } else { Timestamp::MIN };
        let (watermark, limit) = (scope.dataset.watermark(counter.touch_shard()), scope.dataset.limit());
        StateBefore { as_of_floor, watermark, limit, least_as_of: scope.least_as_of(limit) }
    }

    /// The time of the first mutation above a time.
    async fn first_mutation(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        after: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let (to, order) = (Timestamp::MAX, ScanOrder::OldestFirst);
        let mut range = ScanRange { after, to, order, beyond: None, limit: FIRST_MUTATION_PAGE };
        loop {
            let page = self.scopes.stores.log.scan(scope.dataset.id(), counter, range.clone()).await?;
            match (page.iter().find(|event| event.change.is_mutation()), page.last()) {
                (Some(first), _) => return Ok(Some(first.key.time)),
                (None, Some(last)) if page.len() == FIRST_MUTATION_PAGE => range.beyond = Some(last.key.clone()),
                (None, _) => return Ok(None),
            }
        }
    }

    /// The same scope, with slices that other servers may have made for acknowledged events. Earlier slices can exist
    /// while the limit lies before the first slice known here. Later slices can exist if the limit does not move for
    /// long.
    ///
    /// The last write comes from the row. A cached one cannot tell the slices: it is seconds old, and slices may have
    /// been made since.
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

    /// The checkpoint of a row with at most 10,000 events after it.
    async fn fold_tail(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
        found: FoundRow,
    ) -> Result<FoldedTail, StoreError> {
        let scope = self.with_all_slices(scope, found.row.last_write_time).await?;
        let start = FoldStart::of(&found.row, found.watermark);
        let as_of = start.base.as_of;
        let mut first = None;
        let note = |event: &Event| first = first.or_else(|| event.change.is_mutation().then_some(event.key.time));
        let bounds = (Timestamp::MAX, TAIL_EVENTS_MAX);
        let folded = self.roller.fold_pages_noting(&scope, counter, start, bounds, note).await?;
        let more = folded.more;
        let Checkpoint { count, last_event_time, .. } = folded.folder.finish(folded.newest.unwrap_or(as_of)).checkpoint;
        Ok(FoldedTail { count, last_event_time, first, more })
    }

    /// The checkpoint with all events after it.
    pub(super) async fn fold_whole_tail(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
    ) -> Result<Checkpoint, StoreError> {
        let (scope, _, start) = self.tail_start(scope, counter).await?;
        let as_of = start.base.as_of;
        let folded = self.roller.fold_pages(&scope, counter, start, Timestamp::MAX, usize::MAX).await?;
        Ok(folded.folder.finish(folded.newest.unwrap_or(as_of)).checkpoint)
    }

    /// The scope with every slice in which the tail may lie, the row of the counter, and where to fold the tail on.
    pub(super) async fn tail_start(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
    ) -> Result<(Arc<NamespaceScope>, RollupRow, FoldStart), StoreError> {
        let FoundRow { row, watermark } = self.find_row(scope, counter).await?;
        let scope = self.with_all_slices(scope, row.last_write_time).await?;
        let start = FoldStart::of(&row, watermark);
        Ok((scope, row, start))
    }

    async fn find_row(&self, scope: &NamespaceScope, counter: &Counter) -> Result<FoundRow, StoreError> {
        // Watermark first: what is acknowledged up to it is in every checkpoint that is read from here on.
        let watermark = scope.dataset.watermark(counter.touch_shard());
        let row = self.scopes.stores.rollups.read(scope.dataset.id(), counter).await?;
        Ok(FoundRow { row, watermark })
    }
}

/// A row with the watermark that was read before it.
struct FoundRow {
    row: RollupRow,
    watermark: Timestamp,
}
