//! Closed timestamps: this writer admits no event at or below `closed`, so the events up to there can be summed for
//! good.
//!
//! The published system sums up to a guess (now minus the accept limit), and loses a slow write behind the guess. Here
//! a writer holds admitted events until their outcome is known, and `closed` waits for the oldest hold. Comparing with
//! `closed` and registering the hold are one step under one lock, so no event gets in below a published limit.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use tallystone_domain::Timestamp;
use tallystone_domain::counter::SEQUENCES_PER_MS;

/// The closed timestamp and the holds of one writer and dataset.
#[derive(Debug)]
pub struct ClosedTimestampTracker {
    accept_limit: Duration,
    state: Mutex<ClosingState>,
}

#[derive(Debug)]
struct ClosingState {
    closed: Timestamp,
    holds: BTreeMap<Timestamp, u32>,
    /// The millisecond of the newest server-made events, and the next sequence number in it.
    own_sequence: (i64, u32),
    /// The incarnation of this writer in its fleet. Holds of earlier incarnations are ignored.
    incarnation: u64,
}

/// A hold: admitted events may not be durable yet. `release` must be called once for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InFlightHold {
    /// The oldest of the events' times.
    pub time: Timestamp,
    /// The incarnation in which they were admitted.
    pub incarnation: u64,
}

/// The result of an admission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventAdmission {
    /// The closed timestamp that the events were compared with.
    pub closed: Timestamp,
    /// The hold; none if no event was admitted.
    pub hold: Option<InFlightHold>,
}

/// Sequence numbers for server-made events: unique numbers within one millisecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReservedSequences {
    /// The hold; its time, a whole millisecond, is that of the events.
    pub hold: InFlightHold,
    /// The first sequence number.
    pub first: u32,
}

impl ClosedTimestampTracker {
    /// Starts without holds. No event at or below `closed` will be admitted.
    pub fn new(accept_limit: Duration, closed: Timestamp) -> Self {
        let state = ClosingState { closed, holds: BTreeMap::new(), own_sequence: (i64::MIN, 0), incarnation: 0 };
        Self { accept_limit, state: Mutex::new(state) }
    }

    /// Admits the times above the closed timestamp, under one hold at the oldest of them.
    pub fn admit(&self, times: impl IntoIterator<Item = Timestamp>, now: Timestamp) -> EventAdmission {
        let mut state = self.state.lock();
        let closed = state.advance(now, self.accept_limit);
        let oldest = times.into_iter().filter(|time| *time > closed).min();
        EventAdmission { closed, hold: oldest.map(|time| state.hold(time)) }
    }

    /// Reserves sequence numbers for `count` server-made events and holds their time: the first whole millisecond above
    /// both the closed timestamp and one millisecond ago, and never before an earlier reservation.
    ///
    /// Of two calls the later one gets greater numbers, even within a millisecond and when the clock goes back. So a
    /// clear covers all events acknowledged before it began, and no event that begins after its response.
    pub fn admit_own(&self, now: Timestamp, count: u32) -> ReservedSequences {
        let mut state = self.state.lock();
        let closed = state.advance(now, self.accept_limit);
        let above = closed.max(now - Duration::from_millis(1));
        let millis = above.millis().saturating_add(1);
        let (newest, next) = state.own_sequence;
        let (millis, first) = if millis > newest {
            (millis, 0)
        } else if next.saturating_add(count) <= SEQUENCES_PER_MS {
            (newest, next)
        } else {
            (newest.saturating_add(1), 0)
        };
        state.own_sequence = (millis, first.saturating_add(count));
        ReservedSequences { hold: state.hold(Timestamp::from_millis(millis)), first }
    }

    /// Begins another incarnation of this writer. It admits nothing at or below `closed`, and earlier holds are
    /// ignored.
    pub fn begin_incarnation(&self, life: u64, closed: Timestamp) {
        let mut state = self.state.lock();
        state.incarnation = life;
        state.closed = state.closed.max(closed);
        state.holds.clear();
    }

    /// Ends one hold.
    pub fn release(&self, hold: InFlightHold) {
        let mut state = self.state.lock();
        if hold.incarnation != state.incarnation {
            return;
        }
        match state.holds.get_mut(&hold.time) {
            Some(1) => {
                state.holds.remove(&hold.time);
            }
            Some(count) => *count -= 1,
            None => unreachable!("a hold is released once, by the guard that made it"),
        }
    }

    /// Computes the present closed timestamp. It never goes back.
    pub fn closed(&self, now: Timestamp) -> Timestamp {
        self.state.lock().advance(now, self.accept_limit)
    }

    /// The number of holds, for the metrics.
    pub fn hold_count(&self) -> usize {
        self.state.lock().holds.values().map(|count| *count as usize).sum()
    }
}

impl ClosingState {
    fn hold(&mut self, time: Timestamp) -> InFlightHold {
        *self.holds.entry(time).or_insert(0) += 1;
        InFlightHold { time, incarnation: self.incarnation }
    }

