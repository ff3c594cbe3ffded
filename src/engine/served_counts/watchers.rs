//! The watches of counters, and the number of watches of each caller.
//!
//! The watches of a counter are woken in the order in which they began. A change costs O(watches of its counter), which
//! the bound of all watches keeps small. The end of a watch costs O(log) for each of its counters, however many watches
//! those have. A caller that goes away may end thousands of watches at once, so they are only marked then, and a loop
//! removes them one after another. Invariant: a watch keeps its quota permit until it is removed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use hashbrown::HashSet;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::caller_quota::{CallerId, CallerQuota, QuotaExceeded, QuotaPermit};
use tallystone_domain::counter::{Counter, NamespaceId};
use tallystone_domain::limits::{CALLER_WATCHES_MAX, WATCHES_MAX};

/// All watches of a server.
pub struct CounterWatchers {
    counters: DashMap<Counter, BTreeMap<u64, Arc<CounterWatch>>>,
    next_watch_number: AtomicU64,
    /// The watches that have not ended.
    open: AtomicUsize,
    quota: CallerQuota,
    /// Ended watches with their counters, until they are removed.
    ended: Mutex<Vec<(Arc<CounterWatch>, Vec<Counter>)>>,
    /// Watches that want to begin or read.
    turns: Mutex<VecDeque<oneshot::Sender<()>>>,
    work_notify: Notify,
}

/// One watch over some counters: which of them changed since it last looked.
pub struct CounterWatch {
    number: u64,
    _place: QuotaPermit,
    changed: Mutex<HashSet<Counter>>,
    wake: Notify,
}

impl Default for CounterWatchers {
    fn default() -> Self {
        Self {
            counters: DashMap::new(),
            next_watch_number: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            quota: CallerQuota::new(WATCHES_MAX, CALLER_WATCHES_MAX),
            ended: Mutex::default(),
            turns: Mutex::default(),
            work_notify: Notify::new(),
        }
    }
}

impl CounterWatchers {
    /// Notifies the watches of a counter of a change. Costs one load if there are none.
    pub fn wake(&self, counter: &Counter) {
        if self.len() == 0 {
            return;
        }
        if let Some(watches) = self.counters.get(counter) {
            watches.values().for_each(|watch| watch.note(counter));
        }
    }

    /// Lets every watch of a namespace read again.
    pub fn wake_all(&self, namespace: NamespaceId) {
        for watched in self.counters.iter().filter(|watched| watched.key().namespace() == namespace) {
            watched.value().values().for_each(|watch| watch.note(watched.key()));
        }
    }

    /// Takes the quota permit of a watch, which is not registered yet.
    pub fn begin(&self, caller: &CallerId) -> Result<Arc<CounterWatch>, QuotaExceeded> {
        let place = self.quota.take(caller)?;
        let number = self.next_watch_number.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::AcqRel);
        Ok(Arc::new(CounterWatch { number, _place: place, changed: Mutex::default(), wake: Notify::new() }))
    }

    /// Registers a watch with its counters. Each of them counts as changed at first.
    pub fn follow(&self, watch: &Arc<CounterWatch>, counters: &[Counter]) {
        for counter in counters {
            self.counters.entry(counter.clone()).or_default().insert(watch.number, Arc::clone(watch));
            watch.note(counter);
        }
    }

    /// Marks a watch as ended.
    pub fn end(&self, watch: Arc<CounterWatch>, counters: Vec<Counter>) {
        self.open.fetch_sub(1, Ordering::AcqRel);
        self.ended.lock().push((watch, counters));
        self.work_notify.notify_one();
    }

    /// Waits for a turn to begin or read. A turn cannot be held: a caller that reads nothing, so that its watch is not
    /// polled, blocks no other.
    pub async fn wait_for_turn(&self) {
        let (give, turn) = oneshot::channel();
        self.turns.lock().push_back(give);
        self.work_notify.notify_one();
        // The source of turns lives as long as this does.
        let _ = turn.await;
    }

    /// Gives turns to waiting watches, up to a maximum; false if none waits.
    pub fn give_turns(&self, most: usize) -> bool {
        let mut given = 0;
        while given < most {
            let Some(turn) = self.turns.lock().pop_front() else { return given > 0 };
            // The watch has ended and needs no turn.
            given += usize::from(turn.send(()).is_ok());
        }
        true
    }

    /// Waits until a watch needs a turn or has ended.
    pub async fn wait_for_work(&self) {
        self.work_notify.notified().await;
    }

    /// Removes one ended watch; false if there is none. Cost: O(log(watches of a counter)) for each counter.
    pub fn remove_ended(&self) -> bool {
        let Some((watch, counters)) = self.ended.lock().pop() else { return false };
        for counter in &counters {
            self.counters.remove_if_mut(counter, |_, watches| {
                watches.remove(&watch.number);
                watches.is_empty()
            });
        }
        true
    }

    /// The number of watches that have not ended.
    pub fn len(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }
}

