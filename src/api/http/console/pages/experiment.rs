//! An experiment: may I decide?
//!
//! The query names an experiment that the service keeps, or has all that one is. Trust comes first, then the verdict,
//! then the numbers.

use super::looks;
use super::methods::{COMPARE_EXPERIMENT, GET_EXPERIMENT};
use crate::http::console::format::{UNKNOWN, points, points_range, share, shares, unsigned};
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::query::{PageQuery, link};
use crate::http::console::view::{
    ActionLink, AgeChip, Fact, IntervalMark, Page, PageFailure, PageNotice, Section, TableCell, TableRow, TableView,
    TextLink, cell, heads, number, time_fact,
};
use tallystone_domain::shell_word::shell_word;
use tallystone_experiments::p_text;
use tallystone_proto::experiment::v1 as pb;

/// The values of a query that say what an experiment is, and are kept in links.
pub const FIELDS: [&str; 9] = ["name", "ns", "arms", "metric", "secondary", "unit", "alpha", "planned", "mode"];
/// The width of a drawn interval.
const WIDTH: f64 = 1_000.0;

/// The page.
pub async fn page(calls: &InProcessClient, query: &PageQuery) -> Result<Page, PageFailure> {
    let shown = ShownExperiment::of(calls, query).await?;
    let metric = &shown.experiment.metric;
    let is_fixed = shown.experiment.mode == i32::from(pb::ExperimentMode::Fixed);
    let mut page = Page::new("experiments", query.text("name"));
    page.crumbs = vec![TextLink { href: "experiments".to_owned(), text: "Experiments".to_owned() }];
    let looks = async {
        match shown.is_kept {
            true => looks::sections(calls, &shown.experiment).await,
            false => Vec::new(),
        }
    };
    // At once, so that a store that does not answer holds the page up once.
    let request = shown.request();
    let (found, looks) = tokio::join!(calls.ask(COMPARE_EXPERIMENT, &request), looks);
    let found: pb::CompareExperimentResponse = found?;
    page.age = Some(AgeChip::of("counter", found.as_of.as_ref(), found.look_time.as_ref(), false));
    page.lead = if is_fixed {
        "Decide once, when the planned size is reached. A look before that decides nothing.".to_owned()
    } else {
        "Valid at any look: look as often as you like, and stop when you like. That makes intervals about 1.5 times as wide \
         at the planned end."
            .to_owned()
    };
    let doubts = found.doubts.iter().map(|doubt| ("bad", format!("Not trusted: {}", doubt.text)));
    let banners = found.banners.iter().map(|banner| ("warn", banner.clone()));
    let trust = doubts.chain(banners).map(|(class, text)| PageNotice { class, testid: "trust-banner", text });
    page.notices.extend(trust);
    page.sections.push(verdicts(&found, metric));
    page.sections.push(arms(&found));
    page.sections.push(differences(&found, metric));
    page.sections.extend(looks);
    page.sections.extend(shown.settings());
    let section = calls.shell.section_of_commands(&shown.commands());
    page.sections.push(Section { links: shown.links(query), ..section });
    Ok(page)
}

/// The experiment of a page.
struct ShownExperiment {
    experiment: pb::Experiment,
    /// Whether the service keeps it. Otherwise the query describes it.
    is_kept: bool,
}

impl ShownExperiment {
    /// The experiment of a query: the one that it describes, or the one of its name.
    async fn of(calls: &InProcessClient, query: &PageQuery) -> Result<Self, PageFailure> {
        if !query.text("arms").is_empty() {
            return Ok(Self { experiment: experiment_of(query)?, is_kept: false });
        }
        let request = pb::GetExperimentRequest { name: query.text("name").to_owned() };
        let found: pb::GetExperimentResponse = calls.ask(GET_EXPERIMENT, &request).await?;
        Ok(Self { experiment: found.experiment.unwrap_or_default(), is_kept: true })
    }

    fn request(&self) -> pb::CompareExperimentRequest {
        match self.is_kept {
            true => pb::CompareExperimentRequest { name: self.experiment.name.clone(), ..Default::default() },
            false => pb::CompareExperimentRequest { experiment: Some(self.experiment.clone()), ..Default::default() },
        }
    }

