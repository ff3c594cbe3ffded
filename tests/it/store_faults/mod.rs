//! What the embedded store does when its directory is damaged, shared, or full: never a silent wrong count.

mod damage;
pub mod full_disk;

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::harness::{HttpAnswer, Launch, Server};

/// A data directory on a disk; a temporary one may be memory.
fn data_directory() -> (TempDir, PathBuf) {
    let folder =
        tempfile::Builder::new().prefix("store-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("the data directory can be made");
    (folder, data)
}

fn call(server: &Server, method: &str, body: &Value) -> HttpAnswer {
    server.post(&format!("/tallystone.counter.v1.CounterService/{method}"), &body.to_string())
}

fn add(server: &Server, counter: &str, delta: i64) -> HttpAnswer {
    call(server, "AddCount", &json!({ "namespace": "default", "counter_name": counter, "delta": delta }))
}

/// Adds 1 to each of some counters, each event with a provenance of some bytes; answers how many were applied.
fn add_to_many(server: &Server, counters: std::ops::Range<u32>, provenance_bytes: usize) -> usize {
    let provenance = "p".repeat(provenance_bytes);
    let items: Vec<Value> = counters
        .map(|n| json!({ "counter_name": format!("many/{n}"), "delta": 1, "provenance": provenance }))
        .collect();
    let answer = call(server, "BatchAddCounts", &json!({ "namespace": "default", "items": items }));
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer: Value = serde_json::from_str(&answer.body).expect("an answer is JSON");
    let results = answer["results"].as_array().expect("a result for each item");
    for error in results.iter().filter_map(|result| result.get("error")) {
        assert_eq!(error["reason"], "STORAGE_FULL", "{error}");
    }
    results.iter().filter(|result| result.get("error").is_none()).count()
}

/// The newest count of a counter; an error is the body of the refusal.
fn count(server: &Server, counter: &str) -> Result<i64, String> {
    let body = json!({ "namespace": "default", "counter_name": counter, "freshness": "UP_TO_DATE" });
    let answer = call(server, "GetCount", &body);
    if answer.status != 200 {
        return Err(answer.body);
    }
    let reading: Value = serde_json::from_str(&answer.body).map_err(|error| error.to_string())?;
    reading["count"].as_str().and_then(|count| count.parse().ok()).ok_or(answer.body)
}

#[test]
fn a_second_process_on_the_same_directory_is_refused() {
    let (_folder, data) = data_directory();
    let first = Launch::dev(&data).start();
    assert_eq!(add(&first, "views", 2).status, 200);
    let (status, printed) = Launch::dev(&data).try_start().err().expect("the second one does not start");
    assert!(!status.success(), "{status}");
    assert!(printed.contains("another process") && printed.contains("data"), "it says why and where:\n{printed}");
    assert_eq!(count(&first, "views"), Ok(2), "the first one goes on");
    drop(first);
    assert_eq!(count(&Launch::dev(&data).start(), "views"), Ok(2), "the directory is free again");
}
