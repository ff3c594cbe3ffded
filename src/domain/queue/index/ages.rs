//! How many messages have been ready since when, so that the age of the oldest is known without a look at any message.
//!
//! Times are kept to the second: a backlog takes one entry for each second of its arrival, not one for each message.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::time::Timestamp;

/// What ages are told to.
const PRECISION: Duration = Duration::from_secs(1);

/// The times since when messages are ready, each with how many.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ReadyAges {
    ready: BTreeMap<Timestamp, u64>,
}

impl ReadyAges {
    /// Takes in a message that is ready since then. O(log n).
    pub fn enter(&mut self, since: Timestamp) {
        *self.ready.entry(since.floor_to(PRECISION)).or_default() += 1;
    }

    /// Takes it out. O(log n).
    pub fn leave(&mut self, since: Timestamp) {
        let since = since.floor_to(PRECISION);
        let count = self.ready.get_mut(&since).expect("what leaves has entered");
        *count -= 1;
        if *count == 0 {
            self.ready.remove(&since);
        }
    }

    /// Since when the oldest is ready, to the second and not later than in truth. O(log n).
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
