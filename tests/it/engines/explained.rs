//! `counter explain` against real servers: on the embedded store, in memcached and on Cassandra, over the API and as a
//! person reads it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::servers::{Memcached, cassandra};
use crate::support::harness::{Launch, Server, eventually};

const WITHIN: Duration = Duration::from_secs(90);
const COUNTERS: &str = "/tallystone.counter.v1.CounterService";

/// Calls until the answer is the last word: on a machine that stands still, calls run into their deadlines.
fn call(server: &Server, path: &str, body: &Value) -> Value {
    let mut last = None;
    eventually(WITHIN, || {
        let answer = server.post(path, &body.to_string());
        let is_last = ![409, 429, 500, 503, 504].contains(&answer.status);
        last = Some(answer);
        is_last
    });
    let answer = last.expect("it was called");
    assert_eq!(answer.status, 200, "{path} {body}: {}\n{}", answer.body, server.printed());
    answer.json()
}

fn explained(server: &Server, namespace: &str, name: &str) -> Value {
    let body = json!({"namespace": namespace, "counter_name": name, "rows": 100});
    call(server, &format!("{COUNTERS}/ExplainCounter"), &body)
}

/// Adds once; answers the token that counts.
fn add(server: &Server, namespace: &str, name: &str, delta: i64) -> String {
    let mut token = String::new();
    let added = || {
        token = Uuid::now_v7().to_string();
        let body = json!({"namespace": namespace, "counter_name": name, "delta": delta,
                          "idempotency_token": {"token": token}});
        let mut answer = server.post(&format!("{COUNTERS}/AddCount"), &body.to_string());
        // One that may have been applied is sent again with its token.
        eventually(WITHIN, || {
            let is_open = [409, 429, 500, 503, 504].contains(&answer.status) && !answer.body.contains("NOT_APPLIED");
            if is_open {
                answer = server.post(&format!("{COUNTERS}/AddCount"), &body.to_string());
            }
            !is_open
        });
        assert!(answer.status == 200 || answer.body.contains("NOT_APPLIED"), "{}", answer.body);
        answer.status == 200
    };
    assert!(eventually(WITHIN, added), "no add to {name} is in time: {}", server.printed());
    token
}

