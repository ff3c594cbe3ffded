//! API keys of servers that share a Cassandra keyspace.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tonic_types::StatusExt;

use crate::engines::cassandra::{beside_with_node, node, patient_settings, run};
use crate::server::keys::{ENDED_WITHIN, client, post, waiting, working};
use crate::support::harness::{Launch, Server, eventually, http};

const KEYSPACE: &str = "keyed";
/// A change of a key reaches every server of the fleet within this time.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);
const WITHIN: Duration = Duration::from_secs(90);
const ADD: &str = "/tallystone.counter.v1.CounterService/AddCount";
const SERVICE: &str = "/tallystone.admin.v1.KeyService";

fn is_valid(server: &Server, key: &str) -> bool {
    post(server, &format!("{SERVICE}/ListKeys"), key, &json!({})).status == 200
}

fn metric(server: &Server, key: &str, name: &str) -> f64 {
    let bearer = format!("Bearer {key}");
    let page = http(server.address, "GET", "/metrics", &[("authorization", &bearer)], "").expect("an answer").body;
    let line = page.lines().find(|line| line.split([' ', '{']).next() == Some(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name} in:\n{page}"))
}

/// Two servers on one keyspace, each with queues of its own, and the key of an admin.
fn servers(keyspace: &str) -> (Server, Server, String) {
    let mut settings = patient_settings(&node().to_string(), keyspace);
    settings.extend(["--set".to_owned(), "queues.engine=memory".to_owned()]);
    let (code, printed) = run(&["migrate", "apply"], &settings);
    assert_eq!(code, 0, "{printed}");
    let (code, printed) = run(&["key", "create", "ann", "--offline"], &settings);
    assert_eq!(code, 0, "{printed}");
    let admin = printed.lines().find(|line| line.starts_with("ts_")).expect("the key is printed").to_owned();
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
        command.args(["server", "start"]).args(&settings);
        Launch::of(command).with_patience().start()
    };
    (start(), start(), admin)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_key_ends_its_open_calls_at_the_other_servers() {
    let (one, other, admin) = servers("keyed_streams");
    let namespace = json!({"namespace": {"name": "mail"}});
    let made = post(&one, "/tallystone.admin.v1.NamespaceService/CreateNamespace", &admin, &namespace);
    assert_eq!(made.status, 200, "{}", made.body);
    let queue = json!({"queue": {"name": "mail"}});
    assert_eq!(post(&other, "/tallystone.queue.v1.QueueService/CreateQueue", &admin, &queue).status, 200);
    let is_known = || {
        let get = "/tallystone.admin.v1.NamespaceService/GetNamespace";
        post(&other, get, &admin, &json!({"name": "mail"})).status == 200
    };
    assert!(eventually(WITHIN, is_known), "the other server never knows the namespace");
    let grants = json!([{"role": "ROLE_WORKER"}, {"role": "ROLE_COUNTER_READER"}, {"role": "ROLE_ADMIN", "kind": "RESOURCE_KIND_SERVER"}]);
    for (name, change, reasons) in [
        ("gone", "DeleteKey", ["UNAUTHENTICATED"; 3]),
        ("other", "UpdateKey", ["RETRY_LATER", "OUTCOME_UNKNOWN", "OUTCOME_UNKNOWN"]),
    ] {
        let made = post(&one, &format!("{SERVICE}/CreateKey"), &admin, &json!({"name": name, "grants": grants}));
        let key = made.json()["apiKey"].as_str().expect("a key").to_owned();
        assert!(eventually(WITHIN, || is_valid(&other, &key)), "the other server never knows the key");
        let (watch, dequeue) = waiting(&other, &key, "mail").await;
        let work = working(&client(&other, &key), "mail").await;
        let body = match change {
            "DeleteKey" => json!({"name": name}),
            _ => json!({"name": name, "grants": [{"role": "ROLE_VIEWER"}]}), // the other change
        };
        let changed = post(&one, &format!("{SERVICE}/{change}"), &admin, &body);
        assert_eq!(changed.status, 200, "{}", changed.body);
        let (changed_at, yardstick) = (Instant::now(), beside_with_node(&other, node()));
        for (what, ended, reason) in
            [("watch", watch, reasons[0]), ("dequeue", dequeue, reasons[1]), ("work", work, reasons[2])]
        {
            let status = ended.await.expect("no task panics");
            let found = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
            assert_eq!(found, reason, "{change} {what}: {status:?}");
            yardstick.holds(changed_at, ENDED_WITHIN, format!("{what} ends after {change}"));
        }
    }
    assert!(one.stop().success() && other.stop().success());
}

#[test]
fn a_change_of_a_key_reaches_every_server_and_servers_signal_each_other_without_one() {
    let settings = patient_settings(&node().to_string(), KEYSPACE);
    let (code, printed) = run(&["migrate", "apply"], &settings);
    assert_eq!(code, 0, "{printed}");
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
        command.args(["server", "start"]).args(&settings);
        Launch::of(command).with_patience()
    };
    let (_, refused) = start().try_start().err().expect("there is no key yet");
    assert!(refused.contains("there is no valid API key"), "{refused}");
    let (code, printed) = run(&["key", "create", "ann", "--offline"], &settings);
    assert_eq!(code, 0, "{printed}");
    let admin = printed.lines().find(|line| line.starts_with("ts_")).expect("the key is printed").to_owned();
    let (one, other) = (start().start(), start().start());
    assert!(is_valid(&one, &admin) && is_valid(&other, &admin));

    let made = post(
        &one,
        &format!("{SERVICE}/CreateKey"),
        &admin,
        &json!({"name": "orders", "grants": [{"role": "ROLE_ADMIN"}]}),
    );
    let made_at = Instant::now();
    let key = made.json()["apiKey"].as_str().expect("a key").to_owned();
    assert!(is_valid(&one, &key), "at once where it was made");
    let beside = |server: &Server| beside_with_node(server, node());
    beside(&other).comes(made_at, KNOWN_WITHIN, "the other server knows it", || is_valid(&other, &key));
    let quotas = json!({"callsPerSecond": 1});
    let update = json!({"name": "orders", "grants": [{"role": "ROLE_ADMIN"}], "quotas": quotas});
    assert_eq!(post(&one, &format!("{SERVICE}/UpdateKey"), &admin, &update).status, 200);
    let changed_at = Instant::now();
    let is_limited = || post(&other, &format!("{SERVICE}/ListKeys"), &key, &json!({})).status == 429;
    beside(&other).comes(changed_at, KNOWN_WITHIN, "the other server knows the quota", is_limited);
    let update = json!({"name": "orders", "grants": [{"role": "ROLE_ADMIN"}], "quotas": {}});
    assert_eq!(post(&one, &format!("{SERVICE}/UpdateKey"), &admin, &update).status, 200);
    assert!(eventually(WITHIN, || is_valid(&other, &key) && is_valid(&other, &key)), "the quota ends there too");
    let gone = post(&other, &format!("{SERVICE}/DeleteKey"), &admin, &json!({"name": "orders"}));
    let gone_at = Instant::now();
    assert_eq!(gone.status, 200, "{}", gone.body);
    assert!(!is_valid(&other, &key), "at once where it was deleted");
    beside(&one).comes(gone_at, KNOWN_WITHIN, "the first server takes it no more", || !is_valid(&one, &key));

    let namespace = json!({"namespace": {"name": "views"}});
    let create = "/tallystone.admin.v1.NamespaceService/CreateNamespace";
    assert_eq!(post(&one, create, &admin, &namespace).status, 200);
    // Each counter is rolled up by one of both, so one of them has to tell the other.
    let signals = || {
        for number in 0..16 {
            let add = json!({"namespace": "views", "counterName": format!("c{number}"), "delta": 1});
            for server in [&one, &other] {
                post(server, ADD, &admin, &add);
            }
        }
        [&one, &other].iter().all(|server| metric(server, &admin, "tallystone_rollup_signals_taken_total") > 0.0)
    };
    assert!(eventually(WITHIN, signals), "{}\n{}", one.printed(), other.printed());
    assert!(one.stop().success() && other.stop().success());
}
