//! What is shipped for those on call: dashboards, alerts and their runbook, held to what a real server shows.
//!
//! `files` has what can be said of the files themselves, `prometheus` what a real one makes of them, `firing`, `queue_alerts`
//! and `access_alerts` which trouble raises which alerts, `pages` what a server says of itself.

mod access_alerts;
mod files;
mod firing;
mod pages;
mod prometheus;
mod queue_alerts;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use crate::support::harness::{Launch, Server};

/// An alert of `alerts.yml`.
pub struct Alert {
    /// Its name.
    pub name: String,
    /// When it fires.
    pub expression: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// One line or group of lines of a panel.
pub struct Target {
    /// The dashboard and the panel.
    pub panel: String,
    /// Its name in the panel.
    pub id: String,
    /// What it shows.
    pub expression: String,
    /// How its lines are called; empty for all their labels.
    pub legend: String,
}

/// A choice on top of a dashboard: the values of a label.
pub struct Variable {
    /// The dashboard.
    pub board: String,
    /// Its name in expressions, after a dollar sign.
    pub name: String,
    /// The metric that has the label.
    pub metric: String,
    /// The label whose values can be chosen.
    pub label: String,
}

/// The queue of `used_server`.
pub const QUEUE: &str = "mail";

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository.
pub fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The alerts that are shipped.
pub fn alerts() -> Vec<Alert> {
    let documents = YamlLoader::load_from_str(&text("docs/observability/alerts.yml")).expect("YAML");
    let groups = documents[0]["groups"].as_vec().expect("there are groups");
    let rules = groups.iter().flat_map(|group| group["rules"].as_vec().expect("a group has rules"));
    rules.map(alert).collect()
}

fn alert(rule: &Yaml) -> Alert {
    let word = |yaml: &Yaml| yaml.as_str().expect("a text").to_owned();
    let words = |yaml: &Yaml| {
        let pairs = yaml.as_hash().into_iter().flatten();
        pairs.map(|(key, value)| (word(key), word(value))).collect()
    };
    Alert {
        name: word(&rule["alert"]),
        expression: word(&rule["expr"]),
        labels: words(&rule["labels"]),
        annotations: words(&rule["annotations"]),
    }
}

/// The dashboards that are shipped.
pub fn dashboards() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("docs/observability")).expect("the folder is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    files
}

/// A dashboard as JSON, with its name.
pub fn read_board(file: &Path) -> (String, Value) {
    let board = serde_json::from_str(&fs::read_to_string(file).expect("a text")).expect("JSON");
    (file.file_stem().expect("a file has a name").to_string_lossy().into_owned(), board)
}

/// The choices of all dashboards.
pub fn variables() -> Vec<Variable> {
    let mut found = Vec::new();
    for (name, board) in dashboards().iter().map(|file| read_board(file)) {
        for variable in board["templating"]["list"].as_array().into_iter().flatten() {
            let query = variable["query"]["query"].as_str().expect("a variable has a query");
            let of = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
            let (metric, label) = of.and_then(|of| of.split_once(", ")).unwrap_or_else(|| panic!("{name}: {query}"));
            assert_eq!(variable["definition"], query, "{name} shows another query than it asks");
            found.push(Variable {
                board: name.clone(),
                name: variable["name"].as_str().expect("a variable has a name").to_owned(),
                metric: metric.to_owned(),
                label: label.to_owned(),
            });
        }
    }
    found
}

/// What all panels of all dashboards show, with the queue of `used_server` chosen.
pub fn targets() -> Vec<Target> {
    let (variables, mut found) = (variables(), Vec::new());
    for file in dashboards() {
        let (name, board) = read_board(&file);
        for panel in board["panels"].as_array().expect("there are panels") {
            let title = panel["title"].as_str().expect("a panel has a title");
            for target in panel["targets"].as_array().expect("a panel has targets") {
                let word =
                    |key: &str| target[key].as_str().unwrap_or_else(|| panic!("{title} has no {key}")).to_owned();
                let legend = target["legendFormat"].as_str().unwrap_or_default().to_owned();
                let (panel, id, mut expression) = (format!("{name}: {title}"), word("refId"), word("expr"));
                for variable in variables.iter().filter(|variable| variable.board == name) {
                    assert_eq!(variable.label, "queue", "{name}: say here which value a test chooses");
                    expression = expression.replace(&format!("${}", variable.name), QUEUE);
                }
                assert!(!expression.contains('$'), "{panel}: no such variable: {expression}");
                found.push(Target { panel, id, expression, legend });
            }
        }
    }
    found
}

