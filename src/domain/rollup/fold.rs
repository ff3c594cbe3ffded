//! The fold: a pure function of a set of events.
//!
//! The value is the sum of the deltas above the newest clear. Silence longer than the TTL restarts it, and tombstones
//! count nothing. Any order of arrival, any duplicates, any split into rolls and any older base give the same
//! checkpoint, the same bucket records and the same series rows. The published systems sum inside an immutable window
//! in the same way (Netflix, Distributed Counter Abstraction, 2024); clears, TTL and series are ours.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::counter::{Change, Event, EventKey};
use crate::namespace::OnNewEpoch;
use crate::rollup::checkpoint::{
    BucketRecord, Checkpoint, CountAt, SourceTotal, SourceTotals, StepSum, is_ttl_expired,
};
use crate::rollup::slice_rules::FoldRules;
use crate::time::Timestamp;

/// The writes of a roll: finished records first, then the checkpoint that no longer contains them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoldResult {
    pub checkpoint: Checkpoint,
    /// Finished time buckets, oldest first.
    pub finished_buckets: Vec<BucketRecord>,
    /// Finished series steps, oldest first for each resolution.
    pub finished_steps: Vec<StepSum>,
}

/// Folds events onto a checkpoint. Cost: O(events), plus O(resolutions) for each step that ends.
///
/// `events` must be sorted by key and lie in (`base.as_of`, `to`]; repeated keys are folded once. `to` must be a whole
/// millisecond at or above `base.as_of`.
pub fn fold(base: Checkpoint, events: &[Event], to: Timestamp, rules: &FoldRules) -> FoldResult {
    let mut folder = EventFolder::new(base, rules);
    for event in events {
        folder.take(event);
    }
    folder.finish(to)
}

/// The fold in pieces, for events that come in pages.
pub struct EventFolder<'a> {
    rolled: FoldResult,
    rules: &'a FoldRules,
    previous: Option<EventKey>,
}

impl FoldResult {
    /// A checkpoint without finished records.
    pub fn of(checkpoint: Checkpoint) -> Self {
        Self { checkpoint, finished_buckets: Vec::new(), finished_steps: Vec::new() }
    }
}

impl<'a> EventFolder<'a> {
    /// Begins on a checkpoint.
    pub fn new(base: Checkpoint, rules: &'a FoldRules) -> Self {
        Self { rolled: FoldResult::of(base), rules, previous: None }
    }

    /// Folds the next event, in the order of keys; a repeated key is folded once.
    pub fn take(&mut self, event: &Event) {
        debug_assert!(event.key.time > self.rolled.checkpoint.as_of, "only events above the checkpoint are folded");
        match &self.previous {
            Some(previous) if *previous == event.key => return,
            Some(previous) => debug_assert!(*previous < event.key, "events are folded in the order of their keys"),
            None => {}
        }
        self.apply(event);
        self.previous = Some(event.key.clone());
    }

    /// Moves the checkpoint to `to` and finishes the buckets and steps that end by then.
    pub fn finish(mut self, to: Timestamp) -> FoldResult {
        debug_assert!(to >= self.rolled.checkpoint.as_of, "a fold never goes back");
        debug_assert!(self.previous.as_ref().is_none_or(|last| last.time <= to), "no event lies beyond the window");
        self.close(to);
        self.rolled
    }

    fn apply(&mut self, event: &Event) {
        let time = event.key.time;
        match event.change {
            Change::Add(_) | Change::Clear => self.record_row(event),
            // A tombstone may come long after its bucket was recorded, and a total folded twice changes nothing.
            Change::Void | Change::Total(_) => {}
        }
        if !event.change.is_mutation() {
            return;
        }
        self.finish_steps_before(time);
        let ttl = self.rules.at(time).ttl;
        let checkpoint = &mut self.rolled.checkpoint;
        let (before, count_before) = (checkpoint.newest(), checkpoint.count);
        if is_ttl_expired(checkpoint.last_event_time, time, ttl) {
            checkpoint.count = 0;
        }
        checkpoint.last_event_time = Some(time);
        let added = match event.change {
            Change::Add(delta) => {
                checkpoint.count += i128::from(delta);
                i128::from(delta)
            }
            Change::Clear => {
                checkpoint.count = 0;
                checkpoint.clear = Some(event.key.clone());
                0
            }
            Change::Total(total) => {
                take_total(checkpoint, event, total, self.rules.on_new_epoch());
                checkpoint.count - count_before
            }
            Change::Void => unreachable!("a void is no mutation"),
        };
        self.add_to_steps(time, added, before);
    }

