//! The search for an order of calls, after Wing and Gong, with Lowe's memory of what was tried: a call may come next if no
//! other that is left ended before it began, and what was reached once by the same calls in the same state is not searched
//! again.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::{History, Operation};
use super::model::{Answer, Call, List};

/// How many steps a search may take. The histories of these tests need a few thousand, the worst of 120 stories 20,000.
const STEPS_MAX: usize = 5_000_000;

/// Why no order was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// There is none. The calls that could come next after the longest part that has one, as text.
    NoOrder(String),
    /// The search was given up.
    TooLong,
}

/// A point of the search: the state, what may come next, and what of that was tried.
struct Point {
    list: List,
    choices: Vec<Choice>,
    tried: usize,
    /// The call that led here.
    by: Option<usize>,
}

/// One way to go on: the call is applied, or it is one without answer and never is.
#[derive(Clone, Copy)]
struct Choice {
    operation: usize,
    applied: bool,
}

/// Whether there is an order of the calls in which a shard would have answered just so.
pub fn check(history: &History) -> Result<(), Unfit> {
    let mut order: Vec<&Operation> = history.iter().collect();
    order.sort_by_key(|operation| operation.began);
    let (done, left, first_leases) = (vec![0; history.len().div_ceil(64)], history.len(), first_leases(history));
    let mut search = Search { order, done, left, first_leases };
    let mut seen: HashSet<(Vec<u64>, List)> = HashSet::new();
    let (mut fewest_left, mut stuck) = (usize::MAX, String::new());
    let mut points = vec![search.point(List::default(), None)];
    for _ in 0..STEPS_MAX {
        if search.left == 0 {
            return Ok(());
        }
        let Some(point) = points.last_mut() else { return Err(Unfit::NoOrder(stuck)) };
        let Some(choice) = point.choices.get(point.tried).copied() else {
            if search.left < fewest_left {
                (fewest_left, stuck) = (search.left, search.describe(&point.choices));
            }
            let by = point.by;
            points.pop();
            by.inspect(|operation| search.undo(*operation));
            continue;
        };
        point.tried += 1;
        let mut list = point.list.clone();
        let fits = !choice.applied || search.fits(&mut list, choice.operation);
        if fits {
            search.take(choice.operation);
            if seen.insert((search.done.clone(), list.clone())) {
                points.push(search.point(list, Some(choice.operation)));
            } else {
                search.undo(choice.operation);
            }
        }
    }
    Err(Unfit::TooLong)
}

struct Search<'a> {
    /// By when they began.
    order: Vec<&'a Operation>,
    done: Vec<u64>,
    left: usize,
    first_leases: HashMap<&'a str, u64>,
}

/// The first lease of each message that any call was answered.
fn first_leases(history: &History) -> HashMap<&str, u64> {
    let mut first = HashMap::new();
    for operation in history {
        let Some(Answer::Leased(leased)) = &operation.answer else { continue };
        for (id, _, lease) in leased {
            let found: &mut u64 = first.entry(id.as_str()).or_insert(*lease);
            *found = (*found).min(*lease);
        }
    }
    first
}

