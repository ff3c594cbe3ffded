//! Lanes of waiting items: the urgent ones go first, and no lane starves.
//!
//! Within a lane the work of the process itself goes first, in the order of arrival: what callers did before waits for
//! it. The others take turns, so that one with many items does not hold up another with few.

use std::collections::VecDeque;

use super::calls::PendingWork;
use super::flow_key::FlowKey;
use super::start_time_fair_queue::StartTimeFairQueue;

/// Items that wait in lanes, the most urgent lane first. Each item has a cost. A batch takes whole items up to a total
/// cost, in turns within a lane. Every lane that is not empty gets at least a share of each batch.
pub struct FairLanes<T, const LANES: usize> {
    lanes: [FairLane<T>; LANES],
    batch_cost: usize,
    share: usize,
    large_items: LargeItems,
}

/// A call takes the next batch, however many others are in flight.
impl<T, const LANES: usize> PendingWork for FairLanes<T, LANES> {
    type Batch = Vec<T>;

    fn next(&mut self, _in_flight: usize) -> Option<Vec<T>> {
        let mut taken = Vec::with_capacity(self.len());
        self.take(&mut taken);
        (!taken.is_empty()).then_some(taken)
    }
}

/// The rule for an item that costs more than the batch has left for its lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LargeItems {
    /// It waits until its lane has saved enough shares. No batch costs more than its limit.
    Wait,
    /// It goes if it is the first of its lane. So a batch may exceed its limit by one item of each lane.
    Go,
}

/// The items of one lane, each with its cost.
struct FairLane<T> {
    /// Of the process itself.
    own: VecDeque<(T, usize)>,
    turns: StartTimeFairQueue<T>,
    cost: usize,
    /// The shares of earlier batches that were too small for the first item.
    saved: usize,
}

impl<T, const LANES: usize> FairLanes<T, LANES> {
    /// Empty lanes. The share of a lane is one part in `parts` of the cost of a batch.
    pub fn new(batch_cost: usize, parts: usize, large_items: LargeItems) -> Self {
        let lane = |_| FairLane { own: VecDeque::new(), turns: StartTimeFairQueue::default(), cost: 0, saved: 0 };
        Self { lanes: std::array::from_fn(lane), batch_cost, share: batch_cost / parts, large_items }
    }

    /// Adds an item behind the others of its lane that have the same flow; none: of the process itself.
    pub fn push(&mut self, lane: usize, flow: Option<FlowKey>, item: T, cost: usize) {
        let lane = &mut self.lanes[lane];
        lane.cost += cost;
        match flow {
            Some(flow) => lane.turns.push(flow, item, cost),
            None => lane.own.push_back((item, cost)),
        }
    }

    /// Takes the next batch: of each lane what the batch has left, less the shares of the lanes behind it.
    pub fn take(&mut self, taken: &mut Vec<T>) {
        let mut left = self.batch_cost;
        for number in 0..LANES {
            let behind: usize = (number + 1..LANES).map(|lane| self.claim(lane)).sum();
            let took = self.lanes[number].take(left.saturating_sub(behind), self.large_items, taken);
            self.save_unused_share(number, took);
            left = left.saturating_sub(took);
        }
    }

    /// The part of the next batch that the lanes before this one leave to it.
    fn claim(&self, lane: usize) -> usize {
        let lane = &self.lanes[lane];
        let share = self.share + lane.saved;
        let fits = self.large_items == LargeItems::Go || lane.first_cost().is_some_and(|cost| cost <= share);
        if fits { lane.cost.min(share) } else { 0 }
    }

    /// Saves the share of a lane whose first item did not fit.
    fn save_unused_share(&mut self, lane: usize, took: usize) {
        let lane = &mut self.lanes[lane];
        let saves = took == 0 && lane.len() > 0;
        lane.saved = if saves { (lane.saved + self.share).min(self.batch_cost - self.share) } else { 0 };
    }

    /// The number of waiting items.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(FairLane::len).sum()
    }

    /// Whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.len() == 0)
    }

    /// The cost of all waiting items.
    pub fn cost(&self) -> usize {
        (0..LANES).map(|lane| self.cost_of(lane)).sum()
    }

    /// The cost of the waiting items of a lane.
    pub fn cost_of(&self, lane: usize) -> usize {
        self.lanes[lane].cost
    }

    /// The cost of those of one flow.
    pub fn cost_of_flow(&self, lane: usize, flow: FlowKey) -> usize {
        self.lanes[lane].turns.cost_of(flow)
    }
}

impl<T> FairLane<T> {
    /// Takes whole items up to a cost. Returns their cost.
    fn take(&mut self, most: usize, large_items: LargeItems, taken: &mut Vec<T>) -> usize {
        let mut took = 0;
        while let Some(cost) = self.first_cost()
            && (took + cost <= most || (took == 0 && large_items == LargeItems::Go))
        {
            took += cost;
            taken.extend(self.pop().map(|(item, _)| item));
        }
        self.cost -= took;
        took
    }

    fn first_cost(&self) -> Option<usize> {
        self.own.front().map(|(_, cost)| *cost).or_else(|| self.turns.first_cost())
    }

    fn pop(&mut self) -> Option<(T, usize)> {
        self.own.pop_front().or_else(|| self.turns.pop())
    }

