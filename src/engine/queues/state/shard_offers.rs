//! The possible offers of shards to a dequeue, and the order in which the shards are asked.
//!
//! The best priority is first. Of equal priorities the message that arrived first is first, as within a shard; so no
//! shard waits longer than its messages would in a queue of one shard. What is still equal is broken by turns: the
//! shard that was asked least recently is first. No order rests on the numbers of shards alone, because the last of
//! them would then starve.
//!
//! The best message of a shard may not meet the filter of a dequeue, and stay there. So a filter is known to have
//! reached the last message that it got of a shard. That is forgotten after a while, and once the shard has a better
//! message than then.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use tallystone_domain::Timestamp;
use tallystone_domain::limits::{FILTER_PLACE_KEPT, SHARD_WALKS_MAX};
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::messages::message::MessageHead;
use tallystone_ports::ShardStatus;

/// The place of a message among those of all shards: its priority, then its arrival.
pub type QueuePlace = (i64, Timestamp);

/// The place of a message in the order of its queue.
pub fn place_of(message: &MessageHead) -> QueuePlace {
    (message.priority, message.enqueued_at)
}

/// The possible offer of a shard to a dequeue. The lowest is asked first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ShardOffer {
    /// The place from which on the shard may have messages for the dequeue; the last place if a message may have become
    /// ready by time.
    pub from: QueuePlace,
    /// The number of the last turn of the shard, so that shards with equal places take turns.
    pub turn: u64,
    pub shard: u32,
}

impl ShardOffer {
    /// The best place that a shard with this status may offer; none if it has nothing to lease.
    pub fn head_of(status: &ShardStatus, is_due: bool) -> Option<QueuePlace> {
        match (status.head, status.blocked) {
            (_, true) => None,
            (Some(head), false) => Some((head, status.head_arrived.unwrap_or(Timestamp::MAX))),
            (None, false) => is_due.then_some((i64::MAX, Timestamp::MAX)),
        }
    }
}

/// The turns of the shards of a queue.
#[derive(Default)]
pub struct ShardTurns(AtomicU64);

/// The last turn of a shard; 0 before the first.
#[derive(Default)]
pub struct LastTurn(AtomicU64);

impl ShardTurns {
    /// Gives a shard the next turn.
    pub fn give(&self, shard: &LastTurn) {
        shard.0.fetch_max(self.0.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl LastTurn {
    pub fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How far filters have come in a shard.
#[derive(Default)]
pub struct FilterPlaces {
    places: Mutex<VecDeque<FilterPlace>>,
}

struct FilterPlace {
    filter: Filter,
    /// The best message of the shard at that time.
    head: QueuePlace,
    reached: QueuePlace,
    /// The time, by elapsed time.
    at: Duration,
}

impl FilterPlaces {
    /// Notes the last message that a dequeue with a filter got, and the best message that the shard then had. The
    /// oldest notes are dropped.
    pub fn note(&self, filter: &Filter, head: Option<QueuePlace>, reached: QueuePlace, now: Duration) {
        let Some(head) = head.filter(|_| !filter.is_empty()) else { return };
        let mut places = self.places.lock();
        places.retain(|place| place.filter != *filter);
        places.push_back(FilterPlace { filter: filter.clone(), head, reached, at: now });
        if places.len() > SHARD_WALKS_MAX {
            places.pop_front();
        }
    }

    /// The place from which on the shard may have messages that meet a filter. O(filters).
    pub fn from(&self, filter: &Filter, head: QueuePlace, now: Duration) -> QueuePlace {
        if filter.is_empty() {
            return head;
        }
        let places = self.places.lock();
        let known = places.iter().find(|place| place.filter == *filter);
        let holds = |place: &&FilterPlace| head >= place.head && now.saturating_sub(place.at) < FILTER_PLACE_KEPT;
        known.filter(holds).map_or(head, |place| place.reached.max(head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn place(priority: i64, seconds: i64) -> QueuePlace {
        (priority, Timestamp::from_secs(seconds))
    }

    fn offer(from: QueuePlace, turn: u64, shard: u32) -> ShardOffer {
        ShardOffer { from, turn, shard }
    }

    #[test]
    fn priority_comes_before_arrival_and_arrival_before_turns() {
        let mut offers =
            [offer(place(5, 9), 1, 0), offer(place(5, 7), 4, 3), offer(place(4, 99), 9, 2), offer(place(5, 9), 0, 1)];
        offers.sort_unstable();
        assert_eq!(offers.map(|offer| offer.shard), [2, 3, 1, 0]);
    }

    #[test]
    fn shards_with_equal_messages_take_turns() {
        let (turns, shards) = (ShardTurns::default(), [const { LastTurn(AtomicU64::new(0)) }; 3]);
        let asked: Vec<usize> = (0..7)
            .map(|_| {
                let next = (0..3).min_by_key(|shard| (shards[*shard].number(), *shard)).expect("there are shards");
                turns.give(&shards[next]);
                next
            })
            .collect();
        assert_eq!(asked, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn a_filter_goes_on_from_what_it_got_until_a_better_message_or_time_comes() {
        let filter = Filter::new([("team", "red")]).expect("a filter");
        let places = FilterPlaces::default();
        let (head, reached) = (place(1, 1), place(5, 8));
        assert_eq!(places.from(&filter, head, SECOND), head, "nothing is known yet");
        places.note(&filter, Some(head), reached, SECOND);
        assert_eq!(places.from(&filter, head, SECOND), reached, "the head does not meet the filter");
        assert_eq!(places.from(&Filter::default(), head, SECOND), head, "a dequeue without a filter gets the head");
        assert_eq!(places.from(&filter, place(5, 9), SECOND), place(5, 9), "the shard has moved on");
        assert_eq!(places.from(&filter, place(0, 9), SECOND), place(0, 9), "a better message arrived");
        assert_eq!(places.from(&filter, head, SECOND + FILTER_PLACE_KEPT), head, "it is forgotten");
    }
}
