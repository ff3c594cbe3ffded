//! Laws of the fold, tested against an oracle with a different design. It keeps no state and derives every answer from
//! the whole set of events.
//!
//! The generated events concentrate on critical cases: slices with different TTLs and bucket widths, ties in time, gaps
//! close to the TTL, first and last microseconds, both ends of 64 bits.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::checkpoint::{BucketRecord, Checkpoint, CountAt, SourceTotal, SourceTotals, StepSum};
use super::fold::{EventFolder, FoldResult, TailSum, fold, row_digest};
use super::slice_rules::{FoldRules, SliceRule};
use crate::counter::{Change, Event, EventId, EventKey, Provenance};
use crate::limits::SOURCE_EARLIER_EPOCHS_MAX;
use crate::namespace::OnNewEpoch;
use crate::time::Timestamp;

/// The minimum number of cases per law; `PROPTEST_CASES` may ask for more.
const CASES: u32 = 2_000;
const SLICE: Duration = Duration::from_secs(60);
const FIRST_SLICE_SECS: i64 = -60;
const SLICES: usize = 5;
/// The latest end of a roll: the end of the last slice.
const END_MILLIS: i64 = (FIRST_SLICE_SECS + 60 * SLICES as i64) * 1_000;

/// A counter's history: the rules and the set of its events.
#[derive(Clone, Debug)]
pub(super) struct History {
    pub(super) rules: FoldRules,
    pub(super) events: BTreeMap<EventKey, Event>,
}

/// One roll: the base is one of the earlier checkpoints, and the end lies at or above it.
#[derive(Clone, Debug)]
struct Roll {
    base: Index,
    to_millis: i64,
}

pub(super) fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: config.cases.max(CASES), ..config }
}

// ---- The oracle ----

impl History {
    pub(super) fn up_to(&self, to: Timestamp) -> impl DoubleEndedIterator<Item = &Event> {
        self.events.values().filter(move |event| event.key.time <= to)
    }

    pub(super) fn between(&self, after: Timestamp, to: Timestamp) -> Vec<Event> {
        self.up_to(to).filter(|event| event.key.time > after).cloned().collect()
    }

    /// The count of a delta counter after its last mutation up to `to`.
    pub(super) fn count(&self, to: Timestamp) -> i128 {
        let mutations: Vec<&Event> = self.up_to(to).filter(|event| event.change != Change::Void).collect();
        let mut restarts = (0..mutations.len()).rev().filter(|&at| {
            let silence = at > 0 && {
                let gap = mutations[at].key.time.micros() - mutations[at - 1].key.time.micros();
                self.ttl_micros(mutations[at].key.time).is_some_and(|ttl| gap > ttl)
            };
            silence || mutations[at].change == Change::Clear
        });
        let from = restarts.next().unwrap_or(0);
        mutations[from..].iter().map(|event| i128::from(event.change.delta())).sum()
    }

    /// The count as seen by a reader at `at`.
    pub(super) fn seen(&self, at: Timestamp) -> i128 {
        let last = self.last_mutation(at);
        match (last, self.ttl_micros(at)) {
            (Some(last), Some(ttl)) if at.micros() - last.micros() > ttl => 0,
            _ => self.count(at),
        }
    }

    fn ttl_micros(&self, time: Timestamp) -> Option<i64> {
        self.rules.at(time).ttl.map(|ttl| i64::try_from(ttl.as_micros()).expect("a short TTL"))
    }

    pub(super) fn last_mutation(&self, to: Timestamp) -> Option<Timestamp> {
        self.up_to(to).rfind(|event| event.change != Change::Void).map(|event| event.key.time)
    }

    pub(super) fn newest_clear(&self, to: Timestamp) -> Option<EventKey> {
        self.up_to(to).rfind(|event| event.change == Change::Clear).map(|event| event.key.clone())
    }

