//! Dequeues that wait for messages of a queue, and the choice of those to wake.
//!
//! One dequeue is woken for each available message, less those that were woken and have not looked yet. The one that
//! has waited longest goes first, so that equal workers get equal shares. Of work streams the one with the most free
//! credit goes first, and of those the one that has waited longest. A woken dequeue that finds nothing keeps its place,
//! and passes its wake-up to one that has not looked since the last change. While those that were woken look for all
//! that is available, a new one waits behind them instead of taking it from them. Invariant: while a message is
//! available and no dequeue looks for it, no dequeue that has not looked since the last change stays asleep.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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
    /// The filters of all waiters by their numbers: of those asleep, and of those that look for messages at this
    /// moment.
    all: HashMap<u64, Arc<Filter>>,
    /// The dequeues that are asleep, by their numbers: the longest waiting first.
    dequeues: BTreeMap<u64, SleepingWaiter>,
    /// The work streams that are asleep, in the same order.
    streams: BTreeMap<u64, SleepingWaiter>,
    next: u64,
    /// The number of woken dequeues that have not looked yet.
    awake: i64,
    /// Counts the changes.
    change: u64,
    /// Available messages.
    servable: i64,
}

struct SleepingWaiter {
    /// The change before its last look.
    change_at_last_look: u64,
    waiter: WaitingWorker,
}

#[derive(Clone)]
struct WaitingWorker {
    /// The credit of a work stream; none for a dequeue.
    credit: Option<FreeCredit>,
    wake: Arc<Notify>,
}

/// How many more leases a work stream may get. It may change while the stream waits.
#[derive(Clone, Default, Debug)]
pub struct FreeCredit(Arc<AtomicU32>);

impl FreeCredit {
    pub fn set(&self, leases: u32) {
        self.0.store(leases, Ordering::Relaxed);
    }

    pub fn leases(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A slot among the waiters. Dropping it passes an unused wake-up on.
pub struct WaiterSlot<'a> {
    waiters: &'a Waiters,
    number: u64,
    waiter: WaitingWorker,
    /// Whether others looked for all that was available when it entered.
    pub is_behind: bool,
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
        let all = [std::mem::take(&mut state.dequeues), std::mem::take(&mut state.streams)];
        for sleeper in all.into_iter().flat_map(BTreeMap::into_values) {
            state.awake += 1;
            sleeper.waiter.wake.notify_one();
        }
    }

    /// Whether others look for all that is available. Who comes new and may wait then waits first.
    pub fn come_first(&self) -> bool {
        self.state.lock().come_first()
    }

    /// Takes a slot for messages that match the filter: of a work stream, if it has a credit, else of a dequeue. Its
    /// owner looks for messages after taking it, and only then sleeps. If it is behind others, it sleeps first.
    pub fn enter(&self, filter: Arc<Filter>, credit: Option<&FreeCredit>) -> WaiterSlot<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let waiter = WaitingWorker { credit: credit.cloned(), wake: Arc::new(Notify::new()) };
        state.all.insert(number, filter);
        let is_behind = state.come_first();
        // Who has not looked yet looks at whatever the others leave.
        let change_at_last_look = if is_behind { 0 } else { state.change };
        state.asleep_like(&waiter).insert(number, SleepingWaiter { change_at_last_look, waiter: waiter.clone() });
        WaiterSlot { waiters: self, number, waiter, is_behind }
    }
}

impl WaiterState {
    fn come_first(&self) -> bool {
        self.servable > 0 && self.awake >= self.servable
    }

    /// The sleeping waiters of the kind of this waiter.
    fn asleep_like(&mut self, waiter: &WaitingWorker) -> &mut BTreeMap<u64, SleepingWaiter> {
        match waiter.credit {
            Some(_) => &mut self.streams,
            None => &mut self.dequeues,
        }
    }

    /// Wakes as many as there are messages for which nobody looks yet. O(woken n streams).
    fn wake(&mut self) {
        while self.awake < self.servable {
            let Some(sleeper) = self.take_next() else { return };
            self.awake += 1;
            sleeper.waiter.wake.notify_one();
        }
    }

    /// Takes the waiter whose turn it is of those that have not looked since the last change.
    fn take_next(&mut self) -> Option<SleepingWaiter> {
        let change = self.change;
        let may_find = |entry: &(&u64, &SleepingWaiter)| entry.1.change_at_last_look < change;
        let by_credit = |entry: &(&u64, &SleepingWaiter)| {
            (entry.1.waiter.credit.as_ref().map(FreeCredit::leases), Reverse(*entry.0))
        };
        let dequeue = self.dequeues.iter().find(may_find).map(|(number, _)| *number);
        let stream = self.streams.iter().filter(may_find).max_by_key(by_credit).map(|(number, _)| *number);
        let next = dequeue.into_iter().chain(stream).min()?;
        self.dequeues.remove(&next).or_else(|| self.streams.remove(&next))
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
        let sleeper = SleepingWaiter { change_at_last_look: looked, waiter: self.waiter.clone() };
        if state.asleep_like(&self.waiter).insert(self.number, sleeper).is_none() {
            state.awake -= 1;
        }
        state.wake();
    }

    pub async fn wait_until_woken(&self) {
        self.waiter.wake.notified().await;
    }
}

