//! The choice of the clears that a fold takes.
//!
//! A clear removes rows, and slices of removed rows are dropped. So a fold must never take a clear that is refused
//! later: it could not be undone. The clear register is raised only once the row of its clear is final. A clear at or
//! below it is taken: it changes nothing that the clear of the register does not change as well. A clear above it may
//! be a row that one replica has and that a verdict still replaces by a tombstone. The store settles it first; this is
//! the same decision as a verdict on its token. Above the limit it cannot be settled yet. It was not acknowledged then,
//! and is left out.

use crate::counter::{Change, Event, EventKey};
use crate::time::Timestamp;

/// The clears of one counter that are final.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettledClears {
    register: Option<EventKey>,
    limit: Timestamp,
}

impl SettledClears {
    /// Begins with the clear register as it was read before the events, and a published limit.
    pub fn new(register: Option<EventKey>, limit: Timestamp) -> Self {
        Self { register, limit }
    }

    /// Removes the clears that cannot be settled yet. Cost: O(events).
    pub fn leave_out_open(&self, events: &mut Vec<Event>) {
        events.retain(|event| !self.is_unsettled(event) || event.key.time <= self.limit);
    }

    /// Returns the position of the newest clear that has to be settled before the events are folded. Its result may
    /// settle all older ones.
    pub fn next_unsettled(&self, events: &[Event]) -> Option<usize> {
        events.iter().rposition(|event| self.is_unsettled(event))
    }

    /// Notes what the store has decided: the event at the key, or none for a tombstone.
    pub fn note(&mut self, event: &mut Event, found: Option<Event>) {
        match found {
            Some(found) => *event = found,
            None => event.change = Change::Void,
        }
        if event.change == Change::Clear {
            self.register = self.register.take().max(Some(event.key.clone()));
        }
    }

