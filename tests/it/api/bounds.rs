//! What one client may take of a server: items, bytes in, bytes out, connections. Others are served meanwhile.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use prost::Message as _;
use tallystone::api::serve::ServeLimits;
use tallystone::domain::Reason;
use tallystone::domain::limits::{
    ANSWER_LIST_BYTES, BATCH_ITEMS_MAX, CONNECTION_ANSWER_BYTES_MAX, CONNECTION_REQUEST_BYTES_MAX, MAP_ENTRIES_MAX,
    QUEUE_BATCH_ITEMS_MAX,
};
use tallystone::proto::counter::v1::{AddCountRequest, AddItem, StreamAddCountsRequest};
use tallystone::proto::queue::v1 as queue;
use tallystone::proto::queue::v1::queue_service_client::QueueServiceClient;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::{COUNTERS, Wire, item, reason};
use crate::support::harness::{DEADLINE, Launch, eventually, http};
use crate::support::patience::{PatientChannel, patient_channel};

const QUEUES: &str = "/tallystone.queue.v1.QueueService";
const WITHIN: Duration = Duration::from_secs(60);

/// A raw HTTP/2 connection; its tasks end with the set.
pub(super) async fn raw(address: SocketAddr, window: u32, tasks: &mut JoinSet<()>) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.expect("the server takes connections");
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window);
    let (calls, connection) = builder.handshake(stream).await.expect("HTTP/2");
    tasks.spawn(async move {
        let _ = connection.await; // it ends when the test does
    });
    calls
}

/// Begins a request that the server gives up at its own deadline, unless it ends before.
pub(super) fn begin(calls: &mut SendRequest<Bytes>, path: &str) -> (ResponseFuture, SendStream<Bytes>) {
    begin_with(calls, path, &[])
}

fn begin_with(
    calls: &mut SendRequest<Bytes>,
    path: &str,
    headers: &[(&str, &str)],
) -> (ResponseFuture, SendStream<Bytes>) {
    let request = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    calls.send_request(request.body(()).expect("a valid request"), false).expect("a stream is free")
}

pub(super) fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("a small message"));
    frame.put_slice(message);
    frame.freeze()
}

/// Sends a message and answers the status, in the head or in trailers.
pub(super) async fn call(calls: &mut SendRequest<Bytes>, path: &str, message: &[u8]) -> tonic::Status {
    *calls = calls.clone().ready().await.expect("a stream is free");
    let (response, mut body) = begin_with(calls, path, &[DEADLINE]);
    body.send_data(framed(message), true).expect("the stream is open");
    status(response).await
}

async fn status(response: ResponseFuture) -> tonic::Status {
    let response = response.await.expect("an answer");
    if let Some(status) = tonic::Status::from_header_map(response.headers()) {
        return status;
    }
    let mut body: RecvStream = response.into_body();
    while let Some(data) = body.data().await {
        let data = data.expect("the answer is whole");
        body.flow_control().release_capacity(data.len()).expect("what came");
    }
    let trailers = body.trailers().await.expect("trailers").expect("trailers");
    tonic::Status::from_header_map(&trailers).expect("a status")
}

/// Asks again and again until the answer is yes or the time is over; says which. What is asked takes the time of a call.
async fn on_time(within: Duration, mut is_so: impl AsyncFnMut() -> bool) -> bool {
    tokio::time::timeout(within, async { while !is_so().await {} }).await.is_ok()
}

