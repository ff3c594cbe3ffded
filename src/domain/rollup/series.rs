//! Series: rows per time step, put together from stored steps and the open one.

use std::time::Duration;

use crate::domain::limits::SERIES_ROWS_MAX;
use crate::domain::namespace::SeriesSettings;
use crate::domain::reason::{Reason, Reject};
use crate::domain::rollup::checkpoint::{StepSum, silent_too_long};
use crate::domain::rollup::window::FoldRules;
use crate::domain::time::Timestamp;

/// A validated question: which resolution to read and which steps to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeriesPlan {
    /// The stored resolution to read.
    pub resolution: SeriesSettings,
    /// The step to answer, a multiple of the resolution.
    pub step: Duration,
    /// The first step.
    pub from: Timestamp,
    /// The end of the last step.
    pub to: Timestamp,
}

/// One row of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeriesRow {
    /// The beginning of the step.
    pub start: Timestamp,
    /// What was added in it.
    pub sum: i128,
    /// The count at its end.
    pub value: i128,
    /// Whether it is not over yet, or not rolled up to its end.
    pub open: bool,
}

/// What a counter had come to where a range begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Before {
    /// The count.
    pub value: i128,
    /// The end of the last step with a mutation, if one is known; silence is counted from it.
    pub last: Option<Timestamp>,
}

/// Chooses the coarsest stored resolution that divides the step and still reaches back to `from`.
///
/// Without a step it takes the finest that reaches back to `from`.
pub fn plan(
    kept: &[SeriesSettings],
    from: Timestamp,
    to: Timestamp,
    step: Option<Duration>,
    now: Timestamp,
) -> Result<SeriesPlan, Reject> {
    if from >= to {
        return Err(Reject::new(Reason::InvalidRange, "from must lie before to"));
    }
    let reaches = |series: &&SeriesSettings| now - series.keep <= from;
    let resolution = match step {
        None => kept.iter().find(reaches),
        Some(step) => kept.iter().rev().filter(|series| divides(series, step)).find(reaches),
    };
    let Some(&resolution) = resolution else {
        return Err(Reject::new(Reason::SeriesNotKept, not_kept(kept, step)));
    };
    let step = step.unwrap_or_else(|| seconds(resolution.step_seconds));
    let (from, to) = (from.floor_to(step), to.ceil_to(step));
    let rows = to.since(from).as_micros() / step.as_micros().max(1);
    if rows > SERIES_ROWS_MAX as u128 {
        return Err(Reject::new(
            Reason::InvalidRange,
            format!("the range has {rows} steps; at most {SERIES_ROWS_MAX} are answered: use a longer step"),
        ));
    }
    Ok(SeriesPlan { resolution, step, from, to })
}

fn divides(series: &SeriesSettings, step: Duration) -> bool {
    !step.is_zero() && step.as_micros().is_multiple_of(seconds(series.step_seconds).as_micros())
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds))
}

fn not_kept(kept: &[SeriesSettings], step: Option<Duration>) -> String {
    if kept.is_empty() {
        return "the namespace keeps no series; name the steps to keep in its series setting".to_owned();
    }
    let list: Vec<String> = kept.iter().map(|s| format!("{} s for {} s", s.step_seconds, s.keep.as_secs())).collect();
    let list = list.join(", ");
    match step {
        Some(step) if !kept.iter().any(|series| divides(series, step)) => {
            format!("a step of {} s is no multiple of a step that is kept; kept are: {list}", step.as_secs_f64())
        }
        Some(step) => {
            let step = step.as_secs_f64();
            format!("no series for a step of {step} s reaches back to from; ask for a later from, kept are: {list}")
        }
        None => format!("no series reaches back to from; ask for a later from, kept are: {list}"),
    }
}

