//! Rules of the self-check: which time buckets are sealed, and up to which time. Pure.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::counter::Counter;
use crate::limits::{SEAL_SAMPLE_EVERY, STEP};
use crate::namespace::Cardinality;
use crate::time::Timestamp;

/// Returns whether a bucket is compared. In a LOW namespace every bucket is, otherwise one in `SEAL_SAMPLE_EVERY`, the
/// same ones on every server.
pub fn is_sampled(cardinality: Cardinality, counter: &Counter, bucket: Timestamp) -> bool {
    match cardinality {
        Cardinality::Low => true,
        Cardinality::Medium | Cardinality::High => {
            xxh3_64_with_seed(&bucket.micros().to_be_bytes(), counter.hash()).is_multiple_of(SEAL_SAMPLE_EVERY)
        }
    }
}

/// Returns the last time at or before `due` at which buckets of all these widths end; buckets are aligned to 1970.
pub fn sealable_to(due: Timestamp, widths: impl IntoIterator<Item = Duration>) -> Timestamp {
    let common =
        widths.into_iter().fold(STEP.as_secs(), |common, width| least_common_multiple(common, width.as_secs()));
    due.floor_to(Duration::from_secs(common))
}

fn least_common_multiple(one: u64, other: u64) -> u64 {
    let (mut divisor, mut rest) = (one.max(1), other.max(1));
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    one.max(1) / divisor * other.max(1)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::counter::{CounterName, NamespaceId};

    proptest! {
        /// The law: no bucket crosses the returned time, and no later time at or before `due` has this property.
        #[test]
        fn buckets_of_every_width_end_where_sealing_stops(
            due in -10_000_000_i64..10_000_000,
            steps in vec(prop::sample::select(vec![1_u64, 2, 3, 6, 12, 60]), 0..4),
        ) {
            let widths: Vec<Duration> = steps.iter().map(|steps| STEP * u32::try_from(*steps).expect("small")).collect();
            let due = Timestamp::from_secs(due);
            let to = sealable_to(due, widths.iter().copied());
            prop_assert!(to <= due);
            let ends_all = |time: Timestamp| widths.iter().chain([&STEP]).all(|width| time.floor_to(*width) == time);
            prop_assert!(ends_all(to));
            let mut later = to + STEP;
            while later <= due {
                prop_assert!(!ends_all(later), "{later:?} is due as well");
                later = later + STEP;
            }
        }
    }

    #[test]
    fn all_buckets_of_few_counters_are_compared_and_a_stated_part_of_others() {
        let counter =
            |number: u32| Counter::new(NamespaceId(1), CounterName::new(&format!("c{number}")).expect("a valid name"));
        let buckets = || (0..1_000).flat_map(|at| [1_u32, 2].map(|n| (counter(n), Timestamp::from_secs(at * 600))));
        let sampled = |cardinality| buckets().filter(|(counter, at)| is_sampled(cardinality, counter, *at)).count();
        assert_eq!(sampled(Cardinality::Low), 2_000);
        let expected = 2_000 / usize::try_from(SEAL_SAMPLE_EVERY).expect("small");
        for cardinality in [Cardinality::Medium, Cardinality::High] {
            assert!((expected / 2..expected * 2).contains(&sampled(cardinality)), "{}", sampled(cardinality));
        }
    }
}
