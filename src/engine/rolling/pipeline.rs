//! The loop of one rollup queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tracing::{Instrument, Level};

use crate::context::EngineContext;
use crate::dataset::datasets::DatasetState;
use crate::driver::{BackgroundLoop, DrainStage, NextActivation};
use crate::rolling::Roller;
use crate::rolling::pacing::Pacer;
use crate::rollup_queues::NamespaceRollupQueues;
use crate::rollup_queues::queue::{ByCounter, PendingRoll, RollupQueue};
use crate::scopes::NamespaceScope;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::Counter;
use tallystone_domain::limits::{LIMIT_PUBLISH_INTERVAL, ROLLUP_LOW_CARDINALITY_MAX};
use tallystone_domain::namespace::Cardinality;

/// The delay before a failed roll is retried.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

fn coalesce(scope: &NamespaceScope) -> Duration {
    Duration::from_millis(u64::from(scope.namespace.spec.rollup.coalesce_ms))
}

/// The position of a queue among the queues of its namespace. It staggers the queues over one coalescing window.
#[derive(Clone, Copy)]
pub struct QueueSlot {
    pub index: u32,
    pub count: u32,
}

/// The latest time slot of a queue at or before now. Each queue has one slot in every window, so the queues are
/// staggered.
fn last_slot_start(now: Duration, window: Duration, slot: QueueSlot) -> Duration {
    let (window, index, count) = (window.as_nanos().max(1), u128::from(slot.index), u128::from(slot.count.max(1)));
    let since = (now.as_nanos() + window - window * index / count) % window;
    now.saturating_sub(Duration::from_nanos(u64::try_from(since).unwrap_or(u64::MAX)))
}

pub struct RollupQueueLoop {
    context: Arc<EngineContext>,
    roller: Arc<Roller>,
    queues: Arc<NamespaceRollupQueues>,
    dataset: Arc<DatasetState>,
    queue: Arc<RollupQueue>,
    low_cardinality: ByCounter<Timestamp>,
    pacer: Pacer,
    slot: QueueSlot,
    /// The current coalescing window; `None` while the set is empty.
    window: Option<CoalescingWindow>,
}

/// A coalescing window: the set collects counters until its end and is then drained.
#[derive(Clone, Copy)]
struct CoalescingWindow {
    began: Duration,
    /// The minimum length of the window, which delays the retry after a failure.
    min_length: Duration,
}

impl RollupQueueLoop {
    /// Creates the loop of a queue.
    pub fn new(roller: Arc<Roller>, scope: &NamespaceScope, queue: Arc<RollupQueue>, slot: QueueSlot) -> Self {
        Self {
            context: Arc::clone(&roller.context),
            roller,
            queues: Arc::clone(&scope.rollup_queues),
            dataset: Arc::clone(&scope.dataset),
            queue,
            low_cardinality: ByCounter::default(),
            pacer: Pacer::default(),
            slot,
            window: None,
        }
    }

    /// Moves the counters of the set to the drained map. A counter that is already there keeps its `min_limit` and the
    /// older of the two oldest events.
    fn drain_set(&mut self) {
        let pending = &self.dataset.pending;
        let mut waiting = self.queue.drained();
        for (counter, new) in self.queue.drain() {
            let shard = counter.touch_shard();
            match waiting.get_mut(&counter) {
                Some(old) => {
                    pending.end(shard, old.oldest.max(new.oldest));
                    old.oldest = old.oldest.min(new.oldest);
                    old.newest = old.newest.max(new.newest);
                    self.queues.release(&self.queue, &counter);
                }
                None => {
                    waiting.insert(counter, new);
                }
            }
        }
    }