    /// The settings of an experiment that the service keeps; none for any other. No caller can change them, but for the
    /// description and the other metrics.
    fn settings(&self) -> Option<Section> {
        let experiment = &self.experiment;
        let fact = |label, value: String| Fact { label, value, ..Fact::default() };
        let mut facts = vec![
            fact("State", state_of(experiment).to_owned()),
            fact("Arms", arms_of(experiment)),
            fact("Unit", unit_of(experiment).to_owned()),
            fact("Mode", mode_of(experiment).to_owned()),
            fact("Alpha", experiment.alpha().to_string()),
            fact("Planned exposures", unsigned(experiment.planned_exposures())),
            fact("Namespace", experiment.namespace.clone()),
            time_fact("Began", experiment.create_time.as_ref()),
        ];
        if experiment.stop_time.is_some() {
            facts.push(time_fact("Stopped", experiment.stop_time.as_ref()));
        }
        let about = experiment.description.clone().filter(|about| !about.is_empty());
        let note = "fixed since it began".to_owned();
        let section = Section {
            title: "Settings".to_owned(),
            note,
            class: "plain",
            facts,
            prose: about.into_iter().collect(),
            ..Section::default()
        };
        self.is_kept.then_some(section)
    }

    /// The words of the equal commands.
    fn commands(&self) -> Vec<String> {
        let name = shell_word(&self.experiment.name);
        match self.is_kept {
            true => {
                vec![format!("exp compare {name}"), format!("exp compare {name} -o csv"), format!("exp history {name}")]
            }
            false => vec![command(&self.experiment)],
        }
    }

    /// The link to the page where a described experiment is changed; none for a kept one.
    fn links(&self, query: &PageQuery) -> Vec<ActionLink> {
        let href = link("experiments", &FIELDS.map(|field| (field, query.text(field))));
        let change = ActionLink { href, text: "Change", enabled: true, ..ActionLink::default() };
        if self.is_kept { Vec::new() } else { vec![change] }
    }
}

/// The unit of an experiment, which is counted once in it.
fn unit_of(experiment: &pb::Experiment) -> &'static str {
    match experiment.unit() {
        pb::ExperimentUnit::Unspecified | pb::ExperimentUnit::User => "user",
        pb::ExperimentUnit::Session => "session",
        pb::ExperimentUnit::Event => "event",
    }
}

/// When it may be decided.
fn mode_of(experiment: &pb::Experiment) -> &'static str {
    match experiment.mode() {
        pb::ExperimentMode::Unspecified | pb::ExperimentMode::AlwaysValid => "at any look",
        pb::ExperimentMode::Fixed => "once, at the planned size",
    }
}

/// Whether an experiment goes on, in a word.
pub fn state_of(experiment: &pb::Experiment) -> &'static str {
    match experiment.state() {
        pb::ExperimentState::Unspecified => UNKNOWN,
        pb::ExperimentState::Running => "running",
        pb::ExperimentState::Stopped => "stopped",
    }
}