    /// Counts the row in its time bucket. An earlier bucket is finished first.
    fn record_row(&mut self, event: &Event) {
        let start = event.key.time.floor_to(self.rules.at(event.key.time).bucket);
        let open = &mut self.rolled.checkpoint.open_bucket;
        if open.as_ref().is_some_and(|bucket| bucket.start != start) {
            self.rolled.finished_buckets.extend(open.take());
        }
        open.get_or_insert_with(|| BucketRecord::empty(start)).take(event);
    }

    fn finish_steps_before(&mut self, time: Timestamp) {
        let finished = &mut self.rolled.finished_steps;
        self.rolled.checkpoint.open_steps.retain(|step| {
            if step.end() > time {
                return true;
            }
            finished.push(step.clone());
            false
        });
    }

    fn add_to_steps(&mut self, time: Timestamp, added: i128, before: Option<CountAt>) {
        let checkpoint = &mut self.rolled.checkpoint;
        for &step_seconds in self.rules.steps() {
            let start = time.floor_to(Duration::from_secs(u64::from(step_seconds)));
            let at = checkpoint.open_steps.iter().position(|step| step.step_seconds == step_seconds);
            let step = match at {
                Some(at) => &mut checkpoint.open_steps[at],
                None => {
                    checkpoint.open_steps.push(StepSum {
                        step_seconds,
                        start,
                        sum: 0,
                        value: 0,
                        last_event_time: time,
                        before,
                    });
                    checkpoint.open_steps.last_mut().expect("a step was just pushed")
                }
            };
            debug_assert_eq!(step.start, start, "a step that is over was finished before");
            step.sum += added;
            step.value = checkpoint.count;
            step.last_event_time = time;
        }
    }

    /// Moves `as_of` and finishes the buckets and steps that end by then.
    fn close(&mut self, to: Timestamp) {
        let over = to.just_after();
        let rules = self.rules;
        let checkpoint = &mut self.rolled.checkpoint;
        let bucket_is_over =
            checkpoint.open_bucket.as_ref().is_some_and(|bucket| bucket.start + rules.at(bucket.start).bucket <= over);
        if bucket_is_over {
            self.rolled.finished_buckets.extend(checkpoint.open_bucket.take());
        }
        checkpoint.as_of = to;
        checkpoint.open_steps.retain(|step| rules.steps().contains(&step.step_seconds));
        self.finish_steps_before(over);
    }
}

/// Accepts a reported total. At most 256 sources are admitted where they are known; the fold never drops one.
pub(super) fn take_total(checkpoint: &mut Checkpoint, event: &Event, total: i64, on_new_epoch: OnNewEpoch) {
    let Some((source, epoch, serial)) = event.key.id.as_total() else { return };
    let reported = SourceTotal { epoch, serial, total, time: event.key.time };
    match checkpoint.sources.get_mut(source) {
        Some(known) => known.take(reported, on_new_epoch),
        None => {
            checkpoint.sources.insert(source.into(), SourceTotals::new(reported));
        }
    }
    checkpoint.count = checkpoint.sources.values().map(SourceTotals::sum).sum();
}

impl BucketRecord {
    /// The record of a bucket in which nothing was folded.
    pub fn empty(start: Timestamp) -> Self {
        Self { start, rows: 0, sum: 0, clear: None, digest: 0 }
    }

    /// Counts a row of the bucket, in any order. Tombstones and totals are not recorded: folding them twice changes
    /// nothing.
    pub fn take(&mut self, event: &Event) {
        match event.change {
            Change::Add(delta) => self.sum += i128::from(delta),
            Change::Clear => self.clear = self.clear.take().max(Some(event.key.clone())),
            Change::Void | Change::Total(_) => return,
        }
        self.rows += 1;
        self.digest ^= row_digest(event);
    }
}