impl Search<'_> {
    fn is_done(&self, operation: usize) -> bool {
        self.done[operation / 64] & (1 << (operation % 64)) != 0
    }

    fn take(&mut self, operation: usize) {
        self.done[operation / 64] |= 1 << (operation % 64);
        self.left -= 1;
    }

    fn undo(&mut self, operation: usize) {
        self.done[operation / 64] &= !(1 << (operation % 64));
        self.left += 1;
    }

    fn fits(&self, list: &mut List, operation: usize) -> bool {
        let Operation { call, answer, .. } = self.order[operation];
        let found = list.apply(call);
        answer.as_ref().is_none_or(|answer| *answer == found)
    }

    /// Whether a call with an answer fits here and leaves the state as it is.
    fn changes_nothing(&self, list: &List, operation: usize) -> bool {
        let mut after = list.clone();
        self.order[operation].answer.is_some() && self.fits(&mut after, operation) && after == *list
    }

    /// What may come next, that which ended first in front.
    fn point(&self, list: List, by: Option<usize>) -> Point {
        let first_word = self.done.iter().position(|word| *word != u64::MAX).unwrap_or(0);
        let mut earliest_end = u64::MAX;
        let mut next = Vec::new();
        for operation in (first_word * 64..self.order.len()).filter(|operation| !self.is_done(*operation)) {
            let Operation { began, ended, .. } = self.order[operation];
            if *began > earliest_end {
                break;
            }
            earliest_end = earliest_end.min(*ended);
            next.push(operation);
        }
        next.retain(|operation| self.order[*operation].began <= earliest_end);
        next.sort_by_key(|operation| self.order[*operation].ended);
        self.put_arrivals_as_served(&mut next);
        if let Some(free) = next.iter().copied().find(|operation| self.changes_nothing(&list, *operation)) {
            // It may as well come here: in any order that has it later it can be moved to this place.
            return Point { list, choices: vec![Choice { operation: free, applied: true }], tried: 0, by };
        }
        let ways = |operation: usize| {
            let Operation { answer, ended, .. } = self.order[operation];
            // What never was applied holds nobody up before its end, so it is given up there and at no other point: each
            // point more would double what is to be searched.
            let is_due = answer.is_none() && *ended == earliest_end;
            let never = is_due.then_some(Choice { operation, applied: false });
            [Some(Choice { operation, applied: true }), never].into_iter().flatten()
        };
        Point { list, choices: next.into_iter().flat_map(ways).collect(), tried: 0, by }
    }

    /// Puts enqueues of one priority into the order in which their messages were first leased, which is that of their arrival:
    /// a wrong guess shows only when they are leased, and all between would be searched again and again.
    fn put_arrivals_as_served(&self, next: &mut [usize]) {
        let mut of_priority: BTreeMap<i64, Vec<(usize, u64)>> = BTreeMap::new();
        for (at, operation) in next.iter().enumerate() {
            if let Call::Enqueue { id, priority } = &self.order[*operation].call {
                let first_lease = self.first_leases.get(id.as_str()).copied().unwrap_or(u64::MAX);
                of_priority.entry(*priority).or_default().push((at, first_lease));
            }
        }
        for arrivals in of_priority.values() {
            let mut served: Vec<(u64, usize)> = arrivals.iter().map(|(at, lease)| (*lease, next[*at])).collect();
            served.sort_by_key(|(lease, _)| *lease);
            for ((at, _), (_, operation)) in arrivals.iter().zip(served) {
                next[*at] = operation;
            }
        }
    }

    fn describe(&self, choices: &[Choice]) -> String {
        let lines = choices.iter().map(|choice| format!("{:?}", self.order[choice.operation]));
        lines.collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::Verb;
    use crate::linear::model::Standing::{self, Completed, Pending};

    fn operation(began: u64, ended: u64, call: Call, answer: Option<Answer>) -> Operation {
        Operation { call, answer, began, ended }
    }

    fn enqueue(began: u64, ended: u64, id: &str, priority: i64) -> Operation {
        let call = Call::Enqueue { id: id.to_owned(), priority };
        operation(began, ended, call, Some(Answer::Enqueued { already: false }))
    }

    fn dequeue(began: u64, ended: u64, leased: &[(&str, u32, u64)]) -> Operation {
        let leased = leased.iter().map(|(id, attempt, lease)| ((*id).to_owned(), *attempt, *lease)).collect();
        operation(began, ended, Call::Dequeue { max: 1 }, Some(Answer::Leased(leased)))
    }

    fn settle(began: u64, ended: u64, id: &str, lease: u64, verb: Verb, to: Standing) -> Operation {
        let call = Call::Settle { id: id.to_owned(), lease, verb };
        operation(began, ended, call, Some(Answer::Settled(to)))
    }

    #[test]
    fn calls_at_once_may_have_come_in_either_order() {
        let races = [
            vec![enqueue(0, 5, "a", 1), dequeue(1, 4, &[])],
            vec![enqueue(0, 5, "a", 1), dequeue(1, 4, &[("a", 1, 1)])],
            vec![
                enqueue(0, 1, "a", 1),
                enqueue(2, 9, "b", 0),
                dequeue(3, 5, &[("a", 1, 1)]),
                dequeue(6, 7, &[("b", 1, 2)]),
            ],
            vec![enqueue(0, 1, "a", 1), dequeue(2, 8, &[]), dequeue(3, 7, &[("a", 1, 1)])],
        ];
        for history in races {
            assert_eq!(check(&history), Ok(()), "{history:?}");
        }
    }

    #[test]
    fn what_no_shard_can_have_answered_is_refused() {
        let complete = settle(4, 5, "a", 1, Verb::Complete, Completed);
        let wrong = [
            ("a message lost", vec![enqueue(0, 1, "a", 1), dequeue(2, 3, &[])]),
            ("a message out of nothing", vec![dequeue(0, 1, &[("a", 1, 1)]), enqueue(2, 3, "a", 1)]),
            (
                "two leases at once",
                vec![enqueue(0, 1, "a", 1), dequeue(2, 5, &[("a", 1, 1)]), dequeue(3, 4, &[("a", 2, 2)])],
            ),
            ("served when completed", {
                vec![enqueue(0, 1, "a", 1), dequeue(2, 3, &[("a", 1, 1)]), complete, dequeue(6, 7, &[("a", 2, 2)])]
            }),
            ("the worse one first", vec![enqueue(0, 1, "a", 1), enqueue(2, 3, "b", 2), dequeue(4, 5, &[("b", 1, 1)])]),
            ("equals out of order", vec![enqueue(0, 1, "a", 1), enqueue(2, 3, "b", 1), dequeue(4, 5, &[("b", 1, 1)])]),
            ("an attempt too many", {
                let release = settle(4, 5, "a", 1, Verb::Release, Pending);
                vec![enqueue(0, 1, "a", 1), dequeue(2, 3, &[("a", 1, 1)]), release, dequeue(6, 7, &[("a", 2, 2)])]
            }),
            ("taken in twice", vec![enqueue(0, 1, "a", 1), enqueue(2, 3, "a", 1)]),
        ];
        for (what, history) in wrong {
            assert!(matches!(check(&history), Err(Unfit::NoOrder(_))), "{what}: {history:?}");
        }
    }

    #[test]
    fn a_call_without_answer_may_have_been_applied_or_not_but_only_until_its_end() {
        let unknown = || operation(0, 4, Call::Enqueue { id: "a".to_owned(), priority: 1 }, None);
        for later in [dequeue(5, 6, &[]), dequeue(5, 6, &[("a", 1, 1)]), dequeue(1, 2, &[])] {
            assert_eq!(check(&vec![unknown(), later.clone()]), Ok(()), "{later:?}");
        }
        let too_late = vec![unknown(), dequeue(5, 6, &[]), dequeue(7, 8, &[("a", 1, 1)])];
        assert!(matches!(check(&too_late), Err(Unfit::NoOrder(_))));
        let both = vec![unknown(), dequeue(1, 2, &[("a", 1, 1)]), dequeue(5, 6, &[("a", 1, 2)])];
        assert!(matches!(check(&both), Err(Unfit::NoOrder(_))));
    }
}