/// The arms of an experiment, the control first, with weights where they differ.
pub fn arms_of(experiment: &pb::Experiment) -> String {
    let weights: Vec<u32> = experiment.arms.iter().map(|arm| arm.weight.unwrap_or(1)).collect();
    let are_even = weights.windows(2).all(|pair| pair[0] == pair[1]);
    let text = |arm: &pb::ExperimentArm| {
        if are_even { arm.name.clone() } else { format!("{}={}", arm.name, arm.weight.unwrap_or(1)) }
    };
    experiment.arms.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// The experiment that a query describes. The service checks it.
fn experiment_of(query: &PageQuery) -> Result<pb::Experiment, PageFailure> {
    let refuse = |what: &str| PageFailure::from(tonic::Status::invalid_argument(what));
    let listed = |name| query.text(name).split(',').map(str::trim).filter(|part| !part.is_empty());
    let arm = |text: &str| -> Result<pb::ExperimentArm, PageFailure> {
        let (name, weight) = text.split_once('=').unwrap_or((text, "1"));
        let weight = weight.trim().parse::<u32>().ok().filter(|weight| *weight > 0);
        let weight = weight.ok_or_else(|| refuse("The weight of an arm is a whole number above 0, as in A=2."))?;
        Ok(pb::ExperimentArm { name: name.trim().to_owned(), weight: Some(weight) })
    };
    let arms = listed("arms").map(arm).collect::<Result<Vec<_>, PageFailure>>()?;
    let alpha = match query.text("alpha") {
        "" => None,
        text => {
            let alpha = text.trim().parse::<f64>().ok().filter(|alpha| *alpha > 0.0);
            Some(alpha.ok_or_else(|| refuse("Alpha is a number above 0, such as 0.05."))?)
        }
    };
    let planned = query.text("planned").replace(',', "");
    let unit = match query.text("unit") {
        "session" => pb::ExperimentUnit::Session,
        "event" => pb::ExperimentUnit::Event,
        _ => pb::ExperimentUnit::User, // the first of the form
    };
    let mode = match query.text("mode") {
        "fixed" => pb::ExperimentMode::Fixed,
        _ => pb::ExperimentMode::AlwaysValid, // the first of the form
    };
    let namespace = query.text("ns");
    Ok(pb::Experiment {
        name: query.text("name").to_owned(),
        namespace: if namespace.is_empty() { "default".to_owned() } else { namespace.to_owned() },
        arms,
        metric: query.text("metric").to_owned(),
        secondary_metrics: listed("secondary").map(str::to_owned).collect(),
        unit: unit.into(),
        alpha,
        planned_exposures: Some(
            planned.trim().parse::<u64>().map_err(|_| {
                refuse("The planned exposures are a whole number; the page of experiments says how many.")
            })?,
        ),
        mode: mode.into(),
        ..Default::default()
    })
}

/// The verdict on each arm, and whether the arms were filled as declared.
fn verdicts(found: &pb::CompareExperimentResponse, metric: &str) -> Section {
    let verdict = |contrast: &pb::ExperimentContrast| {
        let (verdict, words) = verdict_of(contrast.verdict);
        Fact {
            label: "Verdict",
            value: words.to_owned(),
            hint: format!("{metric} of {} against {}", contrast.arm, contrast.control),
            testid: "verdict",
            verdict,
            ..Fact::default()
        }
    };
    let ratio = found.sample_ratio.unwrap_or_default();
    let is_off = found.doubts.iter().any(|doubt| doubt.kind == i32::from(pb::ExperimentDoubtKind::SampleRatioMismatch));
    let sample_ratio = Fact {
        label: "Sample ratio",
        value: if is_off { "Mismatch" } else { "As declared" }.to_owned(),
        hint: format!(
            "{} at any look; chi-square {} if this were the only look",
            p_text(ratio.sequential_p),
            p_text(ratio.chi_square_p)
        ),
        testid: "sample-ratio",
        class: if is_off { "bad" } else { "" },
        ..Fact::default()
    };
    let facts = found.contrasts.iter().map(verdict).chain([sample_ratio]).collect();
    Section { title: "May I decide?".to_owned(), class: "wide", facts, ..Section::default() }
}

/// A verdict as calls name it, and as people read it.
fn verdict_of(verdict: i32) -> (&'static str, &'static str) {
    let verdict = pb::ExperimentVerdict::try_from(verdict).unwrap_or_default();
    let words = match verdict {
        pb::ExperimentVerdict::Unspecified => UNKNOWN,
        pb::ExperimentVerdict::TooEarly => "Too early to say",
        pb::ExperimentVerdict::TooFewOutcomes => "Too few conversions to say",
        pb::ExperimentVerdict::NoDifferenceYet => "No difference yet",
        pb::ExperimentVerdict::Higher => "Higher",
        pb::ExperimentVerdict::Lower => "Lower",
        pb::ExperimentVerdict::NotTrusted => "Not trusted",
    };
    let name = verdict.as_str_name();
    (name.strip_prefix("EXPERIMENT_VERDICT_").unwrap_or(name), words)
}

/// A row for each arm and metric, with the interval of its rate. All intervals of a metric have one scale.
fn arms(found: &pb::CompareExperimentResponse) -> Section {
    let row = |arm: &pb::ExperimentArmResult, at: usize, metric: &pb::ExperimentMetricResult| {
        let of_metric = found.arms.iter().filter_map(|arm| arm.metrics.get(at));
        let scale = IntervalScale::of(of_metric.flat_map(|other| [other.lower, other.upper]).flatten());
        let interval = scale.and_then(|scale| scale.mark(metric.lower, metric.upper, metric.rate, None));
        let cells = vec![
            cell("Arm", &arm.arm),
            cell("Metric", &metric.metric),
            number("Exposures", unsigned(arm.exposures)),
            number("Conversions", unsigned(metric.conversions)),
            number("Declared", share(Some(arm.declared_share))),
            number("Rate", share(metric.rate)),
            TableCell { testid: "arm-interval", interval, ..cell("Interval", shares(metric.lower, metric.upper)) },
        ];
        TableRow { testid: "arm-row", arm: arm.arm.clone(), cells, ..TableRow::default() }
    };
    let rows =
        found.arms.iter().flat_map(|arm| arm.metrics.iter().enumerate().map(move |(at, metric)| (arm, at, metric)));
    let rows: Vec<TableRow> = rows.map(|(arm, at, metric)| row(arm, at, metric)).collect();
    let columns = heads(&["Arm", "Metric", "#Exposures", "#Conversions", "#Declared", "#Rate", "Interval"]);
    let table = Some(TableView { columns, rows });
    Section {
        title: "Arms".to_owned(),
        note: "score intervals (Wilson) of single rates; they do not compare arms".to_owned(),
        table,
        ..Section::default()
    }
}

/// A row for each arm against the control.
fn differences(found: &pb::CompareExperimentResponse, metric: &str) -> Section {
    let ends = found.contrasts.iter().flat_map(|contrast| [contrast.lower, contrast.upper]).flatten();
    let scale = IntervalScale::of(ends.chain([0.0]));
    let row = |contrast: &pb::ExperimentContrast| {
        let interval = scale
            .and_then(|scale| scale.mark(contrast.lower, contrast.upper, contrast.difference, Some(scale.place(0.0))));
        let (_, words) = verdict_of(contrast.verdict);
        let cells = vec![
            cell("Arms", format!("{} − {}", contrast.arm, contrast.control)),
            number("Difference", points(contrast.difference)),
            TableCell {
                testid: "contrast-interval",
                interval,
                ..cell("Interval", points_range(contrast.lower, contrast.upper))
            },
            cell("Verdict", words),
        ];
        TableRow { cells, ..TableRow::default() }
    };
    let rows = found.contrasts.iter().map(row).collect();
    let columns = heads(&["Arms", "#Difference", "Interval", "Verdict"]);
    Section {
        title: "Differences".to_owned(),
        note: format!("in percentage points of {metric}"),
        table: Some(TableView { columns, rows }),
        ..Section::default()
    }
}

/// The values between which intervals are drawn.
#[derive(Clone, Copy)]
struct IntervalScale {
    least: f64,
    most: f64,
}

impl IntervalScale {
    /// A scale with room on both sides of all values; none without values.
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (least, most) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
        let room = (most - least) * 0.08;
        (least < most).then_some(Self { least: least - room, most: most + room })
    }

    /// The place of a value, from 0 to the width.
    fn place(self, value: f64) -> i64 {
        ((value - self.least) / (self.most - self.least) * WIDTH).clamp(0.0, WIDTH).round() as i64
    }

    fn mark(
        self,
        lower: Option<f64>,
        upper: Option<f64>,
        middle: Option<f64>,
        zero: Option<i64>,
    ) -> Option<IntervalMark> {
        let (lower, upper, middle) = (self.place(lower?), self.place(upper?), self.place(middle?));
        Some(IntervalMark { lower, upper, middle, zero })
    }
}

