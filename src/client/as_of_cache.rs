//! The newest `as_of` of each counter that this client has read.
//!
//! Within one server the `as_of` of a counter never goes back, but another server may be behind. So the client sends
//! the newest `as_of` that it has seen with its next read of the counter. The number of remembered counters is bounded:
//! the least recently used half is dropped at a time.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost_types::Timestamp;

/// The counters that one client remembers, at most.
const COUNTERS_REMEMBERED_MAX: usize = 16_384;

/// The namespaces that one client remembers, at most.
const NAMESPACES_REMEMBERED_MAX: usize = 1_024;

/// The newest `as_of` of each counter. Clones share it.
#[derive(Clone, Default)]
pub(super) struct NewestAsOfCache {
    generations: Arc<Mutex<Generations>>,
}

/// Used since the last change of generations, and not used since.
#[derive(Default)]
struct Generations {
    young: HashMap<Key, Timestamp>,
    old: HashMap<Key, Timestamp>,
}

/// Namespace and counter.
type Key = (String, String);

impl NewestAsOfCache {
    /// The newest `as_of` seen of a counter.
    pub fn as_of(&self, namespace: &str, counter_name: &str) -> Option<Timestamp> {
        self.lock().touch((namespace.to_owned(), counter_name.to_owned()))
    }

    /// Records a response. An older one changes nothing.
    pub fn note(&self, namespace: &str, counter_name: &str, as_of: Option<Timestamp>) {
        let Some(as_of) = as_of else { return };
        let key = (namespace.to_owned(), counter_name.to_owned());
        let mut generations = self.lock();
        let newest = newest(generations.touch(key.clone()), Some(as_of));
        if let Some(newest) = newest {
            generations.put(key, newest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        // Nothing is ever half-done under the lock.
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn touch(&mut self, key: Key) -> Option<Timestamp> {
        if let Some(as_of) = self.young.get(&key) {
            return Some(*as_of);
        }
        let as_of = self.old.remove(&key)?;
        self.put(key, as_of);
        Some(as_of)
    }

    fn put(&mut self, key: Key, as_of: Timestamp) {
        self.young.insert(key, as_of);
        if self.young.len() >= COUNTERS_REMEMBERED_MAX / 2 {
            self.old = mem::take(&mut self.young);
        }
    }
}

/// Namespaces whose responses to writes said that a repeated token is recognized. Clones share them. The number is
/// bounded: a namespace that was dropped only loses its hedged calls.
#[derive(Clone, Default)]
pub(super) struct IdempotentNamespaces {
    known: Arc<Mutex<HashSet<String>>>,
}

impl IdempotentNamespaces {
    pub fn has(&self, namespace: &str) -> bool {
        self.lock().contains(namespace)
    }

    /// Records a response.
    pub fn note(&self, namespace: &str, is_idempotent: bool) {
        let mut known = self.lock();
        if !is_idempotent {
            known.remove(namespace);
        } else if known.len() < NAMESPACES_REMEMBERED_MAX && !known.contains(namespace) {
            known.insert(namespace.to_owned());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        // Nothing is ever half-done under the lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The later of two times, if there is one.
pub(super) fn newest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    [one, other].into_iter().flatten().max_by_key(order)
}

/// Whether a time lies before another; one that is not there lies before all.
pub(super) fn is_before(one: Option<&Timestamp>, other: Option<&Timestamp>) -> bool {
    one.map(order) < other.map(order)
}

fn order(time: &Timestamp) -> (i64, i32) {
    (time.seconds, time.nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    #[test]
    fn the_newest_is_kept_for_each_counter_and_namespace() {
        let seen = NewestAsOfCache::default();
        assert_eq!(seen.as_of("shop", "views"), None);
        for seconds in [5, 9, 7] {
            seen.clone().note("shop", "views", Some(at(seconds)));
        }
        seen.note("shop", "views", None);
        seen.note("shop", "likes", Some(Timestamp { seconds: 3, nanos: 5 }));
        seen.note("shop", "likes", Some(Timestamp { seconds: 3, nanos: 4 }));
        assert_eq!(seen.as_of("shop", "views"), Some(at(9)));
        assert_eq!(seen.as_of("shop", "likes"), Some(Timestamp { seconds: 3, nanos: 5 }));
        assert_eq!(seen.as_of("other", "views"), None);
    }

    #[test]
    fn a_namespace_knows_repeats_as_its_last_answer_said() {
        let namespaces = IdempotentNamespaces::default();
        assert!(!namespaces.has("shop"), "nobody said so yet");
        namespaces.clone().note("shop", true);
        assert!(namespaces.has("shop") && !namespaces.has("fast"));
        namespaces.note("shop", false);
        assert!(!namespaces.has("shop"));
    }

    #[test]
    fn what_is_used_is_remembered_and_the_rest_is_bounded() {
        let seen = NewestAsOfCache::default();
        seen.note("shop", "used", Some(at(1)));
        for n in 0..3 * COUNTERS_REMEMBERED_MAX {
            seen.note("shop", &n.to_string(), Some(at(2)));
            assert_eq!(seen.as_of("shop", "used"), Some(at(1)), "after {n}");
        }
        assert_eq!(seen.as_of("shop", "0"), None);
        let generations = seen.lock();
        assert!(generations.young.len() + generations.old.len() <= COUNTERS_REMEMBERED_MAX);
    }
}
