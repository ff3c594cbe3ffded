//! One round of the loop that publishes a dataset's limit: the choice of a frontier, and whether it may become the
//! limit.
//!
//! A joining member lists the dataset with `Timestamp::MIN`, waits until that is acknowledged, reads the frontier and
//! starts above it. A publisher reads the members, publishes the frontier and reads the members again. So the second
//! read shows a joining member, either with `Timestamp::MIN` or with the time from which it started. Otherwise the
//! joining member reads a frontier at or above this one.

use std::time::Duration;

use crate::Timestamp;
use crate::counter::DatasetId;
use crate::fleet::{Heartbeat, MemberId, MembershipView};

/// Limits are whole milliseconds.
const GRAIN: Duration = Duration::from_millis(1);

/// The outcome of the second read of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoundDecision {
    /// The frontier becomes the limit.
    Publish(Timestamp),
    /// A member may still admit events below the frontier: retry later. The frontier stays.
    Again,
}

/// Proposes the frontier to publish after the first read: the lowest closed timestamp of a live member, rounded down to
/// milliseconds and at most `at_most`, up to which the publisher itself could have closed. `None` if a joining member
/// blocks the frontier, or if the frontier would not lie above the limit.
pub fn propose_frontier<'a>(
    dataset: DatasetId,
    members: impl IntoIterator<Item = (MemberId, &'a Heartbeat)>,
    view: &MembershipView,
    at_most: Timestamp,
    limit: Timestamp,
) -> Option<Timestamp> {
    let closed = least_closed(dataset, members, view).map_or(at_most, |closed| closed.min(at_most));
    let frontier = closed.floor_to(GRAIN);
    (closed > Timestamp::MIN && frontier > limit).then_some(frontier)
}

/// Decides whether a frontier that was published after the first read may become the limit.
pub fn confirm_frontier<'a>(
    dataset: DatasetId,
    members: impl IntoIterator<Item = (MemberId, &'a Heartbeat)>,
    view: &MembershipView,
    frontier: Timestamp,
) -> RoundDecision {
    match least_closed(dataset, members, view) {
        Some(closed) if closed < frontier => RoundDecision::Again,
        Some(_) | None => RoundDecision::Publish(frontier),
    }
}

