//! Series: rows per time step, assembled from stored steps and the open step.

use std::time::Duration;

use crate::namespace::SeriesSettings;
use crate::reason::{Reason, Reject};
use crate::rollup::checkpoint::{CountAt, StepSum, is_ttl_expired};
use crate::rollup::series_step::SeriesStep;
use crate::rollup::slice_rules::FoldRules;
use crate::time::Timestamp;

/// A validated query: the resolution to read and the steps to return.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeriesPlan {
    /// The stored resolution to read from.
    pub resolution: SeriesSettings,
    /// The step of the returned rows, which consists of whole steps of the resolution.
    pub step: SeriesStep,
    /// The starts of the steps, and then the end of the last one: two at least.
    bounds: Vec<Timestamp>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeriesRow {
    /// The start of the step.
    pub start: Timestamp,
    /// The amount added in the step.
    pub sum: i128,
    /// The count at the end of the step.
    pub value: i128,
    /// Whether the step has not ended yet, or is not rolled up to its end.
    pub open: bool,
}

/// Chooses the coarsest stored resolution that divides the step and still reaches back to `from`.
///
/// Without a step, chooses the finest resolution that reaches back to `from`.
pub fn plan(
    kept: &[SeriesSettings],
    from: Timestamp,
    to: Timestamp,
    step: Option<SeriesStep>,
    now: Timestamp,
) -> Result<SeriesPlan, Reject> {
    if from >= to {
        return Err(Reject::new(Reason::InvalidRange, "from must be before to"));
    }
    let reaches = |series: &&SeriesSettings| now - series.keep <= from;
    let resolution = match &step {
        None => kept.iter().find(reaches),
        Some(step) => kept.iter().rev().filter(|series| step.consists_of(series.step_seconds)).find(reaches),
    };
    let Some(&resolution) = resolution else {
        return Err(Reject::new(Reason::SeriesNotKept, not_kept(kept, step.as_ref())));
    };
    let step = step.unwrap_or_else(|| SeriesStep::Fixed(Duration::from_secs(u64::from(resolution.step_seconds))));
    let bounds = step.bounds(from, to)?;
    Ok(SeriesPlan { resolution, step, bounds })
}

impl SeriesPlan {
    /// The start of the first step.
    pub fn from(&self) -> Timestamp {
        self.bounds.first().copied().unwrap_or(Timestamp::MIN)
    }

    /// The end of the last step.
    pub fn to(&self) -> Timestamp {
        self.bounds.last().copied().unwrap_or(Timestamp::MIN)
    }

    /// The number of steps, and so of rows at most.
    pub fn steps(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }
}

fn not_kept(kept: &[SeriesSettings], step: Option<&SeriesStep>) -> String {
    if kept.is_empty() {
        return "the namespace keeps no series; add the steps to its series setting".to_owned();
    }
    let list: Vec<String> = kept.iter().map(|s| format!("{} s for {} s", s.step_seconds, s.keep.as_secs())).collect();
    let list = list.join(", ");
    match step {
        Some(step) if kept.iter().any(|series| step.consists_of(series.step_seconds)) => {
            format!("no series for a step of {step} goes back to from; send a later from, kept steps are: {list}")
        }
        Some(step @ SeriesStep::Calendar(..)) => {
            format!("steps of {step} of a time zone need a kept step that divides 15 minutes; kept steps are: {list}")
        }
        Some(step @ SeriesStep::Fixed(_)) => {
            format!("a step of {step} is not a multiple of a kept step; kept steps are: {list}")
        }
        None => format!("no series goes back to from; send a later from, kept steps are: {list}"),
    }
}

/// Assembles rows, one for each step. Cost: O(steps + known).
///
/// `known` holds the steps of the planned resolution in [from, to), oldest first, including the open step. It also
/// holds the step before and the step after that range, where they exist. `newest` is the counter's newest mutation,
/// unless a step after the range is in `known`. Steps that end after `as_of` are open. A row shows the count as a
/// reader saw it at the row's end, or as of `as_of` where that is earlier.
///
/// Each step records the mutation before it, so mutations from periods without this resolution are noticed. Rows that
/// may contain such mutations have no exact sum and are left out.
pub fn rows(
    plan: &SeriesPlan,
    known: &[StepSum],
    newest: Option<CountAt>,
    as_of: Timestamp,
    rules: &FoldRules,
) -> Vec<SeriesRow> {
    let history = StepHistory::of(known, newest);
    let mut rows = Vec::new();
    let mut steps = known.iter().skip_while(|step| step.start < plan.from()).peekable();
    let mut counts = history.counts.iter().peekable();
    let mut gaps = history.gaps.iter().peekable();
    let mut count: Option<&CountAt> = None;
    for (start, end) in plan.bounds.iter().copied().zip(plan.bounds.iter().copied().skip(1)) {
        if start > as_of {
            break;
        }
        let mut sum = 0;
        while let Some(step) = steps.next_if(|step| step.start < end) {
            sum += step.sum;
        }
        while let Some(later) = counts.next_if(|later| later.time < end) {
            count = Some(later);
        }
        while gaps.next_if(|gap| gap.to < start).is_some() {}
        if gaps.peek().is_none_or(|gap| gap.after.just_after() >= end) {
            let seen = end.just_before().min(as_of);
            let silent = is_ttl_expired(count.map(|count| count.time), seen, rules.at(seen).ttl);
            let value = if silent { 0 } else { count.map_or(0, |count| count.value) };
            rows.push(SeriesRow { start, sum, value, open: end > as_of.just_after() });
        }
    }
    rows
}