fn number(of: &Value) -> i64 {
    of.as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn count(server: &Server, namespace: &str, name: &str, freshness: &str) -> i64 {
    let body = json!({"namespace": namespace, "counter_name": name, "freshness": freshness});
    number(&call(server, &format!("{COUNTERS}/GetCount"), &body)["count"])
}

fn namespace(server: &Server, settings: &Value) {
    let path = "/tallystone.admin.v1.NamespaceService/CreateNamespace";
    let answer = server.post(path, &json!({ "namespace": settings }).to_string());
    assert!(answer.status == 200 || answer.body.contains("ALREADY_EXISTS"), "{}", answer.body);
}

/// What the explanation of a counter must say while nobody writes it: the parts add up to what an up-to-date read says, and
/// the rows are those that were written.
fn check(server: &Server, namespace: &str, name: &str, written: &[(String, i64)]) -> Value {
    let said = explained(server, namespace, name);
    let expected: i64 = written.iter().map(|(_, delta)| delta).sum();
    assert_eq!(number(&said["count"]), expected, "{said}");
    assert_eq!(count(server, namespace, name, "UP_TO_DATE"), expected);
    let (rolled_up, tail) = (&said["rolledUp"], &said["tail"]);
    assert_eq!(number(&rolled_up["counts"]) + number(&tail["counts"]), expected, "{said}");
    let rows = said["rows"].as_array().expect("rows");
    let shown: BTreeSet<(String, i64)> = rows
        .iter()
        .map(|row| (row["event"]["token"].as_str().unwrap_or_default().to_owned(), number(&row["event"]["delta"])))
        .collect();
    assert_eq!(shown, written.iter().cloned().collect(), "{said}");
    assert_eq!(rows.len(), written.len(), "each row once: {said}");
    assert_eq!(number(&said["rowsLeftOut"]), 0, "{said}");
    let in_tail = rows.iter().filter(|row| row["stage"] != "ROW_STAGE_ROLLED_UP").count() as i64;
    assert_eq!(in_tail, number(&tail["rows"]), "{said}");
    let waiting = &said["waiting"];
    assert_eq!(number(&waiting["rowsReady"]) + number(&waiting["rowsAboveLimit"]), in_tail, "{said}");
    said
}

fn is_rolled_up(said: &Value) -> bool {
    said["rolledUp"]["exists"] == Value::Bool(true) && number(&said["tail"]["rows"]) == 0
}

fn cli(server: &Server, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(arguments).args(["--timeout", "60s"]).env("TALLYSTONE_SERVER", server.address.to_string());
    let output = command.output().expect("the command starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().expect("nobody kills it"), String::from_utf8_lossy(&text).into_owned())
}

fn embedded(folder: &Path) -> Server {
    Launch::dev(&folder.join("data")).start()
}

/// Adds, explains, waits for the roll and explains again, in one namespace.
fn follow(server: &Server, namespace: &str, name: &str) -> Value {
    let mut written = Vec::new();
    for delta in [5, -2, 40] {
        written.push((add(server, namespace, name, delta), delta));
        check(server, namespace, name, &written);
    }
    let rolled_up = || is_rolled_up(&check(server, namespace, name, &written));
    assert!(eventually(WITHIN, rolled_up), "{}", server.printed());
    written.push((add(server, namespace, name, 7), 7));
    check(server, namespace, name, &written)
}

#[test]
fn the_parts_add_up_and_the_roll_names_its_server_on_the_embedded_store() {
    let folder = TempDir::new().expect("a folder");
    let server = embedded(folder.path());
    namespace(&server, &json!({"name": "exact", "counter_type": "ACCURATE"}));
    for (of, counter_type) in [("default", "NAMESPACE_TYPE_EVENTUAL"), ("exact", "NAMESPACE_TYPE_ACCURATE")] {
        let said = follow(&server, of, "views");
        assert_eq!(said["namespaceType"], counter_type, "{said}");
        let rolled_up = &said["rolledUp"];
        assert_eq!(rolled_up["rolledBy"], server.address.to_string(), "{said}");
        assert_eq!(rolled_up["rolledHere"], true, "{said}");
        assert!(rolled_up["rolledAt"].is_string(), "{said}");
    }
    // What an earlier process rolled up is not taken for this one's.
    let before = server.address.to_string();
    assert!(server.stop().success());
    let server = embedded(folder.path());
    add(&server, "default", "other", 1);
    let said = explained(&server, "default", "views");
    assert!(is_rolled_up(&said) && said["rolledUp"]["rolledAt"].is_string(), "{said}");
    assert_eq!(said["rolledUp"]["rolledHere"], false, "{said}");
    assert_eq!(said["rolledUp"]["rolledBy"], "", "{said}");
    let (code, text) = cli(&server, &["counter", "explain", "views"]);
    assert!(code == 0 && text.contains("by an earlier process on this store") && !text.contains(&before), "{text}");
}

#[test]
fn an_explanation_reads_as_words_that_hold_what_it_found() {
    let folder = TempDir::new().expect("a folder");
    let server = embedded(folder.path());
    let (mut name, mut text, mut tokens) = (String::new(), String::new(), [String::new(), String::new()]);
    let mut tries = 0;
    // On a busy machine the second add may be rolled up before it is explained.
    let has_a_tail = || {
        tries += 1;
        name = format!("views-{tries}");
        let token = add(&server, "default", &name, 12);
        let rolled_up = || is_rolled_up(&explained(&server, "default", &name));
        assert!(eventually(WITHIN, rolled_up), "{}", server.printed());
        tokens = [token, add(&server, "default", &name, 30)];
        let (code, shown) = cli(&server, &["counter", "explain", &name]);
        assert_eq!(code, 0, "{shown}");
        text = shown;
        !text.contains("42 of the checkpoint")
    };
    assert!(eventually(WITHIN, has_a_tail), "{text}");
    let [token, newer] = tokens;
    for words in [
        "42 with every acknowledged event",
        &format!("counter {name} of namespace default: EVENTUAL, made of deltas"),
        "12 of the checkpoint",
        "= 42",
        &format!("{}, the server that answers", server.address),
        "no new event can appear at or before this time",
        "the newest 2 of the log",
        "+12",
        "+30",
        &token,
        &newer,
    ] {
        assert!(text.contains(words), "{words} in:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    let (code, only) = cli(&server, &["counter", "explain", &name, "--rows", "1"]);
    assert!(code == 0 && only.contains("the newest 1 of the log, and 1 older"), "{only}");
    let (code, said) = cli(&server, &["counter", "explain", &name, "-o", "json"]);
    let said: Value = serde_json::from_str(&said).unwrap_or_default();
    assert_eq!((code, number(&said["count"])), (0, 42), "{said}");
    let (code, lines) = cli(&server, &["counter", "explain", &name, "-o", "csv"]);
    assert!(code == 0 && lines.lines().count() == 3 && lines.contains("ADD,12,ROLLED_UP"), "{lines}");
}

#[test]
fn a_counter_that_nobody_wrote_and_a_namespace_that_is_not_there_are_told() {
    let folder = TempDir::new().expect("a folder");
    let server = embedded(folder.path());
    let said = explained(&server, "default", "viewz");
    assert_eq!((&said["neverWritten"], number(&said["count"])), (&Value::Bool(true), 0), "{said}");
    let (code, text) = cli(&server, &["counter", "explain", "viewz"]);
    assert!(code == 0 && text.contains("the counter was never written or cleared"), "{text}");
    add(&server, "default", "viewz", 0);
    assert_eq!(explained(&server, "default", "viewz")["neverWritten"], true, "an add of 0 writes nothing");
    add(&server, "default", "viewz", 1);
    add(&server, "default", "viewz", -1);
    let said = explained(&server, "default", "viewz");
    assert_eq!((said["neverWritten"].as_bool(), number(&said["count"])), (Some(false), 0), "{said}");
    let (code, text) = cli(&server, &["counter", "explain", "views", "-n", "nowhere"]);
    assert!(code == 3 && text.contains("namespace nowhere does not exist"), "{code}: {text}");
}

#[test]
fn a_best_effort_counter_is_a_single_number_in_memory_or_memcached() {
    let folder = TempDir::new().expect("a folder");
    let memcached = Memcached::start().unwrap_or_else(|why| panic!("{why}"));
    let launch = Launch::dev(&folder.path().join("data")).arg("--memcached").arg(&memcached.address().to_string());
    let server = launch.patient_with("memcached").start();
    let path = &format!("{COUNTERS}/AddCount");
    for (name, cluster) in [("near", "memcached"), ("here", "embedded")] {
        namespace(
            &server,
            &json!({"name": name, "counter_type": "BEST_EFFORT", "storage": {"cache_cluster": cluster}}),
        );
        for delta in [3, 4] {
            call(&server, path, &json!({"namespace": name, "counter_name": "likes", "delta": delta}));
        }
        let said = explained(&server, name, "likes");
        assert_eq!(said["namespaceType"], "NAMESPACE_TYPE_BEST_EFFORT", "{said}");
        assert_eq!((number(&said["count"]), number(&said["reading"]["count"])), (7, 7), "{said}");
        assert!(said["rolledUp"].is_null() && said["tail"].is_null(), "it has no parts: {said}");
        let (code, text) = cli(&server, &["counter", "explain", "likes", "-n", name]);
        let kept = if name == "near" { "in the memcached cluster memcached" } else { "in the memory of the server" };
        assert!(code == 0 && text.contains("a single number") && text.contains(kept), "{text}");
        assert!(text.contains("keep no log"), "{text}");
    }
}

#[test]
fn the_parts_add_up_and_the_roll_names_its_server_on_cassandra() {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let start = |roles: &str| {
        let launch = Launch::dev_on_cassandra(node).arg("--set").arg("clusters.cassandra.keyspace=explained");
        launch.patient_with("cassandra").arg("--roles").arg(roles).start()
    };
    let (writer, roller) = (start("writer"), start("roller"));
    namespace(&writer, &json!({"name": "exact", "counter_type": "ACCURATE"}));
    let known = || roller.post(&format!("{COUNTERS}/ListCounters"), r#"{"namespace": "exact"}"#).status == 200;
    assert!(eventually(WITHIN, known), "{}", roller.printed());
    for of in ["default", "exact"] {
        let said = follow(&writer, of, "views");
        assert_eq!(said["rolledUp"]["rolledBy"], roller.address.to_string(), "{said}");
        assert_eq!(said["rolledUp"]["rolledHere"], false, "{said}");
        assert_eq!(said["waiting"]["rolledUpHere"], false, "{said}");
        assert_eq!(said["waiting"]["roller"], roller.address.to_string(), "{said}");
        let there = explained(&roller, of, "views");
        assert_eq!(there["rolledUp"]["rolledHere"], true, "{there}");
        assert_eq!(there["waiting"]["rolledUpHere"], true, "{there}");
    }
    assert_eq!(explained(&writer, "default", "viewz")["neverWritten"], true);
    let (code, text) = cli(&writer, &["counter", "explain", "views"]);
    assert!(code == 0 && text.contains(&format!("by {}", roller.address)), "{text}");
}

#[test]
fn a_checkpoint_of_a_release_that_noted_no_roller_says_so() {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let launch = Launch::dev_on_cassandra(node).arg("--set").arg("clusters.cassandra.keyspace=unsigned");
    let server = launch.patient_with("cassandra").start();
    add(&server, "default", "views", 5);
    let rolled_up = || is_rolled_up(&explained(&server, "default", "views"));
    assert!(eventually(WITHIN, rolled_up), "{}", server.printed());
    // The same cell as an earlier release writes it: a count of 5, `as_of` and the time of the event, and no more.
    let said = explained(&server, "default", "views");
    assert!(said["rolledUp"]["rolledAt"].is_string(), "{said}");
    let micros = |time: &Value| {
        let time: jiff::Timestamp = time.as_str().and_then(|time| time.parse().ok()).expect("a time");
        time.as_microsecond()
    };
    let stored = tallystone::domain::rollup::Checkpoint {
        count: 5,
        last_event_time: Some(tallystone::domain::Timestamp::from_micros(micros(&said["rolledUp"]["lastEventTime"]))),
        ..tallystone::domain::rollup::Checkpoint::empty(tallystone::domain::Timestamp::from_micros(
            micros(&said["rolledUp"]["asOf"]) + 1_000,
        ))
    };
    let bytes = tallystone::adapters::codec::encode_checkpoint(&stored);
    let cell: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let at = stored.as_of.micros();
    let row = format!(
        "UPDATE unsigned.rollups USING TIMESTAMP {at} SET live = 0x{cell} WHERE dataset = 1 AND ns = 1 AND counter = 'views' AND region = '' \
         AND repairs = 0"
    );
    crate::engines::cassandra::query(&node.to_string(), None, &row);
    let said = explained(&server, "default", "views");
    assert!(said["rolledUp"]["rolledAt"].is_null() && said["rolledUp"]["rolledBy"] == "", "{said}");
    assert_eq!(number(&said["count"]), 5, "{said}");
    let (code, text) = cli(&server, &["counter", "explain", "views"]);
    assert!(code == 0 && text.contains("time and server are unknown"), "{text}");
}