/// Returns the lowest closed timestamp of a live member; `None` if no live member lists the dataset.
fn least_closed<'a>(
    dataset: DatasetId,
    members: impl IntoIterator<Item = (MemberId, &'a Heartbeat)>,
    view: &MembershipView,
) -> Option<Timestamp> {
    let live = members.into_iter().filter(|(id, _)| !view.is_lapsed(*id));
    live.filter_map(|(_, beat)| beat.closed.get(&dataset).copied()).min()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::limits::{MEMBER_LEASE, MEMBER_LEASE_MARGIN};

    const DATASET: DatasetId = DatasetId(1);

    fn id(byte: u8) -> MemberId {
        MemberId([byte; 16])
    }

    fn beat(closed: impl IntoIterator<Item = i64>) -> Heartbeat {
        let closed = closed.into_iter().map(|micros| (DATASET, Timestamp::from_micros(micros))).collect();
        Heartbeat { number: 1, closed, ..Heartbeat::default() }
    }

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    fn first_of(
        members: &[(MemberId, Heartbeat)],
        view: &MembershipView,
        at_most: i64,
        limit: i64,
    ) -> Option<Timestamp> {
        propose_frontier(DATASET, members.iter().map(|(id, beat)| (*id, beat)), view, at(at_most), at(limit))
    }

    #[test]
    fn a_frontier_is_the_least_closed_in_whole_milliseconds() {
        let members = [(id(1), beat([9_700])), (id(2), beat([8_999])), (id(3), beat([]))];
        let view = MembershipView::default();
        assert_eq!(first_of(&members, &view, 99_000, 0), Some(at(8_000)), "who does not list it does not count");
        assert_eq!(first_of(&members, &view, 7_500, 0), Some(at(7_000)), "never above what the publisher closes");
        assert_eq!(first_of(&members, &view, 99_000, 8_000), None, "it would move nothing");
        assert_eq!(first_of(&[], &view, 7_500, 0), Some(at(7_000)), "nobody writes");
    }

    #[test]
    fn a_joiner_holds_the_frontier_back_and_a_lapsed_member_does_not() {
        let members = [(id(1), beat([9_000])), (id(2), beat([i64::MIN]))];
        let mut view = MembershipView::default();
        assert_eq!(first_of(&members, &view, 99_000, 0), None);
        let over = MEMBER_LEASE + MEMBER_LEASE_MARGIN;
        view.observe(Duration::ZERO, Duration::ZERO, [(id(1), 1), (id(2), 1)]);
        view.observe(over, over, [(id(1), 2), (id(2), 1)]);
        assert_eq!(first_of(&members, &view, 99_000, 0), Some(at(9_000)));
        let listed = members.iter().map(|(id, beat)| (*id, beat));
        assert_eq!(confirm_frontier(DATASET, listed, &view, at(9_000)), RoundDecision::Publish(at(9_000)));
    }

    #[test]
    fn a_frontier_below_which_somebody_may_admit_does_not_become_the_limit() {
        let view = MembershipView::default();
        for (closed, publishes) in [(9_000, true), (8_999, false), (i64::MIN, false)] {
            let member = beat([closed]);
            let becomes = confirm_frontier(DATASET, [(id(1), &member)], &view, at(9_000));
            assert_eq!(becomes == RoundDecision::Publish(at(9_000)), publishes, "{closed}");
        }
    }

    /// A step of the model: members join, close and admit, and publishers run their rounds, in any order.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        List(usize),
        ReadFrontier(usize),
        Start(usize),
        Close(usize, i64),
        Tell(usize),
        Admit(usize, i64),
        First(usize, i64),
        PutFrontier(usize),
        Second(usize),
        PutLimit(usize),
    }

    #[derive(Clone, Default)]
    struct Writer {
        read: Option<Timestamp>,
        closed: Option<Timestamp>,
    }

    #[derive(Clone, Copy, Default)]
    struct Publisher {
        chosen: Option<Timestamp>,
        put: Option<Timestamp>,
        agreed: Option<Timestamp>,
    }

    /// The store and all its users.
    #[derive(Default)]
    struct Model {
        listed: BTreeMap<MemberId, Heartbeat>,
        frontier: Option<Timestamp>,
        limit: Option<Timestamp>,
        writers: [Writer; 3],
        publishers: [Publisher; 2],
    }

    impl Model {
        /// Takes a step if it is possible now. Returns the time of an event that was admitted at or below the limit, if
        /// any.
        fn step(&mut self, step: Step) -> Option<Timestamp> {
            let of = |writer: usize| id(u8::try_from(writer).expect("small"));
            match step {
                Step::List(writer) => {
                    self.listed.entry(of(writer)).or_insert_with(|| beat([i64::MIN]));
                }
                Step::ReadFrontier(writer) if self.listed.contains_key(&of(writer)) => {
                    let read = self.frontier.unwrap_or(Timestamp::MIN);
                    self.writers[writer].read.get_or_insert(read);
                }
                Step::Start(writer) => {
                    let start = self.writers[writer].read;
                    let closed = &mut self.writers[writer].closed;
                    *closed = closed.or(start);
                }
                Step::Close(writer, to) => {
                    self.writers[writer].closed = self.writers[writer].closed.map(|closed| closed.max(at(to)));
                }
                Step::Tell(writer) => {
                    if let (Some(beat), Some(closed)) = (self.listed.get_mut(&of(writer)), self.writers[writer].closed)
                    {
                        beat.closed.insert(DATASET, closed);
                    }
                }
                Step::Admit(writer, time) => {
                    let admits = self.writers[writer].closed.is_some_and(|closed| at(time) > closed);
                    return self.limit.filter(|limit| admits && at(time) <= *limit);
                }
                Step::First(publisher, at_most) => {
                    let members = self.listed.iter().map(|(id, beat)| (*id, beat));
                    let limit = self.limit.unwrap_or(Timestamp::MIN);
                    let chosen = propose_frontier(DATASET, members, &MembershipView::default(), at(at_most), limit);
                    self.publishers[publisher] = Publisher { chosen, ..Publisher::default() };
                }
                Step::PutFrontier(publisher) => {
                    self.publishers[publisher].put = self.publishers[publisher].chosen;
                    self.frontier = self.frontier.max(self.publishers[publisher].put);
                }
                Step::Second(publisher) => {
                    let put = self.publishers[publisher].put?;
                    let members = self.listed.iter().map(|(id, beat)| (*id, beat));
                    self.publishers[publisher].agreed =
                        match confirm_frontier(DATASET, members, &MembershipView::default(), put) {
                            RoundDecision::Publish(limit) => Some(limit),
                            RoundDecision::Again => None,
                        };
                }
                Step::PutLimit(publisher) => self.limit = self.limit.max(self.publishers[publisher].agreed),
                Step::ReadFrontier(_) => {}
            }
            None
        }
    }

    fn step() -> impl Strategy<Value = Step> {
        let time = 0_i64..40_000;
        prop_oneof![
            (0..3_usize).prop_map(Step::List),
            (0..3_usize).prop_map(Step::ReadFrontier),
            (0..3_usize).prop_map(Step::Start),
            (0..3_usize, time.clone()).prop_map(|(writer, to)| Step::Close(writer, to)),
            (0..3_usize).prop_map(Step::Tell),
            (0..3_usize, time.clone()).prop_map(|(writer, time)| Step::Admit(writer, time)),
            (0..2_usize, time).prop_map(|(publisher, at_most)| Step::First(publisher, at_most)),
            (0..2_usize).prop_map(Step::PutFrontier),
            (0..2_usize).prop_map(Step::Second),
            (0..2_usize).prop_map(Step::PutLimit),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn nobody_admits_at_or_below_a_limit_however_joins_and_rounds_interleave(steps in vec(step(), 1..80)) {
            let mut model = Model::default();
            for step in steps {
                prop_assert_eq!(model.step(step), None, "admitted at or below the limit by {:?}", step);
            }
        }
    }
}
