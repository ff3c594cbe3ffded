//! The highest served `as_of` of each counter, if the count cache or the store is shared with other servers.
//!
//! Within one server the `as_of` of a counter never goes back. A store of one process gives no reason for it. A shared
//! cache may contain an older value of another server, so a cached value is used only if it is as new as the value that
//! this server has served or rolled. In a shared store a row may appear below a published limit: the unacknowledged
//! write of a member that left or lapsed. Such a row makes no `as_of` older. The number of remembered counters is
//! bounded; the least recently used are dropped first.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use quick_cache::sync::Cache;

use tallystone_domain::Timestamp;
use tallystone_domain::counter::Counter;
use tallystone_domain::limits::TOLD_COUNTERS_MAX;

/// The highest served `as_of` of each counter.
pub struct AsOfFloor {
    newest: Cache<Counter, Arc<AtomicI64>>,
}

impl Default for AsOfFloor {
    fn default() -> Self {
        Self { newest: Cache::new(TOLD_COUNTERS_MAX) }
    }
}

impl AsOfFloor {
    /// The highest served `as_of` of a counter.
    pub fn of(&self, counter: &Counter) -> Timestamp {
        let told = self.newest.get(counter);
        told.map_or(Timestamp::MIN, |told| Timestamp::from_micros(told.load(Ordering::Relaxed)))
    }

    /// Records a served `as_of`. An older one changes nothing.
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
    use tallystone_domain::counter::{CounterName, NamespaceId};

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