    fn advance(&mut self, now: Timestamp, accept_limit: Duration) -> Timestamp {
        let oldest_held = self.holds.first_key_value().map_or(Timestamp::MAX, |(time, _)| time.just_before());
        self.closed = self.closed.max(oldest_held.min(now - accept_limit));
        self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn held(time: Timestamp) -> InFlightHold {
        InFlightHold { time, incarnation: 0 }
    }

    #[test]
    fn closed_waits_for_the_oldest_hold() {
        let closing = ClosedTimestampTracker::new(LIMIT, Timestamp::MIN);
        assert_eq!(closing.admit([at(99), at(97)], at(100)).hold, Some(held(at(97))));
        assert_eq!(closing.admit([at(98)], at(100)).hold, Some(held(at(98))));
        assert_eq!(closing.closed(at(200)), at(97).just_before());
        closing.release(held(at(97)));
        assert_eq!(closing.closed(at(200)), at(98).just_before());
        closing.release(held(at(98)));
        assert_eq!(closing.closed(at(200)), at(195));
    }

    #[test]
    fn two_holds_of_one_time_are_both_waited_for() {
        let closing = ClosedTimestampTracker::new(LIMIT, Timestamp::MIN);
        for _ in 0..2 {
            closing.admit([at(99)], at(100));
        }
        closing.release(held(at(99)));
        assert_eq!(closing.closed(at(200)), at(99).just_before());
    }

    #[test]
    fn nothing_at_or_below_closed_is_admitted() {
        let closing = ClosedTimestampTracker::new(LIMIT, Timestamp::MIN);
        let admission = closing.admit([at(95), at(94)], at(100));
        assert_eq!(admission, EventAdmission { closed: at(95), hold: None });
        assert_eq!(closing.admit([at(95).just_after()], at(100)).hold, Some(held(at(95).just_after())));
    }

    #[test]
    fn a_backward_jump_of_the_clock_leaves_closed_where_it_is_and_own_times_go_on() {
        let closing = ClosedTimestampTracker::new(LIMIT, Timestamp::MIN);
        assert_eq!(closing.closed(at(1_000)), at(995));
        assert_eq!(closing.closed(at(10)), at(995));
        let own = closing.admit_own(at(10), 1).hold;
        assert!(own.time > at(995) && own.time <= at(995) + Duration::from_millis(1), "{own:?}");
        closing.release(own);
    }

    #[test]
    fn own_times_are_whole_milliseconds_just_above_one_millisecond_ago() {
        let closing = ClosedTimestampTracker::new(LIMIT, Timestamp::MIN);
        let now = Timestamp::from_micros(50_000_700);
        assert_eq!(closing.admit_own(now, 1).hold.time, Timestamp::from_millis(50_000));
    }

    #[test]
    fn own_places_only_grow_while_the_clock_stands_still_or_goes_back() {
        let closing = ClosedTimestampTracker::new(LIMIT, Timestamp::MIN);
        let mut end = (Timestamp::MIN, 0);
        for (now, count) in [(100, 1), (100, 1_000), (99, 1), (100, SEQUENCES_PER_MS - 1), (97, 2), (101, 1), (101, 1)]
        {
            let places = closing.admit_own(at(now), count);
            assert!((places.hold.time, places.first) >= end, "{places:?} after {end:?}");
            assert!(places.first + count <= SEQUENCES_PER_MS, "{places:?}");
            end = (places.hold.time, places.first + count);
        }
        assert_eq!(end, (at(101), 2));
    }

    #[test]
    fn a_full_millisecond_is_followed_by_the_next() {
        let closing = ClosedTimestampTracker::new(LIMIT, Timestamp::MIN);
        assert_eq!(closing.admit_own(at(100), SEQUENCES_PER_MS), ReservedSequences { hold: held(at(100)), first: 0 });
        let next = at(100) + Duration::from_millis(1);
        assert_eq!(closing.admit_own(at(100), 1), ReservedSequences { hold: held(next), first: 0 });
        assert_eq!(closing.admit_own(at(100), 1), ReservedSequences { hold: held(next), first: 1 });
    }

    #[test]
    fn another_life_waits_for_no_hold_of_the_one_before_and_never_goes_back() {
        let closing = ClosedTimestampTracker::new(LIMIT, Timestamp::MIN);
        let before = closing.admit([at(99)], at(100)).hold.expect("it is newer than what is closed");
        closing.begin_incarnation(1, at(98));
        assert_eq!(closing.closed(at(200)), at(195));
        let hold = closing.admit([at(199)], at(200)).hold.expect("it is newer than what is closed");
        assert_eq!(hold.incarnation, 1);
        closing.release(before);
        assert_eq!(closing.hold_count(), 1, "a hold of another life ends nothing");
        closing.begin_incarnation(2, at(10));
        assert!(closing.closed(at(0)) >= at(195));
    }
}
