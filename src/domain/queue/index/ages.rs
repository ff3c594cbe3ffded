//! The ages of ready messages, counted so that the age of the oldest is known without reading any message.
//!
//! Times are rounded down to the second: a backlog takes one entry per second of arrival, not one per message.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::queue::allocation::in_tree;
use crate::time::Timestamp;

/// The precision of ages.
const PRECISION: Duration = Duration::from_secs(1);

/// The times since which messages are ready, each with a message count.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ReadyAges {
    ready: BTreeMap<Timestamp, u64>,
}

impl ReadyAges {
    /// The bytes of the counts. O(1).
    pub fn memory_bytes(&self) -> usize {
        self.ready.len() * in_tree(size_of::<(Timestamp, u64)>())
    }

    /// Adds a message that has been ready since this time. O(log n).
    pub fn enter(&mut self, since: Timestamp) {
        *self.ready.entry(since.floor_to(PRECISION)).or_default() += 1;
    }

    /// Removes a message. O(log n).
    pub fn leave(&mut self, since: Timestamp) {
        let since = since.floor_to(PRECISION);
        let count = self.ready.get_mut(&since).expect("the message was added before");
        *count -= 1;
        if *count == 0 {
            self.ready.remove(&since);
        }
    }

    /// Returns the time since which the oldest message is ready, rounded down to the second. O(log n).
    pub fn oldest(&self) -> Option<Timestamp> {
        self.ready.first_key_value().map(|(since, _)| *since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_known_to_the_second_until_the_last_of_its_second_has_left() {
        let mut ages = ReadyAges::default();
        let at = Timestamp::from_millis;
        for since in [7_900, 5_100, 5_900] {
            ages.enter(at(since));
        }
        assert_eq!(ages.oldest(), Some(at(5_000)));
        ages.leave(at(5_900));
        assert_eq!(ages.oldest(), Some(at(5_000)));
        ages.leave(at(5_100));
        assert_eq!(ages.oldest(), Some(at(7_000)));
        ages.leave(at(7_900));
        assert_eq!(ages, ReadyAges::default(), "nothing is left behind");
    }
}
