//! Grants on names: every method, by every role, about an own, a foreign and a missing name, over gRPC, gRPC-Web and JSON,
//! answers as the table of `docs/security.md` says.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf as _, BufMut as _};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::{Value, json};
use tallystone::domain::access::AccessRole;
use tallystone::proto::{self, METHOD_ROLES};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use super::granted_requests::{Touched, experiment, request, rule};
use super::keys::{ENDED_WITHIN, client, command_with, keyed, post, waiting, working};
use crate::support::beside;
use crate::support::harness::{PATIENCE, Server, eventually};
use crate::support::patience::{PatientChannel, patient_channel};

const SECURITY: &str = include_str!("../../../docs/security.md");
/// What says that a name is hidden.
const HIDDEN: [&str; 5] =
    ["QUEUE_NOT_FOUND", "NAMESPACE_NOT_FOUND", "COUNTER_NOT_FOUND", "RULE_NOT_FOUND", "EXPERIMENT_NOT_FOUND"];
const MISSING_ROLE: &str = "ROLE_MISSING";
/// A stream that says nothing for so long has begun.
const STREAM_BEGINS_WITHIN: Duration = Duration::from_secs(2);

/// Messages as bytes.
#[derive(Default)]
struct ByteCodec;

impl Codec for ByteCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for ByteCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&item);
        Ok(())
    }
}

impl Decoder for ByteCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let bytes = from.remaining();
        Ok(Some(from.copy_to_bytes(bytes).to_vec()))
    }
}

/// How a call ended.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Outcome {
    /// The reason of the refusal; empty if there is none.
    reason: String,
    /// The message of the refusal, or the answer.
    text: String,
}

impl Outcome {
    fn is_hidden(&self) -> bool {
        HIDDEN.contains(&&*self.reason)
    }
}

/// A method with its descriptor and its path.
struct Called {
    name: &'static str,
    path: String,
    input: prost_reflect::MessageDescriptor,
    is_stream: bool,
    needed: AccessRole,
}

fn methods() -> Vec<Called> {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).expect("descriptors of this build decode");
    let ours = METHOD_ROLES.iter().filter(|(name, _)| !name.starts_with("tallystone.internal."));
    ours.map(|&(name, role)| {
        let (service, method) = name.rsplit_once('.').expect("a service");
        let service = pool.get_service_by_name(service).expect("a service of ours");
        let found = service.methods().find(|found| found.name() == method).expect("a method of it");
        Called {
            name,
            path: format!("/{}/{method}", service.full_name()),
            input: found.input(),
            is_stream: found.is_client_streaming() || found.is_server_streaming(),
            needed: AccessRole::from_number(role).expect("a role"),
        }
    })
    .collect()
}

/// The outcome of a call; that of a stream that says nothing for a time is that it has begun.
async fn over_grpc(
    channel: &PatientChannel,
    called: &Called,
    key: &str,
    message: Vec<u8>,
    silent: Duration,
) -> Outcome {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.expect("the server is there");
    let mut request = Request::new(tokio_stream::once(message));
    let bearer = MetadataValue::try_from(format!("Bearer {key}")).expect("ASCII");
    request.metadata_mut().insert("authorization", bearer);
    let path = PathAndQuery::try_from(&*called.path).expect("a path");
    let first = async {
        let mut answers = grpc.streaming(request, path, ByteCodec).await?.into_inner();
        answers.message().await
    };
    match tokio::time::timeout(silent, first).await {
        Err(_silent) => Outcome { reason: String::new(), text: String::new() },
        Ok(Ok(answer)) => {
            let answer = answer.unwrap_or_default();
            Outcome { reason: String::new(), text: String::from_utf8_lossy(&answer).into_owned() }
        }
        Ok(Err(status)) => {
            let defects = [Code::Internal, Code::Unauthenticated, Code::Unknown];
            assert!(!defects.contains(&status.code()), "{}: {status:?}", called.name);
            let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
            let code = if reason == MISSING_ROLE { Code::PermissionDenied } else { Code::NotFound };
            let named = reason == MISSING_ROLE || HIDDEN.contains(&&*reason);
            assert!(!named || status.code() == code, "{}: {status:?}", called.name);
            Outcome { reason, text: status.message().to_owned() }
        }
    }
}