    /// All bucket records of the events up to `to`, with the first microsecond after each bucket.
    fn buckets(&self, to: Timestamp) -> Vec<(Timestamp, BucketRecord)> {
        let mut groups: BTreeMap<(i64, i64), Vec<&Event>> = BTreeMap::new();
        for event in self.up_to(to).filter(|event| event.change != Change::Void) {
            let width = i64::try_from(self.rules.at(event.key.time).bucket.as_micros()).expect("a short bucket");
            let start = event.key.time.micros().div_euclid(width) * width;
            groups.entry((start, start + width)).or_default().push(event);
        }
        let record = |((start, end), events): ((i64, i64), Vec<&Event>)| {
            let adds = events.iter().filter(|event| matches!(event.change, Change::Add(_)));
            let clears = events.iter().filter(|event| event.change == Change::Clear);
            let record = BucketRecord {
                start: Timestamp::from_micros(start),
                rows: events.len() as u64,
                sum: adds.map(|event| i128::from(event.change.delta())).sum(),
                clear: clears.map(|event| event.key.clone()).max(),
                digest: events.iter().fold(0, |digest, event| digest ^ row_digest(event)),
            };
            (Timestamp::from_micros(end), record)
        };
        groups.into_iter().map(record).collect()
    }

    /// The count after the last mutation up to `to`.
    fn newest(&self, to: Timestamp) -> Option<CountAt> {
        self.last_mutation(to).map(|time| CountAt { value: self.count(to), time })
    }

    /// All steps of the series with a mutation up to `to`, ended or not.
    fn steps(&self, to: Timestamp) -> Vec<StepSum> {
        let mut steps = Vec::new();
        for &step_seconds in self.rules.steps() {
            let width = i64::from(step_seconds) * 1_000_000;
            let start_of = |time: Timestamp| time.micros().div_euclid(width) * width;
            let mutations = || self.up_to(to).filter(|event| event.change != Change::Void);
            let mut starts: Vec<i64> = mutations().map(|event| start_of(event.key.time)).collect();
            starts.dedup();
            for start in starts {
                let inside = mutations().filter(|event| start_of(event.key.time) == start);
                let sum = inside.map(|event| i128::from(event.change.delta())).sum();
                let newest = self.newest(to.min(Timestamp::from_micros(start + width - 1)));
                let CountAt { value, time: last_event_time } = newest.expect("the step has a mutation");
                let start = Timestamp::from_micros(start);
                let before = self.newest(start.just_before());
                steps.push(StepSum { step_seconds, start, sum, value, last_event_time, before });
            }
        }
        steps
    }

    /// The expected output of a roll over (`after`, `to`].
    fn rolled(&self, after: Timestamp, to: Timestamp) -> FoldResult {
        let over_in = |end: Timestamp| after.just_after() < end && end <= to.just_after();
        let mut checkpoint = Checkpoint::empty(to);
        checkpoint.count = self.count(to);
        checkpoint.clear = self.newest_clear(to);
        checkpoint.last_event_time = self.last_mutation(to);
        let mut finished_buckets = Vec::new();
        for (end, record) in self.buckets(to) {
            if end > to.just_after() {
                checkpoint.open_bucket = Some(record);
            } else if over_in(end) {
                finished_buckets.push(record);
            }
        }
        let (open, ended): (Vec<_>, Vec<_>) = self.steps(to).into_iter().partition(|step| step.end() > to.just_after());
        checkpoint.open_steps = open;
        let finished_steps = ended.into_iter().filter(|step| over_in(step.end())).collect();
        FoldResult { checkpoint, finished_buckets, finished_steps }
    }
}

/// Sorts the steps; the fold guarantees their order only within a resolution.
fn sorted(mut rolled: FoldResult) -> FoldResult {
    rolled.checkpoint.open_steps.sort_by_key(|step| step.step_seconds);
    rolled.finished_steps.sort_by_key(|step| step.step_seconds);
    rolled
}

// ---- Generating histories ----

fn micros_near(secs: i64) -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => Just(0_i64),
        1 => Just(-1_i64),
        1 => Just(1_i64),
        1 => Just(1_000_i64),
        2 => -2_000_000_i64..2_000_000,
    ]
    .prop_map(move |off| secs * 1_000_000 + off)
}

/// Times inside the slices, most of them at or next to a multiple of 5 s.
fn time() -> impl Strategy<Value = Timestamp> {
    let first = FIRST_SLICE_SECS / 5;
    let last = END_MILLIS / 5_000;
    let inside = (FIRST_SLICE_SECS * 1_000_000, END_MILLIS * 1_000 - 1);
    (first..=last)
        .prop_flat_map(|fives| micros_near(fives * 5))
        .prop_map(move |micros| Timestamp::from_micros(micros.clamp(inside.0, inside.1)))
}

