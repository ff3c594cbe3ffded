//! The experiments that the service keeps: create, list, describe, stop, delete, and their history.

use clap::Args;

use super::declared::DeclaredExperiment;
use crate::namespaces::{Confirmation, confirm_unseen, was_deleted_before};
use crate::output::{CliResponse, TableRows, time_cell, word};
use crate::pages::RowLimit;
use crate::{ClientContext, Failure, pages};
use tallystone_app::notices::print_notice;
use tallystone_proto::experiment::v1 as pb;

#[derive(Debug, Args)]
pub struct ExpCreateArgs {
    /// The experiment, 1 to 64 letters, digits and . _ -; its counters are exp/NAME/ARM/METRIC and exp/NAME/ARM/exposures.
    name: String,
    #[command(flatten)]
    declared: DeclaredExperiment,
    /// What it is about.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    description: String,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
}

#[derive(Debug, Args)]
pub struct ExpLsArgs {
    /// Only names with this prefix.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

#[derive(Debug, Args)]
pub struct ExpNameArgs {
    /// The experiment.
    name: String,
}

#[derive(Debug, Args)]
pub struct ExpHistoryArgs {
    /// The experiment; a deleted one is allowed.
    name: String,
    #[command(flatten)]
    limit: RowLimit,
}

#[derive(Debug, Args)]
pub struct ExpStopArgs {
    /// The experiment.
    name: String,
    /// Only this version: the etag from `exp describe`.
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
}

#[derive(Debug, Args)]
pub struct ExpRmArgs {
    /// The experiment.
    name: String,
    /// Skip the confirmation.
    #[arg(long)]
    yes: bool,
    /// Only this version: the etag from `exp describe`.
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
}

impl ClientContext {
    pub(super) async fn create_experiment(&self, args: ExpCreateArgs) -> Result<(), Failure> {
        let missing = "an experiment has two arms at least, a metric and a planned size: --arm A --arm B --metric METRIC \
                       --planned N";
        let declared = args.declared.named(&args.name).ok_or_else(|| Failure::usage(missing))?;
        let experiment = pb::Experiment { description: Some(args.description), ..declared };
        let request = pb::CreateExperimentRequest { experiment: Some(experiment), reason: args.reason };
        let made = call!(self, experiments.create_experiment, &request)?;
        let rows = settings_of(made.experiment.as_ref());
        self.output.sentences(&CliResponse::one(&full_name("CreateExperimentResponse"), &made), &rows)
    }

    pub(super) async fn list_experiments(&self, args: ExpLsArgs) -> Result<(), Failure> {
        let (experiments, next_page_token) = pages::rows(usize::MAX, async |page_size, page_token| {
            let request = pb::ListExperimentsRequest { prefix: args.prefix.clone(), page_size, page_token };
            let page = call!(ask self, experiments.list_experiments, &request)?;
            Ok((page.experiments, page.next_page_token))
        })
        .await?;
        let whole = pb::ListExperimentsResponse { experiments, next_page_token };
        let cells = whole.experiments.iter().map(|experiment| {
            vec![
                experiment.name.clone(),
                word(experiment.state, "EXPERIMENT_STATE_", pb::ExperimentState::as_str_name),
                arms_text(experiment),
                experiment.metric.clone(),
                experiment.planned_exposures().to_string(),
                time_cell(experiment.create_time.as_ref()),
                time_cell(experiment.stop_time.as_ref()),
                experiment.description().to_owned(),
            ]
        });
        let columns =
            &["name", "state", "arms", "metric", "planned_exposures", "create_time", "stop_time", "description"];
        let rows = TableRows { columns, cells: cells.collect() };
        self.output.answer(&CliResponse::many(&full_name("ListExperimentsResponse"), &whole, "experiments"), &rows)
    }

    pub(super) async fn describe_experiment(&self, args: ExpNameArgs) -> Result<(), Failure> {
        let found = self.experiment(args.name).await?;
        let rows = settings_of(found.experiment.as_ref());
        self.output.sentences(&CliResponse::one(&full_name("GetExperimentResponse"), &found), &rows)
    }

    /// Prints the counters of an experiment, as an application has to name them.
    pub(super) async fn name_counters(&self, args: ExpNameArgs) -> Result<(), Failure> {
        let found = self.experiment(args.name).await?;
        let experiment = found.experiment.clone().unwrap_or_default();
        let mut cells = Vec::new();
        for arm in &experiment.arms {
            let metrics = ["exposures", experiment.metric.as_str()].into_iter();
            for metric in metrics.chain(experiment.secondary_metrics.iter().map(String::as_str)) {
                let counter_name = format!("exp/{}/{}/{metric}", experiment.name, arm.name);
                cells.push(vec![arm.name.clone(), metric.to_owned(), experiment.namespace.clone(), counter_name]);
            }
        }
        let rows = TableRows { columns: &["arm", "metric", "namespace", "counter_name"], cells };
        self.output.answer(&CliResponse::one(&full_name("GetExperimentResponse"), &found), &rows)
    }

