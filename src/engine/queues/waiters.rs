//! Workers that wait for messages of a queue, and who of them is woken.
//!
//! As many are woken as there are messages to be had, less those that were woken already and have not looked yet; the
//! newest first, because its connection is the one most surely alive. A woken worker that finds nothing waits again and
//! hands its wake-up on to one that has not looked since the last change. Invariant: while a message is servable and
//! nobody looks for it, no worker that has not looked since the last change is left asleep.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::queue::filter::Filter;
use crate::domain::queue::messages::message::Metadata;

/// The workers that wait for one queue.
#[derive(Default)]
pub struct Waiters {
    state: Mutex<WaiterState>,
}

#[derive(Default)]
struct WaiterState {
    /// In the order of their coming.
    asleep: Vec<SleepingWaiter>,
    next: u64,
    /// How many were woken and have not said yet what they found.
    awake: i64,
    /// Counts the changes.
    change: u64,
    /// Messages to be had.
    servable: i64,
}

struct SleepingWaiter {
    number: u64,
    /// The change after which it looked last.
    change_at_last_look: u64,
    wake: Arc<Notify>,
    /// What its messages must have.
    filter: Arc<Filter>,
}

/// A place among the waiters; leaving it hands a wake-up that was not used on.
pub struct WaiterSlot<'a> {
    waiters: &'a Waiters,
    number: u64,
    wake: Arc<Notify>,
    filter: Arc<Filter>,
}

impl Waiters {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.state.lock().asleep.len()
    }

    /// How many wait for messages with this metadata. O(n).
    pub fn matching(&self, metadata: &Metadata) -> usize {
        self.state.lock().asleep.iter().filter(|sleeper| sleeper.filter.matches(metadata)).count()
    }

    /// Tells by how much the number of messages to be had has changed; 0 where others than before may be had. O(woken).
    pub fn changed(&self, by: i64) {
        let mut state = self.state.lock();
        state.change += 1;
        state.servable += by;
        state.wake();
    }

    /// Wakes everybody, for what is not about messages.
    pub fn wake_all(&self) {
        let mut state = self.state.lock();
        state.change += 1;
        let all = std::mem::take(&mut state.asleep);
        state.awake += i64::try_from(all.len()).unwrap_or(i64::MAX);
        all.iter().for_each(|sleeper| sleeper.wake.notify_one());
    }

    /// Takes a place, for messages that meet the filter. Whoever takes one looks for messages after it, and only then rests.
    pub fn enter(&self, filter: Arc<Filter>) -> WaiterSlot<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let wake = Arc::new(Notify::new());
        let looked = state.change;
        state.asleep.push(SleepingWaiter {
            number,
            change_at_last_look: looked,
            wake: Arc::clone(&wake),
            filter: Arc::clone(&filter),
        });
        WaiterSlot { waiters: self, number, wake, filter }
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
    /// Begins a look for messages; what changes from now on wakes the place after its rest.
    pub fn begin_look(&self) -> u64 {
        self.waiters.state.lock().change
    }

    /// Rests after a look that found nothing; a wake-up that brought it goes to another.
    pub fn sleep_after_look(&self, looked: u64) {
        let mut state = self.waiters.state.lock();
        match state.asleep.iter().position(|sleeper| sleeper.number == self.number) {
            Some(at) => state.asleep[at].change_at_last_look = looked,
            None => {
                state.awake -= 1;
                let (wake, filter) = (Arc::clone(&self.wake), Arc::clone(&self.filter));
                state.asleep.push(SleepingWaiter { number: self.number, change_at_last_look: looked, wake, filter });
            }
        }
        state.wake();
    }

    /// Waits to be woken.
    pub async fn wait_until_woken(&self) {
        self.wake.notified().await;
    }
}

impl Drop for WaiterSlot<'_> {
    fn drop(&mut self) {
        let mut state = self.waiters.state.lock();
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
        assert_eq!(waiters.len(), 0);
    }
}