fn over_json(server: &Server, called: &Called, key: &str, body: &Value) -> Outcome {
    let answer = post(server, &called.path, key, body);
    let read = answer.json();
    let reason = read["details"][0]["reason"].as_str().unwrap_or_default().to_owned();
    let status = if reason == MISSING_ROLE { 403 } else { 404 };
    let named = reason == MISSING_ROLE || HIDDEN.contains(&&*reason);
    assert!(!named || answer.status == status, "{}: {}", called.name, answer.body);
    assert!(![401, 500].contains(&answer.status), "{}: {}", called.name, answer.body);
    Outcome { text: read["message"].as_str().map_or(answer.body, str::to_owned), reason }
}

/// The gRPC status over gRPC-Web.
fn over_web(server: &Server, called: &Called, key: &str, message: &[u8]) -> String {
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/grpc-web+proto\r\nauthorization: Bearer {key}\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        called.path,
        server.address,
        message.len() + 5
    );
    let mut stream = TcpStream::connect(server.address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream.write_all(&[head.as_bytes(), &[0], &length, message].concat()).expect("it is sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the server answers and closes");
    let text = String::from_utf8_lossy(&answer).to_ascii_lowercase().replace(": ", ":");
    let (_, after) = text.split_once("grpc-status:").unwrap_or_else(|| panic!("{}: no status in {text}", called.name));
    let status: String = after.chars().take_while(char::is_ascii_digit).collect();
    assert!(!["2", "13", "16"].contains(&&*status), "{}: {text}", called.name);
    status
}

/// The reason that the table of the documentation gives for a name without a grant; none if it gives none.
fn documented(touched: Touched) -> Option<&'static str> {
    let row = format!("| {} |", touched.words());
    let line = SECURITY.lines().find(|line| line.starts_with(&row)).expect("the table has a row for it");
    let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
    last.split('`').nth(1)
}

/// Why a key with a role on names that begin with `own` may not do it. None: it may.
fn refusal(called: &Called, role: AccessRole, touched: Touched, name: &str) -> Option<&'static str> {
    if !role.covers(called.needed) {
        return Some(MISSING_ROLE);
    }
    match (touched, name) {
        (Touched::Server | Touched::EveryQueue, _) => documented(touched),
        // A rule reads its counter as well, for which the key has another role.
        (Touched::Queue, "own") if called.name.ends_with("CreateRule") && role != AccessRole::Admin => {
            Some(MISSING_ROLE)
        }
        // No operation is asked for that exists.
        (Touched::Operation, _) | (_, "own") => None,
        (_, _) => documented(touched),
    }
}

/// A server with a namespace, a queue, a rule and an experiment of each name.
fn furnished() -> (Server, String, tempfile::TempDir) {
    let (server, admin, folder) = keyed();
    for name in ["own", "foreign"] {
        for (path, body) in [
            ("admin.v1.NamespaceService/CreateNamespace", json!({"namespace": {"name": name}})),
            ("queue.v1.QueueService/CreateQueue", json!({"queue": {"name": name}})),
            ("rule.v1.RuleService/CreateRule", json!({"rule": rule(name)})),
            ("experiment.v1.ExperimentService/CreateExperiment", json!({"experiment": experiment(name)})),
        ] {
            let answer = post(&server, &format!("/tallystone.{path}"), &admin, &body);
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        }
    }
    (server, admin, folder)
}

