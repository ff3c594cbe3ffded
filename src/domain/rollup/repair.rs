//! Repairs: the correction of a checkpoint when the rows of a time bucket differ from the folded rows.
//!
//! A row may reach the log after its bucket was folded, when its writer gave the write up with an unknown outcome. The
//! server that finds the row has its bucket compared with the record of the folded rows. A repair replaces the bucket's
//! part of the value. Where the newest clear lies in the bucket, the repair sums the value again from that clear on. A
//! repair does not reconsider silences that restarted a count. It does not change series that were already served.

use std::time::Duration;

use crate::counter::{Change, Event, EventKey};
use crate::rollup::checkpoint::{BucketRecord, Checkpoint};
use crate::rollup::fold::take_total;
use crate::rollup::slice_rules::FoldRules;
use crate::time::Timestamp;

/// The base of a repaired counter: one cell, changed only by compare-and-set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifiedBase {
    /// The value with all repairs so far; `repairs` is their number.
    pub checkpoint: Checkpoint,
    /// The records of finished buckets that repairs have changed, by start time. They replace the records written by
    /// rolls.
    pub repaired: Vec<BucketRecord>,
    /// Every time bucket that ends at or before this time was read again from all replicas and compared.
    /// `Timestamp::MIN` if that did not happen, or happened with some replicas only.
    pub verified_to: Timestamp,
}

/// A bucket of a counter as folded and as present in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketComparison {
    pub width: Duration,
    /// The folded rows; a missing record counts as an empty one.
    pub recorded: BucketRecord,
    /// The rows of the log up to the checkpoint.
    pub found: BucketRecord,
    /// The checkpoint, updated with the totals of the bucket and its newest mutation.
    merged: Checkpoint,
    /// The sum of the adds above the newest clear of the bucket, or of all adds.
    sum_above_clear: i128,
}

/// The way to obtain a repaired value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RepairAction {
    /// Nothing differs; no repair is needed.
    None,
    Exchanged(Checkpoint),
    /// The newest clear lies in the bucket. The checkpoint's count is the bucket's part above the clear; the caller
    /// adds the recorded sums of all later buckets up to the checkpoint's `as_of`. It must not use the log's rows of
    /// those buckets: they may have late rows of their own, which separate repairs add.
    AddLater(Checkpoint),
}

impl BucketComparison {
    /// Compares a bucket: its record, if there is one, with its events up to the checkpoint's `as_of`, sorted by key.
    pub fn new(
        checkpoint: &Checkpoint,
        (start, rules): (Timestamp, &FoldRules),
        recorded: Option<BucketRecord>,
        events: &[Event],
    ) -> Self {
        let width = rules.at(start).bucket;
        let mut found = BucketRecord::empty(start);
        let mut merged = checkpoint.clone();
        for event in events.iter().filter(|event| event.key.time <= checkpoint.as_of) {
            found.take(event);
            if let Change::Total(total) = event.change {
                take_total(&mut merged, event, total, rules.on_new_epoch());
            }
            if event.change.is_mutation() {
                merged.last_event_time = merged.last_event_time.max(Some(event.key.time));
            }
        }
        let recorded = recorded.unwrap_or_else(|| BucketRecord::empty(start));
        let newest = found.clear.clone().max(checkpoint.clear.clone());
        let sum_above_clear = sum_above(newest.as_ref(), events, checkpoint.as_of);
        Self { width, recorded, found, merged, sum_above_clear }
    }

    /// Returns how many more rows the log holds than were folded; at least one if anything differs.
    pub fn rows_late(&self) -> u64 {
        self.found.rows.saturating_sub(self.recorded.rows).max(1)
    }

    /// Returns the repair for a checkpoint, which must be the one that was compared.
    pub fn remedy(&self, checkpoint: &Checkpoint) -> RepairAction {
        if self.recorded == self.found {
            let differs = self.merged.sources != checkpoint.sources;
            return if differs { RepairAction::Exchanged(self.numbered(checkpoint)) } else { RepairAction::None };
        }
        let mut next = self.numbered(checkpoint);
        next.clear = checkpoint.clear.clone().max(self.found.clear.clone());
        if !self.is_finished(checkpoint) {
            next.open_bucket = Some(self.found.clone());
        }
        let (start, end) = (self.found.start, self.found.start + self.width);
        match next.clear.clone() {
            // A later clear removed all rows of the bucket.
            Some(clear) if clear.time >= end => RepairAction::Exchanged(next),
            Some(clear) if clear.time >= start => {
                next.count = self.sum_above_clear;
                RepairAction::AddLater(next)
            }
            Some(_) | None => {
                next.count += self.found.sum - self.recorded.sum;
                RepairAction::Exchanged(next)
            }
        }
    }

