//! Lanes of waiting items: the urgent ones go first, and no lane starves.

use std::collections::VecDeque;

/// Items that wait in lanes, the most urgent lane first. Each item has a cost. A batch takes whole items up to a total cost,
/// in the order of their arrival within a lane. Every lane that is not empty gets at least a share of each batch.
pub struct FairLanes<T, const LANES: usize> {
    lanes: [FairLane<T>; LANES],
    batch_cost: usize,
    share: usize,
    large_items: LargeItems,
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
    items: VecDeque<(T, usize)>,
    cost: usize,
    /// The shares of earlier batches that were too small for the first item.
    saved: usize,
}

impl<T, const LANES: usize> FairLanes<T, LANES> {
    /// Empty lanes. The share of a lane is one part in `parts` of the cost of a batch.
    pub fn new(batch_cost: usize, parts: usize, large_items: LargeItems) -> Self {
        let lane = |_| FairLane { items: VecDeque::new(), cost: 0, saved: 0 };
        Self { lanes: std::array::from_fn(lane), batch_cost, share: batch_cost / parts, large_items }
    }

    /// Adds an item behind the others of its lane.
    pub fn push(&mut self, lane: usize, item: T, cost: usize) {
        let lane = &mut self.lanes[lane];
        lane.cost += cost;
        lane.items.push_back((item, cost));
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
        let fits = self.large_items == LargeItems::Go || lane.items.front().is_some_and(|(_, cost)| *cost <= share);
        if fits { lane.cost.min(share) } else { 0 }
    }

    /// Saves the share of a lane whose first item did not fit.
    fn save_unused_share(&mut self, lane: usize, took: usize) {
        let lane = &mut self.lanes[lane];
        let saves = took == 0 && !lane.items.is_empty();
        lane.saved = if saves { (lane.saved + self.share).min(self.batch_cost - self.share) } else { 0 };
    }

    /// The number of waiting items.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.items.len()).sum()
    }

    /// Whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.items.is_empty())
    }

    /// The cost of all waiting items.
    pub fn cost(&self) -> usize {
        (0..LANES).map(|lane| self.cost_of(lane)).sum()
    }

    /// The cost of the waiting items of a lane.
    pub fn cost_of(&self, lane: usize) -> usize {
        self.lanes[lane].cost
    }
}

impl<T> FairLane<T> {
    /// Takes whole items up to a cost. Returns their cost.
    fn take(&mut self, most: usize, large_items: LargeItems, taken: &mut Vec<T>) -> usize {
        let mut took = 0;
        while let Some((_, cost)) = self.items.front()
            && (took + cost <= most || (took == 0 && large_items == LargeItems::Go))
        {
            took += cost;
            taken.extend(self.items.pop_front().map(|(item, _)| item));
        }
        self.cost -= took;
        took
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

    /// An item of a test: its lane, its cost and its number in the lane.
    type Item = (usize, usize, usize);

    /// One step of a test: items that arrive, then a batch that is taken.
    fn steps(cost_max: usize) -> impl Strategy<Value = Vec<Vec<(usize, usize)>>> {
        vec(vec((0..LANES, 1..=cost_max), 0..60), 1..20)
    }

    /// Pushes and takes by steps, then takes until nothing waits. Checks each batch against the lanes before it.
    fn run(steps: Vec<Vec<(usize, usize)>>, large: LargeItems, check: impl Fn(&Lanes, &[Item])) {
        let mut lanes = Lanes::new(BATCH, PARTS, large);
        let mut pushed = [0; LANES];
        let mut taken = [0; LANES];
        let mut steps = steps.into_iter();
        loop {
            let arrived = steps.next();
            let is_over = arrived.is_none();
            for (lane, cost) in arrived.into_iter().flatten() {
                lanes.push(lane, (lane, cost, pushed[lane]), cost);
                pushed[lane] += 1;
            }
            if is_over && lanes.is_empty() {
                break;
            }
            let (len, cost) = (lanes.len(), lanes.cost());
            let before = Lanes { lanes: lanes.lanes.each_ref().map(copy), ..lanes };
            let mut batch = Vec::new();
            lanes.take(&mut batch);
            check(&before, &batch);
            for (lane, _, number) in &batch {
                assert_eq!(*number, taken[*lane], "each item is taken once, in the order of its lane");
                taken[*lane] += 1;
            }
            assert_eq!((lanes.len(), lanes.cost()), (len - batch.len(), cost - total(&batch)));
            assert!(len == 0 || !batch.is_empty(), "something goes while something waits");
        }
        assert_eq!(taken, pushed, "nothing is lost");
    }

    type Lanes = FairLanes<Item, LANES>;

    fn copy(lane: &FairLane<Item>) -> FairLane<Item> {
        FairLane { items: lane.items.clone(), ..*lane }
    }

    fn total(batch: &[Item]) -> usize {
        batch.iter().map(|(_, cost, _)| cost).sum()
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
                for lane in 0..LANES {
                    assert!(before.cost_of(lane) == 0 || !of_lane(batch, lane).is_empty(), "each lane gets an item");
                }
            });
        }

        #[test]
        fn every_lane_gets_its_share_of_every_batch(steps in steps(BATCH / PARTS)) {
            for large in [LargeItems::Wait, LargeItems::Go] {
                run(steps.clone(), large, |before, batch| {
                    for lane in 0..LANES {
                        let took = of_lane(batch, lane);
                        let waited = &before.lanes[lane].items;
                        let next = waited.get(took.len()).map_or(0, |(_, cost)| *cost);
                        let is_share = took.len() == waited.len() || total(&took) + next > BATCH / PARTS;
                        assert!(is_share, "{lane}: {took:?}");
                    }
                });
            }
        }
    }
}
