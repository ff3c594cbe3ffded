//! Each role of a server has its own engine, and any pair of engines works.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::engines::cassandra::node;
use crate::support::harness::{Launch, PATIENCE, Server, eventually};

const COUNTERS: &str = "/tallystone.counter.v1.CounterService/";
const QUEUES: &str = "/tallystone.queue.v1.QueueService/";
const NAMESPACES: &str = "/tallystone.admin.v1.NamespaceService/";
const STATUS: &str = "/tallystone.admin.v1.StatusService/GetStatus";

fn done(server: &Server, path: &str, body: &Value) -> Value {
    let answer = server.post(path, &body.to_string());
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.body);
    answer.json()
}

/// Adds 1, once. Where a busy machine was later than the accept limit, nothing was applied, and another token is sent.
fn add(server: &Server) {
    let mut token = Uuid::now_v7();
    let mut told = String::new();
    let is_applied = eventually(PATIENCE, || {
        let sent = json!({"token": token.to_string()});
        let body = json!({"namespace": "default", "counter_name": "views", "delta": 1, "idempotency_token": sent});
        let answer = server.post(&format!("{COUNTERS}AddCount"), &body.to_string());
        if answer.body.contains("NOT_APPLIED") {
            token = Uuid::now_v7();
        }
        told = answer.body;
        answer.status == 200
    });
    assert!(is_applied, "the add is applied: {told}\n{}", server.printed());
}

fn count(server: &Server) -> Value {
    let body = json!({"namespace": "default", "counter_name": "views", "freshness": "UP_TO_DATE"});
    done(server, &format!("{COUNTERS}GetCount"), &body)["count"].clone()
}

fn push(server: &Server, queue: &str, id: &str) -> Value {
    let body = json!({"queue": queue, "message": {"message_id": id, "payload": "aGVsbG8="}});
    done(server, &format!("{QUEUES}Enqueue"), &body)
}

