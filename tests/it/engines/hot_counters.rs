//! A namespace with a hot counter on a real Cassandra: where its rows lie, and that every token counts once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tallystone::adapters::cassandra::{Options, connect};
use uuid::Uuid;

use crate::engines::cassandra::{node, patience};
use crate::support::harness::{HttpAnswer, Launch, Server, eventually};

const WITHIN: Duration = Duration::from_secs(60);
const KEYSPACE: &str = "hot_counters";
const EVENT_BUCKETS: i32 = 16;
/// So many that half of the event buckets or more get some, but for a chance of less than one in a billion.
const TOKENS: usize = 64;

fn call(server: &Server, service: &str, method: &str, body: &Value) -> HttpAnswer {
    server.post(&format!("/tallystone.{service}/{method}"), &body.to_string())
}

fn counters(server: &Server, method: &str, body: &Value) -> (u16, Value) {
    let answer = call(server, "counter.v1.CounterService", method, body);
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
}

fn body_of(name: &str, token: &Uuid) -> Value {
    json!({"namespace": "shop", "counter_name": name, "idempotency_token": {"token": token.to_string()}})
}

fn add(server: &Server, name: &str, token: &Uuid) -> u16 {
    let mut body = body_of(name, token);
    body["delta"] = json!(1);
    counters(server, "AddCount", &body).0
}

/// Adds 1 under a token that counts in the end, however slow the machine is.
fn add_one(server: &Server, name: &str) -> Uuid {
    let mut token = Uuid::now_v7();
    let is_applied = || {
        if add(server, name, &token) == 200 {
            return true;
        }
        let (_, verdict) = counters(server, "CheckToken", &body_of(name, &token));
        if verdict["verdict"] == "VERDICT_NOT_APPLIED" {
            token = Uuid::now_v7();
        }
        verdict["verdict"] == "VERDICT_APPLIED"
    };
    assert!(eventually(WITHIN, is_applied), "{}", server.printed());
    token
}

/// The event buckets in which each counter has rows.
fn event_buckets() -> BTreeMap<String, BTreeSet<i32>> {
    let options = Options {
        servers: vec![node().to_string()],
        keyspace: KEYSPACE.to_owned(),
        data_center: None,
        credentials: None,
        tls: None,
        timeout: WITHIN,
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let session = connect(&options, &patience()).await.expect("the node answers");
        let named = format!("SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{KEYSPACE}'");
        let tables = session.query_unpaged(named, ()).await.expect("a list").into_rows_result().expect("rows");
        let tables: Vec<String> =
            tables.rows::<(String,)>().expect("names").map(|row| row.expect("a name").0).collect();
        let mut found: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
        for table in tables.iter().filter(|table| table.starts_with("events_")) {
            let asked = format!("SELECT DISTINCT ns, counter, time_bucket, event_bucket FROM {KEYSPACE}.{table}");
            let rows = session.query_unpaged(asked, ()).await.expect("partitions").into_rows_result().expect("rows");
            for row in rows.rows::<(i64, String, i64, i32)>().expect("keys") {
                let (_, counter, _, event_bucket) = row.expect("a key");
                found.entry(counter).or_default().insert(event_bucket);
            }
        }
        found
    })
}

#[test]
fn a_hot_counter_has_event_buckets_of_its_own_and_counts_each_token_once() {
    let launch = Launch::dev_on_cassandra(node()).arg("--set");
    let launch = launch.arg(&format!("clusters.cassandra.keyspace={KEYSPACE}"));
    let server = launch.patient_with("cassandra").start();
    let namespace = json!({"namespace": {
        "name": "shop",
        "storage": {"dataset": "shop"},
        "time_partition": {"buckets_per_id": 1},
        "hot_counters": [{"counter_name": "front", "buckets_per_id": EVENT_BUCKETS}],
    }});
    let created = call(&server, "admin.v1.NamespaceService", "CreateNamespace", &namespace);
    assert_eq!(created.status, 200, "{}", created.body);
    let created: Value = serde_json::from_str(&created.body).expect("JSON");
    assert_eq!(created["namespace"]["hotCounters"], json!([{"counterName": "front", "bucketsPerId": EVENT_BUCKETS}]));

    let mut added = Vec::new();
    for name in ["front", "side"] {
        added.extend((0..TOKENS).map(|_| (name, add_one(&server, name))));
    }
    let found = event_buckets();
    assert_eq!(found["side"], BTreeSet::from([0]), "the others have the one of the namespace");
    let front = &found["front"];
    assert!(front.iter().all(|bucket| (0..EVENT_BUCKETS).contains(bucket)), "{front:?}");
    assert!(front.len() >= TOKENS / 8, "{front:?}");

    for (name, token) in &added {
        assert!(eventually(WITHIN, || add(&server, name, token) == 200), "it is known, whoever asks again");
    }
    let all = TOKENS.to_string();
    for name in ["front", "side"] {
        let rolled_up = || {
            let body = json!({"namespace": "shop", "counter_name": name, "freshness": "ROLLED_UP"});
            let (_, reading) = counters(&server, "GetCount", &body);
            reading["behind"] != true && reading["count"] == all.as_str()
        };
        assert!(eventually(WITHIN, rolled_up), "{name}: {}", server.printed());
    }
    assert!(server.stop().success());
}