    /// Rolls the drained counters whose `ready_at` is at or below the limit. Returns whether any roll failed.
    async fn roll_ready(&mut self, scope: &NamespaceScope, ready_at: impl Fn(&PendingRoll) -> Timestamp) -> bool {
        let limit = scope.dataset.limit();
        let ready: Vec<Counter> = self
            .queue
            .drained()
            .iter()
            .filter(|(_, waiting)| ready_at(waiting) <= limit)
            .map(|(counter, _)| counter.clone())
            .collect();
        let cardinality = scope.namespace.spec.cardinality;
        let mut failed = false;
        for batch in ready.chunks(scope.namespace.spec.rollup.rollup_batch_count.max(1) as usize) {
            let began = self.context.clock.elapsed();
            let mut reads = Vec::with_capacity(batch.len());
            let (namespace, counters) = (scope.namespace.id.0, batch.len());
            let span = tracing::span!(target: "tallystone::traces", Level::TRACE, "roll", namespace, counters);
            let rolling = self.roller.roll(scope, batch, self.pacer.permits(cardinality), &mut reads);
            let answers = rolling.instrument(span).await;
            for (counter, answer) in batch.iter().zip(answers) {
                match answer {
                    Ok(as_of) => self.finish_roll(scope, counter, as_of),
                    Err(error) => {
                        failed = true;
                        self.context.stats.rolls_failed.increment();
                        tracing::warn!(counter = %counter.tag(), error = %error, "a roll failed; retrying");
                    }
                }
            }
            let took = self.context.clock.elapsed().saturating_sub(began);
            self.context.stats.batches.increment();
            self.context.stats.batch_micros.add_time(took);
            let pause = self.pacer.after_batch(&mut reads, took);
            if !pause.is_zero() {
                self.context.stats.pause_micros.add_time(pause);
                self.context.clock.sleep(pause).await;
            }
        }
        failed
    }

    /// Removes a rolled counter from the drained map, or keeps it there if newer events were signalled.
    fn finish_roll(&mut self, scope: &NamespaceScope, counter: &Counter, as_of: Timestamp) {
        let mut drained = self.queue.drained();
        let Some(waiting) = drained.get_mut(counter) else { return };
        let shard = counter.touch_shard();
        if waiting.newest > as_of {
            let oldest = as_of.just_after();
            scope.dataset.pending.begin(shard, oldest);
            scope.dataset.pending.end(shard, waiting.oldest);
            *waiting = PendingRoll { oldest, min_limit: waiting.newest, newest: waiting.newest };
            return;
        }
        scope.dataset.pending.end(shard, waiting.oldest);
        drained.remove(counter);
        drop(drained);
        self.queues.release(&self.queue, counter);
        if scope.namespace.spec.cardinality == Cardinality::Low
            && self.low_cardinality.len() < ROLLUP_LOW_CARDINALITY_MAX
        {
            self.low_cardinality.insert(counter.clone(), as_of);
        }
    }

    /// Adds low-cardinality counters to their queue again, without a signal, if their last write is newer than their
    /// checkpoint.
    async fn requeue_low_cardinality(&mut self, scope: &NamespaceScope) {
        if scope.namespace.spec.cardinality != Cardinality::Low {
            self.low_cardinality.clear();
        }
        for (counter, as_of) in &self.low_cardinality {
            if self.queue.drained().contains_key(counter) {
                continue;
            }
            let Some(cached) = scope.cache.get(counter).await else { continue };
            if let Some(written) = cached.last_write_time.filter(|written| *written > cached.as_of.max(*as_of)) {
                scope.enqueue(counter, cached.as_of.max(*as_of).just_after(), written);
            }
        }
    }

    /// Moves all counters to the queues that replaced this one.
    fn move_to_new_queues(&mut self, scope: &NamespaceScope) {
        self.drain_set();
        for (counter, waiting) in std::mem::take(&mut *self.queue.drained()) {
            scope.enqueue(&counter, waiting.oldest, waiting.newest);
            scope.dataset.pending.end(counter.touch_shard(), waiting.oldest);
            self.queues.release(&self.queue, &counter);
        }
    }

    /// Drops the counters of a deleted namespace.
    fn drop_counters(&mut self) {
        for (counter, waiting) in std::mem::take(&mut *self.queue.drained()) {
            self.dataset.pending.end(counter.touch_shard(), waiting.oldest);
            self.queues.release(&self.queue, &counter);
        }
    }

    /// The limit to wait for: the latest event of a drained counter that can be reached within `remaining`. Its
    /// `min_limit` would not do: events that came after it was drained would be left to the next start. A counter whose
    /// latest event cannot be reached in time contributes the current closed timestamp instead.
    fn reachable_limit(&self, scope: &NamespaceScope, remaining: Duration) -> Timestamp {
        let now = self.context.now();
        let last = now + remaining.saturating_sub(LIMIT_PUBLISH_INTERVAL) - scope.dataset.dataset.settings.accept_limit;
        let closable = Timestamp::from_millis(scope.dataset.closing.closed(now).millis());
        let target = |waiting: &PendingRoll| if waiting.newest <= last { waiting.newest } else { closable };
        self.queue.drained().values().map(target).max().unwrap_or(closable)
    }