fn id() -> impl Strategy<Value = EventId> {
    prop_oneof![
        select(vec!["a", "b", "c", "d"]).prop_map(EventId::text),
        (0_u8..3).prop_map(|byte| EventId::Uuid([byte; 16])),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (-9_i64..=9).prop_map(Change::Add),
        1 => select(vec![i64::MIN, i64::MAX]).prop_map(Change::Add),
        2 => Just(Change::Clear),
        2 => Just(Change::Void),
    ]
}

fn rules() -> impl Strategy<Value = FoldRules> {
    let bucket = select(vec![10_u64, 20, 30, 60]).prop_map(Duration::from_secs);
    let ttl = prop_oneof![
        1 => Just(None),
        2 => select(vec![10_000_u64, 14_999, 15_000, 40_000]).prop_map(|millis| Some(Duration::from_millis(millis))),
    ];
    let steps = proptest::sample::subsequence(vec![10_u32, 30, 60, 120], 0..=4);
    (vec((bucket, ttl), SLICES), steps).prop_map(|(slices, steps)| {
        let slices = slices.into_iter().enumerate().map(|(at, (bucket, ttl))| {
            let start = Timestamp::from_secs(FIRST_SLICE_SECS) + SLICE * u32::try_from(at).expect("few slices");
            SliceRule { start, end: start + SLICE, bucket, ttl }
        });
        FoldRules::new(slices.collect(), steps)
    })
}

pub(super) fn history() -> impl Strategy<Value = History> {
    let keys = (time(), id()).prop_map(|(time, id)| EventKey { time, id });
    (rules(), btree_map(keys, change(), 0..40)).prop_map(|(rules, rows)| {
        let event =
            |(key, change): (EventKey, Change)| (key.clone(), Event { key, change, provenance: Provenance::default() });
        History { rules, events: rows.into_iter().map(event).collect() }
    })
}

/// Rolls that end next to bucket, step and slice ends.
fn rolls() -> impl Strategy<Value = Vec<Roll>> {
    let near = (FIRST_SLICE_SECS / 5..END_MILLIS / 5_000, select(vec![-1_i64, 0, 1, 2_500]));
    let to_millis = near.prop_map(|(fives, off)| (fives * 5_000 + off).min(END_MILLIS - 1));
    vec((any::<Index>(), to_millis).prop_map(|(base, to_millis)| Roll { base, to_millis }), 1..12)
}

// ---- Laws ----

/// The rules of exactly those slices that a roll reads, as the engine passes them.
fn rules_for(rules: &FoldRules, after: Timestamp, to: Timestamp) -> FoldRules {
    let mut slices: Vec<SliceRule> = Vec::new();
    let mut start = Timestamp::from_secs(FIRST_SLICE_SECS);
    while start <= to {
        let slice = *rules.at(start);
        if slice.end > after.just_after() {
            slices.push(slice);
        }
        start = slice.end;
    }
    if slices.is_empty() {
        slices.push(*rules.at(to));
    }
    FoldRules::new(slices, rules.steps().to_vec())
}

fn roll(history: &History, base: &Checkpoint, to: Timestamp) -> FoldResult {
    let events = history.between(base.as_of, to);
    fold(base.clone(), &events, to, &rules_for(&history.rules, base.as_of, to))
}

