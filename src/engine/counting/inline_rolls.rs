//! Rolls on request of a read: at most one at a time for each counter. Other reads wait for it within their own time budget.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::domain::counter::Counter;
use crate::engine::core::{EngineCore, NamespaceScope};
use crate::engine::loops::driver::Driver;

/// The inline rolls in flight.
#[derive(Default)]
pub struct InlineRolls {
    /// The token of a counter is canceled at the end of its roll.
    in_flight: DashMap<Counter, CancellationToken>,
}

/// Rolls a counter up to the limit, or waits for a roll in flight, within the budget.
///
/// The roll is never interrupted: it ends in the background, and the next reader finds its checkpoint. Without remaining budget
/// no roll starts, so the number of rolls of one call is bounded.
pub async fn roll_inline(
    core: &Arc<EngineCore>,
    driver: &Driver,
    scope: &Arc<NamespaceScope>,
    counter: &Counter,
    budget: Duration,
) {
    if budget.is_zero() {
        return;
    }
    let ended = match core.inline.in_flight.entry(counter.clone()) {
        Entry::Occupied(running) => running.get().clone(),
        Entry::Vacant(vacant) => {
            let ended = CancellationToken::new();
            vacant.insert(ended.clone());
            core.stats.inline_rolls.increment();
            let running =
                InlineRoll { core: Arc::clone(core), counter: counter.clone(), _ended: ended.clone().drop_guard() };
            let scope = Arc::clone(scope);
            driver.start_once(async move { running.roll(&scope).await });
            ended
        }
    };
    tokio::select! {
        biased;
        () = ended.cancelled() => {}
        () = core.clock.sleep(budget) => {}
    }
}

/// An inline roll in flight. Dropping it releases the waiting readers, even after a panic.
struct InlineRoll {
    core: Arc<EngineCore>,
    counter: Counter,
    _ended: DropGuard,
}

impl InlineRoll {
    async fn roll(&self, scope: &NamespaceScope) {
        let mut reads = Vec::new();
        for answer in self.core.roll(scope, std::slice::from_ref(&self.counter), 1, &mut reads).await {
            if let Err(error) = answer {
                self.core.stats.rolls_failed.increment();
                tracing::warn!(counter = %self.counter.tag(), error = %error, "an inline roll failed");
            }
        }
    }
}

impl Drop for InlineRoll {
    fn drop(&mut self) {
        self.core.inline.in_flight.remove(&self.counter);
    }
}
