//! Every help text ends with examples; every example does what it shows.

use tallystone::app::cli;

use std::process::Command;

use serde_json::{Value, json};

use super::Desk;
use crate::support::harness::Launch;

/// Commands on a Cassandra cluster; a test of `tests/it/engines/cassandra.rs` runs them on one.
const ON_CASSANDRA: &str = "tallystone migrate ";
/// Commands that run until they are told to stop; each has a test of its own.
const SERVERS: [&str; 2] = ["tallystone dev ", "tallystone server start "];

/// The lines of all examples, in the order of the commands.
fn examples(command: &clap::Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (_, below) = help.split_once("Example:\n").unwrap_or_default();
    let lines = below.lines().take_while(|line| line.starts_with("  ")).map(|line| line.trim().to_owned());
    lines.chain(command.get_subcommands().flat_map(examples)).collect()
}

#[test]
fn every_example_of_the_help_does_what_it_shows() {
    let desk = Desk::set();
    let examples = examples(&cli::command());
    assert!(examples.len() > 20, "{examples:#?}");
    let elsewhere = |example: &&String| {
        example.starts_with(ON_CASSANDRA) || SERVERS.iter().any(|server| example.starts_with(server))
    };
    for example in examples.iter().filter(|example| !elsewhere(example)) {
        fill(&desk);
        let ran = desk.shell(example);
        assert_eq!(ran.code, 0, "{example}\n{}{}", ran.out, ran.err);
        let is_silent = [">", " rm ", "wait-ready"].iter().any(|word| example.contains(word));
        assert!(is_silent || !ran.out.is_empty(), "{example} prints nothing");
    }
}

/// What each example begins with, whatever the one before deleted: a namespace `views`, counters, a queue `emails` as new with two
/// messages, and beside it an exclusive one. Not by commands, which would be nine of ten that the test runs.
fn fill(desk: &Desk) {
    let call = |method: &str, body: Value| desk.server.post(&format!("/tallystone.{method}"), &body.to_string());
    let done = |method: &str, body: Value| {
        let answer = call(method, body);
        assert_eq!(answer.status, 200, "{method}: {}", answer.body);
    };
    if call("admin.v1.NamespaceService/GetNamespace", json!({"name": "views"})).status != 200 {
        desk.run(&["apply", "-f", "views.toml"]).ok();
    }
    for namespace in ["views", "default"] {
        let add = json!({"namespace": namespace, "counter_name": "views", "delta": "1"});
        done("counter.v1.CounterService/AddCount", add);
    }
    let exclusive = json!({
        "name": "payments", "type": "EXCLUSIVE", "exclusivity_key": "account", "default_max_attempts": 5,
    });
    done("queue.v1.QueueService/CreateQueue", json!({"queue": exclusive}));
    call("queue.v1.QueueService/DeleteQueue", json!({"queue": "emails"})); // it may not be there yet, or be blocked
    done("queue.v1.QueueService/CreateQueue", json!({"queue": {"name": "emails"}}));
    for id in ["order-17", "order-18"] {
        let message = json!({"message_id": id, "payload": "aGVsbG8="});
        done("queue.v1.QueueService/Enqueue", json!({"queue": "emails", "message": message}));
    }
}

/// The binary with the words of an example, on a free port.
fn server_of(example: &str, desk: &Desk) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    let words = example.split_whitespace().skip(1);
    command.args(words.map(|word| word.replace(":7450", ":0"))).current_dir(desk.folder.path());
    command
}

#[test]
fn every_example_that_runs_a_server_runs_one() {
    let desk = Desk::set();
    let examples = examples(&cli::command());
    let servers: Vec<_> =
        examples.iter().filter(|example| SERVERS.iter().any(|server| example.starts_with(server))).collect();
    assert_eq!(servers.len(), SERVERS.len(), "{servers:?}");
    for example in servers {
        let server = Launch::of(server_of(example, &desk)).start();
        let answer = server.get("/readyz");
        assert_eq!(answer.status, 200, "{example}: {}", answer.body);
        let status = server.stop();
        assert!(status.success(), "{example} ended with {status}");
    }
}
