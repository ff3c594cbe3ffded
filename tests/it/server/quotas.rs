//! Quotas of keys: one key fills each of them, is told to come later, and another key still gets its share.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tallystone::client::{Client, RetryPolicy};
use tallystone::proto::counter::v1::{AddCountRequest, WatchCountsRequest, WatchCountsResponse};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

use super::keys::{call, command_with, first_key, keyed, post, start};
use crate::support::beside;
use crate::support::harness::{HttpAnswer, PATIENCE, Server, eventually, http};
use crate::support::patience::{PatientChannel, patient_channel};

const LIST_KEYS: &str = "/tallystone.admin.v1.KeyService/ListKeys";
const CREATE_NAMESPACE: &str = "/tallystone.admin.v1.NamespaceService/CreateNamespace";
const ADD: &str = "/tallystone.counter.v1.CounterService/AddCount";
const QUEUES: &str = "/tallystone.queue.v1.QueueService";
/// A change counts on an open server within this time.
const CHANGED_WITHIN: Duration = Duration::from_secs(2);
const WITHIN: Duration = PATIENCE;
/// The size of a payload in its JSON, below what a message may have.
const LARGE_BYTES: usize = 40_000;

/// A server with an admin, a key with a quota of its own, and one without.
struct Tenants {
    server: Server,
    admin: String,
    greedy: String,
    modest: String,
    folder: tempfile::TempDir,
}

impl Tenants {
    fn with(quota: &str) -> Self {
        let (server, admin, folder) = keyed();
        let made = |arguments: &[&str]| {
            let (code, key, told) = command_with(&server, &admin, &[&["key", "create"], arguments].concat());
            assert_eq!(code, 0, "{told}");
            key.trim().to_owned()
        };
        let greedy = made(&["greedy", "--grant", "admin", "--quota", quota]);
        let modest = made(&["modest", "--grant", "admin"]);
        Self { server, admin, greedy, modest, folder }
    }

    /// Calls a method of queues, or another one by its whole path.
    fn ask(&self, key: &str, method: &str, body: &Value) -> HttpAnswer {
        let path = if method.starts_with('/') { method.to_owned() } else { format!("{QUEUES}/{method}") };
        post(&self.server, &path, key, body)
    }

    fn done(&self, key: &str, method: &str, body: &Value) -> Value {
        let answer = self.ask(key, method, body);
        assert_eq!(answer.status, 200, "{method}: {}", answer.body);
        answer.json()
    }

    /// Refused for a quota, with its name and a delay. Answers the delay.
    fn refused(&self, key: &str, method: &str, body: &Value, quota: &str) -> Duration {
        let answer = self.ask(key, method, body);
        delay_of_refusal(&answer, quota).unwrap_or_else(|| panic!("{method}: {answer:?}"))
    }

    fn update(&self, quotas: &[&str]) {
        let arguments = [&["key", "update", "greedy", "--grant", "admin"], quotas].concat();
        let (code, _, told) = command_with(&self.server, &self.admin, &arguments);
        assert_eq!(code, 0, "{told}");
    }

    fn refusals(&self, quota: &str) -> String {
        let bearer = format!("Bearer {}", self.admin);
        let page = http(self.server.address, "GET", "/metrics", &[("authorization", &bearer)], "").expect("an answer");
        let row = format!("tallystone_quota_refusals_total{{quota=\"{quota}\"}} ");
        let count = page.body.lines().find_map(|line| line.strip_prefix(&row));
        count.unwrap_or_else(|| panic!("no {row} in {}", page.body)).to_owned()
    }

    fn client(&self, key: &str) -> Client {
        let policy = RetryPolicy { total: PATIENCE, attempt_max: PATIENCE, ..RetryPolicy::default() };
        Client::new(&self.server.url(), policy).expect("an address").with_key(key).expect("a key")
    }

