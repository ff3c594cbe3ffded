//! The structured log of the real binary: what a server's life looks like to whoever reads along.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Launch, Server};

/// A line of the log that says this.
fn line(server: &Server, message: &str) -> Value {
    let line = server.wait_for_line(&format!("\"message\":\"{message}\""));
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn start(data: &std::path::Path) -> Server {
    Launch::dev(data).env("TALLYSTONE__LOG__FORMAT", "json").start()
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
    assert!(told.contains("set aside as torn-journal") && told.contains("acknowledged"), "{told}");
    assert!(!told.contains("never acknowledged"), "{told}");
}
