//! Time slices and the rules that each slice freezes.
//!
//! A dataset's slices are adjacent, without gaps, and have one width, aligned to multiples of it since 1970. The
//! exception is a long period without writes, which one longer slice covers. So the slice of an event is a function of
//! its time and of immutable rows. A slice's row freezes the version of every namespace that was known when the row was
//! created. A namespace that is missing in it uses its first version there. No server writes into a slice before its
//! row exists.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::counter::{DatasetId, NamespaceId};
use crate::namespace::OnNewEpoch;
use crate::rollup::checkpoint::is_ttl_expired;
use crate::time::Timestamp;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SliceStatus {
    /// Created ahead of its time.
    Future,
    /// Accepts events.
    Open,
    /// Accepts no events; still readable.
    Closed,
    /// Its events are deleted. The slice reads as empty, which is safe because only rolled-up events are ever dropped.
    Dropped,
}

/// One time slice of a dataset: start inclusive, end exclusive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimeSlice {
    pub dataset: DatasetId,
    /// The first microsecond of the slice.
    pub start: Timestamp,
    /// The first microsecond after the slice.
    pub end: Timestamp,
    pub status: SliceStatus,
    /// The frozen version of every namespace that was known at the slice's creation.
    pub versions: BTreeMap<NamespaceId, u64>,
}

/// The frozen rules of one slice for one namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SliceRule {
    /// The first microsecond of the slice.
    pub start: Timestamp,
    /// The first microsecond after the slice.
    pub end: Timestamp,
    /// The width of a time bucket.
    pub bucket: Duration,
    /// A silence longer than this restarts the count; `None`: no silence does.
    pub ttl: Option<Duration>,
}

/// The rules of one namespace over a range of slices without gaps, and the series steps it keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoldRules {
    slices: Vec<SliceRule>,
    steps: Vec<u32>,
    on_new_epoch: OnNewEpoch,
}

impl FoldRules {
    /// Makes rules from slices in time order.
    ///
    /// # Panics
    /// Panics on an empty list and on a gap: a roll over unknown slices would lose events.
    pub fn new(slices: Vec<SliceRule>, steps: Vec<u32>) -> Self {
        assert!(!slices.is_empty(), "a fold needs at least one slice rule");
        assert!(slices.windows(2).all(|pair| pair[0].end == pair[1].start), "slice rules must touch without gaps");
        Self { slices, steps, on_new_epoch: OnNewEpoch::default() }
    }

    /// The same rules for the totals of a namespace with this setting, which never changes.
    pub fn with_epochs(self, on_new_epoch: OnNewEpoch) -> Self {
        Self { on_new_epoch, ..self }
    }

    /// Makes one rule for all times; for tests and for tails that are read, not rolled.
    pub fn constant(bucket: Duration, ttl: Option<Duration>, steps: Vec<u32>) -> Self {
        Self::new(vec![SliceRule { start: Timestamp::MIN, end: Timestamp::MAX, bucket, ttl }], steps)
    }

    /// Returns the rule at a time; before the first and after the last slice, that of the nearest slice.
    pub fn at(&self, time: Timestamp) -> &SliceRule {
        &self.slices[self.place_of(time)]
    }

    /// Returns whether one TTL holds from `first` to `last`, in every slice between them. Cost: O(slices between them).
    pub fn one_ttl_holds(&self, first: Timestamp, last: Timestamp) -> bool {
        let slices = &self.slices[self.place_of(first)..=self.place_of(last.max(first))];
        slices.windows(2).all(|pair| pair[0].ttl == pair[1].ttl)
    }

    /// Returns the first time after `seen` at which the value of a counter with last mutation `last` changes through
    /// silence. The counter begins to read 0, or shows its count again where a slice with a longer TTL begins. `None`
    /// if no such time lies within these slices. Cost: O(slices after `seen`).
    pub fn silence_changes_after(&self, last: Timestamp, seen: Timestamp) -> Option<Timestamp> {
        let silent_at = |time: Timestamp| is_ttl_expired(Some(last), time, self.at(time).ttl);
        let was_silent = silent_at(seen);
        let turning_points = self.slices[self.place_of(seen)..].iter().flat_map(|slice| {
            let falls_silent = slice.ttl.map(|ttl| (last + ttl).just_after()).filter(|time| *time < slice.end);
            [Some(slice.start), falls_silent.filter(|time| *time > slice.start)].into_iter().flatten()
        });
        turning_points.filter(|time| *time > seen).find(|time| silent_at(*time) != was_silent)
    }

