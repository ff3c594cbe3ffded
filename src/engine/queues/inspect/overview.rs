//! The backlog of all queues together, for the status and the metrics page. Anyone may request it at any rate, so all
//! requests within a second share one reading. Names are built only for the queues that are shown.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::queues::inspect::InspectService;
use crate::queues::state::served_queue::{Backlog, ServedQueue};
use tallystone_domain::limits::{METRIC_QUEUES_MAX, OVERVIEW_AGE_MAX, STATUS_ROWS_MAX};
use tallystone_domain::queue::activity::LostWork;

/// The backlog of all queues at one moment; templates hold no messages and are not counted.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Overview {
    /// The number of queues.
    pub queues: usize,
    /// The sum of all queues, without a name.
    pub all: Backlog,
    /// The queues with the oldest ready messages, oldest first; ties in the order of names.
    pub oldest: Vec<Backlog>,
    /// The first queues by name.
    pub first: Vec<Backlog>,
    /// The sum of all other queues, without a name; none if there are no others.
    pub others: Option<Backlog>,
    /// The queues of which the store lost work lately, the first by name.
    pub lost: Vec<(String, LostWork)>,
}

/// The last overview, and when it was read as elapsed time.
#[derive(Default)]
pub struct OverviewCache(Mutex<Option<(Duration, Arc<Overview>)>>);

impl OverviewCache {
    /// The last overview if it is recent enough, else a new reading. Concurrent callers wait for the same reading.
    fn get(&self, now: Duration, read: impl FnOnce() -> Overview) -> Arc<Overview> {
        let mut last = self.0.lock();
        if let Some((at, overview)) = &*last
            && now.saturating_sub(*at) < OVERVIEW_AGE_MAX
        {
            return Arc::clone(overview);
        }
        let overview = Arc::new(read());
        *last = Some((now, Arc::clone(&overview)));
        overview
    }
}

impl InspectService {
    /// The backlog of all queues, at most a second old. O(shards) once a second.
    pub fn overview(&self) -> Arc<Overview> {
        let now = self.context.elapsed();
        self.overview_cache.get(now, || {
            let queues = self.context.all();
            let served: Vec<&ServedQueue> =
                queues.iter().map(|queue| &**queue).filter(|queue| queue.holds_messages()).collect();
            let lost = served.iter().filter_map(|queue| Some((queue.name(), queue.lost_lately(self.context.now())?)));
            Overview {
                lost: lost.take(STATUS_ROWS_MAX).collect(),
                ..overview(served.len(), |place| served[place].backlog(now), |place| served[place].name())
            }
        })
    }
}

/// The overview of `count` queues in the order of names, from their numbers and their names.
fn overview(count: usize, numbers: impl Fn(usize) -> Backlog, name: impl Fn(usize) -> String) -> Overview {
    let named = |place, numbers| Backlog { queue: name(place), ..numbers };
    let mut overview = Overview { queues: count, ..Overview::default() };
    let mut oldest = BinaryHeap::with_capacity(STATUS_ROWS_MAX + 1);
    for place in 0..count {
        let numbers = numbers(place);
        overview.all.take_in(&numbers);
        // Numbers without a name are cheap to copy.
        oldest.push(Reverse((numbers.oldest, Reverse(place), numbers.clone())));
        if oldest.len() > STATUS_ROWS_MAX {
            oldest.pop();
        }
        if place < METRIC_QUEUES_MAX {
            overview.first.push(named(place, numbers));
        } else {
            overview.others.get_or_insert_default().take_in(&numbers);
        }
    }
    let oldest = oldest.into_sorted_vec().into_iter();
    overview.oldest = oldest.map(|Reverse((_, Reverse(place), numbers))| named(place, numbers)).collect();
    overview
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn all_who_ask_within_a_second_share_one_reading() {
        let (last, read) = (OverviewCache::default(), Cell::new(0));
        let ask = |millis| {
            last.get(Duration::from_millis(millis), || {
                read.set(read.get() + 1);
                Overview::default()
            });
            read.get()
        };
        assert_eq!([100, 100, 1_099, 1_100, 2_000, 2_100].map(ask), [1, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn names_are_made_of_those_that_are_shown_and_nothing_is_left_out() {
        let count = METRIC_QUEUES_MAX + 30;
        let made = Cell::new(0);
        let numbers = |place: usize| Backlog {
            messages: [2, 3, 0, 0, 0, 1],
            // Later names have older messages, but the last ten have the same age.
            oldest: Duration::from_secs(place.min(count - 10) as u64),
            waiting: 1,
            ..Backlog::default()
        };
        let read = overview(count, numbers, |place| {
            made.set(made.get() + 1);
            format!("q{place:03}")
        });
        assert_eq!((read.queues, made.get()), (count, METRIC_QUEUES_MAX + STATUS_ROWS_MAX));
        let names = |backlogs: &[Backlog]| backlogs.iter().map(|of| of.queue.clone()).collect::<Vec<_>>();
        let named =
            |places: &mut dyn Iterator<Item = usize>| places.map(|place| format!("q{place:03}")).collect::<Vec<_>>();
        assert_eq!(names(&read.first), named(&mut (0..METRIC_QUEUES_MAX)));
        let older = (count - STATUS_ROWS_MAX..count - 10).rev();
        assert_eq!(names(&read.oldest), named(&mut (count - 10..count).chain(older)));
        let others = read.others.expect("there are many");
        assert_eq!((others.messages, others.waiting), ([60, 90, 0, 0, 0, 30], 30));
        assert_eq!((others.oldest, read.all.oldest), (read.oldest[0].oldest, read.oldest[0].oldest));
        assert_eq!((read.all.waiting, read.all.messages[1]), (count, 3 * count as u64));
        assert_eq!(overview(1, numbers, |_| "a".to_owned()).others, None);
    }
}
