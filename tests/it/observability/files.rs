//! Panels and alerts name metrics that a real server has; each alert says how bad it is, what it means, and where to read
//! what to do.

use std::collections::BTreeSet;
use std::fs;

use clap::error::ErrorKind;
use tallystone::app::cli;
use tallystone::domain::queue::activity::AttentionReason;
use yaml_rust2::YamlLoader;

use super::firing::settled;
use super::{
    Alert, QUEUE, alerts, dashboards, metrics_in, read_board, root, samples, targets, text, used_server, variables,
};

/// What every page of the runbook answers, in this order.
const HEADINGS: [&str; 4] = ["What you see", "What it means", "What to do", "How you know it is over"];

#[test]
fn every_alert_says_how_bad_it_is_what_it_means_and_which_page_says_what_to_do() {
    let alerts = alerts();
    let names: BTreeSet<&String> = alerts.iter().map(|alert| &alert.name).collect();
    assert_eq!(names.len(), alerts.len(), "each has a name of its own");
    for alert in &alerts {
        let name = &alert.name;
        let severity = alert.labels.get("severity").unwrap_or_else(|| panic!("{name} has no severity"));
        assert!(["critical", "warning"].contains(&severity.as_str()), "{name}: {severity}");
        for key in ["summary", "description", "runbook_url"] {
            let said = alert.annotations.get(key).unwrap_or_else(|| panic!("{name} has no {key}"));
            assert!(!said.trim().is_empty(), "{name} has an empty {key}");
        }
        assert!(!alert.expression.contains(" or "), "{name}: one alert for each condition");
        let page = &runbook_page(alert);
        assert!(root().join(page).is_file(), "{name}: there is no {page}");
        assert!(text(page).contains(&format!("`{name}`")), "{page} does not name {name}");
    }
}

#[test]
fn every_page_of_the_runbook_belongs_to_an_alert_or_a_reason_and_answers_the_four_questions() {
    let alerts = alerts();
    let reasons = AttentionReason::ALL.map(|reason| reason.runbook().to_owned());
    let named: BTreeSet<String> = alerts.iter().map(runbook_page).chain(reasons.clone()).collect();
    for page in reasons {
        assert!(root().join(&page).is_file(), "there is no {page}");
    }
    let index = text("docs/runbook/README.md");
    for entry in fs::read_dir(root().join("docs/runbook")).expect("the folder is there") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if name == "README.md" {
            continue;
        }
        let page = format!("docs/runbook/{name}");
        assert!(named.contains(&page), "no alert and no reason leads to {page}");
        assert!(index.contains(&format!("({name})")), "the list of pages lacks {name}");
        let text = text(&page);
        let headings: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, HEADINGS, "{page}");
        let steps = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).count();
        assert!(steps > 1, "{page} has no steps");
        for metric in text.split('`').filter(|word| word.starts_with("tallystone ")) {
            check_command(&page, metric);
        }
    }
}

/// The page of an alert, after the address that a setting of Prometheus gives.
fn runbook_page(alert: &Alert) -> String {
    let url = &alert.annotations["runbook_url"];
    let page = url.strip_prefix("{{ $externalLabels.runbook_base }}/");
    format!("docs/runbook/{}", page.unwrap_or_else(|| panic!("{}: {url} has no base", alert.name)))
}

#[test]
fn a_setting_of_prometheus_gives_the_absolute_base_of_the_runbook() {
    let settings = YamlLoader::load_from_str(&text("docs/observability/prometheus.yml")).expect("YAML");
    let base = settings[0]["global"]["external_labels"]["runbook_base"].as_str().expect("it is set");
    let (_, page) = base.split_once("/console/").expect("the shipped one is the console");
    assert!(base.starts_with("http://") && !base.ends_with('/'), "{base}");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    for alert in alerts() {
        let file = runbook_page(&alert).replace("docs/runbook", "");
        let answer = server.get(&format!("/console/{page}{file}"));
        assert_eq!(answer.status, 200, "{}: {file}", alert.name);
    }
}

/// Whether this binary has the command, whatever it still lacks.
fn check_command(page: &str, command: &str) {
    let taken = cli::command().try_get_matches_from(command.split(' '));
    let kind = taken.err().map(|error| error.kind());
    assert!(matches!(kind, None | Some(ErrorKind::MissingRequiredArgument)), "{page}: {command}: {kind:?}");
}

#[test]
fn a_panel_has_one_line_of_query_for_each_metric() {
    let targets = targets();
    let mut seen = BTreeSet::new();
    for target in &targets {
        let metrics = metrics_in(&target.expression);
        assert_eq!(metrics.len(), 1, "{}: {}", target.panel, target.expression);
        // `or` drops what has the same labels as something before it: that line is never shown.
        assert!(!target.expression.contains(" or "), "{}: {}", target.panel, target.expression);
        assert!(seen.insert((&target.panel, &target.id)), "{} has two queries {}", target.panel, target.id);
    }
    assert!(targets.len() > 20, "the panels are found: {}", targets.len());
}

#[test]
fn every_dashboard_is_there_in_the_grafana_of_compose() {
    let compose = text("docker-compose.yml");
    let boards = dashboards();
    for board in &boards {
        let name = board.file_name().expect("a file has a name").to_string_lossy();
        let mounted = format!("./docs/observability/{name}:/var/lib/grafana/dashboards/{name}:ro");
        assert!(compose.contains(&mounted), "docker-compose.yml mounts no {name}");
    }
    assert_eq!(boards.len(), 5, "{boards:?}");
}

#[test]
fn every_dashboard_has_a_title_and_an_address_of_its_own() {
    let boards: Vec<_> = dashboards().iter().map(|file| read_board(file).1).collect();
    for key in ["title", "uid"] {
        let words: BTreeSet<&str> = boards.iter().map(|board| board[key].as_str().expect("a text")).collect();
        assert_eq!(words.len(), boards.len(), "{key}: {words:?}");
    }
    let titles: BTreeSet<&str> = boards.iter().filter_map(|board| board["title"].as_str()).collect();
    for title in ["Queues", "Queue", "Bridge"] {
        assert!(titles.contains(title), "{titles:?}");
    }
}

#[test]
fn every_metric_of_panels_and_alerts_is_shown_by_a_real_server() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let page = settled(&server);
    let there = samples(&page);
    for target in targets() {
        for metric in metrics_in(&target.expression) {
            assert!(there.contains(metric), "{}: no {metric} in\n{page}", target.panel);
        }
    }
    for variable in variables() {
        let wanted = format!("\n{}{{{}=\"{QUEUE}\"", variable.metric, variable.label);
        assert!(page.contains(&wanted), "{}: no {wanted} in\n{page}", variable.board);
    }
    for alert in alerts() {
        let named = metrics_in(&alert.expression);
        // `up` is of Prometheus itself.
        assert!(!named.is_empty() || alert.expression.starts_with("up{"), "{}", alert.name);
        for metric in named {
            assert!(there.contains(metric), "{}: no {metric} in\n{page}", alert.name);
        }
    }
}
