//! Dequeues that wait for messages of a queue, and the choice of those to wake.
//!
//! One dequeue is woken for each available message, less those that were woken and have not looked yet. The newest goes
//! first, because its connection is most likely alive. A woken dequeue that finds nothing waits again, and passes its wake-up
//! to one that has not looked since the last change. Invariant: while a message is available and no dequeue looks for it,
//! no dequeue that has not looked since the last change stays asleep.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::messages::message::Metadata;

/// The dequeues that wait for one queue.
#[derive(Default)]
pub struct Waiters {
    state: Mutex<WaiterState>,
}

#[derive(Default)]
struct WaiterState {
    /// The filters of all waiters by their numbers: of those asleep, and of those that look for messages at this moment.
    all: HashMap<u64, Arc<Filter>>,
    /// In the order of their arrival.
    asleep: Vec<SleepingWaiter>,
    next: u64,
    /// The number of woken dequeues that have not looked yet.
    awake: i64,
    /// Counts the changes.
    change: u64,
    /// Available messages.
    servable: i64,
}

struct SleepingWaiter {
    number: u64,
    /// The change before its last look.
    change_at_last_look: u64,
    wake: Arc<Notify>,
}

/// A slot among the waiters. Dropping it passes an unused wake-up on.
pub struct WaiterSlot<'a> {
    waiters: &'a Waiters,
    number: u64,
    wake: Arc<Notify>,
}

impl Waiters {
    /// The number of waiters, with those that were woken and look for messages at this moment.
    pub fn len(&self) -> usize {
        self.state.lock().all.len()
    }

    /// The number of waiters whose filter matches this metadata. O(n).
    pub fn matching(&self, metadata: &Metadata) -> usize {
        self.state.lock().all.values().filter(|filter| filter.matches(metadata)).count()
    }

    /// Notes by how much the number of available messages has changed; 0 if other messages may be available. O(woken).
    pub fn changed(&self, by: i64) {
        let mut state = self.state.lock();
        state.change += 1;
        state.servable += by;
        state.wake();
    }

    /// Wakes all waiters, for a change that is not about messages.
    pub fn wake_all(&self) {
        let mut state = self.state.lock();
        state.change += 1;
        let all = std::mem::take(&mut state.asleep);
        state.awake += i64::try_from(all.len()).unwrap_or(i64::MAX);
        all.iter().for_each(|sleeper| sleeper.wake.notify_one());
    }

    /// Takes a slot for messages that match the filter. Its owner looks for messages after taking it, and only then sleeps.
    pub fn enter(&self, filter: Arc<Filter>) -> WaiterSlot<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let wake = Arc::new(Notify::new());
        state.all.insert(number, filter);
        let change_at_last_look = state.change;
        state.asleep.push(SleepingWaiter { number, change_at_last_look, wake: Arc::clone(&wake) });
        WaiterSlot { waiters: self, number, wake }
    }
}

impl WaiterState {
    fn wake(&mut self) {
        while self.awake < self.servable {
            let change = self.change;
            let Some(at) = self.asleep.iter().rposition(|sleeper| sleeper.change_at_last_look < change) else { return };
            let sleeper = self.asleep.remove(at);
            self.awake += 1;
            sleeper.wake.notify_one();
        }
    }
}

impl WaiterSlot<'_> {
    /// Begins a look for messages. Changes from now on wake the slot after it sleeps.
    pub fn begin_look(&self) -> u64 {
        self.waiters.state.lock().change
    }

    /// Sleeps after a look that found nothing. A wake-up that caused the look passes to another waiter.
    pub fn sleep_after_look(&self, looked: u64) {
        let mut state = self.waiters.state.lock();
        match state.asleep.iter().position(|sleeper| sleeper.number == self.number) {
            Some(at) => state.asleep[at].change_at_last_look = looked,
            None => {
                state.awake -= 1;
                let wake = Arc::clone(&self.wake);
                state.asleep.push(SleepingWaiter { number: self.number, change_at_last_look: looked, wake });
            }
        }
        state.wake();
    }

    pub async fn wait_until_woken(&self) {
        self.wake.notified().await;
    }
}

impl Drop for WaiterSlot<'_> {
    fn drop(&mut self) {
        let mut state = self.waiters.state.lock();
        state.all.remove(&self.number);
        match state.asleep.iter().position(|sleeper| sleeper.number == self.number) {
            Some(at) => {
                state.asleep.remove(at);
            }
            None => {
                state.awake -= 1;
                state.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn woken(places: &[WaiterSlot<'_>]) -> Vec<u64> {
        let is_woken = |place: &&WaiterSlot<'_>| place.wait_until_woken().now_or_never().is_some();
        places.iter().filter(is_woken).map(|place| place.number).collect()
    }

    #[test]
    fn as_many_are_woken_as_there_are_messages_the_newest_first() {
        let waiters = Waiters::default();
        let places: Vec<WaiterSlot<'_>> = (0..5).map(|_| waiters.enter(Arc::default())).collect();
        waiters.changed(2);
        assert_eq!(woken(&places), [3, 4]);
        waiters.changed(0);
        assert!(woken(&places).is_empty(), "two look for the two already");
        waiters.changed(1);
        assert_eq!(woken(&places), [2]);
    }

    #[test]
    fn a_wake_up_that_is_not_used_goes_to_another() {
        let waiters = Waiters::default();
        let mut places: Vec<WaiterSlot<'_>> = (0..3).map(|_| waiters.enter(Arc::default())).collect();
        waiters.changed(1);
        assert_eq!(woken(&places), [2]);
        drop(places.pop());
        assert_eq!(woken(&places), [1]);
    }

    #[test]
    fn whoever_found_nothing_is_not_woken_again_before_the_next_change() {
        let waiters = Waiters::default();
        let places: Vec<WaiterSlot<'_>> = (0..2).map(|_| waiters.enter(Arc::default())).collect();
        waiters.changed(1);
        assert_eq!(woken(&places), [1]);
        let looked = places[1].begin_look();
        places[1].sleep_after_look(looked);
        assert_eq!(woken(&places), [0], "it hands its wake-up on");
        let looked = places[0].begin_look();
        places[0].sleep_after_look(looked);
        assert!(woken(&places).is_empty(), "both have looked");
        waiters.changed(0);
        assert_eq!(woken(&places).len(), 1);
    }

    #[test]
    fn what_comes_during_a_look_wakes_after_the_rest() {
        let waiters = Waiters::default();
        let place = waiters.enter(Arc::default());
        let looked = place.begin_look();
        waiters.changed(1);
        assert_eq!(woken(std::slice::from_ref(&place)), [0]);
        place.sleep_after_look(looked);
        assert_eq!(woken(std::slice::from_ref(&place)), [0], "the change came after the look began");
    }

    #[test]
    fn everybody_is_woken_at_the_end() {
        let waiters = Waiters::default();
        let places: Vec<WaiterSlot<'_>> = (0..3).map(|_| waiters.enter(Arc::default())).collect();
        waiters.wake_all();
        assert_eq!(woken(&places).len(), 3);
    }

    #[test]
    fn a_waiter_that_looks_for_messages_counts_until_it_leaves() {
        let waiters = Waiters::default();
        let red = Metadata::new([("team", "red")]).expect("valid pairs");
        let places = [waiters.enter(Arc::default()), waiters.enter(Arc::default())];
        waiters.changed(1);
        assert_eq!(woken(&places), [1]);
        assert_eq!((waiters.len(), waiters.matching(&red)), (2, 2), "one looks, and one sleeps");
        drop(places);
        assert_eq!((waiters.len(), waiters.matching(&red)), (0, 0));
    }
}
