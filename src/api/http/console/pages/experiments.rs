//! Experiments: those that the service keeps, how many exposures one needs, and the comparison of one that is not kept.
//!
//! The form of the last makes the query of its page, which may be kept as a bookmark.

use super::experiment::{arms_of, state_of};
use super::methods::{LIST_EXPERIMENTS, PLAN_EXPERIMENT};
use crate::http::console::format::unsigned;
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::query::{PageQuery, link};
use crate::http::console::view::{
    ActionLink, FieldOption, FilterForm, FormField, Page, PageFailure, Section, TableCell, TableRow, TableView, cell,
    heads, number, time_cell,
};
use tallystone_domain::limits::{EXPERIMENT_ALPHA, EXPERIMENT_POWER};
use tallystone_proto::experiment::v1 as pb;

/// The experiments of one page.
const PAGE_ROWS: i32 = 100;

/// The page.
pub async fn page(calls: &InProcessClient, query: &PageQuery) -> Result<Page, PageFailure> {
    let mut page = Page::new("experiments", "Experiments");
    page.lead = "Compare arms by their counters, as often as you like, without being misled.".to_owned();
    let (kept, plan) = tokio::join!(kept(calls, query), plan(calls, query));
    page.sections.extend([kept, plan]);
    page.age = Some(calls.live_age());
    page.sections.push(comparison(query));
    Ok(page)
}

/// The experiments that the service keeps.
async fn kept(calls: &InProcessClient, query: &PageQuery) -> Section {
    let request = pb::ListExperimentsRequest {
        prefix: String::new(),
        page_size: PAGE_ROWS,
        page_token: query.text("page").to_owned(),
    };
    let listed: Result<pb::ListExperimentsResponse, tonic::Status> = calls.ask(LIST_EXPERIMENTS, &request).await;
    let mut section = Section { title: "Kept by the service".to_owned(), ..Section::default() };
    match listed {
        Err(status) => section.empty = status.message().to_owned(),
        Ok(listed) if listed.experiments.is_empty() => {
            section.empty =
                "No experiments yet. Plan one below, and create it with `tallystone exp create`.".to_owned();
        }
        Ok(listed) => {
            let rows = listed.experiments.iter().map(row).collect();
            let columns = heads(&["Experiment", "State", "Arms", "Metric", "#Planned exposures", "Began"]);
            section.table = Some(TableView { columns, rows });
            if !listed.next_page_token.is_empty() {
                let href = link("experiments", &[("page", &listed.next_page_token)]);
                section.links.push(ActionLink { href, text: "Next page", enabled: true, ..ActionLink::default() });
            }
        }
    }
    section
}

fn row(experiment: &pb::Experiment) -> TableRow {
    let href = link("experiment", &[("name", &experiment.name)]);
    let cells = vec![
        TableCell { href, ..cell("Experiment", &experiment.name) },
        cell("State", state_of(experiment)),
        cell("Arms", arms_of(experiment)),
        cell("Metric", &experiment.metric),
        number("Planned exposures", unsigned(experiment.planned_exposures())),
        time_cell("Began", experiment.create_time.as_ref()),
    ];
    TableRow { cells, ..TableRow::default() }
}

fn comparison(query: &PageQuery) -> Section {
    let text = |label: &str, name: &'static str| FormField {
        label: label.to_owned(),
        name,
        value: query.text(name).to_owned(),
        ..FormField::default()
    };
    let choice = |label: &str, name: &'static str, values: &[(&'static str, &'static str)]| {
        let option = |&(value, text): &(&'static str, &'static str)| FieldOption {
            value,
            text,
            selected: query.text(name) == value,
        };
        FormField { options: values.iter().map(option).collect(), ..text(label, name) }
    };
    let fields = vec![
        text("Experiment", "name"),
        text("Namespace (default)", "ns"),
        text("Arms, the control first: A, B=2", "arms"),
        text("Metric", "metric"),
        text("Other metrics", "secondary"),
        text("Planned exposures of all arms", "planned"),
        choice("Counts once each", "unit", &[("user", "user"), ("session", "session"), ("event", "event")]),
        choice("Look", "mode", &[("always-valid", "as often as you like"), ("fixed", "once, at the planned size")]),
        text("Alpha (0.05)", "alpha"),
    ];
    Section {
        title: "Compare what is not kept".to_owned(),
        note: "counters exp/NAME/ARM/METRIC and exp/NAME/ARM/exposures".to_owned(),
        filter: Some(FilterForm { action: "experiment", fields, submit: "Compare" }),
        ..Section::default()
    }
}