proptest! {
    #![proptest_config(config())]

    /// Covers splits, stale bases and racing rollers: from any base a roll writes the output of the oracle.
    #[test]
    fn every_roll_from_any_older_base_writes_what_the_events_say(history in history(), rolls in rolls()) {
        let mut made = vec![Checkpoint::empty(Timestamp::MIN)];
        let mut by_end: BTreeMap<Timestamp, Checkpoint> = BTreeMap::new();
        for roll_ in rolls {
            let base = roll_.base.get(&made).clone();
            let to = Timestamp::from_millis(roll_.to_millis).max(base.as_of);
            let rolled = roll(&history, &base, to);
            // Two rollers that end at the same time write identical checkpoints, whatever their bases.
            let known = by_end.entry(to).or_insert_with(|| rolled.checkpoint.clone());
            prop_assert_eq!(&rolled.checkpoint, &*known);
            made.push(rolled.checkpoint.clone());
            prop_assert_eq!(sorted(rolled), sorted(history.rolled(base.as_of, to)));
        }
    }

    /// The order of arrival, duplicates and paging do not change a roll.
    #[test]
    fn arrival_order_duplicates_and_pages_change_nothing(
        history in history(),
        extra in vec(any::<Index>(), 0..20),
        shuffle in any::<u64>(),
    ) {
        let to = Timestamp::from_millis(END_MILLIS - 1);
        let once = history.between(Timestamp::MIN, to);
        let mut arrived = once.clone();
        if !once.is_empty() {
            arrived.extend(extra.iter().map(|at| at.get(&once).clone()));
        }
        // In the log any order of arrival becomes the order of keys; equal keys keep the order of arrival.
        let mix = |event: &Event| row_digest(event) ^ shuffle.wrapping_mul(row_digest(event) | 1);
        arrived.sort_by_key(mix);
        arrived.sort_by(|a, b| a.key.cmp(&b.key));
        let base = Checkpoint::empty(Timestamp::MIN);
        let mut folder = EventFolder::new(base.clone(), &history.rules);
        for page in arrived.chunks(7) {
            page.iter().for_each(|event| folder.take(event));
        }
        prop_assert_eq!(folder.finish(to), fold(base, &once, to, &history.rules));
    }

    /// Rollers that read any checkpoint the store ever held and write in any order preserve every finished record.
    #[test]
    fn racing_rollers_leave_every_finished_record_in_a_monotone_store(history in history(), rolls in rolls()) {
        let mut held = vec![Checkpoint::empty(Timestamp::MIN)];
        let mut buckets: BTreeMap<Timestamp, BucketRecord> = BTreeMap::new();
        let mut steps: BTreeMap<(u32, Timestamp), StepSum> = BTreeMap::new();
        for roll_ in rolls {
            let base = roll_.base.get(&held).clone();
            let rolled = roll(&history, &base, Timestamp::from_millis(roll_.to_millis).max(base.as_of));
            let stored = held.last().expect("the store begins with a checkpoint").as_of;
            if rolled.checkpoint.as_of > stored {
                buckets.extend(rolled.finished_buckets.into_iter().map(|record| (record.start, record)));
                steps.extend(rolled.finished_steps.into_iter().map(|step| ((step.step_seconds, step.start), step)));
                held.push(rolled.checkpoint);
            }
            let as_of = held.last().expect("the store begins with a checkpoint").as_of;
            let whole = sorted(history.rolled(Timestamp::MIN, as_of));
            prop_assert_eq!(buckets.values().cloned().collect::<Vec<_>>(), whole.finished_buckets);
            prop_assert_eq!(steps.values().cloned().collect::<Vec<_>>(), whole.finished_steps);
        }
    }

    /// A roll may start at a watermark above its checkpoint when no event lies between.
    #[test]
    fn a_base_carried_over_a_silence_is_as_good(history in history(), from in time(), to in time()) {
        let (from, to) = (from.min(to), from.max(to));
        let millis = |time: Timestamp| Timestamp::from_millis(time.millis());
        let (from, to) = (millis(from), millis(to));
        let base = fold(Checkpoint::empty(Timestamp::MIN), &history.between(Timestamp::MIN, from), from, &history.rules);
        let next = history.events.values().map(|event| event.key.time).find(|time| *time > from);
        let watermark = millis(next.map_or(to, |next| next.just_before().min(to))).max(from);
        let later = history.between(watermark, to);
        prop_assert_eq!(history.between(from, to), later.clone());
        let rolled = fold(base.checkpoint.clone(), &later, to, &history.rules);
        prop_assert_eq!(rolled, roll(&history, &base.checkpoint, to));
    }

    /// A reader sees 0 once the counter has been silent for longer than the TTL, and the count until then.
    #[test]
    fn a_silent_counter_reads_zero(history in history(), at in time()) {
        let at = Timestamp::from_millis(at.millis());
        let rolled = roll(&history, &Checkpoint::empty(Timestamp::MIN), at);
        prop_assert_eq!(rolled.checkpoint.value_at(at, history.rules.at(at).ttl), history.seen(at));
    }

    /// If a tail's sum holds under the TTL, checkpoint plus sum equals the fold of the tail's events.
    #[test]
    fn a_tail_sum_that_holds_says_what_the_fold_of_its_events_says(
        history in history(),
        from in time(),
        to in time(),
        ttl in prop_oneof![Just(None), (1_u64..60).prop_map(|secs| Some(Duration::from_secs(secs)))],
    ) {
        let rules = FoldRules::constant(Duration::from_secs(10), ttl, Vec::new());
        let history = History { rules, ..history };
        let from = Timestamp::from_millis(from.min(to).millis());
        let to = Timestamp::from_millis(to.millis()).max(from);
        let base = roll(&history, &Checkpoint::empty(Timestamp::MIN), from).checkpoint;
        if let Some(tail) = tail_of(&history.between(from, to))
            && tail.holds_under(ttl)
        {
            prop_assert_eq!(tail.value_after(base.count, base.last_event_time, ttl), roll(&history, &base, to).checkpoint.count);
        }
    }

    /// Without a TTL the sum of a tail always holds.
    #[test]
    fn every_tail_sum_holds_without_a_ttl(history in history(), from in time()) {
        let tail = tail_of(&history.between(from, Timestamp::MAX));
        prop_assert!(tail.is_none_or(|tail| tail.holds_under(None)));
    }
}

