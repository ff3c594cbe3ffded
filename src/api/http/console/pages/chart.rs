//! Counters over time as lines: how many a second. Drawn here, so they need no script.

use std::time::Duration;

use prost_types::Timestamp;
use tonic::Status;

use super::methods::BATCH_GET_SERIES;
use super::queue_counts::{QUEUE_COUNTERS, earliest, queue_as_of};
use crate::http::console::format::{self, rate};
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::query::one_of;
use crate::http::console::view::{ActionLink, ChartLine, ChartView, NoteTime, Section, Sparkline};
use crate::time;
use tallystone_domain::rollup::series_step::SeriesStep;
use tallystone_proto::counter::v1 as pb;

/// The points of a line at most.
const POINTS: i64 = 120;
/// The sizes of the drawings: width and height.
pub const CHART: (f64, f64) = (1_000.0, 160.0);
const SPARKLINE: (f64, f64) = (100.0, 20.0);
/// The time that a sparkline shows, and the span of each of its points. With the most queues of a page, one call reads
/// it.
const SPARKLINE_RANGE: Duration = Duration::from_secs(3_600);
const SPARKLINE_STEP: i64 = 120;
/// How long a page waits for its sparklines, which it can do without.
const SPARKLINE_WAIT: Duration = Duration::from_millis(150);

/// The times that a chart may show, by their names in queries.
const RANGES: [(&str, &str, Duration); 4] = [
    ("5m", "5 minutes", SHORT_RANGE),
    ("1h", "Hour", Duration::from_secs(3_600)),
    ("24h", "24 hours", Duration::from_secs(86_400)),
    ("7d", "7 days", Duration::from_secs(604_800)),
];
/// The steps of the shortest range, in seconds. Other ranges have the steps in which they are kept.
const SHORT_STEP: i64 = 10;

/// The range of an address that names none.
const DEFAULT_RANGE: &str = "1h";
/// The range that is shown in short steps.
const SHORT_RANGE: Duration = Duration::from_secs(300);

/// A counter that is drawn.
pub struct DrawnCounter {
    pub label: &'static str,
    pub class: &'static str,
    pub name: String,
}

