//! The loop of one rollup queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tracing::{Instrument, Level};

use crate::domain::Timestamp;
use crate::domain::counter::Counter;
use crate::domain::limits::{LIMIT_PUBLISH_INTERVAL, ROLLUP_CIRCULATING_MAX};
use crate::domain::namespace::Cardinality;
use crate::engine::context::EngineContext;
use crate::engine::dataset::datasets::DatasetState;
use crate::engine::driver::{BackgroundLoop, DrainStage, NextActivation};
use crate::engine::rolling::Roller;
use crate::engine::rolling::pacing::Pacer;
use crate::engine::rollup_queues::NamespaceRollupQueues;
use crate::engine::rollup_queues::queue::{ByCounter, PendingRoll, RollupQueue};
use crate::engine::scopes::NamespaceScope;

/// The delay before a failed roll is retried.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

fn coalesce(scope: &NamespaceScope) -> Duration {
    Duration::from_millis(u64::from(scope.namespace.spec.rollup.coalesce_ms))
}

/// The latest time slot of a queue at or before now. Each queue has one slot in every window, so the queues are staggered.
fn last_turn(now: Duration, window: Duration, (place, places): (u32, u32)) -> Duration {
    let (window, place, places) = (window.as_nanos().max(1), u128::from(place), u128::from(places.max(1)));
    let since = (now.as_nanos() + window - window * place / places) % window;
    now.saturating_sub(Duration::from_nanos(u64::try_from(since).unwrap_or(u64::MAX)))
}

pub struct RollupQueueLoop {
    context: Arc<EngineContext>,
    roller: Arc<Roller>,
    queues: Arc<NamespaceRollupQueues>,
    dataset: Arc<DatasetState>,
    queue: Arc<RollupQueue>,
    recirculating: ByCounter<Timestamp>,
    pacer: Pacer,
    /// The index of the queue and the number of queues, which stagger the queues over one coalescing window.
    turn: (u32, u32),
    /// The current coalescing window; `None` while the set is empty.
    filling: Option<FillWindow>,
}

/// A coalescing window: the set collects counters until its end and is then drained.
#[derive(Clone, Copy)]
struct FillWindow {
    began: Duration,
    /// The minimum length of the window, which delays the retry after a failure.
    least: Duration,
}

impl RollupQueueLoop {
    /// Creates the loop of a queue.
    pub fn new(roller: Arc<Roller>, scope: &NamespaceScope, queue: Arc<RollupQueue>, turn: (u32, u32)) -> Self {
        Self {
            context: Arc::clone(&roller.context),
            roller,
            queues: Arc::clone(&scope.rollup_queues),
            dataset: Arc::clone(&scope.dataset),
            queue,
            recirculating: ByCounter::default(),
            pacer: Pacer::default(),
            turn,
            filling: None,
        }
    }

    /// Moves the counters of the set to the parked map. A counter that is already parked keeps its `min_limit` and the older
    /// of the two oldest events.
    fn park_drained(&mut self) {
        let pending = &self.dataset.pending;
        let mut all_parked = self.queue.parked();
        for (counter, new) in self.queue.drain() {
            let shard = counter.touch_shard();
            match all_parked.get_mut(&counter) {
                Some(parked) => {
                    pending.end(shard, parked.oldest.max(new.oldest));
                    parked.oldest = parked.oldest.min(new.oldest);
                    parked.newest = parked.newest.max(new.newest);
                    self.queues.release(&self.queue, &counter);
                }
                None => {
                    all_parked.insert(counter, new);
                }
            }
        }
    }