pub(super) async fn metric(server: &Wire, name: &str) -> i64 {
    let page = server.http("GET", "/metrics", &[], "").await.body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_million_empty_items_are_refused_before_they_are_built() {
    let server = Wire::start().await;
    let mut tasks = JoinSet::new();
    let mut calls = raw(server.address, 1 << 20, &mut tasks).await;
    let items = [0x12, 0].repeat(2_000_000); // field 2, of no bytes
    for (method, most) in [
        (format!("{QUEUES}/BatchEnqueue"), QUEUE_BATCH_ITEMS_MAX),
        (format!("{QUEUES}/SettleMessages"), QUEUE_BATCH_ITEMS_MAX),
        (format!("{COUNTERS}/BatchAddCounts"), BATCH_ITEMS_MAX),
        (format!("{COUNTERS}/BatchGetCounts"), BATCH_ITEMS_MAX),
        (format!("{COUNTERS}/StreamAddCounts"), BATCH_ITEMS_MAX),
        (format!("{COUNTERS}/WatchCounts"), BATCH_ITEMS_MAX),
    ] {
        let status = call(&mut calls, &method, &items).await;
        assert_eq!(reason(&status), "INVALID_BATCH_SIZE", "{method}: {status:?}");
        assert!(status.message().contains(&format!("more than {most} items")), "{method}: {}", status.message());
    }
    for (method, key) in [
        (format!("{COUNTERS}/ReportTotals"), [0x2a, 0]),
        (format!("{QUEUES}/Work"), [0x22, 0]),
        (format!("{QUEUES}/Work"), [0x2a, 0]),
    ] {
        let status = call(&mut calls, &method, &key.repeat(2_000_000)).await;
        assert_eq!(reason(&status), "INVALID_BATCH_SIZE", "{method}: {status:?}");
    }
    // The same over gRPC-Web; all of its bytes are ASCII.
    let body = String::from_utf8(framed(&items).to_vec()).expect("ASCII");
    let path = format!("{QUEUES}/BatchEnqueue");
    let answer = server.http("POST", &path, &[("content-type", "application/grpc-web+proto")], &body).await;
    assert!(answer.head.contains("grpc-status: 3") && answer.head.contains("more%20than%20100"), "{}", answer.head);
    // And as JSON.
    let body = format!(r#"{{"queue": "mail", "messages": [{}{{}}]}}"#, "{},".repeat(1_300_000));
    let answer = server.http("POST", &path, &[("content-type", "application/json")], &body).await;
    assert!(answer.body.contains("INVALID_BATCH_SIZE"), "{}", answer.body);
    assert!(answer.body.contains("messages: more than 100 items"), "{}", answer.body);
    let pairs: Vec<String> = (0..=2 * MAP_ENTRIES_MAX).map(|at| format!(r#""{at}": """#)).collect();
    let body = format!(r#"{{"queue": "mail", "filter": {{{}}}}}"#, pairs.join(", "));
    let answer =
        server.http("POST", &format!("{QUEUES}/Dequeue"), &[("content-type", "application/json")], &body).await;
    assert!(answer.body.contains("INVALID_BATCH_SIZE"), "{}", answer.body);
}

#[tokio::test]
async fn an_unknown_name_of_4_mib_is_not_repeated_nor_compared() {
    let server = Wire::start().await;
    let name = "delta".repeat(800_000);
    let (status, body) = server.post("AddCount", &format!(r#"{{"{name}": 1}}"#)).await;
    assert_eq!((status, &body["details"][0]["reason"]), (400, &Reason::InvalidField.info().name.into()));
    assert!(body.to_string().len() < 4_096, "{} bytes", body.to_string().len());
    let (status, body) = server.post("AddCount", &format!(r#"{{"delta": "{name}"}}"#)).await;
    assert!(status == 400 && body.to_string().len() < 8_192, "{} bytes", body.to_string().len());
}

/// 100 messages of 30 KiB in a queue.
async fn with_large_messages(address: SocketAddr) -> QueueServiceClient<PatientChannel> {
    let mut queues = QueueServiceClient::new(patient_channel(&format!("http://{address}")).await);
    queues
        .create_queue(queue::CreateQueueRequest {
            queue: Some(queue::Queue { name: "large".to_owned(), ..Default::default() }),
            ..Default::default()
        })
        .await
        .expect("a new queue");
    for _ in 0..10 {
        let message = queue::Message { payload: vec![7; 30 * 1_024], ..Default::default() };
        let request = queue::BatchEnqueueRequest { queue: "large".to_owned(), messages: vec![message; 10] };
        let results = queues.batch_enqueue(request).await.expect("there is room").into_inner().results;
        assert!(results.iter().all(|result| result.error.is_none()), "{results:?}");
    }
    queues
}

/// 1,000 calls on each connection, each for 3 MB that nobody takes. Answers what must be kept for them to stay open.
async fn take_nothing(address: SocketAddr, connections: usize, tasks: &mut JoinSet<()>) -> Vec<ResponseFuture> {
    let peek = queue::PeekMessagesRequest { queue: "large".to_owned(), max_messages: 100 };
    let peek = framed(&peek.encode_to_vec());
    let mut open = Vec::new();
    for _ in 0..connections {
        let mut calls = raw(address, 0, tasks).await;
        for _ in 0..1_000 {
            calls = calls.ready().await.expect("a stream is free");
            let (response, mut body) = begin(&mut calls, &format!("{QUEUES}/PeekMessages"));
            body.send_data(peek.clone(), true).expect("the stream is open");
            open.push(response);
        }
    }
    open
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_takes_are_bounded_and_reset() {
    let server = Wire::bounded(ServeLimits { stall_max: Duration::from_millis(500), ..ServeLimits::default() }).await;
    let _queues = with_large_messages(server.address).await;
    for connections in [1, 4] {
        let before = metric(&server, "tallystone_answers_reset_total").await;
        let mut tasks = JoinSet::new();
        let open = take_nothing(server.address, connections, &mut tasks).await;
        let bound = (connections * CONNECTION_ANSWER_BYTES_MAX) as i64;
        let mut most = 0;
        let reset = on_time(WITHIN, async || {
            let held = metric(&server, "tallystone_answer_buffer_bytes").await;
            assert!(held <= bound, "{held} bytes on {connections} connections");
            most = most.max(held);
            let (status, _) =
                server.post("AddCount", r#"{"namespace": "shop", "counter_name": "a", "delta": 1}"#).await;
            assert_eq!(status, 200, "others are served");
            let reset = metric(&server, "tallystone_answers_reset_total").await - before;
            reset > 0 && held < 1024 * 1024
        });
        assert!(reset.await, "what nobody takes is let go");
        assert!(most > 8 * 1024 * 1024, "the budget was used: {most}");
        drop(open);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_falls_silent_in_the_middle_of_a_message_is_ended_and_one_between_messages_is_not() {
    let server = Wire::bounded(ServeLimits { stall_max: Duration::from_millis(300), ..ServeLimits::default() }).await;
    let mut tasks = JoinSet::new();
    let mut calls = raw(server.address, 1 << 20, &mut tasks).await;
    let message = |name: &str| {
        framed(
            &StreamAddCountsRequest {
                namespace: "shop".to_owned(),
                items: vec![AddItem { counter_name: name.to_owned(), delta: Some(1), ..Default::default() }],
            }
            .encode_to_vec(),
        )
    };
    let path = format!("{COUNTERS}/StreamAddCounts");
    let (patient, mut to_patient) = begin(&mut calls, &path);
    to_patient.send_data(message("patient"), false).expect("the stream is open");
    calls = calls.ready().await.expect("a stream is free");
    let (silent, mut to_silent) = begin(&mut calls, &path);
    to_silent.send_data(message("whole"), false).expect("the stream is open");
    let half = message("half");
    to_silent.send_data(half.slice(..half.len() - 3), false).expect("the stream is open");
    let ended = status(silent).await;
    assert_eq!(ended.code(), tonic::Code::DeadlineExceeded, "{ended:?}");
    assert_eq!(reason(&ended), "DEADLINE_EXCEEDED");
    assert!(ended.message().contains("no data arrived for 300ms"), "{ended:?}");
    // The other stream said nothing for as long, between messages.
    to_patient.send_data(message("patient"), true).expect("the stream is open");
    let ended = status(patient).await;
    assert_eq!(ended.code(), tonic::Code::Ok, "{ended:?}");
    for (name, expected) in [("whole", "1"), ("half", ""), ("patient", "2")] {
        let body = format!(r#"{{"namespace": "shop", "counter_name": "{name}", "freshness": "UP_TO_DATE"}}"#);
        let (_, read) = server.post("GetCount", &body).await;
        let count = read["count"].as_str().unwrap_or_default();
        assert!(count == expected || (expected.is_empty() && count == "0"), "{name}: {read}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_taken_piece_by_piece_comes_whole() {
    let server = Wire::start().await;
    let mut queues = with_large_messages(server.address).await;
    let peek = queue::PeekMessagesRequest { queue: "large".to_owned(), max_messages: 100 };
    let messages = queues.peek_messages(peek.clone()).await.expect("an answer").into_inner().messages;
    assert!(messages.len() >= 80 && messages.iter().all(|message| message.payload == vec![7; 30 * 1_024]));
    let mut tasks = JoinSet::new();
    let mut calls = raw(server.address, 1_000, &mut tasks).await;
    let status = call(&mut calls, &format!("{QUEUES}/PeekMessages"), &peek.encode_to_vec()).await;
    assert_eq!(status.code(), tonic::Code::Ok, "through a window of 1,000 bytes: {status:?}");
    let held = metric(&server, "tallystone_answer_buffer_bytes").await;
    assert_eq!(held, i64::from(ANSWER_LIST_BYTES), "nothing is held but the page that says so");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_requests_of_one_connection_take_their_share_and_no_more() {
    let server = Wire::start().await;
    let mut tasks = JoinSet::new();
    let mut calls = raw(server.address, 1 << 20, &mut tasks).await;
    let mut open = Vec::new();
    for _ in 0..500 {
        calls = calls.ready().await.expect("a stream is free");
        let (response, mut body) = begin(&mut calls, &format!("{COUNTERS}/BatchAddCounts"));
        let mut part = BytesMut::from(&[0, 0, 0x3f, 0xff, 0xff][..]);
        part.resize(8 * 1_024, 0x12);
        body.send_data(part.freeze(), false).expect("the stream is open");
        open.push((response, body));
    }
    let mut most = 0;
    let used = on_time(WITHIN, async || {
        most = most.max(metric(&server, "tallystone_request_buffer_bytes").await);
        most > 8 * 1024 * 1024
    });
    assert!(used.await, "the budget was used: {most}");
    let mut reasons = std::collections::BTreeMap::new();
    for (response, body) in open {
        let status = status(response).await;
        drop(body);
        *reasons.entry(reason(&status)).or_insert(0) += 1;
        if reasons.len() < 2 {
            let held = metric(&server, "tallystone_request_buffer_bytes").await;
            assert!(held <= CONNECTION_REQUEST_BYTES_MAX as i64, "{held} bytes");
        }
    }
    let whole = AddCountRequest {
        namespace: "shop".to_owned(),
        counter_name: "a".to_owned(),
        delta: Some(1),
        ..Default::default()
    };
    let status = call(&mut calls, &format!("{COUNTERS}/AddCount"), &whole.encode_to_vec()).await;
    assert_eq!(status.code(), tonic::Code::Ok, "the same connection serves on: {status:?}");
    assert!(reasons["RETRY_LATER"] > 400, "what found no room was told so: {reasons:?}");
    assert_eq!(reasons.keys().collect::<Vec<_>>(), ["DEADLINE_EXCEEDED", "RETRY_LATER"], "{reasons:?}");
    assert_eq!(metric(&server, "tallystone_request_buffer_bytes").await, 0, "everything is given back");
}

#[tokio::test]
async fn messages_that_come_byte_by_byte_and_together_are_read_alike() {
    let server = Wire::start().await;
    let mut tasks = JoinSet::new();
    let mut calls = raw(server.address, 1 << 20, &mut tasks).await;
    let message = |token: &str| {
        let items = vec![item("views", 1, token)];
        framed(&StreamAddCountsRequest { namespace: "exact".to_owned(), items }.encode_to_vec())
    };
    let (response, mut body) = begin(&mut calls, &format!("{COUNTERS}/StreamAddCounts"));
    for byte in message("a") {
        body.send_data(Bytes::from(vec![byte]), false).expect("the stream is open");
    }
    let both = [message("b"), message("c")].concat();
    let (first, second) = both.split_at(both.len() - 3);
    body.send_data(Bytes::copy_from_slice(first), false).expect("the stream is open");
    body.send_data(Bytes::copy_from_slice(second), true).expect("the stream is open");
    assert_eq!(status(response).await.code(), tonic::Code::Ok);
    let (_, count) =
        server.post("GetCount", r#"{"namespace": "exact", "counter_name": "views", "freshness": "UP_TO_DATE"}"#).await;
    assert_eq!(count["count"], "3");
}

/// Sockets from an address of the loopback network.
async fn idle(from: [u8; 4], to: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().expect("a descriptor is free");
        socket.bind((from, 0).into()).expect("the loopback network");
        open.push(socket.connect(to).await.expect("the port is open"));
    }
    open
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_leave_the_store_its_descriptors() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("the soft limit may be raised");
    let data = tempfile::tempdir().expect("a directory");
    let mut command = std::process::Command::new("sh");
    let script = "ulimit -Sn 512 && ulimit -Hn 1024 && exec \"$0\" dev --listen 127.0.0.1:0 --data \"$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_tallystone")]).arg(data.path());
    let server = tokio::task::spawn_blocking(move || Launch::of(command).start()).await.expect("no panic");
    let mut counters = tallystone::proto::counter::v1::counter_service_client::CounterServiceClient::new(
        patient_channel(&server.url()).await,
    );
    let _mine = idle([127, 0, 0, 1], server.address, 600).await;
    let address = server.address;
    // Idle connections have the spare places too, but not for long.
    let is_healthy = move || http(address, "GET", "/healthz", &[], "").is_ok_and(|page| page.status == 200);
    let page = tokio::task::spawn_blocking(move || eventually(WITHIN, is_healthy)).await.expect("no panic");
    assert!(page, "a page is read although its address has all it may");
    let call = ("POST", "/tallystone.counter.v1.CounterService/GetCount");
    let called = tokio::task::spawn_blocking(move || http(address, call.0, call.1, &[], "{}")).await.expect("no panic");
    assert!(called.is_err(), "one address has its half: {called:?}");
    let _theirs = idle([127, 0, 0, 2], server.address, 600).await;
    let open = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("the process is there").count();
    // Looked at before the batches: connections that send no headers are closed after a time.
    let (full, least_free) = (open(), 200);
    assert!((600..=1_024 - least_free).contains(&full), "{full} descriptors");
    for round in 0..20 {
        let items = (0..1_000).map(|at| item(&format!("c-{round}-{at}"), 1, &format!("{round}-{at}"))).collect();
        let message = tallystone::proto::counter::v1::BatchAddCountsRequest { namespace: "default".to_owned(), items };
        let results = counters.batch_add_counts(message).await.expect("the store works on").into_inner().results;
        assert_eq!(results.len(), 1_000);
        let is_error = |result: &tallystone::proto::counter::v1::AddResult| format!("{result:?}").contains("ItemError");
        assert!(!results.iter().any(is_error), "{:?}", results.iter().find(|result| is_error(result)));
    }
    let after = open();
    assert!(after <= 1_024 - least_free, "{after} descriptors");
    drop((_mine, _theirs));
    let page = tokio::task::spawn_blocking(move || {
        let mut page = String::new();
        let _served = eventually(WITHIN, || {
            page = http(address, "GET", "/metrics", &[], "").map(|answer| answer.body).unwrap_or_default();
            !page.is_empty()
        });
        page
    });
    let page = page.await.expect("no panic");
    for full in ["address", "server"] {
        let name = format!("tallystone_connections_refused_total{{full=\"{full}\"}} ");
        let refused = page.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok());
        assert!(refused.is_some_and(|refused| refused > 0), "{full}: {page}");
    }
    assert!(server.stop().success(), "it was never in trouble");
}
