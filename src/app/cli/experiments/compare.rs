//! `exp compare`: the arms of an experiment at this moment.

use clap::{Args, ValueEnum};

use crate::app::cli::output::{CliResponse, TableRows, word};
use crate::app::cli::{ClientContext, Failure};
use crate::app::notices::print_notice;
use crate::proto::experiment::v1 as pb;

/// How often somebody may look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ExperimentModeArg {
    /// Any number of times, and stop at any of them.
    #[value(alias = "EXPERIMENT_MODE_ALWAYS_VALID", alias = "ALWAYS_VALID")]
    AlwaysValid,
    /// Once, when the planned size is reached.
    #[value(alias = "EXPERIMENT_MODE_FIXED", alias = "FIXED")]
    Fixed,
}

/// What is counted once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ExperimentUnitArg {
    /// Each user.
    #[value(alias = "EXPERIMENT_UNIT_USER", alias = "USER")]
    User,
    /// Each session.
    #[value(alias = "EXPERIMENT_UNIT_SESSION", alias = "SESSION")]
    Session,
    /// Each event.
    #[value(alias = "EXPERIMENT_UNIT_EVENT", alias = "EVENT")]
    Event,
}

#[derive(Debug, Args)]
pub struct ExpCompareArgs {
    /// The experiment; its counters are exp/NAME/ARM/METRIC and exp/NAME/ARM/exposures.
    name: String,
    /// An arm, with its weight if not all are equal; twice at least, the control first.
    #[arg(long = "arm", value_name = "ARM[=WEIGHT]", value_parser = arm, required = true)]
    arms: Vec<(String, u32)>,
    /// The primary metric, which the verdict is about.
    #[arg(long, value_name = "METRIC")]
    metric: String,
    /// A metric that is shown without a verdict; may be repeated.
    #[arg(long, value_name = "METRIC")]
    secondary: Vec<String>,
    /// The planned exposures of all arms together, as `exp plan` says; choose it before the first look.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    planned: u64,
    /// How often somebody may look.
    #[arg(long, value_enum, default_value = "always-valid")]
    mode: ExperimentModeArg,
    /// What is counted once.
    #[arg(long, value_enum, default_value = "user")]
    unit: ExperimentUnitArg,
    /// The probability that any arm is wrongly decided; it is split over the arms but the control.
    #[arg(long, default_value_t = 0.05, value_name = "SHARE")]
    alpha: f64,
    /// The namespace of the counters.
    #[arg(short, long, default_value = "default", value_name = "NAME")]
    namespace: String,
}

/// An arm and its weight.
fn arm(text: &str) -> Result<(String, u32), String> {
    let Some((name, weight)) = text.split_once('=') else { return Ok((text.to_owned(), 1)) };
    match weight.parse() {
        Ok(weight @ 1..) => Ok((name.to_owned(), weight)),
        Ok(0) | Err(_) => Err(format!("the weight {weight:?} is no whole number above 0, as in A=2")),
    }
}

impl ExpCompareArgs {
    fn into_request(self) -> pb::CompareExperimentRequest {
        let mode = match self.mode {
            ExperimentModeArg::AlwaysValid => pb::ExperimentMode::AlwaysValid,
            ExperimentModeArg::Fixed => pb::ExperimentMode::Fixed,
        };
        let unit = match self.unit {
            ExperimentUnitArg::User => pb::ExperimentUnit::User,
            ExperimentUnitArg::Session => pb::ExperimentUnit::Session,
            ExperimentUnitArg::Event => pb::ExperimentUnit::Event,
        };
        let arms = self.arms.into_iter().map(|(name, weight)| pb::ExperimentArm { name, weight });
        let experiment = pb::Experiment {
            name: self.name,
            namespace: self.namespace,
            arms: arms.collect(),
            metric: self.metric,
            secondary_metrics: self.secondary,
            unit: unit.into(),
            alpha: self.alpha,
            planned_exposures: self.planned,
            mode: mode.into(),
        };
        pb::CompareExperimentRequest { experiment: Some(experiment) }
    }
}

impl ClientContext {
    pub(super) async fn compare_experiment(&self, args: ExpCompareArgs) -> Result<(), Failure> {
        let request = args.into_request();
        let found = call!(ask self, experiments.compare_experiment, &request)?;
        self.output.answer(
            &CliResponse::one("tallystone.experiment.v1.CompareExperimentResponse", &found),
            &rows_of(&found, self.output.is_for_people()),
        )?;
        // Programs have them in the answer.
        if self.output.is_for_people() {
            found.banners.iter().for_each(|banner| print_notice(banner));
            found.doubts.iter().for_each(|doubt| print_notice(&format!("not trusted: {}", doubt.text)));
            let ratio = found.sample_ratio.unwrap_or_default();
            print_notice(&format!("sample ratio: p {:.4} (chi-square {:.4})", ratio.sequential_p, ratio.chi_square_p));
        }
        Ok(())
    }
}

/// A row for each arm and metric; differences stand with the primary metric of the arms but the control.
fn rows_of(found: &pb::CompareExperimentResponse, is_for_people: bool) -> TableRows {
    let cell = |value: Option<f64>, for_people: fn(f64) -> String| match value {
        Some(value) if is_for_people => for_people(value),
        Some(value) => value.to_string(),
        None if is_for_people => "–".to_owned(),
        None => String::new(),
    };
    let share = |value| cell(value, |value| format!("{:.2} %", value * 100.0));
    // A difference of two percentages is no percentage.
    let points = |value| cell(value, |value| format!("{:+.2} points", value * 100.0));
    let end = |value| cell(value, |value| format!("{:+.2}", value * 100.0));
    let mut cells = Vec::new();
    for arm in &found.arms {
        for (at, metric) in arm.metrics.iter().enumerate() {
            let contrast = found.contrasts.iter().find(|contrast| at == 0 && contrast.arm == arm.arm);
            let verdict = contrast
                .map(|contrast| word(contrast.verdict, "EXPERIMENT_VERDICT_", pb::ExperimentVerdict::as_str_name));
            cells.push(vec![
                arm.arm.clone(),
                metric.metric.clone(),
                arm.exposures.to_string(),
                metric.conversions.to_string(),
                share(metric.rate),
                share(metric.lower),
                share(metric.upper),
                contrast.map(|contrast| points(contrast.difference)).unwrap_or_default(),
                contrast.map(|contrast| end(contrast.lower)).unwrap_or_default(),
                contrast.map(|contrast| end(contrast.upper)).unwrap_or_default(),
                verdict.unwrap_or_default(),
            ]);
        }
    }
    let columns = &[
        "arm",
        "metric",
        "exposures",
        "conversions",
        "rate",
        "rate_lower",
        "rate_upper",
        "difference",
        "lower",
        "upper",
        "verdict",
    ];
    TableRows { columns, cells }
}