    async fn watch(&self, client: &Client) -> Result<Streaming<WatchCountsResponse>, Status> {
        let request = WatchCountsRequest { namespace: "shop".to_owned(), counter_names: vec!["front".to_owned()] };
        let mut stream = client.counters().watch_counts(request).await?.into_inner();
        stream.message().await?;
        Ok(stream)
    }

    async fn connection(&self) -> PatientChannel {
        patient_channel(&self.server.url()).await
    }
}

/// The delay of an answer over HTTP, if it is a refusal for this quota.
fn delay_of_refusal(answer: &HttpAnswer, quota: &str) -> Option<Duration> {
    if answer.status != 429 {
        return None;
    }
    let body = answer.json();
    let info = &body["details"][0];
    let is_of_quota = info["reason"] == "RETRY_LATER" && info["metadata"]["quota"] == quota;
    let seconds = body["details"][1]["retryDelay"].as_str()?.strip_suffix('s')?.parse().ok()?;
    let is_said = answer.head.to_ascii_lowercase().contains("retry-after: ")
        && body["message"].as_str()?.contains(&format!("its quota {quota}"));
    (is_of_quota && is_said).then(|| Duration::from_secs_f64(seconds))
}

/// Whether a call over gRPC was refused for this quota, with a delay.
fn is_refused(status: &Status, quota: &str) -> bool {
    let info = status.get_details_error_info();
    let is_of_quota = info
        .is_some_and(|info| info.reason == "RETRY_LATER" && info.metadata.get("quota").is_some_and(|of| of == quota));
    let delay = status.get_details_retry_info().and_then(|info| info.retry_delay);
    status.code() == Code::ResourceExhausted && is_of_quota && delay.is_some_and(|delay| !delay.is_zero())
}

fn message(id: &str) -> Value {
    json!({"queue": "mail", "message": {"message_id": id}})
}