/// Leases one message and completes it; answers its id.
fn work(server: &Server, queue: &str) -> Value {
    let leased = done(server, &format!("{QUEUES}Dequeue"), &json!({"queue": queue, "max_messages": 1}));
    let lease = &leased["leases"][0];
    let body = json!({"queue": queue, "lease_token": lease["leaseToken"]});
    done(server, &format!("{QUEUES}Complete"), &body);
    lease["message"]["messageId"].clone()
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

fn stores(server: &Server) -> Vec<String> {
    let status = done(server, STATUS, &json!({}));
    let stores = status["stores"].as_array().expect("a list").iter();
    stores.map(|store| store["store"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn queues_in_a_directory_beside_counters_on_cassandra_survive_a_kill() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let start = || {
        let launch = Launch::dev_on_cassandra(node()).arg("--data").arg(path(folder.path()));
        launch.arg("--set").arg("clusters.cassandra.keyspace=beside_a_directory").patient_with("cassandra").start()
    };
    let server = start();
    assert_eq!(stores(&server), ["beside_a_directory", "embedded"]);
    let printed = server.wait_for_line("queues: ");
    assert!(printed.contains(path(folder.path())), "{printed}");
    for number in 0..5 {
        add(&server);
        push(&server, "timed/mail", &format!("m{number}"));
    }
    assert_eq!(work(&server, "timed/mail"), json!("m0"));
    server.kill();

    let server = start();
    assert_eq!(count(&server), json!("5"));
    assert_eq!(push(&server, "timed/mail", "m1")["alreadyEnqueued"], json!(true));
    assert_eq!(work(&server, "timed/mail"), json!("m1"), "m0 stays completed");
    let target = tempfile::tempdir().expect("a temporary directory");
    let backup = target.path().join("backup");
    let address = server.address.to_string();
    let made = ["backup", path(&backup), "--server", &address, "--timeout", "60s"];
    for arguments in [&made[..], &["backup", "verify", path(&backup)]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
        let ran = command.args(arguments).output().expect("the binary of this build starts");
        assert!(ran.status.success(), "{arguments:?}: {ran:?}");
    }
    assert!(server.stop().success());
}

/// A server whose settings are given one by one.
fn server(settings: &[String]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(["server", "start", "--listen", "127.0.0.1:0", "--set", "auth.mode=off"]);
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    Launch::of(command).with_patience().start()
}

fn of_cassandra(node: SocketAddr, keyspace: &str) -> Vec<String> {
    let settings = [
        "counters.cluster=main".to_owned(),
        "clusters.main.kind=cassandra".to_owned(),
        format!("clusters.main.servers={node}"),
        format!("clusters.main.keyspace={keyspace}"),
        "clusters.main.replication=datacenter1:1".to_owned(),
        "clusters.main.request_timeout_ms=20000".to_owned(),
    ];
    settings.into()
}

/// Both roles do their work, or the one that is missing says so.
fn both_work(server: &Server, queues: &str) {
    let namespace = json!({"namespace": {"name": "default"}});
    let made = server.post(&format!("{NAMESPACES}CreateNamespace"), &namespace.to_string());
    assert!(made.status == 200 || made.body.contains("ALREADY_EXISTS"), "{}", made.body);
    add(server);
    assert_eq!(count(server), json!("1"));
    if queues == "none" {
        for (call, body) in [("ListQueues", "{}"), ("Dequeue", r#"{"queue": "mail"}"#)] {
            let refused = server.post(&format!("{QUEUES}{call}"), body);
            assert_eq!(refused.status, 412, "{call}: {}", refused.body);
            assert!(
                refused.body.contains("QUEUES_NOT_KEPT") && refused.body.contains("queues.engine"),
                "{}",
                refused.body
            );
        }
        let rule =
            json!({"rule": {"name": "a", "namespace": "default", "counter_name": "views", "at": "1", "queue": "mail"}});
        let refused = server.post("/tallystone.rule.v1.RuleService/CreateRule", &rule.to_string());
        assert!(refused.status == 412 && refused.body.contains("QUEUES_NOT_KEPT"), "{}", refused.body);
    } else {
        push(server, "timed/mail", "m");
        assert_eq!(work(server, "timed/mail"), json!("m"));
    }
}

#[test]
fn any_pair_of_engines_works_in_a_server() {
    for counters in ["embedded", "memory", "cassandra"] {
        for queues in ["embedded", "memory", "none"] {
            let folder = tempfile::tempdir().expect("a temporary directory");
            let keyspace = format!("pair_with_{queues}");
            let mut settings = vec![format!("counters.engine={counters}"), format!("queues.engine={queues}")];
            if [counters, queues].contains(&"embedded") {
                settings.push(format!("storage.data_dir={}", folder.path().display()));
            }
            if counters == "cassandra" {
                settings.extend(of_cassandra(node(), &keyspace));
                let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
                command.args(["migrate", "apply"]).args(settings.iter().flat_map(|setting| ["--set", setting]));
                let migrated = command.output().expect("the binary of this build starts");
                assert!(migrated.status.success(), "{migrated:?}");
            }
            let server = server(&settings);
            both_work(&server, queues);
            assert!(server.stop().success(), "{counters} beside {queues}");
        }
    }
}

#[test]
fn a_role_that_needs_a_directory_says_so_before_the_start() {
    let refused = |settings: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
        command.args(["server", "check-config"]).args(settings.iter().flat_map(|setting| ["--set", setting]));
        let output = command.output().expect("the binary of this build starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, says) = refused(&["counters.engine=memory"]);
    assert_eq!(code, Some(2));
    assert!(says.contains("--data DIR") && says.contains("queues.engine to \"none\""), "{says}");
    let (code, says) = refused(&["counters.engine=memory", "queues.engine=memory"]);
    assert_eq!((code, says.as_str()), (Some(0), ""));
}
