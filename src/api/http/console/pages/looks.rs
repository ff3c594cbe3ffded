//! An experiment over time: each difference with its interval at looks since it began.

use super::chart::CHART;
use super::methods::LIST_LOOKS;
use crate::http::console::format::{millis, points};
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::view::{ChartLine, ChartView, Section};
use crate::time;
use tallystone_proto::experiment::v1 as pb;

/// The looks that are drawn at most.
const LOOKS: i64 = 60;
const MINUTE: i64 = 60;
const HOUR: i64 = 3_600;
/// Up to this age of an experiment its looks may be minutes apart, else hours.
const MINUTES_KEPT: i64 = 31 * 24 * HOUR;

/// The width of the dash that stands for a single look.
const DASH: f64 = 12.0;

/// The result of one look for one difference, in shares: the lower end, the difference and the upper end.
type DrawnLook = [Option<f64>; 3];

/// A section for each arm but the control. There are none before the first look.
pub async fn sections(calls: &InProcessClient, experiment: &pb::Experiment) -> Vec<Section> {
    let begin = experiment.create_time.as_ref().map_or(0, |at| at.seconds);
    let now = time::write(calls.context.calls.clock.now()).seconds;
    let end = experiment.stop_time.as_ref().map_or(now, |at| at.seconds);
    let request = pb::ListExperimentLooksRequest {
        name: experiment.name.clone(),
        step: Some(prost_types::Duration { seconds: step_of(end - begin), nanos: 0 }),
        page_size: LOOKS as i32,
        ..Default::default()
    };
    match calls.ask::<pb::ListExperimentLooksResponse>(LIST_LOOKS, &request).await {
        Ok(answer) => of_looks(&answer.looks),
        Err(status) => {
            let empty = format!("Not known: {}", status.message());
            vec![Section { title: "Over time".to_owned(), empty, ..Section::default() }]
        }
    }
}

/// Seconds between two looks at an experiment of this age.
fn step_of(age: i64) -> i64 {
    let grain = if age > MINUTES_KEPT { HOUR } else { MINUTE };
    let least = (age / LOOKS).max(0);
    (least / grain + 1) * grain
}

fn of_looks(looks: &[pb::ExperimentLook]) -> Vec<Section> {
    let Some(last) = looks.last() else { return Vec::new() };
    let section = |(at, contrast): (usize, &pb::ExperimentContrast)| {
        let drawn = |look: &pb::ExperimentLook| {
            let contrast = look.contrasts.get(at);
            let read = |end: fn(&pb::ExperimentContrast) -> Option<f64>| contrast.and_then(end);
            [read(|one| one.lower), read(|one| one.difference), read(|one| one.upper)]
        };
        let lines: Vec<DrawnLook> = looks.iter().map(drawn).collect();
        let title = format!("{} − {} over time", contrast.arm, contrast.control);
        let mut section = Section { note: "in percentage points".to_owned(), ..Section::default() };
        match chart(&title, &lines) {
            Some(chart) => {
                let times = looks.iter().map(|look| look.look_time.as_ref().map_or(0, millis)).collect();
                section.chart = Some(ChartView { ends: [looks[0].look_time, last.look_time], times, ..chart });
            }
            None => section.empty = "No look can say anything yet.".to_owned(),
        }
        Section { title, ..section }
    };
    last.contrasts.iter().enumerate().map(section).collect()
}

/// The lines of a difference; none while no look has one.
fn chart(title: &str, looks: &[DrawnLook]) -> Option<ChartView> {
    let known = looks.iter().flatten().flatten().copied().chain([0.0]);
    let (least, most) = known.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), value| (a.min(value), b.max(value)));
    if looks.iter().all(|look| look[1].is_none()) || least >= most {
        return None;
    }
    let (width, height) = CHART;
    let (step, scale) = (width / looks.len() as f64, height / (most - least));
    let line = |label: &'static str, class: &'static str, which: usize| {
        let mut path = String::new();
        let mut is_begun = false;
        for (at, look) in looks.iter().enumerate() {
            let Some(value) = look[which] else {
                is_begun = false;
                continue;
            };
            let (x, y) = ((at as f64 + 0.5) * step, (most - value) * scale);
            let is_alone = !is_begun && looks.get(at + 1).is_none_or(|next| next[which].is_none());
            // A look between two unknown ones is a dash.
            let point = match (is_begun, is_alone) {
                (false, true) => format!("M{:.1} {y:.1}h{DASH}", x - DASH / 2.0),
                (false, false) => format!("M{x:.1} {y:.1}"),
                (true, _) => format!("L{x:.1} {y:.1}"),
            };
            path.push_str(&point);
            is_begun = true;
        }
        let values = looks.iter().map(|look| points(look[which])).collect();
        ChartLine { label, class, path, values }
    };
    let zero = ChartLine {
        label: "No difference",
        class: "zero",
        path: format!("M0 {:.1}H{width}", most * scale),
        values: Vec::new(),
    };
    let lines = vec![zero, line("Upper end", "two", 2), line("Difference", "one", 1), line("Lower end", "two", 0)];
    let marks = [Some(most), Some((most + least) / 2.0), Some(least)].map(points);
    let most = format!("{} to {} points", points(Some(least)), points(Some(most)));
    let label = format!("{title}: {most}");
    Some(ChartView { label, lines, most, scale: marks, unit: "points", times: Vec::new(), ends: [None, None] })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_difference_is_drawn_with_its_interval_and_with_gaps() {
        let looks = [[None, Some(0.02), None], [None; 3], [Some(-0.02), Some(0.0), Some(0.02)], [Some(0.0); 3]];
        let chart = chart("B − A", &looks).expect("a difference is known");
        let paths: Vec<&str> = chart.lines.iter().map(|line| line.path.as_str()).collect();
        assert_eq!(paths[0], "M0 80.0H1000");
        assert_eq!(paths[1], "M625.0 0.0L875.0 80.0");
        assert_eq!(paths[2], "M119.0 0.0h12M625.0 80.0L875.0 80.0");
        assert_eq!(chart.most, "−2.00 to +2.00 points");
    }

    #[test]
    fn nothing_is_drawn_while_nothing_is_known() {
        assert!(chart("B − A", &[[None; 3]; 4]).is_none());
        assert!(of_looks(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn looks_are_as_many_as_fit_and_no_closer_than_they_are_kept(age in -10_i64..40_000_000) {
            let step = step_of(age);
            prop_assert!(age <= step * LOOKS, "{age} s in steps of {step} s");
            let grain = if age > MINUTES_KEPT { HOUR } else { MINUTE };
            prop_assert!(step >= grain && step % grain == 0);
        }
    }
}