#[test]
fn calls_beyond_the_rate_of_a_key_have_no_effect_and_another_key_goes_on() {
    let tenants = Tenants::with("calls-per-second=1");
    tenants.done(&tenants.admin, "CreateQueue", &json!({"queue": {"name": "mail"}}));
    let (mut taken, mut refused, mut number) = (0, 0, 0);
    let both = eventually(WITHIN, || {
        number += 1;
        let answer = tenants.ask(&tenants.greedy, "Enqueue", &message(&format!("m{number}")));
        match delay_of_refusal(&answer, "calls-per-second") {
            Some(delay) => {
                assert!(delay > Duration::ZERO && delay <= Duration::from_secs(1), "{delay:?}");
                refused += 1;
            }
            None if answer.status == 200 => taken += 1,
            None => panic!("{answer:?}"), // neither taken nor refused for the rate
        }
        tenants.done(&tenants.modest, "GetDepth", &json!({"queue": "mail"}));
        refused >= 5 && taken >= 2
    });
    assert!(both, "{taken} taken, {refused} refused");
    let depth = tenants.done(&tenants.modest, "GetDepth", &json!({"queue": "mail"}));
    assert_eq!(depth["pending"], taken.to_string(), "what was refused had no effect: {depth}");
    assert_eq!(tenants.refusals("calls_per_second"), refused.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_beyond_the_rate_of_a_key_are_paid_for_on_every_protocol() {
    let tenants = Tenants::with("bytes-per-second=1000");
    tenants.done(&tenants.admin, "CreateQueue", &json!({"queue": {"name": "mail"}}));
    let large = json!({"queue": "mail", "message": {"message_id": "large", "payload": "A".repeat(LARGE_BYTES)}});
    tenants.done(&tenants.greedy, "Enqueue", &large);
    let delay = tenants.refused(&tenants.greedy, "Enqueue", &message("second"), "bytes-per-second");
    assert!(delay > Duration::from_secs(30), "40 kB take 40 s: {delay:?}");
    let (bearer, channel) = (format!("Bearer {}", tenants.greedy), tenants.connection().await);
    let status = call(&channel, LIST_KEYS, Some(&bearer)).await;
    assert!(is_refused(&status, "bytes-per-second"), "{status:?}");
    let web = [("content-type", "application/grpc-web+proto"), ("authorization", &*bearer)];
    let answer = http(tenants.server.address, "POST", LIST_KEYS, &web, "").expect("an answer");
    let text = format!("{answer:?}").replace(": ", ":");
    assert!(text.contains("grpc-status:8"), "{answer:?}");
    let page = http(tenants.server.address, "GET", "/metrics", &[("authorization", &bearer)], "").expect("an answer");
    assert_eq!(page.status, 429, "pages that need a key count too");
    assert_eq!(tenants.server.get("/healthz").status, 200, "health needs none");
    let depth = tenants.done(&tenants.modest, "GetDepth", &json!({"queue": "mail"}));
    assert_eq!(depth["pending"], "1", "{depth}");
    tenants.update(&["--quota", "bytes-per-second=unlimited"]);
    tenants.done(&tenants.greedy, "Enqueue", &message("second"));
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_count_as_bytes_too() {
    let tenants = Tenants::with("bytes-per-second=1000");
    tenants.done(&tenants.admin, "CreateQueue", &json!({"queue": {"name": "mail"}}));
    let large = json!({"queue": "mail", "message": {"message_id": "large", "payload": "A".repeat(LARGE_BYTES)}});
    tenants.done(&tenants.modest, "Enqueue", &large);
    let peeked = tenants.done(&tenants.greedy, "PeekMessages", &json!({"queue": "mail"}));
    assert!(peeked.to_string().len() > LARGE_BYTES);
    let delay = tenants.refused(&tenants.greedy, "GetDepth", &json!({"queue": "mail"}), "bytes-per-second");
    assert!(delay > Duration::from_secs(30), "{delay:?}");
}

#[test]
fn pages_of_the_console_and_of_metrics_count_as_bytes() {
    let tenants = Tenants::with("bytes-per-second=100");
    let bearer = format!("Bearer {}", tenants.greedy);
    let get =
        |path: &str| http(tenants.server.address, "GET", path, &[("authorization", &bearer)], "").expect("an answer");
    for path in ["/console/", "/metrics"] {
        let page = get(path);
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        let waits = tenants.refused(&tenants.greedy, "GetDepth", &json!({"queue": "mail"}), "bytes-per-second");
        let costs = Duration::from_millis(10 * page.body.len() as u64);
        assert!(costs > Duration::from_secs(20), "{path} has {} bytes", page.body.len());
        assert!(waits <= costs && waits + Duration::from_secs(10) > costs, "{path}: {waits:?} of {costs:?}");
        assert_eq!(get(path).status, 429, "{path}");
        // A rate that changes begins anew.
        tenants.update(&["--quota", "bytes-per-second=unlimited"]);
        tenants.update(&["--quota", "bytes-per-second=100"]);
    }
}

/// Opens the live numbers of the console, and reads the status of the answer. The rest is not read: it has no end.
fn live(tenants: &Tenants, key: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(tenants.server.address).expect("the server listens");
    stream.set_read_timeout(Some(WITHIN)).expect("a time");
    let head = format!("GET /console/live HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it is sent");
    let mut first = [0; 12];
    stream.read_exact(&mut first).expect("an answer");
    (stream, String::from_utf8_lossy(&first).into_owned())
}

#[test]
fn live_pages_of_the_console_count_as_streams() {
    let tenants = Tenants::with("streams=1");
    tenants.done(&tenants.admin, "CreateQueue", &json!({"queue": {"name": "mail"}}));
    let (shown, refused) = ("HTTP/1.1 200".to_owned(), "HTTP/1.1 429".to_owned());
    let (held, first) = live(&tenants, &tenants.greedy);
    let second = live(&tenants, &tenants.greedy).1;
    assert_eq!([first, second, live(&tenants, &tenants.modest).1], [shown.clone(), refused, shown]);
    let bearer = format!("Bearer {}", tenants.greedy);
    let refused = http(tenants.server.address, "GET", "/console/live", &[("authorization", &bearer)], "");
    let refused = refused.expect("an answer");
    assert!(delay_of_refusal(&refused, "streams").is_some(), "{refused:?}");
    tenants.refused(&tenants.greedy, "Dequeue", &json!({"queue": "mail"}), "streams");
    drop(held);
    let comes_back = || tenants.ask(&tenants.greedy, "Dequeue", &json!({"queue": "mail"})).status == 200;
    assert!(eventually(WITHIN, comes_back), "a stream that ends gives way");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_key_end_at_its_quota_and_come_back() {
    let tenants = Tenants::with("streams=2");
    tenants.done(&tenants.admin, CREATE_NAMESPACE, &json!({"namespace": {"name": "shop"}}));
    let (greedy, modest) = (tenants.client(&tenants.greedy), tenants.client(&tenants.modest));
    let held = [tenants.watch(&greedy).await.expect("the first"), tenants.watch(&greedy).await.expect("the second")];
    let status = tenants.watch(&greedy).await.expect_err("two are the most");
    assert!(is_refused(&status, "streams"), "{status:?}");
    tenants.done(&tenants.admin, "CreateQueue", &json!({"queue": {"name": "mail"}}));
    tenants.refused(&tenants.greedy, "Dequeue", &json!({"queue": "mail"}), "streams");
    assert!(tenants.watch(&modest).await.is_ok(), "another key has its own");
    drop(held);
    let deadline = Instant::now() + WITHIN;
    while let Err(status) = tenants.watch(&greedy).await {
        assert!(is_refused(&status, "streams") && Instant::now() < deadline, "{status:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_key_end_at_its_quota_and_are_closed_beyond_it() {
    let tenants = Tenants::with("connections=2");
    let (greedy, modest) = (format!("Bearer {}", tenants.greedy), format!("Bearer {}", tenants.modest));
    let held = [tenants.connection().await, tenants.connection().await];
    for connection in &held {
        assert_eq!(call(connection, LIST_KEYS, Some(&greedy)).await.code(), Code::Ok);
    }
    let status = call(&tenants.connection().await, LIST_KEYS, Some(&greedy)).await;
    assert!(is_refused(&status, "connections"), "{status:?}");
    let mut raw = TcpStream::connect(tenants.server.address).expect("the server listens");
    raw.set_read_timeout(Some(WITHIN)).expect("a time");
    let head = format!(
        "POST {LIST_KEYS} HTTP/1.1\r\nhost: x\r\nauthorization: {greedy}\r\ncontent-type: application/json\r\n"
    );
    raw.write_all(format!("{head}content-length: 2\r\n\r\n{{}}").as_bytes()).expect("it is sent");
    let mut answer = String::new();
    raw.read_to_string(&mut answer).expect("the server closes the connection after its answer");
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("\"quota\":\"connections\""), "{answer}");
    assert_eq!(call(&tenants.connection().await, LIST_KEYS, Some(&modest)).await.code(), Code::Ok);
    assert_eq!(call(&held[0], LIST_KEYS, Some(&modest)).await.code(), Code::Ok, "keys may share a connection");
    drop(held);
    let deadline = Instant::now() + WITHIN;
    loop {
        let status = call(&tenants.connection().await, LIST_KEYS, Some(&greedy)).await;
        if status.code() == Code::Ok {
            break;
        }
        assert!(is_refused(&status, "connections") && Instant::now() < deadline, "{status:?}");
    }
}

#[test]
fn sessions_of_a_key_end_at_its_quota() {
    let tenants = Tenants::with("sessions=2");
    for _ in 0..2 {
        tenants.done(&tenants.greedy, "OpenSession", &json!({}));
    }
    let delay = tenants.refused(&tenants.greedy, "OpenSession", &json!({}), "sessions");
    assert_eq!(delay, Duration::from_secs(1));
    tenants.done(&tenants.modest, "OpenSession", &json!({}));
    assert_eq!((tenants.refusals("sessions"), tenants.refusals("operations")), ("1".to_owned(), "0".to_owned()));
}

#[test]
fn operations_of_a_key_end_at_its_quota() {
    let tenants = Tenants::with("operations=1");
    let queue = json!({"name": "mail", "default_max_attempts": 1});
    tenants.done(&tenants.admin, "CreateQueue", &json!({"queue": queue}));
    for number in 0..12 {
        tenants.done(&tenants.admin, "Enqueue", &message(&format!("m{number}")));
    }
    let leased = tenants.done(&tenants.admin, "Dequeue", &json!({"queue": "mail", "max_messages": 12}));
    for lease in leased["leases"].as_array().expect("leases") {
        let failed = json!({"queue": "mail", "lease_token": lease["leaseToken"]});
        tenants.done(&tenants.admin, "Fail", &failed);
    }
    let slow = json!({"queue": "mail", "rate": 1});
    let first = tenants.done(&tenants.greedy, "RedriveMessages", &slow);
    tenants.refused(&tenants.greedy, "RedriveMessages", &slow, "operations");
    tenants.done(&tenants.modest, "RedriveMessages", &slow);
    let id = &first["operation"]["operationId"];
    tenants.done(&tenants.greedy, "CancelOperation", &json!({"operation_id": id}));
    let comes_back = || tenants.ask(&tenants.greedy, "RedriveMessages", &slow).status == 200;
    assert!(eventually(WITHIN, comes_back), "one that has ended gives way");
}

#[test]
fn queues_of_a_key_end_at_its_quota_also_after_a_restart() {
    let tenants = Tenants::with("queues=2");
    let named = |name: &str| json!({"queue": {"name": name}});
    tenants.done(&tenants.greedy, "CreateQueue", &json!({"queue": {"name": "t", "template_for": "jobs/"}}));
    let first = |name: &str| json!({"queue": name, "message": {"message_id": "a"}});
    tenants.done(&tenants.greedy, "Enqueue", &first("jobs/1"));
    tenants.refused(&tenants.greedy, "Enqueue", &first("jobs/2"), "queues");
    tenants.refused(&tenants.greedy, "CreateQueue", &named("mail"), "queues");
    tenants.done(&tenants.modest, "Enqueue", &first("jobs/2"));
    tenants.done(&tenants.modest, "CreateQueue", &named("mail"));
    tenants.done(&tenants.greedy, "Enqueue", &first("jobs/2"));
    let Tenants { server, admin, greedy, modest, folder } = tenants;
    assert!(server.stop().success());
    let tenants = Tenants { server: start(folder.path(), &[]), admin, greedy, modest, folder };
    tenants.refused(&tenants.greedy, "CreateQueue", &named("more"), "queues");
    tenants.done(&tenants.greedy, "DeleteQueue", &json!({"queue": "jobs/1"}));
    tenants.done(&tenants.greedy, "CreateQueue", &named("more"));
}

#[test]
fn namespaces_of_a_key_end_at_its_quota_also_after_a_restart() {
    let tenants = Tenants::with("namespaces=1");
    let named = |name: &str| json!({"namespace": {"name": name}});
    tenants.done(&tenants.greedy, CREATE_NAMESPACE, &named("one"));
    tenants.done(&tenants.greedy, CREATE_NAMESPACE, &named("one"));
    tenants.refused(&tenants.greedy, CREATE_NAMESPACE, &named("two"), "namespaces");
    tenants.done(&tenants.modest, CREATE_NAMESPACE, &named("two"));
    let Tenants { server, admin, greedy, modest, folder } = tenants;
    assert!(server.stop().success());
    let tenants = Tenants { server: start(folder.path(), &[]), admin, greedy, modest, folder };
    tenants.refused(&tenants.greedy, CREATE_NAMESPACE, &named("three"), "namespaces");
    let apply = "/tallystone.admin.v1.NamespaceService/ApplyNamespace";
    let document = json!({"document": json!({"namespaces": [{"name": "three"}]}).to_string()});
    tenants.refused(&tenants.greedy, apply, &document, "namespaces");
    tenants.done(&tenants.greedy, "/tallystone.admin.v1.NamespaceService/DeleteNamespace", &json!({"name": "one"}));
    tenants.done(&tenants.greedy, CREATE_NAMESPACE, &named("three"));
}

#[test]
fn a_change_of_quotas_counts_at_once_and_ends_no_call() {
    let tenants = Tenants::with("sessions=1");
    let open = || tenants.ask(&tenants.greedy, "OpenSession", &json!({})).status;
    assert_eq!([open(), open()], [200, 429]);
    tenants.update(&["--quota", "sessions=2", "--quota", "streams=7"]);
    beside(&tenants.server).comes(Instant::now(), CHANGED_WITHIN, "the quota counts", || open() == 200);
    assert_eq!(open(), 429, "the first session still counts");
    let listed = |format: &[&str]| {
        let (code, out, told) = command_with(&tenants.server, &tenants.admin, &[&["key", "ls"], format].concat());
        assert_eq!(code, 0, "{told}");
        out
    };
    assert!(listed(&["-o", "csv"]).contains("streams=7, sessions=2"), "{}", listed(&["-o", "csv"]));
    let shown: Value = serde_json::from_str(&listed(&["-o", "json"])).expect("JSON");
    let keys = shown["keys"].as_array().or_else(|| shown.as_array()).expect("a list").clone();
    let greedy = keys.iter().find(|key| key["name"] == "greedy").expect("it is listed");
    assert_eq!((&greedy["quotas"]["sessions"], &greedy["quotas"]["streams"]), (&json!("2"), &json!("7")), "{greedy}");
    tenants.update(&[]);
    assert_eq!(open(), 429, "an update that names no quota leaves them");
    tenants.update(&["--default-quotas"]);
    assert_eq!(open(), 200, "the server has a limit far above");
    for (quota, told) in
        [("sesions=1", "there is no quota"), ("sessions=x", "whole number"), ("sessions", "QUOTA=NUMBER")]
    {
        let arguments = ["key", "update", "greedy", "--grant", "admin", "--quota", quota];
        let (code, _, printed) = command_with(&tenants.server, &tenants.admin, &arguments);
        assert!(code == 2 && printed.contains(told), "{quota}: {printed}");
    }
}

#[test]
fn keys_without_quotas_of_their_own_have_those_of_the_settings_and_callers_without_keys_none() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let key = first_key(folder.path(), "ann");
    let open = |server: &Server| post(server, &format!("{QUEUES}/OpenSession"), &key, &json!({})).status;
    let server = start(folder.path(), &["quotas.sessions=1"]);
    assert_eq!([open(&server), open(&server)], [200, 429]);
    assert!(server.stop().success());
    let server = start(folder.path(), &["quotas.sessions=1", "auth.mode=off"]);
    assert_eq!([open(&server), open(&server)], [200, 200]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_library_makes_a_refused_call_again_after_the_delay() {
    let tenants = Tenants::with("calls-per-second=2");
    tenants.done(&tenants.admin, CREATE_NAMESPACE, &json!({"namespace": {"name": "shop"}}));
    let client = tenants.client(&tenants.greedy);
    let add = AddCountRequest {
        namespace: "shop".to_owned(),
        counter_name: "front".to_owned(),
        delta: Some(1),
        ..AddCountRequest::default()
    };
    let began = Instant::now();
    for number in 0..6 {
        client.add_count(add.clone()).await.unwrap_or_else(|error| panic!("add {number}: {error}"));
    }
    assert!(began.elapsed() >= Duration::from_secs(2), "two are there at once, and four come in two seconds");
    assert_ne!(tenants.refusals("calls_per_second"), "0");
    let add = json!({"namespace": "shop", "counterName": "front", "delta": 1});
    let is_refused = || delay_of_refusal(&tenants.ask(&tenants.greedy, ADD, &add), "calls-per-second").is_some();
    assert!(eventually(WITHIN, is_refused), "both protocols share the rate");
}