/// The words of the equal command.
fn command(experiment: &pb::Experiment) -> String {
    let arms: Vec<String> = experiment
        .arms
        .iter()
        .map(|arm| format!("--arm {}={}", shell_word(&arm.name), arm.weight.unwrap_or(1)))
        .collect();
    let mut text = format!(
        "exp compare {} -n {} {} --metric {} --planned {}",
        shell_word(&experiment.name),
        shell_word(&experiment.namespace),
        arms.join(" "),
        shell_word(&experiment.metric),
        experiment.planned_exposures()
    );
    for metric in &experiment.secondary_metrics {
        text.push_str(&format!(" --secondary {}", shell_word(metric)));
    }
    if experiment.mode == i32::from(pb::ExperimentMode::Fixed) {
        text.push_str(" --mode fixed");
    }
    match experiment.unit() {
        pb::ExperimentUnit::Session => text.push_str(" --unit session"),
        pb::ExperimentUnit::Event => text.push_str(" --unit event"),
        pb::ExperimentUnit::Unspecified | pb::ExperimentUnit::User => {}
    }
    if let Some(alpha) = experiment.alpha {
        text.push_str(&format!(" --alpha {alpha}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn marks_keep_the_order_of_their_values_and_stay_within_the_width(
            values in prop::collection::vec(-1.0_f64..1.0, 3),
        ) {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let scale = IntervalScale::of(values.into_iter().chain([0.0])).expect("more than one value");
            let mark = scale.mark(Some(sorted[0]), Some(sorted[2]), Some(sorted[1]), Some(scale.place(0.0)));
            let mark = mark.expect("all are known");
            prop_assert!(0 <= mark.lower && mark.lower <= mark.middle);
            prop_assert!(mark.middle <= mark.upper && mark.upper <= 1_000);
        }
    }

    #[test]
    fn an_experiment_is_read_from_its_query() {
        let query = "name=checkout&arms=A,+B%3D2&metric=bought&secondary=kept,&planned=20,000&mode=fixed";
        let read = experiment_of(&PageQuery::of(Some(query))).ok().expect("it is complete");
        let arms: Vec<(&str, u32)> = read.arms.iter().map(|arm| (&*arm.name, arm.weight())).collect();
        assert_eq!(arms, [("A", 1), ("B", 2)]);
        assert_eq!((&*read.namespace, read.planned_exposures(), read.secondary_metrics.len()), ("default", 20_000, 1));
        assert_eq!(read.mode(), pb::ExperimentMode::Fixed);
        for refused in ["name=x&planned=many", "name=x&planned=1&arms=A%3D0", "planned=1&alpha=x"] {
            assert!(experiment_of(&PageQuery::of(Some(refused))).is_err(), "{refused}");
        }
    }
}