fn key_with(server: &Server, admin: &str, name: &str, grants: &[&str]) -> String {
    let grants = grants.iter().flat_map(|grant| match grant.strip_prefix("not ") {
        Some(denied) => ["--deny", denied],
        None => ["--grant", *grant],
    });
    let arguments: Vec<&str> = ["key", "create", name].into_iter().chain(grants).collect();
    let (code, out, told) = command_with(server, admin, &arguments);
    assert_eq!(code, 0, "{told}");
    out.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_by_every_role_about_an_own_a_foreign_and_a_missing_name_answers_as_documented() {
    let (server, admin, _folder) = furnished();
    let channel = patient_channel(&server.url()).await;
    let methods = methods();
    for role in AccessRole::OF_KEYS {
        let key = key_with(&server, &admin, role.word(), &[&*format!("{role}:*:own*")]);
        for called in &methods {
            let mut by_name = Vec::new();
            for name in ["own", "foreign", "lost"] {
                let (touched, body) =
                    request(called.name, name).unwrap_or_else(|| panic!("{} has no request", called.name));
                // It would be gone for the roles that follow.
                if name == "own" && called.name.ends_with("DeleteRule") {
                    continue;
                }
                let refusal = refusal(called, role, touched, name);
                let message = DynamicMessage::deserialize(called.input.clone(), &body).expect("a valid request");
                let message = message.encode_to_vec();
                let silent = if refusal.is_none() && called.is_stream { STREAM_BEGINS_WITHIN } else { PATIENCE };
                let mut outcomes = vec![over_grpc(&channel, called, &key, message.clone(), silent).await];
                if !called.is_stream {
                    outcomes.push(over_json(&server, called, &key, &body));
                }
                for outcome in &outcomes {
                    let what = format!("{} as {role} about {name}: {outcome:?}", called.name);
                    match refusal {
                        None => assert!(!outcome.is_hidden() && outcome.reason != MISSING_ROLE, "{what}"),
                        Some(reason) => assert_eq!(outcome.reason, reason, "{what}"),
                    }
                    if touched == Touched::List {
                        assert!(!outcome.text.contains("foreign"), "{what}");
                        assert!(refusal.is_some() || outcome.text.contains("own"), "{what}");
                    }
                }
                let code = if refusal == Some(MISSING_ROLE) { "7" } else { "5" };
                if !called.is_stream {
                    let status = over_web(&server, called, &key, &message);
                    assert!(refusal.is_none() || status == code, "{} as {role} about {name}: {status}", called.name);
                }
                by_name.push((name, outcomes.swap_remove(0)));
            }
            // What is there and hidden looks like what is not there.
            let text = |name: &str| {
                let found = by_name.iter().find(|(own, _)| *own == name).expect("it was asked for");
                (found.1.reason.clone(), found.1.text.replace(name, "NAME"))
            };
            let (foreign, lost) = (text("foreign"), text("lost"));
            assert!(!HIDDEN.contains(&&*foreign.0) || foreign == lost, "{}: {foreign:?} {lost:?}", called.name);
        }
    }
}

#[test]
fn each_item_of_a_batch_and_each_list_shows_only_what_is_granted() {
    let (server, admin, _folder) = furnished();
    let own = key_with(
        &server,
        &admin,
        "own",
        &["counter-writer:counter:own#a*", "counter-reader:counter:own#*", "not admin:counter:own#ab"],
    );
    let add = |key: &str, names: [&str; 3]| {
        let items: Vec<Value> = names.iter().map(|name| json!({"counterName": name, "delta": "1"})).collect();
        let answer = post(
            &server,
            "/tallystone.counter.v1.CounterService/BatchAddCounts",
            key,
            &json!({"namespace": "own", "items": items}),
        );
        assert_eq!(answer.status, 200, "{}", answer.body);
        let results = answer.json()["results"].as_array().expect("results").clone();
        results
            .iter()
            .map(|result| result["error"]["reason"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(add(&admin, ["aa", "ab", "b"]), ["", "", ""]);
    assert_eq!(add(&own, ["aa", "ab", "b"]), ["", "COUNTER_NOT_FOUND", "ROLE_MISSING"]);
    let listed = || {
        let body = json!({"namespace": "own", "pageSize": 1});
        let path = "/tallystone.counter.v1.CounterService/ListCounters";
        let mut names = Vec::new();
        let mut token = String::new();
        loop {
            let mut body = body.clone();
            body["pageToken"] = json!(token);
            let page = post(&server, path, &own, &body).json();
            names.extend(page["counters"].as_array().into_iter().flatten().map(|one| one["counterName"].clone()));
            token = page["nextPageToken"].as_str().unwrap_or_default().to_owned();
            if token.is_empty() {
                break;
            }
        }
        names == [json!("aa"), json!("b")]
    };
    assert!(eventually(PATIENCE, listed), "it lists what is granted, a page at a time");
}

#[test]
fn making_a_queue_by_template_is_a_right_of_its_own() {
    let (server, admin, _folder) = furnished();
    let create = "/tallystone.queue.v1.QueueService/CreateQueue";
    let template = json!({"queue": {"name": "template", "templateFor": "own/"}});
    assert_eq!(post(&server, create, &admin, &template).status, 200);
    let operator = key_with(&server, &admin, "operator", &["queue-operator:queue:own*"]);
    let foreign = json!({"queue": {"name": "own-template", "templateFor": "foreign/"}});
    let refused = post(&server, create, &operator, &foreign);
    assert_eq!((refused.status, &refused.json()["details"][0]["reason"]), (403, &json!(MISSING_ROLE)));
    let plain = key_with(&server, &admin, "plain", &["enqueuer:queue:own*"]);
    let maker = key_with(&server, &admin, "maker", &["enqueuer:queue:own*", "queue-maker:queue:own/made*"]);
    let enqueue = |key: &str, queue: &str| {
        let body = json!({"queue": queue, "message": {"payload": "aGVsbG8="}});
        let answer = post(&server, "/tallystone.queue.v1.QueueService/Enqueue", key, &body);
        (answer.status, answer.json()["details"][0]["reason"].as_str().unwrap_or_default().to_owned())
    };
    let missing = (404, "QUEUE_NOT_FOUND".to_owned());
    assert_eq!(enqueue(&plain, "own/made"), missing);
    assert_eq!(enqueue(&maker, "own/other"), missing);
    assert_eq!(enqueue(&maker, "own/made").0, 200);
    assert_eq!(enqueue(&plain, "own/made").0, 200, "it exists now");
}

#[test]
fn a_session_and_its_label_belong_to_their_principal() {
    let (server, admin, _folder) = furnished();
    let keys = ["ann-worker", "bob-worker"].map(|name| key_with(&server, &admin, name, &["worker:queue:own*"]));
    let call = |method: &str, key: &str, body: &Value| {
        let answer = post(&server, &format!("/tallystone.queue.v1.QueueService/{method}"), key, body);
        let reason = answer.json()["details"][0]["reason"].as_str().unwrap_or_default().to_owned();
        (answer.status, reason, answer.json())
    };
    let opened = keys.each_ref().map(|key| {
        let (status, _, answer) = call("OpenSession", key, &json!({"label": "w-1"}));
        assert_eq!(status, 200, "{answer}");
        json!({"sessionId": answer["sessionId"]})
    });
    let stranger = "SESSION_NOT_FOUND";
    for (key, own, other) in [(&keys[0], &opened[0], &opened[1]), (&keys[1], &opened[1], &opened[0])] {
        assert_eq!(call("Heartbeat", key, own).0, 200, "the same label of another principal ends nothing");
        let dequeue = |session: &Value| json!({"queue": "own", "sessionId": session["sessionId"], "sequence": "1"});
        for (method, body) in
            [("Heartbeat", other.clone()), ("CloseSession", other.clone()), ("Dequeue", dequeue(other))]
        {
            assert_eq!(call(method, key, &body).1, stranger, "{method}");
        }
        assert_eq!(call("Dequeue", key, &dequeue(own)).0, 200);
        // The id without its seal is of no use.
        let text = own["sessionId"].as_str().expect("an id");
        let bare = json!({"sessionId": text.split('~').next().expect("an id")});
        assert_eq!(call("Heartbeat", key, &bare).1, stranger);
    }
    let (_, _, listed) = call("ListSessions", &admin, &json!({}));
    let labels: Vec<&Value> = listed["sessions"].as_array().expect("a list").iter().map(|one| &one["label"]).collect();
    assert_eq!(labels, [&json!("w-1"), &json!("w-1")]);
}

/// The text of an answer's field, and the reason of a refusal.
fn text_of(answer: &Value, path: &str) -> String {
    answer.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[test]
fn an_operation_belongs_to_the_principal_that_began_it_and_admins_of_its_queue_see_it() {
    let (server, admin, _folder) = furnished();
    let call =
        |method: &str, key: &str, body: &Value| post(&server, &format!("/tallystone.{method}"), key, body).json();
    let keys = ["ann-checker", "bob-checker"];
    let [own, other] =
        keys.map(|name| key_with(&server, &admin, name, &["queue-operator:queue:own", "viewer:queue:own"]));
    let foreign = key_with(&server, &admin, "foreign-admin", &["admin:queue:foreign"]);
    let begun = call("history.v1.HistoryService/CheckQueues", &own, &json!({"queue": "own"}));
    let id = text_of(&begun, "/operation/operationId");
    assert!(!id.is_empty(), "{begun}");
    let get = "queue.v1.QueueService/GetOperation";
    let reason = |key: &str, id: &str| text_of(&call(get, key, &json!({"operationId": id})), "/details/0/reason");
    assert_eq!(reason(&own, &id), "");
    assert_eq!(reason(&admin, &id), "");
    for stranger in [&other, &foreign] {
        assert_eq!(reason(stranger, &id), "OPERATION_NOT_FOUND");
    }
    let bare = id.split('~').next().expect("an id").to_owned();
    assert_ne!(bare, id, "it has a seal");
    assert_eq!(reason(&own, &bare), "OPERATION_NOT_FOUND", "its owner shows the seal");
    assert_eq!(reason(&admin, &bare), "");
    let list = "history.v1.HistoryService/ListFindings";
    let findings = |key: &str, id: &str| text_of(&call(list, key, &json!({"operationId": id})), "/details/0/reason");
    assert_eq!([findings(&own, &id), findings(&admin, &id), findings(&admin, &bare)], ["", "", ""]);
    for (stranger, id) in [(&other, &id), (&foreign, &id), (&own, &bare), (&other, &bare)] {
        assert_eq!(findings(stranger, id), "OPERATION_NOT_FOUND");
    }
    let cancel = "queue.v1.QueueService/CancelOperation";
    let canceled = call(cancel, &other, &json!({"operationId": id}));
    assert_eq!(text_of(&canceled, "/details/0/reason"), "OPERATION_NOT_FOUND", "{canceled}");
}

#[test]
fn the_same_request_token_of_two_principals_names_two_requests() {
    let (server, admin, _folder) = furnished();
    let keys = ["ann-purger", "bob-purger"].map(|name| key_with(&server, &admin, name, &["queue-operator:queue:own"]));
    let call = |method: &str, key: &str, body: &Value| {
        let answer = post(&server, &format!("/tallystone.queue.v1.QueueService/{method}"), key, body);
        assert_eq!(answer.status, 200, "{method}: {}", answer.body);
        answer.json()
    };
    let enqueue = || call("Enqueue", &admin, &json!({"queue": "own", "message": {"payload": "aGVsbG8="}}));
    let purge = |key: &str| {
        let begun = call("PurgeQueue", key, &json!({"queue": "own", "request_token": "daily"}));
        let id = text_of(&begun, "/operation/operationId");
        let asked = json!({"operation_id": id});
        let state = || text_of(&call("GetOperation", key, &asked), "/operation/state");
        assert!(eventually(PATIENCE, || state() == "OPERATION_STATE_DONE"), "{}", state());
        id
    };
    let purged = keys.each_ref().map(|key| {
        enqueue();
        purge(key)
    });
    assert_ne!(purged[0], purged[1]);
    let depth = call("GetDepth", &admin, &json!({"queue": "own"}));
    assert_eq!(depth["pending"].as_str(), Some("0"), "none was taken for a repeat of the other: {depth}");
    enqueue();
    assert_eq!(purge(&keys[0]), purged[0], "a repeat of the same principal is one");
    let depth = call("GetDepth", &admin, &json!({"queue": "own"}));
    assert_eq!(depth["pending"], "1", "{depth}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_grants_ends_waiting_calls_and_streams_of_the_key_within_two_seconds() {
    let (server, admin, _folder) = furnished();
    let grants = ["counter-reader:counter:own#*", "worker:queue:own"];
    let key = key_with(&server, &admin, "changed", &grants);
    let (watch, dequeue) = waiting(&server, &key, "own").await;
    let work = working(&client(&server, &key), "own").await;
    let (changed, yardstick) = (Instant::now(), beside(&server));
    let viewer = json!({"role": "ROLE_VIEWER", "kind": "RESOURCE_KIND_QUEUE", "prefix": "own"});
    let update = json!({"name": "changed", "grants": [viewer]});
    assert_eq!(post(&server, "/tallystone.admin.v1.KeyService/UpdateKey", &admin, &update).status, 200);
    for (what, ended, reason) in
        [("watch", watch, "RETRY_LATER"), ("dequeue", dequeue, "OUTCOME_UNKNOWN"), ("work", work, "OUTCOME_UNKNOWN")]
    {
        let status = ended.await.expect("no task panics");
        let found = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
        assert_eq!(found, reason, "{what}: {status:?}");
        yardstick.holds(changed, ENDED_WITHIN, format!("{what} ends after the change"));
    }
}

#[test]
fn no_change_of_grants_refuses_the_key_itself() {
    let (server, admin, _folder) = furnished();
    let key = key_with(&server, &admin, "busy", &["viewer:queue:own"]);
    let update = |prefix: &str| {
        let grant = json!({"role": "ROLE_VIEWER", "kind": "RESOURCE_KIND_QUEUE", "prefix": prefix});
        let body = json!({"name": "busy", "grants": [grant]});
        post(&server, "/tallystone.admin.v1.KeyService/UpdateKey", &admin, &body).status
    };
    let done = AtomicBool::new(false);
    let statuses = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut statuses = BTreeSet::new();
            while !done.load(Ordering::Acquire) {
                let answer =
                    post(&server, "/tallystone.queue.v1.QueueService/GetQueue", &key, &json!({"queue": "own"}));
                statuses.insert(answer.status);
            }
            statuses
        });
        let updates: Vec<_> = (0..40).map(|round| update(if round % 2 == 0 { "ow" } else { "own" })).collect();
        // Before anything is checked, or the reader would never end.
        done.store(true, Ordering::Release);
        assert_eq!(updates, [200; 40]);
        reader.join().expect("the reader does not panic")
    });
    assert!(statuses.contains(&200) && !statuses.contains(&401), "{statuses:?}");
}

#[test]
fn only_a_rule_and_an_experiment_that_a_key_may_see_are_deleted() {
    let (server, admin, _folder) = furnished();
    let key = key_with(&server, &admin, "own-admin", &["admin:*:own*"]);
    for (name, reason) in [("own", ""), ("foreign", "NAMESPACE_NOT_FOUND")] {
        let body = json!({"experiment": experiment(name)});
        let answer = post(&server, "/tallystone.experiment.v1.ExperimentService/CompareExperiment", &key, &body);
        assert_eq!(text_of(&answer.json(), "/details/0/reason"), reason, "{}", answer.body);
    }
    for (method, missing) in [
        ("rule.v1.RuleService/DeleteRule", "RULE_NOT_FOUND"),
        ("experiment.v1.ExperimentService/DeleteExperiment", "EXPERIMENT_NOT_FOUND"),
    ] {
        let path = format!("/tallystone.{method}");
        let name = |name: &str| if method.contains("Rule") { format!("{name}-rule") } else { name.to_owned() };
        let delete = |key: &str, of: &str| {
            let answer = post(&server, &path, key, &json!({"name": name(of)}));
            (answer.status, text_of(&answer.json(), "/details/0/reason"))
        };
        assert_eq!(delete(&key, "foreign"), (404, missing.to_owned()));
        assert_eq!(delete(&key, "own").0, 200);
        assert_eq!(delete(&admin, "foreign").0, 200, "it was still there");
    }
}

#[test]
fn neither_the_status_nor_a_taken_name_shows_anything_of_a_hidden_queue() {
    let (server, admin, _folder) = furnished();
    for queue in ["own", "foreign"] {
        let body = json!({"queue": queue, "message": {"message_id": "m"}});
        let answer = post(&server, "/tallystone.queue.v1.QueueService/Enqueue", &admin, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let key = key_with(&server, &admin, "own-admin", &["viewer:server", "admin:*:own*"]);
    let shown = |key: &str| {
        let status = post(&server, "/tallystone.admin.v1.StatusService/GetStatus", key, &json!({})).json();
        let rows = status["queues"]["oldest"].as_array().cloned().unwrap_or_default();
        rows.iter().map(|row| text_of(row, "/queue")).collect::<BTreeSet<_>>()
    };
    let queues = BTreeSet::from(["foreign".to_owned(), "own".to_owned()]);
    assert!(eventually(PATIENCE, || shown(&admin).is_superset(&queues)), "{:?}", shown(&admin));
    assert_eq!(shown(&key), BTreeSet::from(["own".to_owned()]));
    let refused = |name: &str| {
        let mut rule = rule("own");
        (rule["name"], rule["at"]) = (json!(name), json!("987654"));
        let answer = post(&server, "/tallystone.rule.v1.RuleService/CreateRule", &key, &json!({"rule": rule})).json();
        assert_eq!(text_of(&answer, "/details/0/reason"), "RULE_EXISTS", "{answer}");
        text_of(&answer, "/message")
    };
    assert!(refused("own-rule").contains("another threshold"), "its own rule is compared");
    assert!(refused("foreign-rule").contains("is taken by another rule"));
    assert!(!refused("foreign-rule").contains("another threshold"), "and a hidden one is not");
}
