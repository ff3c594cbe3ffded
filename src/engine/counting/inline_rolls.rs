//! Rolls that a read asks for: at most one at once for each counter; others wait for it within their own budget.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::domain::counter::Counter;
use crate::engine::core::{EngineCore, NamespaceScope};
use crate::engine::loops::driver::Driver;

/// Inline rolls under way.
#[derive(Default)]
pub struct InlineRolls {
    /// The token of a counter is canceled when its roll ends.
    in_flight: DashMap<Counter, CancellationToken>,
}

/// Rolls a counter up to the limit, or waits for the roll that is under way; not longer than the budget.
///
/// The roll itself is never cut short: it ends in the background and the next reader finds its checkpoint. Where nothing
/// is left of the budget none is begun, so that what one call begins is bounded too.
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

/// An inline roll under way; dropping it lets the waiting readers go, also after a panic.
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