/// The sum of a tail, computed from the definition.
pub(super) fn tail_of(events: &[Event]) -> Option<TailSum> {
    let mutations: Vec<&Event> = events.iter().filter(|event| event.change != Change::Void).collect();
    let clear = mutations.iter().filter(|event| event.change == Change::Clear).map(|event| event.key.clone()).max();
    let counting = mutations.iter().filter(|event| clear.as_ref().is_none_or(|clear| event.key > *clear));
    Some(TailSum {
        mutations: mutations.len() as u64,
        sum: counting.map(|event| i128::from(event.change.delta())).sum(),
        first: mutations.first()?.key.time,
        last: mutations.last()?.key.time,
        clear,
    })
}

// ---- Cumulative counters ----

/// Reports of a cumulative counter: sources restart, repeat, go backwards and report wrong values.
pub(super) fn reports() -> impl Strategy<Value = BTreeMap<EventKey, Event>> {
    let report = (time(), select(vec!["s1", "s2", "s3"]), 0_u64..3, 0_u64..4, any::<i64>());
    let small = (time(), select(vec!["s1", "s2", "s3"]), 0_u64..3, 0_u64..4, -5_i64..5);
    vec(prop_oneof![1 => report, 6 => small], 0..40).prop_map(|reports| {
        let event = |(time, source, epoch, serial, total)| {
            let key = EventKey { time, id: EventId::total(source, epoch, serial) };
            (key.clone(), Event { key, change: Change::Total(total), provenance: Provenance::default() })
        };
        reports.into_iter().map(event).collect()
    })
}

/// The newest total of each source: greatest epoch, then serial, then total, whatever their event times. Among rows
/// that agree in all three, the newest row.
pub(super) fn newest_totals<'a>(events: impl Iterator<Item = &'a Event>) -> BTreeMap<Box<str>, SourceTotal> {
    let mut newest: BTreeMap<Box<str>, SourceTotal> = BTreeMap::new();
    for event in events {
        let (source, epoch, serial) = event.key.id.as_total().expect("only totals are reported");
        let (mut is_newest, total, time) = (true, event.change.delta(), event.key.time);
        if let Some(known) = newest.get(source) {
            is_newest = (known.epoch, known.serial, known.total, known.time) < (epoch, serial, total, time);
        }
        if is_newest {
            newest.insert(source.into(), SourceTotal { epoch, serial, total, time });
        }
    }
    newest
}

/// The count of the sources: the sum of their newest totals, or with `Add` of the newest totals of all their epochs.
pub(super) fn counted<'a>(events: impl Iterator<Item = &'a Event>, on_new_epoch: OnNewEpoch) -> i128 {
    let of_epoch = |event: &&'a Event| event.key.id.as_total().map(|(_, epoch, _)| epoch);
    let sum =
        |newest: BTreeMap<Box<str>, SourceTotal>| newest.values().map(|known| i128::from(known.total)).sum::<i128>();
    match on_new_epoch {
        OnNewEpoch::Replace => sum(newest_totals(events)),
        OnNewEpoch::Add => {
            let mut epochs: BTreeMap<Option<u64>, Vec<&Event>> = BTreeMap::new();
            events.for_each(|event| epochs.entry(of_epoch(&event)).or_default().push(event));
            epochs.into_values().map(|events| sum(newest_totals(events.into_iter()))).sum()
        }
    }
}

