//! `exp compare` and `exp watch`: the arms of an experiment at this moment, once or again and again.

use std::time::Duration;

use clap::Args;

use super::declared::DeclaredExperiment;
use crate::output::{CliResponse, IncrementalPrinter, TableRows, time_cell, word};
use crate::{ClientContext, Exit, Failure, arguments};
use tallystone_app::notices::print_notice;
use tallystone_experiments::p_text;
use tallystone_proto::experiment::v1 as pb;

/// The full name of the answer.
const COMPARED: &str = "tallystone.experiment.v1.CompareExperimentResponse";

#[derive(Debug, Args)]
pub struct ExpCompareArgs {
    /// The experiment. Without --arm it is one that `exp create` made.
    name: String,
    #[command(flatten)]
    declared: DeclaredExperiment,
}

#[derive(Debug, Args)]
pub struct ExpWatchArgs {
    /// The experiment, which `exp create` made.
    name: String,
    /// The time between two looks.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = arguments::duration)]
    every: Duration,
    /// The number of looks [default: until ctrl-c].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    looks: Option<u64>,
}

impl ClientContext {
    pub(super) async fn compare_experiment(&self, args: ExpCompareArgs) -> Result<(), Failure> {
        let request = match args.declared.named(&args.name) {
            Some(experiment) => pb::CompareExperimentRequest { experiment: Some(experiment), ..Default::default() },
            None => pb::CompareExperimentRequest { name: args.name, experiment: None },
        };
        let found = call!(ask self, experiments.compare_experiment, &request)?;
        self.output.answer(&CliResponse::one(COMPARED, &found), &rows_of(&found, self.output.is_for_people()))?;
        self.remark(&found);
        Ok(())
    }

    /// Compares again and again. A look costs no certainty: the interval holds at every look. After the first look, one
    /// without an answer is told, and the next one follows.
    pub(super) async fn watch_experiment(&self, args: ExpWatchArgs) -> Result<(), Failure> {
        let request = pb::CompareExperimentRequest { name: args.name, experiment: None };
        let mut printer = IncrementalPrinter::endless(self.output);
        let mut looks = 0;
        loop {
            let found: Result<_, Failure> = async { call!(ask self, experiments.compare_experiment, &request) }.await;
            match found {
                Ok(found) => {
                    // People read the time beside the rows, and programs in them.
                    let time = time_cell(found.look_time.as_ref());
                    let rows = match self.output.is_for_people() {
                        true => rows_of(&found, true),
                        false => timed_rows_of(&found, &time),
                    };
                    printer.print(&[CliResponse::one(COMPARED, &found).json()], &rows)?;
                    if self.output.is_for_people() {
                        print_notice(&format!("look at {time}"));
                    }
                    self.remark(&found);
                    looks += 1;
                }
                Err(failure) if looks == 0 || failure.exit() != Exit::Unavailable => return Err(failure),
                Err(failure) => print_notice(&format!("no look: {failure}")),
            }
            if args.looks.is_some_and(|most| looks >= most) {
                return Ok(());
            }
            tokio::time::sleep(args.every).await;
        }
    }

    /// Says what people must know beside the rows. Programs have it in the answer.
    fn remark(&self, found: &pb::CompareExperimentResponse) {
        if !self.output.is_for_people() {
            return;
        }
        found.banners.iter().for_each(|banner| print_notice(banner));
        found.doubts.iter().for_each(|doubt| print_notice(&format!("not trusted: {}", doubt.text)));
        let ratio = found.sample_ratio.unwrap_or_default();
        let [at_any_look, chi_square] = [ratio.sequential_p, ratio.chi_square_p].map(p_text);
        print_notice(&format!("sample ratio: {at_any_look} (chi-square {chi_square})"));
    }
}

/// The columns of the rows of a watch, with the time of the look last.
const WATCHED_COLUMNS: &[&str] = &[
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
    "look_time",
];
/// The columns of the rows of one comparison.
const COLUMNS: &[&str] = WATCHED_COLUMNS.split_at(WATCHED_COLUMNS.len() - 1).0;

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
    TableRows { columns: COLUMNS, cells }
}

/// The same with the time of the look in each row.
fn timed_rows_of(found: &pb::CompareExperimentResponse, time: &str) -> TableRows {
    let TableRows { mut cells, .. } = rows_of(found, false);
    cells.iter_mut().for_each(|row| row.push(time.to_owned()));
    TableRows { columns: WATCHED_COLUMNS, cells }
}