    pub(super) async fn stop_experiment(&self, args: ExpStopArgs) -> Result<(), Failure> {
        let request = pb::StopExperimentRequest { name: args.name, etag: args.etag, reason: args.reason };
        let stopped = call!(self, experiments.stop_experiment, &request)?;
        let rows = settings_of(stopped.experiment.as_ref());
        self.output.sentences(&CliResponse::one(&full_name("StopExperimentResponse"), &stopped), &rows)
    }

    pub(super) async fn remove_experiment(&self, args: ExpRmArgs) -> Result<(), Failure> {
        if confirm_unseen(args.yes, &format!("delete experiment {}; its counters stay", args.name))? == Confirmation::No
        {
            return Ok(());
        }
        let request = pb::DeleteExperimentRequest { name: args.name, etag: args.etag, reason: args.reason };
        let client = self.client.experiments();
        let deleted = self.client.retried(&request, |request| {
            let mut client = client.clone();
            async move { client.delete_experiment(request).await }
        });
        match deleted.await {
            Ok(_) => {}
            Err(error) if was_deleted_before(&error) => {}
            Err(error) => return Err(self.failed(&error)),
        }
        print_notice(&format!("experiment {} is deleted; its counters stay", request.name));
        Ok(())
    }

    pub(super) async fn list_experiment_changes(&self, args: ExpHistoryArgs) -> Result<(), Failure> {
        let ExpHistoryArgs { name, limit } = args;
        let (changes, next_page_token) = pages::rows(limit.rows(), async |page_size, page_token| {
            let request = pb::ListExperimentChangesRequest { name: name.clone(), page_size, page_token };
            let page = call!(ask self, experiments.list_experiment_changes, &request)?;
            Ok((page.changes, page.next_page_token))
        })
        .await?;
        let whole = pb::ListExperimentChangesResponse { changes, next_page_token };
        let cells = whole.changes.iter().map(|change| {
            vec![
                change.version.to_string(),
                time_cell(change.change_time.as_ref()),
                change.actor.clone(),
                change.reason.clone(),
                self.output.changes_cell(&change.differences),
            ]
        });
        let columns = &["version", "change_time", "actor", "reason", "differences"];
        let rows = TableRows { columns, cells: cells.collect() };
        self.output
            .answer(&CliResponse::many(&full_name("ListExperimentChangesResponse"), &whole, "changes"), &rows)?;
        limit.end(&whole.next_page_token, self.output)
    }

    async fn experiment(&self, name: String) -> Result<pb::GetExperimentResponse, Failure> {
        let request = pb::GetExperimentRequest { name };
        call!(ask self, experiments.get_experiment, &request)
    }
}

/// The settings of an experiment, a row for each.
fn settings_of(experiment: Option<&pb::Experiment>) -> TableRows {
    let Some(experiment) = experiment else { return TableRows { columns: &["setting", "value"], cells: Vec::new() } };
    let row = |setting: &str, value: String| vec![setting.to_owned(), value];
    let mut cells = vec![
        row("name", experiment.name.clone()),
        row("state", word(experiment.state, "EXPERIMENT_STATE_", pb::ExperimentState::as_str_name)),
        row("namespace", experiment.namespace.clone()),
        row("arms", arms_text(experiment)),
        row("metric", experiment.metric.clone()),
        row("secondary_metrics", experiment.secondary_metrics.join(", ")),
        row("unit", word(experiment.unit, "EXPERIMENT_UNIT_", pb::ExperimentUnit::as_str_name)),
        row("alpha", experiment.alpha().to_string()),
        row("planned_exposures", experiment.planned_exposures().to_string()),
        row("mode", word(experiment.mode, "EXPERIMENT_MODE_", pb::ExperimentMode::as_str_name)),
        row("description", experiment.description().to_owned()),
        row("create_time", time_cell(experiment.create_time.as_ref())),
        row("update_time", time_cell(experiment.update_time.as_ref())),
    ];
    if let Some(stopped) = &experiment.stop_time {
        cells.push(row("stop_time", time_cell(Some(stopped))));
    }
    cells.push(row("version", experiment.version.to_string()));
    cells.push(row("etag", experiment.etag.clone()));
    TableRows { columns: &["setting", "value"], cells }
}

/// The arms with their weights: `A=1, B=1`.
fn arms_text(experiment: &pb::Experiment) -> String {
    let arms = experiment.arms.iter().map(|arm| format!("{}={}", arm.name, arm.weight()));
    arms.collect::<Vec<_>>().join(", ")
}

/// The full name of a message of the experiment service.
fn full_name(message: &str) -> String {
    format!("tallystone.experiment.v1.{message}")
}
