//! Hot counters: counters with their own number of event buckets.
//!
//! A counter that is written far more often than the others of its namespace outgrows the partition size that stores
//! read well. Narrowing the partitions of all counters for its sake would make every roll of the others more expensive.
//! So a namespace lists the few hot counters. Like all partition settings, the list is frozen into each slice, so a
//! token keeps its partition inside a slice.

use crate::counter::CounterName;
use crate::limits::{BUCKETS_PER_ID_MAX, HOT_COUNTERS_MAX};
use crate::namespace::TimePartition;

/// A counter with its own number of event buckets.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HotCounter {
    /// The counter's name.
    pub counter_name: CounterName,
    /// The counter's event buckets per time bucket; the embedded store needs none.
    pub buckets_per_id: u32,
}

/// The hot counters of a namespace, sorted by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HotCounters(Vec<HotCounter>);

impl HotCounters {
    /// Iterates over the hot counters.
    pub fn iter(&self) -> impl Iterator<Item = &HotCounter> {
        self.0.iter()
    }

    /// Returns whether there are no hot counters.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the partitioning of a counter's events, given that of counters that are not hot. Cost: O(log hot
    /// counters).
    pub fn partition_of(&self, counter: &CounterName, others: TimePartition) -> TimePartition {
        match self.0.binary_search_by(|hot| hot.counter_name.cmp(counter)) {
            Ok(at) => TimePartition { buckets_per_id: self.0[at].buckets_per_id, ..others },
            Err(_) => others,
        }
    }

    pub(super) fn check(&self, faults: &mut Vec<String>) {
        if self.0.len() > HOT_COUNTERS_MAX {
            faults.push(format!("hot_counters names {} counters; at most {HOT_COUNTERS_MAX}", self.0.len()));
        }
        for HotCounter { counter_name, buckets_per_id } in &self.0 {
            if !(1..=BUCKETS_PER_ID_MAX).contains(buckets_per_id) {
                faults.push(format!(
                    "buckets_per_id of hot counter {} is {buckets_per_id}; 1 to {BUCKETS_PER_ID_MAX} are allowed",
                    counter_name.as_str()
                ));
            }
        }
        for pair in self.0.windows(2).filter(|pair| pair[0].counter_name == pair[1].counter_name) {
            faults.push(format!("hot_counters names {} twice; name it once", pair[0].counter_name.as_str()));
        }
    }
}

impl FromIterator<HotCounter> for HotCounters {
    fn from_iter<I: IntoIterator<Item = HotCounter>>(counters: I) -> Self {
        let mut counters: Vec<HotCounter> = counters.into_iter().collect();
        counters.sort();
        Self(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> CounterName {
        CounterName::new(name).expect("a valid name")
    }

    fn hot(counters: &[(&str, u32)]) -> HotCounters {
        let hot = |&(counter, buckets_per_id)| HotCounter { counter_name: name(counter), buckets_per_id };
        counters.iter().map(hot).collect()
    }

    fn faults(counters: &HotCounters) -> Vec<String> {
        let mut faults = Vec::new();
        counters.check(&mut faults);
        faults
    }

    #[test]
    fn a_hot_counter_has_its_own_event_buckets_and_the_time_buckets_of_all() {
        let others = TimePartition { buckets_per_id: 4, seconds_per_bucket: 600 };
        let counters = hot(&[("z", 16), ("a", 8)]);
        for (counter, buckets_per_id) in [("a", 8), ("z", 16), ("b", 4), ("A", 4), ("aa", 4)] {
            let own = counters.partition_of(&name(counter), others);
            assert_eq!(own, TimePartition { buckets_per_id, seconds_per_bucket: 600 }, "{counter}");
        }
        assert_eq!(HotCounters::default().partition_of(&name("a"), others), others);
    }

    #[test]
    fn the_order_in_which_they_are_named_makes_no_difference() {
        assert_eq!(hot(&[("b", 2), ("a", 1), ("c", 3)]), hot(&[("c", 3), ("b", 2), ("a", 1)]));
    }

    #[test]
    fn a_name_twice_a_width_out_of_range_and_too_many_are_faults() {
        assert_eq!(faults(&hot(&[("a", 1), ("b", BUCKETS_PER_ID_MAX)])), Vec::<String>::new());
        for (counters, words) in [
            (hot(&[("a", 0)]), "buckets_per_id of hot counter a is 0"),
            (hot(&[("a", BUCKETS_PER_ID_MAX + 1)]), "is 257; 1 to 256"),
            (hot(&[("a", 8), ("b", 8), ("a", 9)]), "hot_counters names a twice"),
        ] {
            let faults = faults(&counters);
            assert!(faults.len() == 1 && faults[0].contains(words), "{faults:?}");
        }
        let many = |count: usize| -> HotCounters {
            (0..count).map(|at| HotCounter { counter_name: name(&format!("c{at}")), buckets_per_id: 8 }).collect()
        };
        assert_eq!(faults(&many(HOT_COUNTERS_MAX)), Vec::<String>::new());
        assert!(faults(&many(HOT_COUNTERS_MAX + 1))[0].contains("names 65 counters; at most 64"));
    }
}