    /// Returns whether the checkpoint no longer carries the bucket, so that its record is stored separately.
    pub fn is_finished(&self, checkpoint: &Checkpoint) -> bool {
        self.found.start + self.width <= checkpoint.as_of.just_after()
    }

    fn numbered(&self, checkpoint: &Checkpoint) -> Checkpoint {
        Checkpoint { repairs: checkpoint.repairs + 1, ..self.merged.clone() }
    }
}

/// The sum of adds above a clear, up to a time.
fn sum_above(clear: Option<&EventKey>, events: &[Event], to: Timestamp) -> i128 {
    let counted = events.iter().filter(|event| Some(&event.key) > clear && event.key.time <= to);
    let delta = |event: &Event| match event.change {
        Change::Add(delta) => i128::from(delta),
        Change::Clear | Change::Void | Change::Total(_) => 0,
    };
    counted.map(delta).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::counter::{EventId, Provenance};
    use crate::rollup::fold::{FoldResult, fold};
    use crate::rollup::slice_rules::FoldRules;

    const WIDTH: Duration = Duration::from_secs(10);

    fn rules() -> FoldRules {
        FoldRules::constant(WIDTH, None, Vec::new())
    }

    /// Events at distinct seconds, so that their keys differ.
    fn events(kinds: &[(i64, Option<i64>, bool)]) -> Vec<(Event, bool)> {
        let mut by_time = BTreeMap::new();
        for (second, delta, late) in kinds {
            let key = EventKey { time: Timestamp::from_secs(*second), id: EventId::text("e") };
            let change = delta.map_or(Change::Clear, Change::Add);
            by_time.insert(*second, (Event { key, change, provenance: Provenance::default() }, *late));
        }
        by_time.into_values().collect()
    }

    fn rolled(events: &[Event], to: i64) -> FoldResult {
        fold(Checkpoint::empty(Timestamp::MIN), events, Timestamp::from_secs(to), &rules())
    }

    type Records = BTreeMap<Timestamp, BucketRecord>;

    /// Rolls up the rows of one moment and then compares every bucket with those of a later one. Returns the last
    /// checkpoint, the records of finished buckets, and the number of repairs.
    fn compared(in_time: &[Event], log: &[Event], to: i64, backwards: bool) -> (Checkpoint, Records, u64) {
        let FoldResult { mut checkpoint, finished_buckets, .. } = rolled(in_time, to);
        let mut records: Records = finished_buckets.into_iter().map(|bucket| (bucket.start, bucket)).collect();
        let mut buckets: Vec<Timestamp> = (0..10).map(|n| Timestamp::from_secs(n * 10)).collect();
        if backwards {
            buckets.reverse();
        }
        let mut repairs = 0;
        for start in buckets {
            let open = checkpoint.open_bucket.clone().filter(|open| open.start == start);
            let recorded = open.or_else(|| records.get(&start).cloned());
            let inside = |event: &&Event| event.key.time >= start && event.key.time < start + WIDTH;
            let held: Vec<Event> = log.iter().filter(inside).cloned().collect();
            let compared = BucketComparison::new(&checkpoint, (start, &rules()), recorded, &held);
            let next = match compared.remedy(&checkpoint) {
                RepairAction::None => continue,
                RepairAction::Exchanged(next) => next,
                RepairAction::AddLater(mut next) => {
                    let open = next.open_bucket.iter().filter(|open| open.start > start);
                    let later = records.range(start + WIDTH..).map(|(_, record)| record).chain(open);
                    next.count += later.map(|record| record.sum).sum::<i128>();
                    next
                }
            };
            if compared.is_finished(&checkpoint) {
                records.insert(start, compared.found.clone());
            }
            repairs += 1;
            checkpoint = next;
            let again = BucketComparison::new(&checkpoint, (start, &rules()), Some(compared.found), &held);
            assert_eq!(again.remedy(&checkpoint), RepairAction::None, "a bucket is repaired once");
        }
        (checkpoint, records, repairs)
    }

    proptest! {
        /// The law: once each bucket with late rows is repaired, in any order, value and records equal those of a fold
        /// over all rows.
        #[test]
        fn repairs_of_all_buckets_come_to_the_fold_of_all_rows(
            kinds in vec((0_i64..80, prop::option::weighted(0.8, -50_i64..50), any::<bool>()), 0..40),
            to in 60_i64..95,
            backwards in any::<bool>(),
        ) {
            let all: Vec<(Event, bool)> =
                events(&kinds).into_iter().filter(|(event, _)| event.key.time <= Timestamp::from_secs(to)).collect();
            let whole: Vec<Event> = all.iter().map(|(event, _)| event.clone()).collect();
            let in_time: Vec<Event> = all.iter().filter(|(_, late)| !late).map(|(event, _)| event.clone()).collect();
            let (checkpoint, records, repairs) = compared(&in_time, &whole, to, backwards);
            prop_assert_eq!(checkpoint.repairs, repairs);
            let FoldResult { checkpoint: exact, finished_buckets, .. } = rolled(&whole, to);
            prop_assert_eq!(Checkpoint { repairs: 0, ..checkpoint }, exact);
            prop_assert_eq!(records.into_values().collect::<Vec<_>>(), finished_buckets);
        }

        /// The law: an add that was folded and lost to a tombstone counts no more once its bucket is compared. A clear
        /// that goes away was never folded (`settled_clears`). The time of the last mutation may stay that of the lost
        /// add.
        #[test]
        fn adds_that_go_away_count_no_more_once_their_buckets_are_compared(
            kinds in vec((0_i64..80, prop::option::weighted(0.8, -50_i64..50), any::<bool>()), 0..40),
            to in 60_i64..95,
            backwards in any::<bool>(),
        ) {
            let rows: Vec<(Event, bool)> =
                events(&kinds).into_iter().filter(|(event, _)| event.key.time <= Timestamp::from_secs(to)).collect();
            let of = |is_seen: &dyn Fn(&Event, bool) -> bool| -> Vec<Event> {
                rows.iter().filter(|(event, goes)| is_seen(event, *goes)).map(|(event, _)| event.clone()).collect()
            };
            let in_time = of(&|event, goes| !goes || event.change != Change::Clear);
            let stays = of(&|_, goes| !goes);
            let (checkpoint, records, _) = compared(&in_time, &stays, to, backwards);
            let FoldResult { checkpoint: exact, finished_buckets, .. } = rolled(&stays, to);
            prop_assert_eq!((checkpoint.count, checkpoint.clear), (exact.count, exact.clear));
            prop_assert!(checkpoint.last_event_time >= exact.last_event_time);
            let with_rows = |records: Vec<BucketRecord>| -> Records {
                records.into_iter().filter(|record| record.rows > 0).map(|record| (record.start, record)).collect()
            };
            let found = with_rows(records.into_values().chain(checkpoint.open_bucket).collect());
            let expected = with_rows(finished_buckets.into_iter().chain(exact.open_bucket).collect());
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_late_total_is_merged_and_found_again_it_changes_nothing() {
        let key =
            |epoch, serial| EventKey { time: Timestamp::from_secs(3), id: EventId::total("web-1", epoch, serial) };
        let event = |serial, total| {
            let (key, change) = (key(1, serial), Change::Total(total));
            Event { key, change, provenance: Provenance::default() }
        };
        let base = rolled(&[event(1, 10)], 20).checkpoint;
        let events = [event(1, 10), event(2, 25)];
        let compared = BucketComparison::new(&base, (Timestamp::from_secs(0), &rules()), None, &events);
        let RepairAction::Exchanged(next) = compared.remedy(&base) else { panic!("the newer total was not folded") };
        assert_eq!((next.count, next.repairs), (25, 1));
        let again = BucketComparison::new(&next, (Timestamp::from_secs(0), &rules()), None, &events);
        assert_eq!(again.remedy(&next), RepairAction::None);
    }
}
