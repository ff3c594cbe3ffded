//! Items of many flows that take turns: the flow that has had least so far is next.
//!
//! Start-time fair queueing: each turn begins at the virtual time at which the one before it of the same flow ended,
//! and lasts as long as its item costs. The turn that begins first is next. Between two holders whose items wait, the
//! costs of what they got differ by no more than one item of each. Source: Goyal, Vin and Cheng, "Start-time Fair
//! Queueing", SIGCOMM 1996.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};

use hashbrown::HashMap;

use super::flow_key::FlowKey;

/// Waiting items, each with its cost, in the order of arrival for each flow.
pub(super) struct StartTimeFairQueue<T> {
    waiting: HashMap<FlowKey, HeldItems<T>>,
    /// The next turn of each flow, first the one that begins first. The first one has an item, unless nothing waits.
    /// Others may have none: they remember what their holders have had.
    turns: BinaryHeap<Reverse<NextTurn>>,
    /// The virtual time: when the next turn begins. Whoever comes then begins with it.
    now: u64,
    tickets: u64,
    len: usize,
}

/// The items of one flow, and their cost.
struct HeldItems<T> {
    items: VecDeque<(T, usize)>,
    cost: usize,
}

/// When a flow is next. Of turns that begin at the same time, the one that was made first is first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NextTurn {
    begins: u64,
    ticket: u64,
    flow: FlowKey,
}

impl<T> Default for StartTimeFairQueue<T> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), turns: BinaryHeap::new(), now: 0, tickets: 0, len: 0 }
    }
}

impl<T> StartTimeFairQueue<T> {
    /// Adds an item behind the others of its flow. A flow that had none for a while begins now. O(log holders).
    pub fn push(&mut self, flow: FlowKey, item: T, cost: usize) {
        self.len += 1;
        if let Some(held) = self.waiting.get_mut(&flow) {
            held.cost += cost;
            return held.items.push_back((item, cost));
        }
        self.waiting.insert(flow, HeldItems { items: VecDeque::from([(item, cost)]), cost });
        let ticket = self.ticket();
        self.turns.push(Reverse(NextTurn { begins: self.now, ticket, flow }));
    }

    /// The cost of the next item.
    pub fn first_cost(&self) -> Option<usize> {
        let Reverse(first) = self.turns.peek()?;
        self.waiting.get(&first.flow)?.items.front().map(|(_, cost)| *cost)
    }