/// The plan that a form asks for, or what is wrong with the form.
fn plan_of(query: &PageQuery) -> Result<pb::PlanExperimentRequest, String> {
    let number = |label: &str, name: &str, default: Option<f64>| match (query.text(name).trim(), default) {
        ("", Some(default)) => Ok(default),
        ("", None) => Err(format!("{label} is missing.")),
        (text, _) => {
            text.parse::<f64>().map_err(|_| format!("{label} is {text:?}, which is no number such as 0.05 for 5 %."))
        }
    };
    let share = |label: &str, name: &str, default: Option<f64>| {
        let found = number(label, name, default)?;
        let is_share = found > 0.0 && found < 1.0;
        is_share
            .then_some(found)
            .ok_or_else(|| format!("{label} is {found}; it lies between 0 and 1, such as 0.05 for 5 %."))
    };
    let arms = match query.text("count").trim() {
        "" => None,
        text => {
            let arms =
                text.parse().map_err(|_| format!("The number of arms is {text:?}, which is no whole number."))?;
            Some(arms)
        }
    };
    Ok(pb::PlanExperimentRequest {
        baseline: share("The rate of the control", "baseline", None)?,
        effect: number("The smallest change to find", "effect", None)?,
        power: Some(share("The power", "power", Some(EXPERIMENT_POWER))?),
        alpha: Some(share("Alpha", "alpha", Some(EXPERIMENT_ALPHA))?),
        arms,
    })
}

/// The form that plans an experiment, with its answer.
async fn plan(calls: &InProcessClient, query: &PageQuery) -> Section {
    let text = |label: &str, name: &'static str| FormField {
        label: label.to_owned(),
        name,
        value: query.text(name).to_owned(),
        ..FormField::default()
    };
    let fields = vec![
        text("Rate of the control, as 0.05", "baseline"),
        text("Smallest change to find, as 0.005", "effect"),
        text("Power (0.8)", "power"),
        text("Alpha (0.05)", "alpha"),
        text("Arms (2)", "count"),
    ];
    let mut section = Section {
        title: "Plan".to_owned(),
        note: "choose the size before the first look".to_owned(),
        filter: Some(FilterForm { action: "experiments", fields, submit: "Plan" }),
        ..Section::default()
    };
    if query.text("baseline").is_empty() {
        return section;
    }
    let request = match plan_of(query) {
        Ok(request) => request,
        Err(why) => return Section { empty: why, ..section },
    };
    let answer: Result<pb::PlanExperimentResponse, tonic::Status> = calls.ask(PLAN_EXPERIMENT, &request).await;
    match answer {
        Err(status) => section.empty = status.message().to_owned(),
        Ok(planned) => {
            let row = |look: &str, of_arm: u64, of_all: u64, width: f64| TableRow {
                cells: vec![
                    cell("Look", look),
                    number("Exposures of each arm", unsigned(of_arm)),
                    number("Exposures of all arms", unsigned(of_all)),
                    number("Width of the interval", format!("{width:.2}")),
                ],
                ..TableRow::default()
            };
            let columns =
                heads(&["Look", "#Exposures of each arm", "#Exposures of all arms", "#Width of the interval"]);
            let (of_arm, of_all) = (planned.always_valid_exposures_per_arm, planned.always_valid_exposures);
            let rows = vec![
                row("as often as you like", of_arm, of_all, planned.width_ratio),
                row("once, at the planned size", planned.fixed_exposures_per_arm, planned.fixed_exposures, 1.0),
            ];
            section.table = Some(TableView { columns, rows });
        }
    }
    section
}
