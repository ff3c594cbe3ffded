//! `exp`: experiments, whose arms are compared by counters.

mod compare;
mod declared;
mod kept;

use clap::{Args, Subcommand};

use crate::arguments::share;
use crate::output::{CliResponse, TableRows};
use crate::{ClientArgs, ClientContext, Failure, GlobalArgs};
use tallystone_proto::experiment::v1 as pb;

/// Plan and keep experiments, and compare their arms by counters.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone exp plan --baseline 0.05 --effect 0.005")]
pub struct ExpArgs {
    #[command(subcommand)]
    command: ExpCommand,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum ExpCommand {
    /// Calculate how many exposures an experiment needs to find an effect.
    #[command(after_help = "Example:\n  tallystone exp plan --baseline 0.05 --effect 0.005 --power 0.9")]
    Plan(ExpPlanArgs),
    /// Create an experiment, which begins with it; succeeds if it already exists with the same settings.
    #[command(
        after_help = "Example:\n  tallystone exp create checkout --arm A --arm B --metric bought --planned 20000"
    )]
    Create(Box<kept::ExpCreateArgs>),
    /// List experiments by name.
    #[command(visible_alias = "list", after_help = "Example:\n  tallystone exp ls check")]
    Ls(kept::ExpLsArgs),
    /// Show all settings of an experiment.
    #[command(visible_alias = "get", after_help = "Example:\n  tallystone exp describe checkout")]
    Describe(kept::ExpNameArgs),
    /// Print the counters of an experiment, as applications have to name them.
    #[command(after_help = "Example:\n  tallystone exp names checkout -o csv")]
    Names(kept::ExpNameArgs),
    /// Compare the arms of an experiment by their counters, as often as you like.
    #[command(
        after_help = "Example:\n  tallystone exp compare checkout --arm A --arm B --metric bought --planned 20000"
    )]
    Compare(Box<compare::ExpCompareArgs>),
    /// Compare the arms of an experiment again and again.
    #[command(after_help = "Example:\n  tallystone exp watch checkout --every 10s --looks 1")]
    Watch(compare::ExpWatchArgs),
    /// Note that an experiment is over.
    #[command(after_help = "Example:\n  tallystone exp stop checkout --reason 'B is higher'")]
    Stop(kept::ExpStopArgs),
    /// Delete an experiment; its counters stay.
    #[command(after_help = "Example:\n  tallystone exp rm checkout --yes")]
    Rm(kept::ExpRmArgs),
    /// Show the changes of an experiment with author and time, newest first.
    #[command(after_help = "Example:\n  tallystone exp history checkout")]
    History(kept::ExpHistoryArgs),
}

#[derive(Debug, Args)]
struct ExpPlanArgs {
    /// The rate of the control, as 0.05 for 5 %.
    #[arg(long, value_name = "RATE", value_parser = share)]
    baseline: f64,
    /// The smallest change of the rate that shall be found, as 0.005 for half a percentage point.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    effect: f64,
    /// The probability to find this effect if it is there.
    #[arg(long, default_value_t = 0.8, value_name = "SHARE", value_parser = share)]
    power: f64,
    /// The probability that any arm is wrongly decided; it is split over the arms but the control.
    #[arg(long, default_value_t = 0.05, value_name = "SHARE", value_parser = share)]
    alpha: f64,
    /// The arms with the control, of equal weight, 2 to 8.
    #[arg(long, default_value_t = 2, value_name = "N")]
    arms: i32,
}

impl ExpArgs {
    pub async fn run(self, before: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(before)?;
        match self.command {
            ExpCommand::Plan(args) => session.plan_experiment(&args).await,
            ExpCommand::Create(args) => Box::pin(session.create_experiment(*args)).await,
            ExpCommand::Ls(args) => session.list_experiments(args).await,
            ExpCommand::Describe(args) => session.describe_experiment(args).await,
            ExpCommand::Names(args) => session.name_counters(args).await,
            ExpCommand::Compare(args) => Box::pin(session.compare_experiment(*args)).await,
            ExpCommand::Watch(args) => Box::pin(session.watch_experiment(args)).await,
            ExpCommand::Stop(args) => session.stop_experiment(args).await,
            ExpCommand::Rm(args) => session.remove_experiment(args).await,
            ExpCommand::History(args) => session.list_experiment_changes(args).await,
        }
    }
}

impl ClientContext {
    async fn plan_experiment(&self, args: &ExpPlanArgs) -> Result<(), Failure> {
        let ExpPlanArgs { baseline, effect, power, alpha, arms } = *args;
        let request =
            pb::PlanExperimentRequest { baseline, effect, power: Some(power), alpha: Some(alpha), arms: Some(arms) };
        let plan = call!(ask self, experiments.plan_experiment, &request)?;
        let row = |look: &str, per_arm: u64, of_all: u64, width: f64| {
            vec![look.to_owned(), per_arm.to_string(), of_all.to_string(), format!("{width:.2}")]
        };
        let cells = vec![
            row("ALWAYS_VALID", plan.always_valid_exposures_per_arm, plan.always_valid_exposures, plan.width_ratio),
            row("FIXED", plan.fixed_exposures_per_arm, plan.fixed_exposures, 1.0),
        ];
        let rows = TableRows { columns: &["mode", "exposures_per_arm", "exposures", "width_ratio"], cells };
        self.output.answer(&CliResponse::one("tallystone.experiment.v1.PlanExperimentResponse", &plan), &rows)
    }
}
