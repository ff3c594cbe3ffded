//! How far each counter was told to be rolled up, where the count cache or the store is shared with other servers.
//!
//! Within one server the `as_of` of a counter never goes back. A store of this process alone gives no reason to; a shared
//! cache may hold what another server read earlier, so what it holds is taken only if it is as new as what this server told
//! or rolled. And in a shared store a row may appear below a limit that was told: the write of a member that left or lapsed
//! before it was acknowledged. It belongs to nobody yet, and makes no `as_of` older. What is remembered is bounded; the
//! counters that were not used for longest are forgotten first.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use quick_cache::sync::Cache;

use crate::domain::Timestamp;
use crate::domain::counter::Counter;
use crate::domain::limits::TOLD_COUNTERS_MAX;

/// The newest `as_of` of each counter.
pub struct AsOfFloor {
    newest: Cache<Counter, Arc<AtomicI64>>,
}

impl Default for AsOfFloor {
    fn default() -> Self {
        Self { newest: Cache::new(TOLD_COUNTERS_MAX) }
    }
}

impl AsOfFloor {
    /// The newest `as_of` that was told of a counter.
    pub fn of(&self, counter: &Counter) -> Timestamp {
        let told = self.newest.get(counter);
        told.map_or(Timestamp::MIN, |told| Timestamp::from_micros(told.load(Ordering::Relaxed)))
    }

    /// Takes in an `as_of` that is told from now on. An older one changes nothing.
    pub fn note(&self, counter: &Counter, as_of: Timestamp) {
        let micros = as_of.micros();
        match self.newest.get(counter) {
            Some(told) => {
                told.fetch_max(micros, Ordering::Relaxed);
            }
            None => {
                let told = self.newest.get_or_insert_with(counter, || Ok::<_, ()>(Arc::new(AtomicI64::new(micros))));
                if let Ok(told) = told {
                    told.fetch_max(micros, Ordering::Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::counter::{CounterName, NamespaceId};

    fn counter(name: &str) -> Counter {
        Counter::new(NamespaceId(1), CounterName::new(name).expect("a valid name"))
    }

    #[test]
    fn what_was_told_never_goes_back() {
        let told = AsOfFloor::default();
        assert_eq!(told.of(&counter("views")), Timestamp::MIN);
        for seconds in [5, 9, 7] {
            told.note(&counter("views"), Timestamp::from_secs(seconds));
        }
        assert_eq!(told.of(&counter("views")), Timestamp::from_secs(9));
        assert_eq!(told.of(&counter("likes")), Timestamp::MIN);
    }
}
