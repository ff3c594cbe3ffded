//! Rolls on request of a read: at most one at a time for each counter. Other reads wait for it within their own time
//! budget.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::counting::Counting;
use crate::scopes::NamespaceScope;
use tallystone_domain::counter::Counter;

/// The inline rolls in flight.
#[derive(Default)]
pub struct InlineRolls {
    /// The token of a counter is canceled at the end of its roll.
    in_flight: DashMap<Counter, CancellationToken>,
}

impl Counting {
    /// Rolls a counter up to the limit, or waits for a roll in flight, within the budget.
    ///
    /// The roll is never interrupted: it ends in the background, and the next reader finds its checkpoint. Without
    /// remaining budget no roll starts, so the number of rolls of one call is bounded.
    pub(super) async fn roll_inline(&self, scope: &Arc<NamespaceScope>, counter: &Counter, budget: Duration) {
        if budget.is_zero() {
            return;
        }
        let ended = match self.inline_rolls.in_flight.entry(counter.clone()) {
            Entry::Occupied(running) => running.get().clone(),
            Entry::Vacant(vacant) => {
                let ended = CancellationToken::new();
                vacant.insert(ended.clone());
                self.context.stats.inline_rolls.increment();
                let (counting, counter) = (self.clone(), counter.clone());
                let running = InlineRoll { counting, counter, _ended: ended.clone().drop_guard() };
                let scope = Arc::clone(scope);
                self.context.driver.start_once(async move { running.roll(&scope).await });
                ended
            }
        };
        tokio::select! {
            biased;
            () = ended.cancelled() => {}
            () = self.context.clock.sleep(budget) => {}
        }
    }
}

/// An inline roll in flight. Dropping it releases the waiting readers, even after a panic.
struct InlineRoll {
    counting: Counting,
    counter: Counter,
    _ended: DropGuard,
}

impl InlineRoll {
    async fn roll(&self, scope: &NamespaceScope) {
        let mut reads = Vec::new();
        for answer in self.counting.roller.roll(scope, std::slice::from_ref(&self.counter), 1, &mut reads).await {
            if let Err(error) = answer {
                self.counting.context.stats.rolls_failed.increment();
                tracing::warn!(counter = %self.counter.tag(), error = %error, "an inline roll failed");
            }
        }
    }
}

impl Drop for InlineRoll {
    fn drop(&mut self) {
        self.counting.inline_rolls.in_flight.remove(&self.counter);
    }
}