    /// Takes the next item. O(log holders), and once for each flow without items.
    pub fn pop(&mut self) -> Option<(T, usize)> {
        let ticket = self.ticket();
        let Reverse(mut first) = self.turns.peek().copied()?;
        let held = self.waiting.get_mut(&first.flow)?;
        let taken = held.items.pop_front()?;
        held.cost -= taken.1;
        (first.begins, first.ticket) = (first.begins.saturating_add(taken.1 as u64), ticket);
        if let Some(mut place) = self.turns.peek_mut() {
            *place = Reverse(first);
        }
        self.len -= 1;
        self.move_on();
        Some(taken)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The cost of what waits of one flow.
    pub fn cost_of(&self, flow: FlowKey) -> usize {
        self.waiting.get(&flow).map_or(0, |held| held.cost)
    }

    /// Moves on to the next turn that has an item, and forgets the holders before it, who have none. Once nothing
    /// waits, all begin again.
    fn move_on(&mut self) {
        if self.len == 0 {
            self.waiting.clear();
            self.turns.clear();
        }
        while let Some(first) = self.turns.peek_mut()
            && self.waiting.get(&first.0.flow).is_none_or(|held| held.items.is_empty())
        {
            let Reverse(idle) = PeekMut::pop(first);
            self.waiting.remove(&idle.flow);
        }
        self.now = self.turns.peek().map_or(0, |Reverse(first)| first.begins);
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const HOLDERS: u64 = 4;
    const COST_MAX: usize = 20;

    /// A step of a test: an item of a flow with a cost arrives, or one is taken.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u64, usize),
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let push = (0..HOLDERS, 1..=COST_MAX).prop_map(|(flow, cost)| Step::Push(flow, cost));
        vec(prop_oneof![push, Just(Step::Pop)], 1..200)
    }

    /// An item of a test: its flow, its cost and its number.
    type Item = (u64, usize, usize);

    /// The oracle keeps for each flow where its next turn begins, and looks at all of them for each item.
    #[derive(Default)]
    struct Oracle {
        waiting: Vec<Item>,
        /// Of each flow: when its next turn begins, and the number of that decision.
        begins: [Option<(u64, usize)>; HOLDERS as usize],
        /// The first turn that has an item.
        first: Option<(u64, usize)>,
        decisions: usize,
    }

    impl Oracle {
        fn decide(&mut self, flow: u64, begins: u64) {
            self.decisions += 1;
            self.begins[flow as usize] = Some((begins, self.decisions));
        }

        fn push(&mut self, item: Item) {
            if self.begins[item.0 as usize].is_none_or(|place| self.first.is_some_and(|first| place < first)) {
                self.decide(item.0, self.first.map_or(0, |(begins, _)| begins));
            }
            self.waiting.push(item);
            self.look();
        }

        fn look(&mut self) {
            self.first = self.waiting.iter().filter_map(|item| self.begins[item.0 as usize]).min();
            if self.waiting.is_empty() {
                self.begins = Default::default();
            }
        }

        fn pop(&mut self) -> Option<Item> {
            let flow = self.waiting.iter().map(|item| item.0).min_by_key(|flow| self.begins[*flow as usize])?;
            let place = self.waiting.iter().position(|item| item.0 == flow)?;
            let item = self.waiting.remove(place);
            let (begins, _) = self.begins[flow as usize]?;
            self.decide(flow, begins + item.1 as u64);
            self.look();
            Some(item)
        }
    }

    proptest! {
        #[test]
        fn whoever_had_least_is_next_as_the_oracle_says(steps in steps()) {
            let (mut turns, mut oracle) = (StartTimeFairQueue::default(), Oracle::default());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(flow, cost) => {
                        turns.push(FlowKey(flow), (flow, cost, number), cost);
                        oracle.push((flow, cost, number));
                    }
                    Step::Pop => {
                        let next = turns.first_cost();
                        let popped = turns.pop();
                        prop_assert_eq!(next, popped.map(|(_, cost)| cost));
                        prop_assert_eq!(popped.map(|(item, _)| item), oracle.pop());
                    }
                }
                prop_assert_eq!(turns.len(), oracle.waiting.len());
            }
        }

        #[test]
        fn two_that_wait_get_the_same_up_to_one_item_of_each(steps in steps()) {
            let mut turns = StartTimeFairQueue::default();
            let mut waiting = [0; HOLDERS as usize];
            // Of each pair, while items of both wait: the difference of what they got, its least and its greatest
            // value.
            let mut pairs = [[None::<(i64, i64, i64)>; HOLDERS as usize]; HOLDERS as usize];
            for step in steps {
                match step {
                    Step::Push(flow, cost) => {
                        turns.push(FlowKey(flow), flow, cost);
                        waiting[flow as usize] += 1;
                    }
                    Step::Pop => {
                        let Some((flow, cost)) = turns.pop() else { continue };
                        for other in (0..HOLDERS).filter(|other| *other != flow) {
                            for (one, two, got) in [(flow, other, cost as i64), (other, flow, -(cost as i64))] {
                                let pair = &mut pairs[one as usize][two as usize];
                                let both_wait = waiting[one as usize] > 0 && waiting[two as usize] > 0;
                                *pair = pair.filter(|_| both_wait).or(both_wait.then_some((0, 0, 0))).map(|(now, least, most)| {
                                    (now + got, least.min(now + got), most.max(now + got))
                                });
                                if let Some((_, least, most)) = *pair {
                                    prop_assert!(most - least <= 2 * COST_MAX as i64, "{one} and {two}: {least} to {most}");
                                }
                            }
                        }
                        waiting[flow as usize] -= 1;
                        for other in (0..HOLDERS).filter(|_| waiting[flow as usize] == 0) {
                            (pairs[flow as usize][other as usize], pairs[other as usize][flow as usize]) = (None, None);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn one_with_a_thousand_items_lets_another_with_one_go_second() {
        let mut turns = StartTimeFairQueue::default();
        for number in 0..1_000 {
            turns.push(FlowKey(1), number, 1);
        }
        turns.push(FlowKey(2), 5_000, 1);
        let first: Vec<i32> = (0..3).filter_map(|_| turns.pop()).map(|(number, _)| number).collect();
        assert_eq!(first, [0, 5_000, 1]);
    }
}
