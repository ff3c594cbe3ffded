//! The structured log of the real binary: what a server's life looks like to whoever reads along.

use std::fs;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::support::harness::{Launch, Server};

/// A line of the log that says this.
fn line(server: &Server, message: &str) -> Value {
    let line = server.wait_for_line(&format!("\"message\":\"{message}\""));
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn start(data: &std::path::Path) -> Server {
    Launch::dev(data).env("TALLYSTONE__LOG__FORMAT", "json").start()
}

/// Expects that an ended server has written at most a line a second that says this, and told of all of them; answers these
/// lines.
fn a_line_a_second_and_all_counted(server: &Server, says: &str, all: u64, seconds: u64) -> Vec<Value> {
    let printed = server.printed();
    let lines = printed.lines().filter(|line| line.contains(says));
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told: u64 = lines.iter().map(|line| line["left_out"].as_u64().unwrap_or(1)).sum();
    assert_eq!(told, all, "{printed}");
    let most = usize::try_from(seconds).expect("a short time") + 3;
    assert!(lines.len() <= most, "{} lines in {seconds} s:\n{printed}", lines.len());
    lines
}

fn add(server: &Server, counter: &str) {
    let body = format!(r#"{{"namespace": "default", "counterName": "{counter}", "delta": 1}}"#);
    let answer = server.post("/tallystone.counter.v1.CounterService/AddCount", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn the_log_tells_the_life_of_a_server_and_names_no_counter() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path());
    assert_eq!(line(&server, "listening")["address"], server.address.to_string());
    let opened = line(&server, "the store is open");
    assert_eq!(opened["kind"], "embedded", "{opened}");
    assert!(opened["took_ms"].is_u64(), "{opened}");
    let made = line(&server, "a namespace was changed");
    assert_eq!((&made["namespace"], &made["version"]), (&"default".into(), &1.into()), "{made}");
    assert_eq!((&made["actor"], &made["action"]), (&"tallystone dev".into(), &"created".into()), "{made}");
    line(&server, "ready");
    add(&server, "patient-4711");
    server.kill();

    let mut server = start(folder.path());
    line(&server, "the store is open");
    add(&server, "patient-4711");
    server.signal(libc::SIGTERM);
    assert!(server.wait().success(), "{}", server.printed());
    let stopped = line(&server, "stopped");
    assert_eq!((&stopped["why"], &stopped["writes_applied"]), (&"SIGTERM".into(), &1.into()), "{stopped}");
    assert_eq!((&stopped["writes_repeated"], &stopped["connections_cut_off"]), (&0.into(), &0.into()), "{stopped}");
    assert_eq!(stopped["counters_left"], 0, "also of those that the kill left: {stopped}");
    assert!(stopped["rollups_written"].is_u64(), "{stopped}");
    assert!(!server.printed().contains("4711"), "{}", server.printed());
}

#[test]
fn lost_work_is_never_logged_as_work_that_was_not_acknowledged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path());
    add(&server, "views");
    server.kill();
    let journals = fs::read_dir(folder.path().join("store")).expect("the folder of the store");
    let journals = journals.map(|entry| entry.expect("an entry").path());
    let journals: Vec<_> = journals.filter(|path| path.extension().is_some_and(|kind| kind == "jnl")).collect();
    assert_eq!(journals.len(), 1, "a young store has one journal");
    let bytes = fs::metadata(&journals[0]).expect("its length").len();
    fs::write(&journals[0], vec![0xff; usize::try_from(bytes).expect("a short file")]).expect("it is overwritten");

    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    let command = command.args(["dev", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path());
    let ended = command.output().expect("the binary starts");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success(), "{told}");
    assert!(told.contains("renamed to torn-journal") && told.contains("acknowledged"), "{told}");
    assert!(!told.contains("never acknowledged"), "{told}");
}

#[test]
fn a_flood_of_refusals_is_a_line_a_second_and_a_full_disk_says_where_and_how_many_bytes() {
    const REFUSED: u64 = 400;
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert!(start(folder.path()).stop().success(), "the namespace is there");
    let reserve = 1_u64 << 60;
    let mut full = Launch::dev(folder.path())
        .env("TALLYSTONE__LOG__FORMAT", "json")
        .env("TALLYSTONE__STORAGE__RESERVE_BYTES", &reserve.to_string())
        .start();
    let began = Instant::now();
    let body = r#"{"namespace": "default", "counterName": "views", "delta": 1}"#;
    for _ in 0..REFUSED {
        let answer = full.post("/tallystone.counter.v1.CounterService/AddCount", body);
        assert!(answer.body.contains("STORAGE_FULL"), "{answer:?}");
    }
    let seconds = began.elapsed().as_secs();
    let exhausted = line(
        &full,
        "free space is below a quarter of storage.reserve_bytes: all writes are refused; free \
         storage.reserve_bytes, so that adds and new messages are accepted again",
    );
    assert_eq!(exhausted["path"], folder.path().to_str().expect("text"), "{exhausted}");
    assert_eq!(exhausted["reserve_bytes"], reserve, "{exhausted}");
    assert!(exhausted["free_bytes"].as_u64().is_some_and(|free| free > 0 && free < reserve), "{exhausted}");

    full.signal(libc::SIGTERM);
    assert!(full.wait().success(), "{}", full.printed());
    a_line_a_second_and_all_counted(&full, "STORAGE_FULL", REFUSED, seconds);
}

#[test]
fn lines_about_changes_that_callers_make_are_a_line_a_second_and_all_are_counted() {
    const MADE: u64 = 100;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let launch = Launch::dev(folder.path()).env("TALLYSTONE__LOG__FORMAT", "json");
    // By module: what is said of these lines belongs to them, wherever else the level is higher.
    let mut server = launch.env("TALLYSTONE__LOG__LEVEL", "error,tallystone::engine=info,tallystone::app=info").start();
    let began = Instant::now();
    // With `default` and `tallystone.queues`.
    for number in 2..MADE {
        let body = format!(r#"{{"namespace": {{"name": "n{number}"}}}}"#);
        let made = server.post("/tallystone.admin.v1.NamespaceService/CreateNamespace", &body);
        assert_eq!(made.status, 200, "{}", made.body);
    }
    let seconds = began.elapsed().as_secs();
    server.signal(libc::SIGTERM);
    assert!(server.wait().success(), "{}", server.printed());
    let lines = a_line_a_second_and_all_counted(&server, "a namespace was changed", MADE, seconds);
    assert!(lines.iter().all(|line| line["level"] == "INFO"), "{}", server.printed());
}
