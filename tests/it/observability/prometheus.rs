//! A real Prometheus with the settings that are shipped, on a real server: it reads the page, evaluates the alerts, and
//! each query of each panel shows every series that there is.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::firing::settled;
use super::{QUEUE, Target, alerts, metrics_in, root, samples, targets, text, use_it, used_server, variables};
use crate::servers::prometheus::{Prometheus, promtool};
use crate::support::harness::{Server, eventually, http};

const WITHIN: Duration = Duration::from_secs(60);

#[test]
fn promtool_takes_the_alerts_and_the_settings() {
    let folder = root().join("docs/observability");
    for arguments in [["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"]] {
        let path = folder.join(arguments[2]);
        let checked = promtool(&[arguments[0], arguments[1], &path.display().to_string()], "");
        checked.unwrap_or_else(|found| panic!("{}: {found}", path.display()));
    }
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics_of_a_server() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let page = http(server.address, "GET", "/metrics", &[("accept", "text/plain")], "").expect("an answer").body;
    promtool(&["check", "metrics"], &page).unwrap_or_else(|found| panic!("{found}"));
    // It would find something.
    let found = promtool(&["check", "metrics"], &page.replace("_total", "_sum")).expect_err("bad names");
    assert!(found.contains("counter"), "{found}");
}

#[test]
fn a_scraper_that_asks_for_gzip_gets_the_page_by_gzip() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let url = format!("http://{}/metrics", server.address);
    let asked = Command::new("curl").args(["-sS", "-i", "--compressed", &url]).output().expect("curl is installed");
    let told = String::from_utf8_lossy(&asked.stdout).to_ascii_lowercase();
    assert!(told.contains("content-encoding: gzip") && told.ends_with("# eof\n"), "{told}");
    assert!(!server.get("/metrics").head.to_ascii_lowercase().contains("content-encoding"));
}

#[test]
fn seconds_and_bytes_are_declared_as_units_and_values_of_labels_are_in_lower_snake_case() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    assert_eq!(server.post("/tallystone.queue.v1.QueueService/Enqueue", "{}").status, 400);
    let page = server.get("/metrics").body;
    let mut units = 0;
    for family in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        let unit = ["seconds", "bytes"].into_iter().find(|unit| family.ends_with(&format!("_{unit}")));
        let declared =
            page.lines().find_map(|line| line.strip_prefix("# UNIT ")?.strip_prefix(family)?.strip_prefix(' '));
        assert_eq!(declared, unit, "{family}");
        units += usize::from(unit.is_some());
    }
    assert!(units > 20, "{units}");
    // The values of all other labels are names: of queues, methods, services and the like.
    let told = ["class", "code", "full", "kind", "outcome", "quota", "state", "why"];
    let mut seen = BTreeSet::new();
    for series in page.lines().filter(|line| !line.starts_with('#')) {
        let labels = series.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(labels, _)| labels);
        for (label, value) in labels.split(',').filter_map(|pair| pair.split_once('=')) {
            let is_lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '"';
            if told.contains(&label) {
                assert!(value.chars().all(is_lower), "{series}");
                seen.insert(label);
            }
        }
    }
    assert_eq!(seen, told.into(), "{page}");
}

#[test]
fn no_metric_has_a_name_that_an_earlier_build_gave_it() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let page = used_server(folder.path()).get("/metrics").body;
    let gone = [
        "promotion_lag_seconds",
        "messages_promoted",
        "promotions_late",
        "leases_lapsed",
        "members_lapsed",
        "messages_enqueued",
        "messages_completed",
        "leases_given",
        "dequeues_waiting",
        "messages_repeated",
        "leases_settled",
        "dequeues_empty",
        "leases_out_of_rank",
        "rolls_written",
        "rolls_empty",
        "rolls_failed",
        "verdicts_void",
        "writes_applied",
        "writes_repeated",
        "namespace_writes_applied",
        "namespace_writes_failed",
        "count_cache_hits",
        "count_cache_misses",
        "cassandra_reads",
        "cassandra_writes",
        "cassandra_conditional",
        "cassandra_failed",
    ];
    for name in gone {
        assert!(!page.contains(&format!("\ntallystone_{name}")), "{name}: {page}");
    }
}

