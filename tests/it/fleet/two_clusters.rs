//! A server on two Cassandra clusters: one of them away, and starts that are refused for one of them. Two keyspaces of one node
//! stand for two clusters, and a proxy before the second for the way to it; a server knows them by their names only.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::engines::cassandra::{node, numbers, patient_settings, query, run, tallystone};
use crate::fleet::several_servers::{add_to, metric_of};
use crate::servers::proxy::{Fault, Proxy, Wire};
use crate::support::harness::{HttpAnswer, Launch, Server, eventually, http};

/// How long anything may take on a busy machine.
const WITHIN: Duration = Duration::from_secs(120);

/// The settings of a server with a second cluster, `far`.
fn both(home: &str, far_node: SocketAddr, far: &str) -> Vec<String> {
    let far = [
        "clusters.far.kind=cassandra".to_owned(),
        format!("clusters.far.servers={far_node}"),
        format!("clusters.far.keyspace={far}"),
        "clusters.far.replication=datacenter1:1".to_owned(),
        "clusters.far.request_timeout_ms=1000".to_owned(),
    ];
    let far = far.into_iter().flat_map(|setting| ["--set".to_owned(), setting]);
    patient_settings(&node().to_string(), home).into_iter().chain(far).collect()
}

fn migrate(settings: &[String]) {
    for cluster in ["main", "far"] {
        let (code, printed) = run(&["migrate", "apply", "--cluster", cluster], settings);
        assert_eq!(code, 0, "{printed}");
    }
}

/// Whose a keyspace is: one row, if that was settled.
fn owners(keyspace: &str) -> Vec<i64> {
    numbers(&node().to_string(), &format!("SELECT id FROM {keyspace}.catalog WHERE part = 2"))
}

#[test]
fn a_start_that_is_refused_settles_no_keyspace() {
    let settings = both("unsettled_home", node(), "unsettled_far");
    migrate(&settings);
    let row = |keyspace: &str| {
        format!("INSERT INTO {keyspace}.namespaces_kept (slot, ns, kept) VALUES (0, 7, true) USING TIMESTAMP 1")
    };
    let remove = |keyspace: &str| format!("DELETE FROM {keyspace}.namespaces_kept USING TIMESTAMP 1 WHERE slot = 0");
    for keyspace in ["unsettled_far", "unsettled_home"] {
        query(&node().to_string(), None, &row(keyspace));
        let (code, printed) = run(&["server", "start"], &settings);
        let says = format!("keyspace {keyspace} has counters of a missing catalog");
        assert!(code == 4 && printed.contains(&says), "{code}: {printed}");
        for keyspace in ["unsettled_home", "unsettled_far"] {
            assert!(owners(keyspace).is_empty(), "{keyspace} is nobody's yet");
        }
        query(&node().to_string(), None, &remove(keyspace));
    }
    let server = Launch::of(tallystone(&["server", "start"], &settings)).start();
    assert!(server.stop().success());
    for keyspace in ["unsettled_home", "unsettled_far"] {
        assert_eq!(owners(keyspace).len(), 1, "{keyspace} has an owner");
    }
}

fn call(server: &Server, method: &str, body: &Value) -> HttpAnswer {
    let path = format!("/tallystone.{method}");
    let headers = [("content-type", "application/json")];
    http(server.address, "POST", &path, &headers, &body.to_string()).expect("the server answers")
}

/// Makes a namespace with a dataset of its own, in a cluster.
fn make(server: &Server, name: &str, cluster: &str) {
    let storage = json!({"rollupCluster": cluster, "eventCluster": cluster, "dataset": name});
    let namespace = json!({"name": name, "storage": storage, "rollup": {"coalesce_ms": 500}});
    let made = call(server, "admin.v1.NamespaceService/CreateNamespace", &json!({"namespace": namespace}));
    assert_eq!(made.status, 200, "{}", made.body);
}

fn read(server: &Server, namespace: &str) -> HttpAnswer {
    let body = json!({"namespace": namespace, "counterName": "views", "freshness": "ROLLED_UP"});
    call(server, "counter.v1.CounterService/GetCount", &body)
}

fn count(server: &Server, namespace: &str) -> Option<i64> {
    read(server, namespace).json()["count"].as_str()?.parse().ok()
}

fn add(server: &Server, namespace: &str, token: &Uuid, delta: i64) -> HttpAnswer {
    let token = json!({"token": token.to_string()});
    let body = json!({"namespace": namespace, "counterName": "views", "delta": delta, "idempotencyToken": token});
    call(server, "counter.v1.CounterService/AddCount", &body)
}

/// What became of an add, for ever; none while that is open.
fn verdict(server: &Server, namespace: &str, token: &Uuid) -> Option<bool> {
    let token = json!({"token": token.to_string()});
    let body = json!({"namespace": namespace, "counterName": "views", "idempotencyToken": token});
    let answer = call(server, "counter.v1.CounterService/CheckToken", &body);
    match answer.json()["verdict"].as_str() {
        Some("VERDICT_APPLIED") => Some(true),
        Some("VERDICT_NOT_APPLIED") => Some(false),
        _ => None, // pending, or the cluster does not answer yet
    }
}

