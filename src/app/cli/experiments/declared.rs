//! The parts of an experiment that a command line declares.

use clap::{Args, ValueEnum};

use crate::arguments::share;
use tallystone_proto::experiment::v1 as pb;

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
pub struct DeclaredExperiment {
    /// An arm, with its weight if not all are equal; twice at least, the control first.
    #[arg(long = "arm", value_name = "ARM[=WEIGHT]", value_parser = arm, requires_all = ["metric", "planned"])]
    arms: Vec<(String, u32)>,
    /// The primary metric, which the verdict is about.
    #[arg(long, value_name = "METRIC", requires = "arms")]
    metric: Option<String>,
    /// A metric that is shown without a verdict; may be repeated.
    #[arg(long, value_name = "METRIC", requires = "arms")]
    secondary: Vec<String>,
    /// The planned exposures of all arms together, as `exp plan` says; choose it before the first look.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), requires = "arms")]
    planned: Option<u64>,
    /// How often somebody may look.
    #[arg(long, value_enum, default_value = "always-valid", requires = "arms")]
    mode: ExperimentModeArg,
    /// What is counted once.
    #[arg(long, value_enum, default_value = "user", requires = "arms")]
    unit: ExperimentUnitArg,
    /// The probability that any arm is wrongly decided; it is split over the arms but the control.
    #[arg(long, default_value_t = 0.05, value_name = "SHARE", value_parser = share, requires = "arms")]
    alpha: f64,
    /// The namespace of the counters.
    #[arg(short, long, default_value = "default", value_name = "NAME", requires = "arms")]
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

impl DeclaredExperiment {
    /// The experiment of this name; none if nothing was declared.
    pub fn named(self, name: &str) -> Option<pb::Experiment> {
        let mode = match self.mode {
            ExperimentModeArg::AlwaysValid => pb::ExperimentMode::AlwaysValid,
            ExperimentModeArg::Fixed => pb::ExperimentMode::Fixed,
        };
        let unit = match self.unit {
            ExperimentUnitArg::User => pb::ExperimentUnit::User,
            ExperimentUnitArg::Session => pb::ExperimentUnit::Session,
            ExperimentUnitArg::Event => pb::ExperimentUnit::Event,
        };
        if self.arms.is_empty() {
            return None;
        }
        let arms = self.arms.into_iter().map(|(name, weight)| pb::ExperimentArm { name, weight: Some(weight) });
        Some(pb::Experiment {
            name: name.to_owned(),
            namespace: self.namespace,
            arms: arms.collect(),
            metric: self.metric.unwrap_or_default(),
            secondary_metrics: self.secondary,
            unit: unit.into(),
            alpha: Some(self.alpha),
            planned_exposures: self.planned,
            mode: mode.into(),
            ..Default::default()
        })
    }
}
