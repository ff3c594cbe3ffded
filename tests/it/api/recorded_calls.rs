//! Calls that the audit records, from callers that go away.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use prost::Message as _;
use tallystone::adapters::memory::AdminLogTable;
use tallystone::domain::limits::CONNECTION_CALLS_MAX;
use tallystone::engine::audit::Audit;
use tallystone::proto::counter::v1::{ClearCountRequest, GetCountRequest};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::bounds::{call, framed, metric, raw};
use super::{COUNTERS, Wire};

const WITHIN: Duration = Duration::from_secs(60);

fn audited(server: &Wire) -> Audit {
    let audit = Audit::new(Arc::new(AdminLogTable::default()), Arc::clone(server.gateway.clock()));
    server.gateway.open_audit(audit.clone());
    audit
}

async fn targets(audit: &Audit) -> Vec<(String, String)> {
    let (acts, _) = audit.list("", None, 10_000).await.expect("a list");
    acts.into_iter().map(|act| (act.part, act.outcome)).collect()
}

async fn until_lines(audit: &Audit, lines: usize) -> Vec<(String, String)> {
    let all = tokio::time::timeout(WITHIN, async {
        while targets(audit).await.len() < lines {
            tokio::task::yield_now().await;
        }
    });
    let in_time = all.await.is_ok();
    let found = targets(audit).await;
    assert!(in_time, "{found:?}");
    found
}

fn clear(name: &str) -> ClearCountRequest {
    let (namespace, counter_name) = ("exact".to_owned(), name.to_owned());
    ClearCountRequest { namespace, counter_name, ..ClearCountRequest::default() }
}

/// Reads a counter. Whoever answers has read what was sent before.
async fn read(calls: &mut SendRequest<Bytes>) {
    let (namespace, counter_name) = ("fast".to_owned(), "views".to_owned());
    let read = GetCountRequest { namespace, counter_name, ..GetCountRequest::default() };
    call(calls, &format!("{COUNTERS}/GetCount"), &read.encode_to_vec()).await;
}

fn request(path: &str) -> http::Request<()> {
    http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("tallystone-actor", "ann")
        .body(())
        .expect("a valid request")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_has_its_line_although_its_caller_went_away() {
    let server = Wire::start().await;
    let audit = audited(&server);
    let mut tasks = JoinSet::new();
    let mut calls = raw(server.address, 1 << 20, &mut tasks).await;
    server.gate.close();

    let head = request(&format!("{COUNTERS}/ClearCount"));
    let (response, mut body) = calls.send_request(head, false).expect("a stream is free");
    body.send_data(framed(&clear("reset").encode_to_vec()), true).expect("the stream is open");
    server.gate.until_arrived(1).await;
    body.send_reset(Reason::CANCEL);
    drop((response, body));

    let mut closed = TcpStream::connect(server.address).await.expect("the server takes connections");
    let json = r#"{"namespace": "exact", "counterName": "closed"}"#;
    let head = format!(
        "POST {COUNTERS}/ClearCount HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntallystone-actor: ann\r\n\
         content-length: {}\r\n\r\n{json}",
        json.len()
    );
    closed.write_all(head.as_bytes()).await.expect("it is sent");
    server.gate.until_arrived(2).await;
    drop(closed);

    read(&mut calls).await;
    let gone = tokio::time::timeout(WITHIN, async {
        // The connection of this test, and the one that asks.
        while metric(&server, "tallystone_connections_open").await > 2 {}
    });
    gone.await.expect("the server sees that the connection is closed");
    assert_eq!(targets(&audit).await, [], "neither is done");

    server.gate.open();
    let mut found = until_lines(&audit, 2).await;
    found.sort();
    assert_eq!(found, ["closed", "reset"].map(|name| (name.to_owned(), "OK".to_owned())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_outlives_its_deadline_and_its_line_says_what_came_of_it() {
    let server = Wire::start().await;
    let audit = audited(&server);
    let mut tasks = JoinSet::new();
    let mut calls = raw(server.address, 1 << 20, &mut tasks).await;
    server.gate.close();
    // A deadline may pass before the act has begun, and then it is recorded at once: each try has a longer one.
    let mut early = 0;
    for deadline in (0..10).map(|doublings| 20_u64 << doublings) {
        let mut head = request(&format!("{COUNTERS}/ClearCount"));
        let deadline = format!("{deadline}m").parse().expect("a header value");
        head.headers_mut().insert("grpc-timeout", deadline);
        calls = calls.ready().await.expect("a stream is free");
        let (response, mut body) = calls.send_request(head, false).expect("a stream is free");
        body.send_data(framed(&clear("late").encode_to_vec()), true).expect("the stream is open");
        let answer = response.await.expect("an answer in time");
        assert_eq!(answer.headers().get("grpc-status").expect("a status"), "4", "DEADLINE_EXCEEDED");
        let told = tokio::time::timeout(WITHIN, async {
            while server.gate.waiting() == 0 && targets(&audit).await.len() == early {
                tokio::task::yield_now().await;
            }
        });
        told.await.expect("the act waits at the gate, or its line is there");
        if server.gate.waiting() > 0 {
            break;
        }
        early += 1;
    }
    let mut lines = vec![("late".to_owned(), "DEADLINE_EXCEEDED".to_owned()); early];
    assert_eq!(targets(&audit).await, lines, "it is not done");
    server.gate.open();
    lines.push(("late".to_owned(), "OK".to_owned()));
    let mut found = until_lines(&audit, lines.len()).await;
    found.sort();
    assert_eq!(found, lines);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_resets_its_acts_has_no_more_of_them_than_calls() {
    let server = Wire::start().await;
    let audit = audited(&server);
    let mut tasks = JoinSet::new();
    let mut calls = raw(server.address, 1 << 20, &mut tasks).await;
    server.gate.close();
    let most = CONNECTION_CALLS_MAX as usize;
    // A client with many more that are reset before they are taken is cut off.
    for number in 0..most + 10 {
        calls = calls.ready().await.expect("a stream is free");
        let head = request(&format!("{COUNTERS}/ClearCount"));
        let (response, mut body) = calls.send_request(head, false).expect("a stream is free");
        body.send_data(framed(&clear(&format!("c{number}")).encode_to_vec()), true).expect("the stream is open");
        if number < most {
            server.gate.until_arrived(number + 1).await;
        }
        body.send_reset(Reason::CANCEL);
        drop((response, body));
    }
    read(&mut calls).await;
    assert_eq!(server.gate.waiting(), most);
    server.gate.open();
    let lines = until_lines(&audit, most).await;
    assert_eq!(lines.len(), most, "what waited for a place was dropped with its caller, and changed nothing");
}
