//! Late adds that are given up in the middle of making slices, on a real process: no other namespace of the dataset may
//! notice them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tallystone::proto::counter::v1::counter_service_client::CounterServiceClient;
use tallystone::proto::counter::v1::{AddCountRequest, Freshness, GetCountRequest, IdempotencyToken};
use tonic::Request;
use tonic_types::StatusExt;

use crate::support::harness::{EndsWith, Launch, Server};
use crate::support::patience::{PatientChannel, patient_channel};

const SLICE_SECONDS: u64 = 10;
/// How far back each late add of a caller lies before its last one: a few slices that nobody made yet.
const BACK_SECONDS: u64 = 40;
const CALLERS: u64 = 8;
const LATE_ADDS: u64 = 60;

/// Makes a namespace in the dataset `tight`, with the shortest slices and a day of tokens that are answered for.
fn make_namespace(server: &Server, name: &str) {
    let slice = format!("{SLICE_SECONDS}s");
    let dataset =
        json!({"slice_width": slice, "close_after": "80000s", "delete_after": "86400s", "accept_limit": "1s"});
    let partition = json!({"buckets_per_id": 1, "seconds_per_bucket": 10});
    let namespace =
        json!({"name": name, "storage": {"dataset": "tight"}, "dataset": dataset, "time_partition": partition});
    let body = json!({"namespace": namespace}).to_string();
    let created = server.post("/tallystone.admin.v1.NamespaceService/CreateNamespace", &body);
    assert_eq!(created.status, 200, "{}", created.body);
}

async fn connect(server: &Server) -> CounterServiceClient<PatientChannel> {
    CounterServiceClient::new(patient_channel(&server.url()).await)
}

/// Adds late events further and further back, each with a deadline of 8 to 15 ms; counts those that were given up.
async fn add_late(mut client: CounterServiceClient<PatientChannel>, caller: u64, given_up: Arc<AtomicU64>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    for n in 1..=LATE_ADDS {
        let seconds = now - (n * CALLERS + caller) * BACK_SECONDS;
        let generation_time =
            Some(prost_types::Timestamp { seconds: i64::try_from(seconds).expect("small"), nanos: 0 });
        let token = IdempotencyToken { token: format!("late-{caller}-{n}"), generation_time };
        let mut request = Request::new(AddCountRequest {
            namespace: "late".to_owned(),
            counter_name: format!("c{}", n % 7),
            delta: Some(1),
            idempotency_token: Some(token),
            provenance: String::new(),
        });
        request.set_timeout(Duration::from_millis(8 + (n + caller) % 8));
        match client.add_count(request).await {
            Ok(_) => panic!("an event of an hour ago is not taken"),
            Err(status) => match status.get_error_details().error_info().map_or("", |info| info.reason.as_str()) {
                "NOT_APPLIED" => {}
                // The server, or the client by itself.
                "DEADLINE_EXCEEDED" | "" => drop(given_up.fetch_add(1, Ordering::Relaxed)),
                other => panic!("{other}: {status}"),
            },
        }
    }
}

#[test]
fn late_adds_that_are_given_up_while_slices_are_made_disturb_no_other_namespace() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = Launch::dev(folder.path()).start();
    make_namespace(&server, "late");
    make_namespace(&server, "other");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let given_up = Arc::new(AtomicU64::new(0));
    let added = runtime.block_on(async {
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..CALLERS {
            let client = connect(&server).await;
            callers.spawn(add_late(client, caller, Arc::clone(&given_up)));
        }
        let ended = Arc::new(AtomicBool::new(false));
        let client = connect(&server).await;
        let probe = tokio::spawn(probe(client, Arc::clone(&ended)));
        let ends = EndsWith(&ended);
        while let Some(caller) = callers.join_next().await {
            caller.expect("late adds hear what they may");
        }
        drop(ends);
        probe.await.expect("every call of the other namespace succeeds")
    });
    assert!(given_up.load(Ordering::Relaxed) > 0, "no add was given up, so nothing was tried");
    let read = json!({"namespace": "other", "counterName": "c", "freshness": "UP_TO_DATE"}).to_string();
    let read = server.post("/tallystone.counter.v1.CounterService/GetCount", &read).json();
    assert_eq!(read["count"], added.to_string(), "{read}");
    assert!(!server.printed().contains("panicked"), "{}", server.printed());
    assert!(server.get("/metrics").body.contains("tallystone_loop_panics_total 0"), "no roll failed by a panic");
}

/// Adds and reads in the other namespace until told to end; answers how many adds there were.
async fn probe(mut client: CounterServiceClient<PatientChannel>, ended: Arc<AtomicBool>) -> u64 {
    let mut added = 0;
    while !ended.load(Ordering::SeqCst) {
        let (namespace, counter_name) = ("other".to_owned(), "c".to_owned());
        let add = AddCountRequest {
            namespace: namespace.clone(),
            counter_name: counter_name.clone(),
            delta: Some(1),
            ..AddCountRequest::default()
        };
        client.add_count(add).await.expect("an add of the other namespace");
        added += 1;
        for freshness in [Freshness::RolledUp, Freshness::UpToDate] {
            let get = GetCountRequest {
                namespace: namespace.clone(),
                counter_name: counter_name.clone(),
                freshness: freshness.into(),
                ..GetCountRequest::default()
            };
            client.get_count(get).await.expect("a read of the other namespace");
        }
    }
    added
}