/// The mutations of a counter as far as its steps record them: the last one of each step and the one before it, in time
/// order.
#[derive(Default)]
struct StepHistory {
    counts: Vec<CountAt>,
    gaps: Vec<Gap>,
}

/// A period with mutations that no step contains: the last one at `to`, others possibly anywhere above `after`.
struct Gap {
    after: Timestamp,
    to: Timestamp,
}

impl StepHistory {
    fn of(steps: &[StepSum], newest: Option<CountAt>) -> Self {
        let mut history = Self::default();
        for step in steps {
            history.without_step(step.before);
            history.counts.push(CountAt { value: step.value, time: step.last_event_time });
        }
        history.without_step(newest);
        history
    }

    /// Adds a mutation that either belongs to the last step or to no step.
    fn without_step(&mut self, mutation: Option<CountAt>) {
        let last = self.counts.last().map(|count| count.time);
        if let Some(mutation) = mutation.filter(|mutation| last.is_none_or(|last| last < mutation.time)) {
            self.gaps.push(Gap { after: last.unwrap_or(Timestamp::MIN), to: mutation.time });
            self.counts.push(mutation);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::rollup::slice_rules::SliceRule;

    const KEPT: [SeriesSettings; 2] = [
        SeriesSettings { step_seconds: 10, keep: Duration::from_secs(100) },
        SeriesSettings { step_seconds: 60, keep: Duration::from_secs(10_000) },
    ];

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    /// Slices of 100 s, each with its own TTL.
    fn rules(ttls: &[Option<u64>]) -> FoldRules {
        let rule = |(start, ttl): (i64, &Option<u64>)| SliceRule {
            start: at(start * 100),
            end: at(start * 100 + 100),
            bucket: Duration::from_secs(10),
            ttl: ttl.map(Duration::from_secs),
        };
        FoldRules::new((0..).zip(ttls).map(rule).collect(), Vec::new())
    }

    /// One add of `delta` at each time, and the steps of 10 s that a fold keeps for them.
    fn steps_of(adds: &[(i64, i128)]) -> Vec<StepSum> {
        let mut steps: Vec<StepSum> = Vec::new();
        let mut newest: Option<CountAt> = None;
        for (seconds, delta) in adds {
            let time = at(*seconds);
            let start = time.floor_to(Duration::from_secs(10));
            let value = newest.map_or(0, |newest| newest.value) + delta;
            match steps.last_mut().filter(|step| step.start == start) {
                Some(step) => (step.sum, step.value, step.last_event_time) = (step.sum + delta, value, time),
                None => steps.push(StepSum {
                    step_seconds: 10,
                    start,
                    sum: *delta,
                    value,
                    last_event_time: time,
                    before: newest,
                }),
            }
            newest = Some(CountAt { value, time });
        }
        steps
    }

    fn newest_of(steps: &[StepSum]) -> Option<CountAt> {
        steps.last().map(|step| CountAt { value: step.value, time: step.last_event_time })
    }

    fn plan_of(step: u64, from: i64, to: i64) -> SeriesPlan {
        let step = SeriesStep::Fixed(Duration::from_secs(step));
        let bounds = step.bounds(at(from), at(to)).expect("a short range");
        SeriesPlan { resolution: KEPT[0], step, bounds }
    }

    fn values(rows: &[SeriesRow]) -> Vec<i128> {
        rows.iter().map(|row| row.value).collect()
    }

    #[test]
    fn a_series_that_is_not_kept_is_told_what_is() {
        let now = at(100_000);
        let refused = |kept: &[SeriesSettings], from, step: Option<u64>| {
            plan(kept, from, now, step.map(|step| SeriesStep::Fixed(Duration::from_secs(step))), now)
                .expect_err("not kept")
                .message
        };
        assert!(refused(&[], at(99_990), None).contains("keeps no series; add the steps"));
        assert!(refused(&[], at(99_990), Some(60)).contains("keeps no series; add the steps"));
        let step = refused(&KEPT, at(99_990), Some(15));
        assert!(step.starts_with("a step of 15s is not a multiple") && step.ends_with("60 s for 10000 s"), "{step}");
        for step in [None, Some(60)] {
            let far = refused(&KEPT, at(0), step);
            assert!(far.contains("goes back to from; send a later from, kept steps are: 10 s for 100 s"), "{far}");
        }
    }

    #[test]
    fn the_coarsest_resolution_that_divides_the_step_is_read() {
        let now = at(100_000);
        let from = at(99_960);
        let step = |seconds| Some(SeriesStep::Fixed(Duration::from_secs(seconds)));
        assert_eq!(plan(&KEPT, from, now, step(120), now).expect("60 divides 120").resolution, KEPT[1]);
        assert_eq!(plan(&KEPT, from, now, step(20), now).expect("10 divides 20").resolution, KEPT[0]);
        assert_eq!(plan(&KEPT, from, now, None, now).expect("the finest").resolution, KEPT[0]);
        assert_eq!(plan(&KEPT, at(95_000), now, None, now).expect("reaches back").resolution, KEPT[1]);
        assert_eq!(plan(&KEPT, from, now, step(25), now).unwrap_err().reason, Reason::SeriesNotKept);
        assert_eq!(plan(&KEPT, at(0), now, None, now).unwrap_err().reason, Reason::SeriesNotKept);
        assert_eq!(plan(&KEPT, now, now, None, now).unwrap_err().reason, Reason::InvalidRange);
    }

    #[test]
    fn quiet_steps_carry_the_value_and_the_last_is_open() {
        let known = steps_of(&[(-7, 10), (2, 5), (33, -1)]);
        let rows = rows(&plan_of(10, 0, 60), &known, newest_of(&known), at(35), &rules(&[None]));
        let shown: Vec<_> = rows.iter().map(|row| (row.sum, row.value, row.open)).collect();
        assert_eq!(shown, [(5, 15, false), (0, 15, false), (0, 15, false), (-1, 14, true)]);
    }

    #[test]
    fn a_row_is_judged_by_the_slice_it_ends_in() {
        let known = steps_of(&[(5, 5)]);
        let rows = rows(&plan_of(50, 0, 300), &known, newest_of(&known), at(300), &rules(&[None, Some(20), None]));
        assert_eq!(values(&rows), [5, 5, 0, 0, 5, 5]);
    }

    #[test]
    fn a_silence_is_counted_from_the_last_event_to_the_end_of_the_row_or_to_as_of() {
        let known = steps_of(&[(31, 9)]);
        let rules = rules(&[Some(20)]);
        let shown = |as_of| values(&rows(&plan_of(60, 0, 60), &known, newest_of(&known), as_of, &rules));
        assert_eq!(shown(at(35)), [9], "the open row shows what a read shows");
        assert_eq!(shown(at(51)), [9], "a silence of just the TTL is not longer");
        assert_eq!(shown(at(51).just_after()), [0]);
        assert_eq!(shown(at(60)), [0]);
        let tens = rows(&plan_of(10, 30, 60), &known, newest_of(&known), at(60), &rules);
        assert_eq!(values(&tens), [9, 9, 0], "a closed row shows what a read showed at its end");
    }

    #[test]
    fn rows_of_a_time_without_a_series_are_left_out() {
        let all = steps_of(&[(5, 1), (12, 2), (47, 4), (73, 8)]);
        let shown = |known: &[StepSum], to| {
            let rows = rows(&plan_of(10, 0, to), known, newest_of(&all), at(80), &rules(&[None]));
            rows.iter().map(|row| (row.start.micros() / 1_000_000, row.sum, row.value)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&all[2..], 60), [(20, 0, 3), (30, 0, 3), (40, 4, 7), (50, 0, 7)], "kept from 20 s on");
        assert_eq!(shown(&[all[0].clone(), all[3].clone()], 80)[..], [(50, 0, 7), (60, 0, 7), (70, 8, 15)]);
        assert_eq!(shown(&[], 80), [], "nothing was kept before the newest event");
        assert_eq!(shown(&[], 100), [(80, 0, 15)], "and it is carried from there");
        assert_eq!(shown(&all, 20), [(0, 1, 1), (10, 2, 3)]);
    }

    proptest! {
        #[test]
        fn rows_do_not_depend_on_where_the_range_begins_and_ends(
            adds in btree_map(0_i64..600, -9_i128..9, 0..12),
            width in 1_u32..4,
            (cut, end) in (0_i64..20, 1_i64..60),
            quiet in 0_i64..100,
            ttls in vec(option::of(10_u64..200), 1..8),
        ) {
            let step = 10 * u64::from(width);
            let known = steps_of(&adds.into_iter().collect::<Vec<_>>());
            let newest = newest_of(&known);
            let as_of = newest.map_or(at(0), |newest| newest.time) + Duration::from_secs(1) * u32::try_from(quiet).expect("small");
            let whole = plan_of(step, 0, 780);
            let width = i64::try_from(step).expect("small");
            let part = plan_of(step, cut * width, (cut + end) * width);
            let first = known.partition_point(|step| step.start < part.from()).saturating_sub(1);
            let after = known.partition_point(|step| step.start < part.to());
            let rules = rules(&ttls);
            let mut expected = rows(&whole, &known, newest, as_of, &rules);
            expected.retain(|row| part.from() <= row.start && row.start < part.to());
            let newest = newest.filter(|_| after == known.len());
            prop_assert_eq!(rows(&part, &known[first..known.len().min(after + 1)], newest, as_of, &rules), expected);
        }
    }
}
