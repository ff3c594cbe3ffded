//! Clusters by name: what a server's settings do not list is refused, under `dev` it is the store itself.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::harness::{Launch, Server};

fn server(folder: &Path, settings: &[&str]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command
        .args(["server", "start", "--listen", "127.0.0.1:0", "--set", "auth.mode=off", "--data"])
        .arg(folder.join("data"));
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    Launch::of(command).with_patience().start()
}

fn call(server: &Server, method: &str, body: &Value) -> (u16, Value) {
    let answer = server.post(&format!("/tallystone.{method}"), &body.to_string());
    (answer.status, serde_json::from_str(&answer.body).expect("JSON"))
}

fn create(server: &Server, name: &str, clusters: [&str; 3]) -> (u16, Value) {
    let [cache, rollup, event] = clusters;
    let storage = json!({"cacheCluster": cache, "rollupCluster": rollup, "eventCluster": event});
    call(server, "admin.v1.NamespaceService/CreateNamespace", &json!({"namespace": {"name": name, "storage": storage}}))
}

fn add(server: &Server, namespace: &str) -> (u16, Value) {
    let body = json!({"namespace": namespace, "counterName": "views", "delta": 1});
    call(server, "counter.v1.CounterService/AddCount", &body)
}

#[test]
fn a_server_refuses_clusters_that_its_settings_do_not_list() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let listed = ["clusters.far.kind=embedded"];
    let first = server(folder.path(), &listed);
    let (status, refusal) = create(&first, "lost", ["embedded", "nowhere", "embedded"]);
    let text = refusal.to_string();
    assert_eq!(status, 400, "{text}");
    for words in ["INVALID_SETTINGS", "storage.rollup_cluster is nowhere", "settings have no [clusters.nowhere]", "far"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (status, made) = create(&first, "kept", ["embedded", "far", "far"]);
    assert_eq!((status, &made["namespace"]["storage"]["eventCluster"]), (200, &json!("far")), "{made}");
    assert_eq!(add(&first, "kept").0, 200);
    assert_eq!(create(&first, "near", ["embedded"; 3]).0, 200);
    assert!(first.stop().success());

    // The same data under settings without that cluster: its namespace is refused by name, the others are served.
    let second = server(folder.path(), &[]);
    let (status, refusal) = add(&second, "kept");
    assert_eq!(status, 503, "{refusal}");
    let text = refusal.to_string();
    assert!(text.contains("STORE_UNAVAILABLE") && text.contains("[clusters.far]"), "{text}");
    assert_eq!(add(&second, "near").0, 200);
    let (_, history) = call(&second, "admin.v1.NamespaceService/ListNamespaceChanges", &json!({"name": "kept"}));
    assert!(history.to_string().contains("far"), "the history keeps the clusters: {history}");
    assert!(second.stop().success());

    let third = server(folder.path(), &listed);
    assert_eq!(add(&third, "kept").0, 200, "the data was never touched");
}

#[test]
fn under_dev_every_name_is_the_store_itself() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).start();
    assert_eq!(create(&server, "fleet", ["EVCACHE_1", "CASS_1", "CASS_2"]).0, 200);
    assert_eq!(add(&server, "fleet").0, 200);
}