    fn len(&self) -> usize {
        self.own.len() + self.turns.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LANES: usize = 3;
    const BATCH: usize = 64;
    const PARTS: usize = 8;
    const HOLDERS: u64 = 3;

    /// An item of a test: its lane, its cost, its flow and its number among those of the same lane and flow.
    type Item = (usize, usize, Option<FlowKey>, usize);

    type Lanes = FairLanes<Item, LANES>;

    /// One step of a test: items that arrive, then a batch that is taken.
    fn steps(cost_max: usize) -> impl Strategy<Value = Vec<Vec<(usize, usize, Option<u64>)>>> {
        vec(vec((0..LANES, 1..=cost_max, prop::option::of(0..HOLDERS)), 0..60), 1..20)
    }

    /// The items that wait in a lane, as the test knows them: their costs, and the greatest of them.
    #[derive(Clone, Default)]
    struct Waiting {
        costs: Vec<usize>,
    }

    /// Pushes and takes by steps, then takes until nothing waits. Checks each batch against what waited before it.
    fn run(
        steps: Vec<Vec<(usize, usize, Option<u64>)>>,
        large: LargeItems,
        check: impl Fn(&[Waiting; LANES], &[Item]),
    ) {
        let mut lanes = Lanes::new(BATCH, PARTS, large);
        let mut waiting: [Waiting; LANES] = Default::default();
        let numbers = || [[0; HOLDERS as usize + 1]; LANES];
        let (mut pushed, mut taken) = (numbers(), numbers());
        let place = |flow: Option<FlowKey>| flow.map_or(HOLDERS, |flow| flow.0) as usize;
        let mut steps = steps.into_iter();
        loop {
            let arrived = steps.next();
            let is_over = arrived.is_none();
            for (lane, cost, flow) in arrived.into_iter().flatten() {
                let flow = flow.map(FlowKey);
                let number = &mut pushed[lane][place(flow)];
                lanes.push(lane, flow, (lane, cost, flow, *number), cost);
                waiting[lane].costs.push(cost);
                *number += 1;
            }
            if is_over && lanes.is_empty() {
                break;
            }
            let (len, cost) = (lanes.len(), lanes.cost());
            let mut batch = Vec::new();
            lanes.take(&mut batch);
            check(&waiting, &batch);
            for (lane, cost, flow, number) in &batch {
                let next = &mut taken[*lane][place(*flow)];
                assert_eq!(number, next, "each item is taken once, in the order of its flow");
                *next += 1;
                let costs = &mut waiting[*lane].costs;
                let at = costs.iter().position(|known| known == cost).expect("it waited");
                costs.swap_remove(at);
            }
            assert_eq!((lanes.len(), lanes.cost()), (len - batch.len(), cost - total(&batch)));
            assert!(len == 0 || !batch.is_empty(), "something goes while something waits");
        }
        assert_eq!(taken, pushed, "nothing is lost");
    }

    fn total(batch: &[Item]) -> usize {
        batch.iter().map(|(_, cost, ..)| cost).sum()
    }

    fn of_lane(batch: &[Item], lane: usize) -> Vec<Item> {
        batch.iter().filter(|(of, ..)| *of == lane).copied().collect()
    }

    proptest! {
        #[test]
        fn no_item_is_lost_or_doubled_and_no_batch_exceeds_its_limit(steps in steps(BATCH)) {
            run(steps, LargeItems::Wait, |_, batch| {
                assert!(total(batch) <= BATCH);
                assert!(batch.is_sorted_by_key(|(lane, ..)| *lane), "urgent items go first");
            });
        }

        #[test]
        fn a_batch_exceeds_its_limit_by_no_more_than_the_last_item_of_each_lane(steps in steps(2 * BATCH)) {
            run(steps, LargeItems::Go, |before, batch| {
                let all_but_first: usize = (0..LANES).map(|lane| total(of_lane(batch, lane).get(1..).unwrap_or(&[]))).sum();
                assert!(all_but_first <= BATCH);
                for (lane, before) in before.iter().enumerate() {
                    assert!(before.costs.is_empty() || !of_lane(batch, lane).is_empty(), "each lane gets an item");
                }
            });
        }

        #[test]
        fn every_lane_gets_its_share_of_every_batch(steps in steps(BATCH / PARTS)) {
            for large in [LargeItems::Wait, LargeItems::Go] {
                run(steps.clone(), large, |before, batch| {
                    for (lane, before) in before.iter().enumerate() {
                        let took = of_lane(batch, lane);
                        let most = before.costs.iter().max().copied().unwrap_or_default();
                        // The item that did not fit is one of those that waited.
                        let is_share = took.len() == before.costs.len() || total(&took) + most > BATCH / PARTS;
                        assert!(is_share, "{lane}: {took:?}");
                    }
                });
            }
        }
    }

    #[test]
    fn callers_take_turns_behind_the_process_itself() {
        let mut lanes = FairLanes::<&str, 1>::new(4, PARTS, LargeItems::Wait);
        for (flow, item) in [(Some(1), "a1"), (Some(1), "a2"), (Some(1), "a3"), (Some(2), "b1"), (None, "own")] {
            lanes.push(0, flow.map(FlowKey), item, 1);
        }
        let mut batch = Vec::new();
        lanes.take(&mut batch);
        assert_eq!(batch, ["own", "a1", "b1", "a2"]);
    }
}