#[test]
fn while_one_of_two_clusters_is_away_the_counters_of_the_other_go_on_and_then_all_are_exact() {
    let proxy = Proxy::start(node(), Wire::Plain).expect("a proxy");
    let settings = both("away_home", proxy.address(), "away_far");
    migrate(&settings);
    let server = Launch::of(tallystone(&["server", "start"], &settings)).start();
    for (name, cluster) in [("near", "main"), ("away", "far"), ("gone", "main")] {
        make(&server, name, cluster);
        add_to(&server, name, "views", 1);
    }
    for name in ["near", "away", "gone"] {
        assert!(eventually(WITHIN, || count(&server, name) == Some(1)), "{name}: {}", server.printed());
    }

    // First it is silent, so that adds are left in doubt; then it takes no connections.
    let mut asked: Vec<(Uuid, i64, HttpAnswer)> = Vec::new();
    for (fault, place) in [(Fault::Hang, 1), (Fault::Cut, 2)] {
        proxy.set(fault);
        let token = Uuid::now_v7();
        let answer = add(&server, "away", &token, 1 << place);
        asked.push((token, 1 << place, answer));
        add_to(&server, "near", "views", 1 << place);
        let refused = read(&server, "away");
        // A count of before may still be there to be told; it is never called newer than it is.
        assert!(refused.status != 200 || refused.json()["count"] == json!("1"), "{}", refused.body);
    }
    assert!(eventually(WITHIN, || count(&server, "near") == Some(7)), "{}", server.printed());
    // The server goes on serving what it can, and says what stands still.
    let names_it = || {
        let page = server.get("/readyz");
        assert_eq!(page.status, 200, "{}", page.body);
        page.body.contains(&format!("keyspace away_far of Cassandra at {} has not answered since 20", proxy.address()))
    };
    assert!(eventually(WITHIN, names_it), "{}", server.get("/readyz").body);
    let stale =
        |dataset: &str| metric_of(&server, "tallystone_dataset_staleness_seconds", &format!("dataset=\"{dataset}\""));
    assert!(eventually(WITHIN, || stale("away") > 20.0 && stale("near") < 12.0), "{} {}", stale("away"), stale("near"));
    // What is new at home is followed, and what is deleted there is forgotten, although that fails in the other cluster.
    let deleted = call(&server, "admin.v1.NamespaceService/DeleteNamespace", &json!({"name": "gone"}));
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    make(&server, "later", "main");
    add_to(&server, "later", "views", 9);
    assert!(eventually(WITHIN, || count(&server, "later") == Some(9)), "{}", server.printed());

    proxy.set(Fault::None);
    let mut expected = 1;
    for (token, delta, answer) in &asked {
        let mut applied = None;
        let is_settled = || {
            applied = verdict(&server, "away", token);
            applied.is_some()
        };
        assert!(eventually(WITHIN, is_settled), "{token} stays in doubt: {}", server.printed());
        match answer.status {
            200 => assert_eq!(applied, Some(true), "{token} was acknowledged"),
            503 => assert_eq!(applied, Some(false), "{token} was refused: {}", answer.body),
            _ => assert!(answer.body.contains("OUTCOME_UNKNOWN") || answer.status == 504, "{}", answer.body),
        }
        expected += if applied == Some(true) { *delta } else { 0 };
    }
    add_to(&server, "away", "views", 64);
    let is_exact = || count(&server, "away") == Some(expected + 64);
    assert!(eventually(WITHIN, is_exact), "{expected} and 64: {:?} {}", count(&server, "away"), server.printed());
    assert_eq!(count(&server, "near"), Some(7));
    assert!(server.stop().success());
}

/// A count that any server rolls up for its reader, whoever owns the counter's shard.
fn fresh(server: &Server, namespace: &str) -> HttpAnswer {
    let body = json!({"namespace": namespace, "counterName": "views", "maxStaleness": "1s"});
    call(server, "counter.v1.CounterService/GetCount", &body)
}

#[test]
fn a_server_cut_off_from_one_cluster_only_keeps_no_limit_of_the_others_back() {
    let ways = [(); 2].map(|()| Proxy::start(node(), Wire::Plain).expect("a proxy"));
    migrate(&both("limits_home", node(), "limits_far"));
    let servers = ways.each_ref().map(|way| {
        let settings = both("limits_home", way.address(), "limits_far");
        Launch::of(tallystone(&["server", "start"], &settings)).start()
    });
    make(&servers[0], "apart", "far");
    assert!(eventually(WITHIN, || read(&servers[1], "apart").status == 200), "{}", servers[1].printed());
    let mut expected = 0;
    let mut add_and_wait = |server: &Server| {
        add_to(server, "apart", "views", 1);
        expected += 1;
        let is_counted = || {
            let read = fresh(server, "apart").json();
            read["count"] == json!(expected.to_string()) && read["behind"] != json!(true)
        };
        assert!(eventually(WITHIN, is_counted), "{expected}: {} {}", fresh(server, "apart").body, server.printed());
    };
    servers.iter().for_each(&mut add_and_wait);
    // Each in turn, so that the one that publishes the limit is among them.
    for (cut, other) in [(0, 1), (1, 0)] {
        ways[cut].set(Fault::Cut);
        // The second one is told apart from what was published before the way was cut.
        (0..2).for_each(|_| add_and_wait(&servers[other]));
        ways[cut].set(Fault::None);
        servers.iter().for_each(&mut add_and_wait);
    }
    assert!(servers.into_iter().all(|server| server.stop().success()));
}