/// The links to all ranges, by their names in queries.
pub fn range_links(shown: &str, to: impl Fn(&'static str) -> String) -> Vec<ActionLink> {
    let shown = if shown.is_empty() { DEFAULT_RANGE } else { shown };
    let link = |(name, text, _): (&'static str, &'static str, Duration)| ActionLink {
        href: to(name),
        text,
        enabled: true,
        current: name == shown,
        ..ActionLink::default()
    };
    RANGES.map(link).into()
}

/// The section with the lines of some counters of a namespace.
pub async fn section(
    calls: &InProcessClient,
    title: &str,
    namespace: &str,
    counters: Vec<DrawnCounter>,
    range: &str,
) -> Section {
    let range = if range.is_empty() { DEFAULT_RANGE } else { range };
    let range = match one_of("range", range, &RANGES.map(|(name, ..)| name)) {
        Ok(range) => range,
        Err(unknown) => {
            return Section { title: title.to_owned(), empty: unknown.message().to_owned(), ..Section::default() };
        }
    };
    let (_, shown, range) = RANGES.into_iter().find(|(name, ..)| *name == range).unwrap_or(RANGES[0]);
    let mut section =
        Section { title: title.to_owned(), note: format!("the last {}", shown.to_lowercase()), ..Section::default() };
    let now = calls.context.calls.clock.now();
    let seconds = i64::try_from(range.as_secs()).unwrap_or(i64::MAX);
    let (mut from, to) = (time::write(now - range), time::write(now));
    let mut step = String::new();
    if range == SHORT_RANGE {
        from = Timestamp { seconds: from.seconds / SHORT_STEP * SHORT_STEP, nanos: 0 };
        step = format!("{SHORT_STEP}s");
    }
    let request = pb::BatchGetCountSeriesRequest {
        namespace: namespace.to_owned(),
        counter_names: counters.iter().map(|counter| counter.name.clone()).collect(),
        from: Some(from),
        to: Some(to),
        step,
        ..Default::default()
    };
    let answer: Result<pb::BatchGetCountSeriesResponse, Status> = calls.ask(BATCH_GET_SERIES, &request).await;
    let results = match answer {
        Ok(answer) => answer.results,
        Err(status) => {
            section.empty = format!("Not known: {}", status.message());
            return section;
        }
    };
    let as_of = oldest(&results, namespace);
    section.note_time = Some(NoteTime(as_of));
    let lines: Vec<Vec<Option<f64>>> =
        results.into_iter().map(|result| rates(result.series.as_ref(), from.seconds, seconds)).collect();
    let most = lines.iter().flatten().flatten().copied().fold(0.0, f64::max);
    if lines.iter().flatten().flatten().next().is_none() {
        section.empty = "No series is kept of this time.".to_owned();
        return section;
    }
    let drawn = counters.into_iter().zip(&lines).map(|(counter, line)| ChartLine {
        label: counter.label,
        class: counter.class,
        path: path(line, most, CHART),
        values: line.iter().map(|point| rate(*point)).collect(),
    });
    let points = lines.iter().map(Vec::len).max().unwrap_or_default();
    section.chart = Some(ChartView {
        label: format!("{title}, at most {} per second", rate(Some(most))),
        lines: drawn.collect(),
        most: format!("at most {} per second", rate(Some(most))),
        scale: [Some(most), Some(most / 2.0), Some(0.0)].map(rate),
        unit: "per second",
        times: times_of(from.seconds, seconds, points),
        ends: [Some(from), Some(to)],
    });
    section
}

/// Up to when some series have all events; none while it is not known of one.
fn oldest(results: &[pb::GetSeriesResult], namespace: &str) -> Option<Timestamp> {
    let of = |series: &pb::GetCountSeriesResponse| match namespace {
        QUEUE_COUNTERS => queue_as_of(series.as_of, series.reported_to),
        _ => series.as_of, // changes of queues are reported to the other one only
    };
    earliest(results.iter().filter_map(|result| result.series.as_ref()).map(of))
}

/// How often some counters were counted in the last hour, in their order, and the age of the lines. Without an answer
/// in time there are none.
pub async fn sparklines(
    calls: &InProcessClient,
    namespace: &str,
    names: Vec<String>,
) -> (Vec<Option<Sparkline>>, Option<Timestamp>) {
    let now = calls.context.calls.clock.now();
    let from = time::write(now - SPARKLINE_RANGE);
    let request = pb::BatchGetCountSeriesRequest {
        namespace: namespace.to_owned(),
        counter_names: names,
        from: Some(from),
        to: Some(time::write(now)),
        step: format!("{SPARKLINE_STEP}s"),
        ..Default::default()
    };
    let answer = calls.ask_within(BATCH_GET_SERIES, &request, SPARKLINE_WAIT).await;
    let results = answer.map_or_else(|_| Vec::new(), |answer: pb::BatchGetCountSeriesResponse| answer.results);
    let as_of = oldest(&results, namespace);
    let seconds = i64::try_from(SPARKLINE_RANGE.as_secs()).unwrap_or(i64::MAX);
    let line = |result: pb::GetSeriesResult| sparkline(&rates(result.series.as_ref(), from.seconds, seconds));
    (results.into_iter().map(line).collect(), as_of)
}

/// The line of some rates; none where none is known.
fn sparkline(rates: &[Option<f64>]) -> Option<Sparkline> {
    let most = rates.iter().flatten().copied().reduce(f64::max)?;
    Some(Sparkline { path: path(rates, most, SPARKLINE), text: format!("at most {} per second", rate(Some(most))) })
}

/// When each of the points of a line begins, in milliseconds.
fn times_of(from: i64, seconds: i64, points: usize) -> Vec<i64> {
    let all = i64::try_from(points).unwrap_or(i64::MAX).max(1);
    (0..all).map(|point| (from + seconds * point / all) * 1_000).collect()
}

/// How many a second at each point; none where it is not known. Steps that have not ended are left out.
fn rates(series: Option<&pb::GetCountSeriesResponse>, from: i64, seconds: i64) -> Vec<Option<f64>> {
    let Some(series) = series else { return Vec::new() };
    let step = SeriesStep::read(&series.step, "").ok().flatten();
    let step = step.and_then(|step| i64::try_from(step.shortest().as_secs()).ok()).unwrap_or(1);
    let span = (seconds / POINTS).max(step).max(1);
    let points = usize::try_from((seconds / span).clamp(1, POINTS)).unwrap_or(1);
    let mut sums: Vec<Option<f64>> = vec![None; points];
    for row in series.rows.iter().filter(|row| !row.open) {
        let start = row.step_start.as_ref().map_or(from, |start| format::millis(start) / 1_000);
        let at = usize::try_from((start - from).max(0) / span).unwrap_or(usize::MAX);
        if let Some(sum) = sums.get_mut(at) {
            *sum = Some(sum.unwrap_or(0.0) + row.sum as f64);
        }
    }
    sums.into_iter().map(|sum| sum.map(|sum| (sum / span as f64).max(0.0))).collect()
}

/// A line through all points that are known, with a gap where one is not.
fn path(points: &[Option<f64>], most: f64, (width, height): (f64, f64)) -> String {
    let mut path = String::new();
    let mut is_begun = false;
    let step = width / points.len().max(1) as f64;
    for (at, point) in points.iter().enumerate() {
        let Some(rate) = point else {
            is_begun = false;
            continue;
        };
        let share = if most > 0.0 { rate / most } else { 0.0 };
        let (left, right, y) = (at as f64 * step, (at + 1) as f64 * step, (1.0 - share) * height);
        let begin = if is_begun { 'L' } else { 'M' };
        path.push_str(&format!("{begin}{left:.1} {y:.1}H{right:.1}"));
        is_begun = true;
    }
    path
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(start: i64, sum: i64, open: bool) -> pb::SeriesRow {
        let step_start = Some(prost_types::Timestamp { seconds: start, nanos: 0 });
        pb::SeriesRow { step_start, sum, open, ..Default::default() }
    }

    #[test]
    fn steps_are_gathered_into_points_and_those_that_are_missing_are_not_known() {
        let step = "60s".to_owned();
        let rows = vec![row(1_000, 60, false), row(1_060, 120, false), row(1_180, 600, false), row(1_240, 9, true)];
        let series = pb::GetCountSeriesResponse { rows, step, ..Default::default() };
        let found = rates(Some(&series), 1_000, 300);
        assert_eq!(found, [Some(1.0), Some(2.0), None, Some(10.0), None]);
        assert_eq!(path(&found, 10.0, CHART), "M0.0 144.0H200.0L200.0 128.0H400.0M600.0 0.0H800.0");
        assert_eq!(rates(None, 0, 300), [None; 0]);
    }

    #[test]
    fn each_point_has_the_time_at_which_it_begins() {
        assert_eq!(times_of(1_000, 300, 3), [1_000_000, 1_100_000, 1_200_000]);
        assert_eq!(times_of(1_000, 300, 0), [1_000_000]);
    }

    #[test]
    fn a_sparkline_fills_its_height_and_is_left_out_where_nothing_is_known() {
        let drawn = sparkline(&[Some(0.0), None, Some(4.0)]).expect("two points are known");
        assert_eq!(
            (drawn.path.as_str(), drawn.text.as_str()),
            ("M0.0 20.0H33.3M66.7 0.0H100.0", "at most 4.0 per second")
        );
        assert!(sparkline(&[None, None]).is_none());
    }

    proptest! {
        #[test]
        fn no_row_is_drawn_outside_and_none_is_lost(
            starts in prop::collection::vec(0_i64..3_600, 0..50),
        ) {
            let rows: Vec<_> = starts.iter().map(|start| row(*start, 30, false)).collect();
            let step = "10s".to_owned();
            let series = pb::GetCountSeriesResponse { rows, step, ..Default::default() };
            let found = rates(Some(&series), 0, 3_600);
            let sum: f64 = found.iter().flatten().map(|rate| rate * 30.0).sum();
            prop_assert!((sum - 30.0 * starts.len() as f64).abs() < 1e-6);
            let runs = found.iter().scan(false, |known, point| {
                let begins = point.is_some() && !*known;
                *known = point.is_some();
                Some(begins)
            });
            let runs = runs.filter(|begins| *begins).count();
            prop_assert_eq!(path(&found, 100.0, CHART).matches('M').count(), runs);
        }
    }
}
