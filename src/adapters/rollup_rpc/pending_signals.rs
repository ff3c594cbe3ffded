//! Signals that wait to be sent: one Set for each roller, with one bound for all Sets together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tallystone_domain::counter::Counter;
use tallystone_domain::limits::{BATCH_ITEMS_MAX, SIGNALS_WAITING_MAX};
use tallystone_ports::CounterSignal;

#[derive(Default)]
pub struct PendingSignals {
    by_roller: HashMap<Arc<str>, BTreeMap<Counter, CounterSignal>>,
    len: usize,
}

impl PendingSignals {
    /// Adds a signal, merged with a pending signal of its counter. Returns whether there was capacity.
    pub fn add(&mut self, roller: &Arc<str>, signal: CounterSignal) -> bool {
        let waiting = self.by_roller.get_mut(roller).and_then(|set| set.get_mut(&signal.counter));
        if let Some(waiting) = waiting {
            waiting.merge(&signal);
            return true;
        }
        if self.len == SIGNALS_WAITING_MAX {
            return false;
        }
        self.len += 1;
        self.by_roller.entry(Arc::clone(roller)).or_default().insert(signal.counter.clone(), signal);
        true
    }

    /// Takes up to one call of signals for each roller, except for rollers with a call in flight.
    pub fn take(&mut self, under_way: &HashSet<Arc<str>>) -> Vec<(Arc<str>, Vec<CounterSignal>)> {
        let mut taken = Vec::new();
        for (roller, set) in self.by_roller.iter_mut().filter(|(roller, _)| !under_way.contains(*roller)) {
            let batch: Vec<CounterSignal> = match set.keys().nth(BATCH_ITEMS_MAX).cloned() {
                None => std::mem::take(set).into_values().collect(),
                Some(first_left) => {
                    let left = set.split_off(&first_left);
                    std::mem::replace(set, left).into_values().collect()
                }
            };
            self.len -= batch.len();
            taken.push((Arc::clone(roller), batch));
        }
        self.by_roller.retain(|_, set| !set.is_empty());
        taken
    }

    /// Returns the number of pending signals.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no signal is pending.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::counter::{CounterName, NamespaceId};
    use tallystone_domain::time::Timestamp;

    fn signal(number: usize, oldest: i64, newest: i64) -> CounterSignal {
        let name = CounterName::new(&format!("c{number:07}")).expect("a valid name");
        let at = Timestamp::from_secs;
        CounterSignal { counter: Counter::new(NamespaceId(1), name), oldest: at(oldest), newest: at(newest) }
    }

    #[test]
    fn signals_of_one_counter_go_as_one_that_stands_for_all() {
        let mut waiting = PendingSignals::default();
        let roller: Arc<str> = "a:1".into();
        for (oldest, newest) in [(5, 5), (3, 3), (9, 9)] {
            assert!(waiting.add(&roller, signal(1, oldest, newest)));
        }
        assert_eq!(waiting.take(&HashSet::new()), vec![(roller, vec![signal(1, 3, 9)])]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_no_signal_is_lost_otherwise() {
        let mut waiting = PendingSignals::default();
        let rollers: [Arc<str>; 2] = ["a:1".into(), "b:1".into()];
        for number in 0..SIGNALS_WAITING_MAX {
            assert!(waiting.add(&rollers[number % 2], signal(number, 1, 1)));
        }
        assert!(!waiting.add(&rollers[0], signal(SIGNALS_WAITING_MAX, 1, 1)));
        assert!(waiting.add(&rollers[0], signal(0, 1, 2)), "one of a counter that waits already needs no room");
        let busy = HashSet::from([Arc::clone(&rollers[1])]);
        let mut taken = HashSet::new();
        while waiting.len() > SIGNALS_WAITING_MAX / 2 {
            for (roller, batch) in waiting.take(&busy) {
                assert_eq!(roller, rollers[0], "the other one has a call under way");
                assert!(!batch.is_empty() && batch.len() <= BATCH_ITEMS_MAX);
                assert!(batch.into_iter().all(|signal| taken.insert(signal.counter)), "each is taken once");
            }
        }
        assert_eq!(taken.len(), SIGNALS_WAITING_MAX / 2);
        assert!(waiting.take(&busy).is_empty());
        assert_eq!(waiting.take(&HashSet::new()).len(), 1);
    }
}