/// The names of our metrics in an expression.
pub fn metrics_in(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("tallystone_") || word.starts_with("process_")).collect()
}

/// The names of the samples of a metrics page.
pub fn samples(page: &str) -> BTreeSet<&str> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split([' ', '{']).next()).collect()
}

/// A development server that has counted, read, and taken a message in.
pub fn used_server(folder: &Path) -> Server {
    let server = Launch::dev(&folder.join("data")).start();
    use_it(&server);
    server
}

/// Enqueues three messages into a new queue, leases them, and settles each in another way. Then its histograms have as many waits
/// as leases, and as many runs as settlements.
pub fn expect_times_of_leases(server: &Server) {
    let queues = "/tallystone.queue.v1.QueueService";
    let call = |method: &str, body: &str| {
        let answer = server.post(&format!("{queues}/{method}"), body);
        assert_eq!(answer.status, 200, "{method}: {}", answer.body);
        answer.json()
    };
    call("CreateQueue", r#"{"queue": {"name": "timed-work", "shards": 2}}"#);
    for number in 0..3 {
        let message = format!(r#"{{"messageId": "m{number}", "payload": "Zm9v"}}"#);
        call("Enqueue", &format!(r#"{{"queue": "timed-work", "message": {message}}}"#));
    }
    let leased = call("Dequeue", r#"{"queue": "timed-work", "maxMessages": 3, "wait": "10s", "minMessages": 3}"#);
    let times = |family: &str, end: &str| {
        let le = if end == "bucket" { "le=\"+Inf\"," } else { "" };
        let series = format!("tallystone_queue_{family}_{end}{{{le}queue=\"timed-work\"}} ");
        let page = server.get("/metrics").body;
        let value = page.lines().find_map(|line| line.strip_prefix(&series)?.parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("no {series} in\n{page}"))
    };
    assert_eq!(
        (times("leased", "total"), times("wait_seconds", "count"), times("run_seconds", "count")),
        (3.0, 3.0, 0.0)
    );
    for (lease, method) in leased["leases"].as_array().expect("leases").iter().zip(["Complete", "Fail", "Release"]) {
        let token = lease["leaseToken"].as_str().expect("a token");
        for _ in 0..2 {
            call(method, &format!(r#"{{"queue": "timed-work", "leaseToken": "{token}"}}"#));
        }
    }
    call("Dequeue", r#"{"queue": "timed-work", "maxMessages": 3, "wait": "10s"}"#);
    assert_eq!(times("wait_seconds", "count"), times("leased", "total"));
    assert_eq!(
        (times("run_seconds", "count"), times("run_seconds", "bucket")),
        (3.0, 3.0),
        "a repeat is not counted twice"
    );
    // It was a matter of seconds, on whatever clock the store has.
    for family in ["wait_seconds", "run_seconds"] {
        assert!((0.0..600.0).contains(&times(family, "sum")), "{family}: {}", times(family, "sum"));
    }
}

/// Adds to a counter, reads it, and enqueues a message that is leased.
pub fn use_it(server: &Server) {
    let call = |service: &str, method: &str, body: &str| {
        let answer = server.post(&format!("/tallystone.{service}/{method}"), body);
        assert_eq!(answer.status, 200, "{method}: {}", answer.body);
    };
    let counter = r#""namespace": "default", "counterName": "views""#;
    call("counter.v1.CounterService", "AddCount", &format!(r#"{{{counter}, "delta": 1}}"#));
    call("counter.v1.CounterService", "GetCount", &format!("{{{counter}}}"));
    call("queue.v1.QueueService", "CreateQueue", r#"{"queue": {"name": "mail"}}"#);
    for _ in 0..2 {
        call("queue.v1.QueueService", "Enqueue", r#"{"queue": "mail", "message": {"payload": "Zm9v"}}"#);
    }
    call("queue.v1.QueueService", "Dequeue", r#"{"queue": "mail", "maxMessages": 1}"#);
}