impl Drop for WaiterSlot<'_> {
    fn drop(&mut self) {
        let mut state = self.waiters.state.lock();
        state.all.remove(&self.number);
        if state.asleep_like(&self.waiter).remove(&self.number).is_none() {
            state.awake -= 1;
            state.wake();
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
    fn as_many_are_woken_as_there_are_messages_the_longest_waiting_first() {
        let waiters = Waiters::default();
        let places: Vec<WaiterSlot<'_>> = (0..5).map(|_| waiters.enter(Arc::default(), None)).collect();
        waiters.changed(2);
        assert_eq!(woken(&places), [0, 1]);
        waiters.changed(0);
        assert!(woken(&places).is_empty(), "two look for the two already");
        waiters.changed(1);
        assert_eq!(woken(&places), [2]);
    }

    #[test]
    fn of_streams_the_one_with_the_most_free_credit_is_woken_then_the_longest_waiting() {
        let waiters = Waiters::default();
        let credits = [4, 9, 9, 5].map(|leases| {
            let credit = FreeCredit::default();
            credit.set(leases);
            credit
        });
        let places: Vec<WaiterSlot<'_>> =
            credits.iter().map(|credit| waiters.enter(Arc::default(), Some(credit))).collect();
        waiters.changed(1);
        assert_eq!(woken(&places), [1]);
        credits[3].set(10);
        waiters.changed(1);
        assert_eq!(woken(&places), [3], "its worker has given more credit meanwhile");
        waiters.changed(2);
        assert_eq!(woken(&places), [0, 2]);
    }

    #[test]
    fn a_dequeue_and_a_stream_go_by_how_long_they_have_waited() {
        let waiters = Waiters::default();
        let credit = FreeCredit::default();
        credit.set(9);
        let places = [
            waiters.enter(Arc::default(), None),
            waiters.enter(Arc::default(), Some(&credit)),
            waiters.enter(Arc::default(), None),
        ];
        for next in 0..3 {
            waiters.changed(1);
            assert_eq!(woken(&places), [next]);
        }
    }

    #[test]
    fn a_wake_up_that_is_not_used_goes_to_another() {
        let waiters = Waiters::default();
        let mut places: Vec<WaiterSlot<'_>> = (0..3).map(|_| waiters.enter(Arc::default(), None)).collect();
        waiters.changed(1);
        assert_eq!(woken(&places), [0]);
        drop(places.remove(0));
        assert_eq!(woken(&places), [1]);
    }

    #[test]
    fn who_comes_new_waits_behind_those_that_were_woken_and_gets_what_they_leave() {
        let waiters = Waiters::default();
        let mut places = vec![waiters.enter(Arc::default(), None)];
        assert!(!waiters.come_first() && !places[0].is_behind, "nothing is available");
        waiters.changed(1);
        places.push(waiters.enter(Arc::default(), None));
        assert!(waiters.come_first() && places[1].is_behind);
        assert_eq!(woken(&places), [0]);
        let looked = places[0].begin_look();
        places[0].sleep_after_look(looked);
        assert_eq!(woken(&places), [1], "it has not looked yet");
        waiters.changed(1);
        assert_eq!(woken(&places), [0]);
        waiters.changed(1);
        assert!(!waiters.come_first(), "nobody looks for the third");
    }

    #[test]
    fn whoever_found_nothing_is_not_woken_again_before_the_next_change() {
        let waiters = Waiters::default();
        let places: Vec<WaiterSlot<'_>> = (0..2).map(|_| waiters.enter(Arc::default(), None)).collect();
        waiters.changed(1);
        assert_eq!(woken(&places), [0]);
        let looked = places[0].begin_look();
        places[0].sleep_after_look(looked);
        assert_eq!(woken(&places), [1], "it hands its wake-up on");
        let looked = places[1].begin_look();
        places[1].sleep_after_look(looked);
        assert!(woken(&places).is_empty(), "both have looked");
        waiters.changed(0);
        assert_eq!(woken(&places), [0], "it has kept its place");
    }

    #[test]
    fn what_comes_during_a_look_wakes_after_the_rest() {
        let waiters = Waiters::default();
        let place = waiters.enter(Arc::default(), None);
        let looked = place.begin_look();
        waiters.changed(1);
        assert_eq!(woken(std::slice::from_ref(&place)), [0]);
        place.sleep_after_look(looked);
        assert_eq!(woken(std::slice::from_ref(&place)), [0], "the change came after the look began");
    }

    #[test]
    fn everybody_is_woken_at_the_end() {
        let waiters = Waiters::default();
        let places: Vec<WaiterSlot<'_>> = (0..3).map(|_| waiters.enter(Arc::default(), None)).collect();
        waiters.wake_all();
        assert_eq!(woken(&places).len(), 3);
    }

    #[test]
    fn a_waiter_that_looks_for_messages_counts_until_it_leaves() {
        let waiters = Waiters::default();
        let red = Metadata::new([("team", "red")]).expect("valid pairs");
        let places = [waiters.enter(Arc::default(), None), waiters.enter(Arc::default(), None)];
        waiters.changed(1);
        assert_eq!(woken(&places), [0]);
        assert_eq!((waiters.len(), waiters.matching(&red)), (2, 2), "one looks, and one sleeps");
        drop(places);
        assert_eq!((waiters.len(), waiters.matching(&red)), (0, 0));
    }
}