    /// Rolls the parked counters whose `ready_at` is at or below the limit. Returns whether any roll failed.
    async fn roll_ready(&mut self, scope: &NamespaceScope, ready_at: impl Fn(&PendingRoll) -> Timestamp) -> bool {
        let limit = scope.dataset.limit();
        let ready: Vec<Counter> = self
            .queue
            .parked()
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

    /// Removes a rolled counter from the parked map, or keeps it there if newer events were signalled.
    fn finish_roll(&mut self, scope: &NamespaceScope, counter: &Counter, as_of: Timestamp) {
        let mut parked = self.queue.parked();
        let Some(waiting) = parked.get_mut(counter) else { return };
        let shard = counter.touch_shard();
        if waiting.newest > as_of {
            let oldest = as_of.just_after();
            scope.dataset.pending.begin(shard, oldest);
            scope.dataset.pending.end(shard, waiting.oldest);
            *waiting = PendingRoll { oldest, min_limit: waiting.newest, newest: waiting.newest };
            return;
        }
        scope.dataset.pending.end(shard, waiting.oldest);
        parked.remove(counter);
        drop(parked);
        self.queues.release(&self.queue, counter);
        if scope.namespace.spec.cardinality == Cardinality::Low && self.recirculating.len() < ROLLUP_CIRCULATING_MAX {
            self.recirculating.insert(counter.clone(), as_of);
        }
    }

    /// Adds low-cardinality counters to their queue again, without a signal, if their last write is newer than their
    /// checkpoint.
    async fn recirculate(&mut self, scope: &NamespaceScope) {
        if scope.namespace.spec.cardinality != Cardinality::Low {
            self.recirculating.clear();
        }
        for (counter, as_of) in &self.recirculating {
            if self.queue.parked().contains_key(counter) {
                continue;
            }
            let Some(cached) = scope.cache.get(counter).await else { continue };
            if let Some(written) = cached.last_write_time.filter(|written| *written > cached.as_of.max(*as_of)) {
                scope.offer(counter, cached.as_of.max(*as_of).just_after(), written);
            }
        }
    }

    /// Moves all counters to the queues that replaced this one.
    fn hand_over(&mut self, scope: &NamespaceScope) {
        self.park_drained();
        for (counter, waiting) in std::mem::take(&mut *self.queue.parked()) {
            scope.offer(&counter, waiting.oldest, waiting.newest);
            scope.dataset.pending.end(counter.touch_shard(), waiting.oldest);
            self.queues.release(&self.queue, &counter);
        }
    }

    /// Drops the counters of a deleted namespace.
    fn abandon(&mut self) {
        for (counter, waiting) in std::mem::take(&mut *self.queue.parked()) {
            self.dataset.pending.end(counter.touch_shard(), waiting.oldest);
            self.queues.release(&self.queue, &counter);
        }
    }

    /// The limit to wait for: the latest `min_limit` of a parked counter that can be reached within `left`. A counter whose
    /// `min_limit` cannot be reached in time contributes the current closed timestamp instead.
    fn reachable_limit(&self, scope: &NamespaceScope, left: Duration) -> Timestamp {
        let now = self.context.now();
        let last = now + left.saturating_sub(LIMIT_PUBLISH_INTERVAL) - scope.dataset.dataset.settings.accept_limit;
        let closable = Timestamp::from_millis(scope.dataset.closing.closed(now).millis());
        let wanted = |waiting: &PendingRoll| if waiting.min_limit <= last { waiting.min_limit } else { closable };
        self.queue.parked().values().map(wanted).max().unwrap_or(closable)
    }

    async fn step(&mut self, scope: &NamespaceScope) -> NextActivation {
        // The set collects counters during the rolls, so the next window starts at the drain and not after the rolls.
        let drained = self.context.clock.elapsed();
        self.park_drained();
        let failed = self.roll_ready(scope, |waiting| waiting.min_limit).await;
        self.recirculate(scope).await;
        if self.queue.parked().is_empty() && self.queue.is_empty() {
            self.filling = None;
            return if self.recirculating.is_empty() {
                NextActivation::Woken
            } else {
                NextActivation::AfterOrWoken(coalesce(scope))
            };
        }
        scope.dataset.request_limit();
        let now = self.context.clock.elapsed();
        if failed { self.fill(scope, now, RETRY_PAUSE) } else { self.fill(scope, drained, Duration::ZERO) }
    }

    /// Starts a coalescing window.
    fn fill(&mut self, scope: &NamespaceScope, began: Duration, least: Duration) -> NextActivation {
        self.filling = Some(FillWindow { began, least });
        NextActivation::AfterOrWoken(self.left(scope, FillWindow { began, least }))
    }

    fn left(&self, scope: &NamespaceScope, filling: FillWindow) -> Duration {
        (filling.began + coalesce(scope).max(filling.least)).saturating_sub(self.context.clock.elapsed())
    }
}

#[async_trait]
impl BackgroundLoop for RollupQueueLoop {
    fn name(&self) -> &'static str {
        "rollup queue"
    }

    async fn woken(&self) {
        match self.filling {
            Some(_) => self.queue.changed().await,
            None => self.queue.filled().await,
        }
    }

    async fn activate(&mut self) -> NextActivation {
        let scope = match self.roller.scopes.scope_by_id(self.queues.namespace()).await {
            Ok(Some(scope)) => scope,
            Ok(None) => {
                self.queues.end();
                self.abandon();
                return NextActivation::Finished;
            }
            Err(error) => {
                tracing::warn!(error = %error, "the rollup cannot read the catalog; retrying");
                return NextActivation::After(RETRY_PAUSE);
            }
        };
        if self.queue.is_closed() {
            self.hand_over(&scope);
            return NextActivation::Finished;
        }
        let Some(filling) = self.filling else {
            let began = last_turn(self.context.clock.elapsed(), coalesce(&scope), self.turn);
            return self.fill(&scope, began, Duration::ZERO);
        };
        // The coalescing time may have changed since the window started.
        let left = self.left(&scope, filling);
        if !left.is_zero() {
            return NextActivation::AfterOrWoken(left);
        }
        self.step(&scope).await
    }

    fn stage(&self) -> DrainStage {
        DrainStage::Rolls
    }

    async fn finish(&mut self, until: Duration) {
        // Events above the limit remain in the dirty-counter index, which the next start replays.
        let Ok(Some(scope)) = self.roller.scopes.scope_by_id(self.queues.namespace()).await else { return };
        self.park_drained();
        if self.queue.parked().is_empty() {
            return;
        }
        let left = until.saturating_sub(self.context.clock.elapsed());
        let wanted = self.reachable_limit(&scope, left);
        scope.dataset.limit_at_least(wanted, self.context.clock.as_ref(), left).await;
        self.park_drained();
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
        for place in 0..4 {
            let turn = millis(5_000 + 250 * u64::from(place));
            for after in [0, 1, 999] {
                assert_eq!(last_turn(turn + millis(after), window, (place, 4)), turn, "{place}, {after} ms after");
            }
            assert_eq!(last_turn(turn + window, window, (place, 4)), turn + window);
        }
        assert_eq!(last_turn(millis(10), window, (3, 4)), Duration::ZERO, "a slot before time zero is clamped to zero");
    }
}