pub(super) fn on_new_epoch() -> impl Strategy<Value = OnNewEpoch> {
    select(vec![OnNewEpoch::Add, OnNewEpoch::Replace])
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_cumulative_counter_is_the_sum_of_the_newest_totals(
        events in reports(),
        on_new_epoch in on_new_epoch(),
        rolls in rolls(),
        steps in proptest::sample::subsequence(vec![10_u32, 30, 60, 120], 0..=4),
    ) {
        let rules = FoldRules::constant(Duration::from_secs(10), None, steps).with_epochs(on_new_epoch);
        let history = History { rules, events };
        let value_at = |to: Timestamp| counted(history.up_to(to), on_new_epoch);
        let mut made = vec![Checkpoint::empty(Timestamp::MIN)];
        for roll_ in rolls {
            let base = roll_.base.get(&made).clone();
            let to = Timestamp::from_millis(roll_.to_millis).max(base.as_of);
            let rolled = fold(base.clone(), &history.between(base.as_of, to), to, &history.rules);
            prop_assert_eq!(rolled.checkpoint.count, value_at(to));
            let sources = rolled.checkpoint.sources.iter();
            let newest: BTreeMap<_, _> = sources.map(|(source, totals)| (source.clone(), totals.newest)).collect();
            prop_assert_eq!(newest, newest_totals(history.up_to(to)));
            prop_assert_eq!(&rolled.finished_buckets, &Vec::new(), "cumulative counters keep no bucket records");
            prop_assert_eq!(&rolled.checkpoint.open_bucket, &None);
            for step in &rolled.finished_steps {
                let (before, last) = (step.start.just_before(), step.end().just_before());
                prop_assert!(base.as_of < last && last <= to, "a step is finished by the roll that ends it");
                prop_assert_eq!((step.sum, step.value), (value_at(last) - value_at(before), value_at(last)));
            }
            for step in &rolled.checkpoint.open_steps {
                let before = value_at(step.start.just_before());
                prop_assert_eq!((step.sum, step.value), (value_at(to) - before, value_at(to)));
            }
            let ended = |step: &StepSum| step.end() <= to.just_after() && step.end() > base.as_of.just_after();
            let expected = history.steps(to).iter().filter(|step| ended(step)).count();
            prop_assert_eq!(rolled.finished_steps.len(), expected, "every step with a report has a row");
            made.push(rolled.checkpoint);
        }
    }
}

proptest! {
    #![proptest_config(config())]

    /// However often a source restarts, what it counted stays counted, and what is folded again changes nothing.
    #[test]
    fn a_source_that_restarts_often_loses_nothing(epochs in vec(vec(0_i64..1_000, 1..4), 1..12)) {
        let mut source: Option<SourceTotals> = None;
        let mut expected = 0;
        for (epoch, rises) in (0..).zip(&epochs) {
            let mut total = 0;
            for (serial, rise) in (0..).zip(rises) {
                total += rise;
                let reported = SourceTotal { epoch, serial, total, time: Timestamp::from_secs(1) };
                let known = source.get_or_insert_with(|| SourceTotals::new(reported));
                known.take(reported, OnNewEpoch::Add);
                let first = SourceTotal { serial: 0, total: rises[0], ..reported };
                known.take(first, OnNewEpoch::Add);
                prop_assert_eq!(known.sum(), i128::from(expected + total));
            }
            expected += total;
        }
        let known = source.expect("there is an epoch");
        prop_assert!(known.earlier.len() <= SOURCE_EARLIER_EPOCHS_MAX);
        let mut again = known.clone();
        let first = SourceTotal { epoch: 0, serial: 0, total: epochs[0][0], time: Timestamp::from_secs(1) };
        again.take(first, OnNewEpoch::Add);
        prop_assert_eq!(again, known, "an epoch that is settled, or known, is not added once more");
    }
}