    fn is_unsettled(&self, event: &Event) -> bool {
        event.change == Change::Clear && Some(&event.key) > self.register.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::counter::{EventId, Provenance};
    use crate::rollup::checkpoint::Checkpoint;
    use crate::rollup::fold::fold;
    use crate::rollup::slice_rules::FoldRules;
    use std::time::Duration;

    fn event(second: i64, change: Change) -> Event {
        let key = EventKey { time: Timestamp::from_secs(second), id: EventId::text("e") };
        Event { key, change, provenance: Provenance::default() }
    }

    /// A row of the model, and what becomes of it.
    #[derive(Clone, Copy, Debug)]
    enum Row {
        Add(i64),
        /// A clear that was acknowledged: the register has it.
        Acknowledged,
        /// A clear that nobody acknowledged, and that is found when it is settled.
        Found,
        /// A clear that one replica has: some reads see it, and a verdict replaces it by a tombstone.
        GoesAway,
    }

    fn row() -> impl Strategy<Value = Row> {
        prop_oneof![
            6 => (-50_i64..50).prop_map(Row::Add),
            1 => Just(Row::Acknowledged),
            1 => Just(Row::Found),
            3 => Just(Row::GoesAway),
        ]
    }

    /// A log with rows that go away, as one roll after another reads it.
    struct Log {
        rows: BTreeMap<i64, Row>,
        register: Option<EventKey>,
        settled: Vec<EventKey>,
    }

    impl Log {
        /// The events of a range that a read sees. A row that goes away is seen by some reads, until it is settled.
        fn seen(&self, after: Timestamp, to: Timestamp, sees_minority: bool) -> Vec<Event> {
            let events = self.rows.iter().map(|(second, row)| match row {
                Row::Add(delta) => event(*second, Change::Add(*delta)),
                Row::Acknowledged | Row::Found => event(*second, Change::Clear),
                Row::GoesAway => {
                    let key = event(*second, Change::Clear).key;
                    let is_clear = sees_minority && !self.settled.contains(&key);
                    event(*second, if is_clear { Change::Clear } else { Change::Void })
                }
            });
            events.filter(|event| event.key.time > after && event.key.time <= to).collect()
        }

        fn settle(&mut self, key: &EventKey) -> Option<Event> {
            self.settled.push(key.clone());
            let second = key.time.micros() / 1_000_000;
            match self.rows[&second] {
                Row::GoesAway => None,
                Row::Acknowledged | Row::Found => {
                    self.register = self.register.take().max(Some(key.clone()));
                    Some(event(second, Change::Clear))
                }
                Row::Add(_) => panic!("only clears are settled"),
            }
        }

        fn stays(&self) -> Vec<Event> {
            let mut events = self.seen(Timestamp::MIN, Timestamp::MAX, false);
            events.retain(|event| event.change.is_mutation());
            events
        }
    }

    fn rules() -> FoldRules {
        FoldRules::constant(Duration::from_secs(10), None, Vec::new())
    }

    proptest! {
        /// The law: rows that go away leave no trace, however they are split into rolls, and whichever rolls see them,
        /// also if the rows below them no longer exist when they go away.
        #[test]
        fn clears_that_go_away_leave_no_trace_in_the_count(
            rows in prop::collection::btree_map(0_i64..80, row(), 0..40),
            rolls in vec((1_i64..30, any::<bool>()), 0..8),
        ) {
            let newest = rows.iter().rev().find(|(_, row)| matches!(row, Row::Acknowledged)).map(|(second, _)| *second);
            let register = newest.map(|second| event(second, Change::Clear).key);
            let mut log = Log { rows, register, settled: Vec::new() };
            let mut checkpoint = Checkpoint::empty(Timestamp::MIN);
            let mut end = 0;
            for (seconds, sees_minority) in rolls.into_iter().chain([(100, true)]) {
                end += seconds;
                let to = Timestamp::from_secs(end);
                let mut clears = SettledClears::new(log.register.clone(), to);
                let mut events = log.seen(checkpoint.as_of, to, sees_minority);
                clears.leave_out_open(&mut events);
                while let Some(at) = clears.next_unsettled(&events) {
                    let found = log.settle(&events[at].key);
                    clears.note(&mut events[at], found);
                }
                checkpoint = fold(checkpoint, &events, to, &rules()).checkpoint;
            }
            let exact = fold(Checkpoint::empty(Timestamp::MIN), &log.stays(), checkpoint.as_of, &rules()).checkpoint;
            prop_assert_eq!(
                (checkpoint.count, checkpoint.clear, checkpoint.last_event_time),
                (exact.count, exact.clear, exact.last_event_time)
            );
        }
    }

    #[test]
    fn clears_at_or_below_the_register_are_taken_without_a_question() {
        let events = [event(3, Change::Clear), event(4, Change::Add(1)), event(5, Change::Clear)];
        let clears = SettledClears::new(Some(events[2].key.clone()), Timestamp::from_secs(9));
        assert_eq!(clears.next_unsettled(&events), None);
    }

    #[test]
    fn a_found_clear_settles_all_older_ones() {
        let mut events = [event(3, Change::Clear), event(5, Change::Clear)];
        let mut clears = SettledClears::new(None, Timestamp::from_secs(9));
        assert_eq!(clears.next_unsettled(&events), Some(1));
        let found = Some(events[1].clone());
        clears.note(&mut events[1], found);
        assert_eq!(clears.next_unsettled(&events), None);
    }

    #[test]
    fn an_unsettled_clear_above_the_limit_is_left_out() {
        let mut events = vec![event(3, Change::Clear), event(8, Change::Add(1)), event(9, Change::Clear)];
        SettledClears::new(None, Timestamp::from_secs(8)).leave_out_open(&mut events);
        assert_eq!(events, [event(3, Change::Clear), event(8, Change::Add(1))]);
        let mut acknowledged = vec![event(9, Change::Clear)];
        let register = Some(acknowledged[0].key.clone());
        SettledClears::new(register, Timestamp::from_secs(8)).leave_out_open(&mut acknowledged);
        assert_eq!(acknowledged.len(), 1);
    }
}