/// The xxh3 of a row: time, id, kind, delta. The xor over a bucket names its set of rows.
pub fn row_digest(event: &Event) -> u64 {
    let mut bytes = Vec::with_capacity(40);
    bytes.extend_from_slice(&event.key.time.micros().to_be_bytes());
    event.key.id.write_to(&mut bytes);
    bytes.extend_from_slice(&event.change.code().to_be_bytes());
    bytes.extend_from_slice(&event.change.delta().to_be_bytes());
    xxh3_64(&bytes)
}

/// The mutations of a counter above some time, summed: what a read adds to a checkpoint without a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TailSum {
    /// The number of mutations.
    pub mutations: u64,
    /// The sum of the adds above the newest clear of the tail, or of all adds if it has none.
    pub sum: i128,
    /// The newest clear of the tail.
    pub clear: Option<EventKey>,
    /// The time of the first mutation.
    pub first: Timestamp,
    /// The time of the last mutation.
    pub last: Timestamp,
}

/// The newest events of a counter, as the log knows them without a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TailLookup {
    /// Unknown; a scan is needed.
    Unknown,
    /// No mutation lies above the given time.
    Empty,
    /// The sum of all mutations above the given time.
    Sum(TailSum),
}

impl TailSum {
    /// Whether the sum suffices under this TTL: inside a tail shorter than the TTL no silence can restart the count.
    pub fn holds_under(&self, ttl: Option<Duration>) -> bool {
        ttl.is_none_or(|ttl| self.last.since(self.first) <= ttl)
    }

    /// The count after the tail, from the count before it and the time of the mutation before it. The caller has
    /// checked `holds_under`.
    pub fn value_after(&self, count: i128, last_event_time: Option<Timestamp>, ttl: Option<Duration>) -> i128 {
        debug_assert!(self.holds_under(ttl), "a silence inside the tail needs its events");
        let restarted = self.clear.is_some() || is_ttl_expired(last_event_time, self.first, ttl);
        if restarted { self.sum } else { count + self.sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::{EventId, Provenance};

    fn event(micros: i64, id: &str, change: Change) -> Event {
        let key = EventKey { time: Timestamp::from_micros(micros), id: EventId::text(id) };
        Event { key, change, provenance: Provenance::default() }
    }

    fn rules() -> FoldRules {
        FoldRules::constant(Duration::from_secs(10), None, vec![10])
    }

    fn roll(events: &[Event], to_millis: i64) -> FoldResult {
        fold(Checkpoint::empty(Timestamp::MIN), events, Timestamp::from_millis(to_millis), &rules())
    }

    #[test]
    fn a_clear_wipes_what_is_at_or_before_it_in_the_order_of_keys() {
        let events =
            [event(1_000, "a", Change::Add(5)), event(2_000, "b", Change::Clear), event(2_000, "c", Change::Add(7))];
        assert_eq!(roll(&events, 10).checkpoint.count, 7, "(time, id) above the clear counts");
        let tie = [event(2_000, "a", Change::Add(7)), event(2_000, "b", Change::Clear)];
        assert_eq!(roll(&tie, 10).checkpoint.count, 0, "(time, id) below the clear does not");
    }

    #[test]
    fn a_void_leaves_no_trace() {
        let rolled = roll(&[event(1_000, "a", Change::Void)], 10);
        assert_eq!(rolled.checkpoint.count, 0);
        assert_eq!(rolled.checkpoint.last_event_time, None);
        assert_eq!(rolled.checkpoint.open_bucket, None);
    }

    #[test]
    fn the_sum_is_kept_beyond_64_bits() {
        let events =
            [event(1, "a", Change::Add(i64::MAX)), event(2, "b", Change::Add(i64::MAX)), event(3, "c", Change::Add(1))];
        assert_eq!(roll(&events, 10).checkpoint.count, 2 * i128::from(i64::MAX) + 1);
    }

    #[test]
    fn a_bucket_is_finished_with_its_last_microsecond() {
        let events = [event(1_000, "a", Change::Add(5))];
        assert!(roll(&events, 9_999).finished_buckets.is_empty());
        let rolled = roll(&events, 10_000);
        assert_eq!(rolled.finished_buckets.len(), 1);
        assert_eq!(rolled.checkpoint.open_bucket, None);
        assert_eq!(rolled.finished_steps.len(), 1);
        assert_eq!(rolled.finished_steps[0].value, 5);
    }
}