/// A Prometheus with the shipped settings, on this server and in a hurry.
fn prometheus_on(server: &Server, folder: &Path) -> Prometheus {
    let settings = text("docs/observability/prometheus.yml");
    // The names of its servers are those of Docker.
    let (before, rest) = settings.split_once("    dns_sd_configs:").expect("names are looked up");
    let (_, after) = rest.split_once("    relabel_configs:").expect("and relabelled");
    let target = format!("    static_configs:\n      - targets: [\"{}\"]\n", server.address);
    let settings = format!("{before}{target}    relabel_configs:{after}")
        .replace("scrape_interval: 5s", "scrape_interval: 1s")
        .replace("evaluation_interval: 15s", "evaluation_interval: 1s");
    assert!(settings.contains("evaluation_interval: 1s") && settings.contains("scrape_interval: 1s"), "{settings}");
    fs::write(folder.join("prometheus.yml"), settings).expect("the folder is ours");
    fs::write(folder.join("alerts.yml"), text("docs/observability/alerts.yml")).expect("the folder is ours");
    Prometheus::start(folder).unwrap_or_else(|why| panic!("{why}"))
}

fn ask(prometheus: SocketAddr, path: &str) -> Value {
    let answer = http(prometheus, "GET", path, &[], "").expect("it answers");
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()["data"].clone()
}

/// The series that an expression gives, by their labels.
fn series(prometheus: SocketAddr, expression: &str) -> Vec<Value> {
    let quoted: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let data = ask(prometheus, &format!("/api/v1/query?query={quoted}"));
    let found = data["result"].as_array().unwrap_or_else(|| panic!("{expression}: {data}"));
    found.iter().map(|series| series["metric"].clone()).collect()
}

/// The labels by which an expression sums up, buckets apart; none where it does not.
fn labels_of(expression: &str) -> Option<BTreeSet<&str>> {
    let (_, after) = expression.split_once(" by (")?;
    let (labels, _) = after.split_once(')')?;
    Some(labels.split(',').map(str::trim).filter(|label| *label != "le").collect())
}

/// The labels with their values by which an expression selects series.
fn selected(expression: &str) -> Vec<&str> {
    let within = expression.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    within.map_or(Vec::new(), |(labels, _)| labels.split(',').map(str::trim).collect())
}

/// How many series a query of a panel has to show: one for each set of labels that the page has.
fn wanted(target: &Target, page: &str) -> usize {
    let metric = *metrics_in(&target.expression).first().expect("it names one");
    let (by, selected) = (labels_of(&target.expression), selected(&target.expression));
    let lines = page.lines().filter(|line| line.split([' ', '{']).next() == Some(metric));
    let sets: BTreeSet<Vec<&str>> = lines
        .map(|line| line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels))
        .filter(|labels| selected.iter().all(|pair| labels.split(',').any(|label| label == *pair)))
        .map(|labels| {
            let pairs = labels.split(',').filter(|pair| !pair.is_empty());
            let is_shown = |pair: &&str| {
                let name = pair.split('=').next().expect("a name");
                by.as_ref().is_none_or(|by| by.contains(name))
            };
            pairs.filter(is_shown).collect()
        })
        .collect();
    sets.len()
}

#[test]
fn every_panel_shows_every_series_that_it_names_and_every_alert_is_evaluated() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let prometheus = prometheus_on(&server, folder.path());
    let at = prometheus.address();
    // Rates need two readings of a series, so everything that is there has to be there for a while.
    let page = settled(&server);
    assert!(samples(&page).len() > 30, "{page}");
    for target in targets() {
        let wanted = wanted(&target, &page);
        assert!(wanted > 0, "{}: nothing to show for {}", target.panel, target.expression);
        let mut shown = Vec::new();
        let all = eventually(WITHIN, || {
            shown = series(at, &target.expression);
            shown.len() >= wanted
        });
        assert!(all, "{} shows {} of {wanted}: {}: {shown:?}", target.panel, shown.len(), target.expression);
        for label in target.legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
            let has = shown.iter().all(|series| series[label].is_string());
            assert!(has, "{}: series of {} have no {label}: {shown:?}", target.panel, target.expression);
        }
    }
    for variable in variables() {
        let values = ask(at, &format!("/api/v1/label/{}/values?match%5B%5D={}", variable.label, variable.metric));
        let has = values.as_array().is_some_and(|values| values.iter().any(|value| value == QUEUE));
        assert!(has, "{} cannot choose {QUEUE}: {values}", variable.board);
    }
    use_it(&server);
    let names: BTreeSet<String> = alerts().into_iter().map(|alert| alert.name).collect();
    let mut rules = Value::Null;
    let evaluated = eventually(WITHIN, || {
        rules = ask(at, "/api/v1/rules");
        let rules = rules["groups"].as_array().into_iter().flatten().flat_map(|group| group["rules"].as_array());
        let good = rules.flatten().filter(|rule| rule["health"] == "ok");
        good.filter_map(|rule| rule["name"].as_str().map(str::to_owned)).collect::<BTreeSet<_>>() == names
    });
    assert!(evaluated, "not every alert is evaluated: {rules:#}");
    let firing = series(at, "ALERTS{alertstate=\"firing\"}");
    assert!(firing.is_empty(), "a healthy server raises no alert: {firing:?}");
}