impl CounterWatch {
    fn note(&self, counter: &Counter) {
        self.changed.lock().insert(counter.clone());
        self.wake.notify_one();
    }

    /// Waits for changes and takes them.
    pub async fn changed(&self) -> Vec<Counter> {
        loop {
            let taken: Vec<Counter> = self.changed.lock().drain().collect();
            if !taken.is_empty() {
                return taken;
            }
            self.wake.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use tallystone_domain::counter::CounterName;

    fn counters(many: usize) -> Vec<Counter> {
        let name = |i| CounterName::new(&format!("c{i}")).expect("a valid name");
        (0..many).map(|i| Counter::new(NamespaceId(1), name(i))).collect()
    }

    fn caller(last: u8) -> CallerId {
        CallerId::of_address(Ipv4Addr::new(10, 0, 0, last).into())
    }

    fn watch(watchers: &CounterWatchers, last: u8, counters: &[Counter]) -> Arc<CounterWatch> {
        let watch = watchers.begin(&caller(last)).expect("room");
        watchers.follow(&watch, counters);
        watch
    }

    fn is_clean(watchers: &CounterWatchers) -> bool {
        watchers.counters.is_empty() && watchers.quota.are_all_free() && watchers.ended.lock().is_empty()
    }

    #[test]
    fn a_watch_that_ended_hears_nothing_and_leaves_nothing() {
        let (watchers, counters) = (CounterWatchers::default(), counters(3));
        let [first, second] = [1, 2].map(|last| watch(&watchers, last, &counters));
        for watch in [&first, &second] {
            watch.changed.lock().clear();
        }
        watchers.end(Arc::clone(&first), counters.clone());
        assert_eq!(watchers.len(), 1, "what is over does not count");
        assert!(watchers.remove_ended() && !watchers.remove_ended());
        watchers.wake(&counters[0]);
        assert!(first.changed.lock().is_empty());
        drop(first);
        assert_eq!(second.changed.lock().len(), 1);
        watchers.end(second, counters);
        assert!(watchers.remove_ended());
        assert!(watchers.len() == 0 && is_clean(&watchers));
    }

    #[test]
    fn a_watch_that_ends_before_it_hears_of_anything_leaves_nothing() {
        let (watchers, counters) = (CounterWatchers::default(), counters(3));
        let watch = watchers.begin(&caller(1)).expect("room");
        watchers.end(watch, counters);
        assert!(watchers.remove_ended() && is_clean(&watchers));
    }

    #[test]
    fn one_caller_cannot_take_all_watches_and_the_refusal_says_whose_limit_it_is() {
        let (watchers, counters) = (CounterWatchers::default(), counters(1));
        let mut held = Vec::new();
        for last in 0.. {
            match watchers.begin(&caller(last)) {
                Ok(watch) => held.push(watch),
                Err(full) => {
                    assert_eq!(full, QuotaExceeded::All(WATCHES_MAX));
                    break;
                }
            }
            while let Ok(watch) = watchers.begin(&caller(last)) {
                held.push(watch);
            }
            assert!(held.len() % CALLER_WATCHES_MAX == 0, "{} watches", held.len());
            if held.len() < WATCHES_MAX {
                assert_eq!(watchers.begin(&caller(last)).err(), Some(QuotaExceeded::Own(CALLER_WATCHES_MAX)));
            }
        }
        assert_eq!(watchers.len(), WATCHES_MAX);
        held.iter().for_each(|watch| watchers.follow(watch, &counters));
        // The first one last, the worst order for a list: each end would look through all that are left.
        held.into_iter().for_each(|watch| watchers.end(watch, counters.clone()));
        assert_eq!(
            watchers.begin(&caller(0)).err(),
            Some(QuotaExceeded::All(WATCHES_MAX)),
            "a place is taken until its watch is taken out"
        );
        while watchers.remove_ended() {}
        assert!(is_clean(&watchers));
        assert!(watchers.begin(&caller(0)).is_ok(), "an end makes room");
    }
}