    async fn step(&mut self, scope: &NamespaceScope) -> NextActivation {
        // The set collects counters during the rolls, so the next window starts at the drain and not after the rolls.
        let drained_at = self.context.clock.elapsed();
        self.drain_set();
        let failed = self.roll_ready(scope, |waiting| waiting.min_limit).await;
        self.requeue_low_cardinality(scope).await;
        if self.queue.drained().is_empty() && self.queue.is_empty() {
            self.window = None;
            return if self.low_cardinality.is_empty() {
                NextActivation::Woken
            } else {
                NextActivation::AfterOrWoken(coalesce(scope))
            };
        }
        scope.dataset.request_limit();
        let now = self.context.clock.elapsed();
        if failed {
            self.start_window(scope, now, RETRY_PAUSE)
        } else {
            self.start_window(scope, drained_at, Duration::ZERO)
        }
    }

    /// Starts a coalescing window.
    fn start_window(&mut self, scope: &NamespaceScope, began: Duration, min_length: Duration) -> NextActivation {
        self.window = Some(CoalescingWindow { began, min_length });
        NextActivation::AfterOrWoken(self.remaining(scope, CoalescingWindow { began, min_length }))
    }

    fn remaining(&self, scope: &NamespaceScope, window: CoalescingWindow) -> Duration {
        (window.began + coalesce(scope).max(window.min_length)).saturating_sub(self.context.clock.elapsed())
    }
}

#[async_trait]
impl BackgroundLoop for RollupQueueLoop {
    fn name(&self) -> &'static str {
        "rollup queue"
    }

    async fn woken(&self) {
        match self.window {
            Some(_) => self.queue.changed().await,
            None => self.queue.filled().await,
        }
    }

    async fn activate(&mut self) -> NextActivation {
        let scope = match self.roller.scopes.scope_by_id(self.queues.namespace()).await {
            Ok(Some(scope)) => scope,
            Ok(None) => {
                self.queues.close_and_drop();
                self.drop_counters();
                return NextActivation::Finished;
            }
            Err(error) => {
                tracing::warn!(error = %error, "the rollup cannot read the catalog; retrying");
                return NextActivation::After(RETRY_PAUSE);
            }
        };
        if self.queue.is_closed() {
            self.move_to_new_queues(&scope);
            return NextActivation::Finished;
        }
        let Some(window) = self.window else {
            let began = last_slot_start(self.context.clock.elapsed(), coalesce(&scope), self.slot);
            return self.start_window(&scope, began, Duration::ZERO);
        };
        // The coalescing time may have changed since the window started.
        let remaining = self.remaining(&scope, window);
        if !remaining.is_zero() {
            return NextActivation::AfterOrWoken(remaining);
        }
        self.step(&scope).await
    }

    fn stage(&self) -> DrainStage {
        DrainStage::Rolls
    }

    async fn finish(&mut self, until: Duration) {
        // Events above the limit remain in the dirty-counter index, which the next start replays.
        let Ok(Some(scope)) = self.roller.scopes.scope_by_id(self.queues.namespace()).await else { return };
        self.drain_set();
        if self.queue.drained().is_empty() {
            return;
        }
        let remaining = until.saturating_sub(self.context.clock.elapsed());
        let target_limit = self.reachable_limit(&scope, remaining);
        scope.dataset.limit_at_least(target_limit, self.context.clock.as_ref(), remaining).await;
        self.drain_set();
        self.roll_ready(&scope, |waiting| waiting.oldest).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_one_slot_per_window() {
        let millis = Duration::from_millis;
        let window = millis(1_000);
        for index in 0..4 {
            let slot = millis(5_000 + 250 * u64::from(index));
            for after in [0, 1, 999] {
                assert_eq!(
                    last_slot_start(slot + millis(after), window, QueueSlot { index, count: 4 }),
                    slot,
                    "{index}, {after} ms after"
                );
            }
            assert_eq!(last_slot_start(slot + window, window, QueueSlot { index, count: 4 }), slot + window);
        }
        assert_eq!(
            last_slot_start(millis(10), window, QueueSlot { index: 3, count: 4 }),
            Duration::ZERO,
            "a slot before time zero is clamped to zero"
        );
    }
}