/// Puts rows together, one for each step, without gaps. Cost: O(steps + stored).
///
/// `stored` holds the steps of the planned resolution in [from, to), oldest first, the open one last; steps that end after
/// `as_of` are open. After a silence longer than the TTL a row shows 0, judged by whole steps and by the slice that the row
/// ends in, and so wherever the range begins.
pub fn rows(
    plan: &SeriesPlan,
    stored: &[StepSum],
    before: Before,
    as_of: Timestamp,
    rules: &FoldRules,
) -> Vec<SeriesRow> {
    let mut rows = Vec::new();
    let mut stored = stored.iter().peekable();
    let Before { mut value, mut last } = before;
    let mut start = plan.from;
    while start < plan.to && start <= as_of {
        let end = start + plan.step;
        let mut sum = 0;
        while let Some(step) = stored.next_if(|step| step.start < end) {
            sum += step.sum;
            value = step.value;
            last = Some(step.end());
        }
        let ttl = rules.at(end.just_before().min(as_of)).ttl;
        let shown = if silent_too_long(last, end, ttl) { 0 } else { value };
        rows.push(SeriesRow { start, sum, value: shown, open: end > as_of.just_after() });
        start = end;
    }
    rows
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::domain::rollup::window::SliceRule;

    const KEPT: [SeriesSettings; 2] = [
        SeriesSettings { step_seconds: 10, keep: Duration::from_secs(100) },
        SeriesSettings { step_seconds: 60, keep: Duration::from_secs(10_000) },
    ];

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    /// Slices of 100 s, each with a TTL of its own.
    fn rules(ttls: &[Option<u64>]) -> FoldRules {
        let rule = |(start, ttl): (i64, &Option<u64>)| SliceRule {
            start: at(start * 100),
            end: at(start * 100 + 100),
            bucket: Duration::from_secs(10),
            ttl: ttl.map(Duration::from_secs),
        };
        FoldRules::new((0..).zip(ttls).map(rule).collect(), Vec::new())
    }

    #[test]
    fn a_series_that_is_not_kept_is_told_what_is() {
        let now = at(100_000);
        let refused = |kept: &[SeriesSettings], from, step: Option<u64>| {
            plan(kept, from, now, step.map(Duration::from_secs), now).expect_err("not kept").message
        };
        assert!(refused(&[], at(99_990), None).contains("keeps no series; name the steps to keep"));
        assert!(refused(&[], at(99_990), Some(60)).contains("keeps no series; name the steps to keep"));
        let step = refused(&KEPT, at(99_990), Some(15));
        assert!(step.starts_with("a step of 15 s is no multiple") && step.ends_with("60 s for 10000 s"), "{step}");
        for step in [None, Some(60)] {
            let far = refused(&KEPT, at(0), step);
            assert!(far.contains("reaches back to from; ask for a later from, kept are: 10 s for 100 s"), "{far}");
        }
    }

    #[test]
    fn the_coarsest_resolution_that_divides_the_step_is_read() {
        let now = at(100_000);
        let from = at(99_960);
        let step = |seconds| Some(Duration::from_secs(seconds));
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
        let plan = SeriesPlan { resolution: KEPT[0], step: Duration::from_secs(10), from: at(0), to: at(60) };
        let stored = [
            StepSum { step_seconds: 10, start: at(0), sum: 5, value: 15 },
            StepSum { step_seconds: 10, start: at(30), sum: -1, value: 14 },
        ];
        let rows = rows(&plan, &stored, Before { value: 10, last: None }, at(35), &rules(&[None]));
        let shown: Vec<_> = rows.iter().map(|row| (row.sum, row.value, row.open)).collect();
        assert_eq!(shown, [(5, 15, false), (0, 15, false), (0, 15, false), (-1, 14, true)]);
    }

    #[test]
    fn a_quiet_row_is_judged_by_the_slice_it_ends_in() {
        let plan = SeriesPlan { resolution: KEPT[0], step: Duration::from_secs(50), from: at(0), to: at(300) };
        let stored = [StepSum { step_seconds: 10, start: at(0), sum: 5, value: 5 }];
        let rows = rows(&plan, &stored, Before::default(), at(300), &rules(&[None, Some(20), None]));
        assert_eq!(rows.iter().map(|row| row.value).collect::<Vec<_>>(), [5, 5, 0, 0, 5, 5]);
    }

    proptest! {
        #[test]
        fn rows_do_not_depend_on_where_the_range_begins(
            sums in btree_map(0_i64..60, (-9_i128..9, -9_i128..9), 0..12),
            width in 1_u32..4,
            cut in 0_i64..20,
            as_of in 0_i64..700,
            ttls in vec(option::of(10_u64..200), 1..8),
        ) {
            let step = Duration::from_secs(10) * width;
            let resolution = KEPT[0];
            let whole = SeriesPlan { resolution, step, from: at(0), to: at(600).ceil_to(step) };
            let part = SeriesPlan { from: at(0) + step * u32::try_from(cut).expect("a small cut"), ..whole };
            let stored: Vec<StepSum> = sums
                .into_iter()
                .map(|(ten, (sum, value))| StepSum { step_seconds: 10, start: at(ten * 10), sum, value })
                .collect();
            let at_cut = stored.partition_point(|step| step.start < part.from);
            let before = stored[..at_cut].last().map_or(Before::default(), |step| Before {
                value: step.value,
                last: Some(step.end()),
            });
            let (as_of, rules) = (at(as_of), rules(&ttls));
            let mut expected = rows(&whole, &stored, Before::default(), as_of, &rules);
            expected.retain(|row| row.start >= part.from);
            prop_assert_eq!(rows(&part, &stored[at_cut..], before, as_of, &rules), expected);
        }
    }
}