    fn place_of(&self, time: Timestamp) -> usize {
        self.slices.partition_point(|slice| slice.start <= time).saturating_sub(1)
    }

    /// Returns what a new epoch of a source does to its count.
    pub fn on_new_epoch(&self) -> OnNewEpoch {
        self.on_new_epoch
    }

    /// Returns the steps of the kept series, in seconds.
    pub fn steps(&self) -> &[u32] {
        &self.steps
    }
}

/// Returns the start of the slice that contains a time.
pub fn slice_start(time: Timestamp, slice_width: Duration) -> Timestamp {
    time.floor_to(slice_width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_holds_from_its_start_to_its_end() {
        let rule = |start: i64, end: i64, bucket: u64| SliceRule {
            start: Timestamp::from_secs(start),
            end: Timestamp::from_secs(end),
            bucket: Duration::from_secs(bucket),
            ttl: None,
        };
        let rules = FoldRules::new(vec![rule(0, 100, 10), rule(100, 200, 20)], Vec::new());
        assert_eq!(rules.at(Timestamp::from_secs(100).just_before()).bucket, Duration::from_secs(10));
        assert_eq!(rules.at(Timestamp::from_secs(100)).bucket, Duration::from_secs(20));
        assert_eq!(rules.at(Timestamp::from_secs(999)).bucket, Duration::from_secs(20));
        assert_eq!(rules.at(Timestamp::from_secs(-9)).bucket, Duration::from_secs(10));
    }

    #[test]
    fn a_ttl_that_holds_at_both_ends_need_not_hold_in_between() {
        let rule = |start: i64, ttl: Option<u64>| SliceRule {
            start: Timestamp::from_secs(start),
            end: Timestamp::from_secs(start + 100),
            bucket: Duration::from_secs(10),
            ttl: ttl.map(Duration::from_secs),
        };
        let rules = FoldRules::new(vec![rule(0, None), rule(100, Some(10)), rule(200, None), rule(300, None)], vec![]);
        let holds = |first, last| rules.one_ttl_holds(Timestamp::from_secs(first), Timestamp::from_secs(last));
        assert!(!holds(0, 299), "another TTL holds between the ends");
        assert!(!holds(50, 100) && !holds(199, 200));
        assert!(holds(0, 99) && holds(100, 199) && holds(200, 399));
        assert!(holds(-9, 0) && holds(350, 999), "beyond the ends the nearest slice has its say");
    }

    #[test]
    fn a_silence_begins_after_the_ttl_and_ends_where_a_longer_one_holds() {
        let rule = |start: i64, ttl: Option<u64>| SliceRule {
            start: Timestamp::from_secs(start),
            end: Timestamp::from_secs(start + 100),
            bucket: Duration::from_secs(10),
            ttl: ttl.map(Duration::from_secs),
        };
        let rules = FoldRules::new(vec![rule(0, Some(30)), rule(100, None), rule(200, Some(150))], vec![]);
        let next = |last, seen| rules.silence_changes_after(Timestamp::from_secs(last), Timestamp::from_secs(seen));
        let at = |seconds| Some(Timestamp::from_secs(seconds));
        let after = |seconds| Some(Timestamp::from_secs(seconds).just_after());
        assert_eq!(next(10, 10), after(40));
        assert_eq!(next(10, 40), after(40), "a silence of just the TTL is not longer");
        assert_eq!(next(10, 41), at(100), "no TTL holds there");
        assert_eq!(next(10, 100), at(200), "more than the longest has passed by then");
        assert_eq!(next(90, 90), after(240));
        assert_eq!(next(90, 250), None, "and it stays so");
        assert_eq!(next(190, 190), None, "beyond the known slices nothing is known");
    }

    #[test]
    #[should_panic(expected = "gaps")]
    fn a_gap_between_slices_is_refused() {
        let rule = |start: i64, end: i64| SliceRule {
            start: Timestamp::from_secs(start),
            end: Timestamp::from_secs(end),
            bucket: Duration::from_secs(10),
            ttl: None,
        };
        let _ = FoldRules::new(vec![rule(0, 100), rule(110, 200)], Vec::new());
    }
}
