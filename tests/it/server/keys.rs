//! API keys: nobody calls without one, on any protocol; a key that ends takes its calls with it; no secret is kept.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use prost::Message as _;
use prost_types::FileDescriptorSet;
use serde_json::{Value, json};
use tallystone::client::{Client, RetryPolicy};
use tallystone::proto;
use tallystone::proto::counter::v1::{WatchCountsRequest, WatchCountsResponse};
use tallystone::proto::queue::v1::{DequeueRequest, WorkRequest};
use tokio_stream::StreamExt as _;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;

use crate::support::beside;
use crate::support::harness::{HttpAnswer, IN_MEMORY, Launch, PATIENCE, Server, eventually, http};
use crate::support::patience::{PatientChannel, patient_channel};

const CREATE_NAMESPACE: &str = "/tallystone.admin.v1.NamespaceService/CreateNamespace";
const LIST_KEYS: &str = "/tallystone.admin.v1.KeyService/ListKeys";
const ROTATE_KEY: &str = "/tallystone.admin.v1.KeyService/RotateKey";
/// Within this time after a key's end, its calls have ended.
pub const ENDED_WITHIN: Duration = Duration::from_secs(2);

pub fn binary(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(arguments);
    command
}

/// Runs a command; answers its exit code, stdout and stderr.
pub fn run(mut command: Command) -> (i32, String, String) {
    let ran = command.output().expect("the binary of this build starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (ran.status.code().expect("nobody kills it"), text(ran.stdout), text(ran.stderr))
}

/// Makes a key in the directory of a stopped server.
pub fn first_key(data: &Path, name: &str) -> String {
    let data = data.to_str().expect("UTF-8");
    let (code, key, told) = run(binary(&["key", "create", name, "--offline", "--data", data]));
    assert_eq!(code, 0, "{told}");
    key.trim().to_owned()
}

pub(super) fn start(data: &Path, settings: &[&str]) -> Server {
    let mut command = binary(&["server", "start", "--listen", "127.0.0.1:0", "--set", "log.level=debug", "--data"]);
    command.arg(data);
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    Launch::of(command).start()
}

/// A server with the key of `ann`, in a directory of its own.
pub(super) fn keyed() -> (Server, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let key = first_key(folder.path(), "ann");
    (start(folder.path(), &[]), key, folder)
}

pub fn post(server: &Server, path: &str, key: &str, body: &Value) -> HttpAnswer {
    let bearer = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", &*bearer)];
    http(server.address, "POST", path, &headers, &body.to_string()).expect("the server answers")
}

/// Whether a key is taken.
fn is_valid(server: &Server, key: &str) -> bool {
    let answer = post(server, LIST_KEYS, key, &json!({}));
    match answer.status {
        // Taken, and without the right to list keys.
        200 | 403 => true,
        401 => false,
        _ => panic!("{}", answer.body), // neither taken nor refused
    }
}

pub(super) fn command_with(server: &Server, key: &str, arguments: &[&str]) -> (i32, String, String) {
    let mut command = binary(arguments);
    command.args(["--server", &server.address.to_string()]).env("TALLYSTONE_KEY", key);
    run(command)
}

pub fn client(server: &Server, key: &str) -> Client {
    let policy = RetryPolicy { attempts_max: 1, total: PATIENCE, attempt_max: PATIENCE, ..RetryPolicy::default() };
    Client::new(&server.url(), policy).expect("an address").with_key(key).expect("a key")
}

/// All methods of the server's protos, also those of health, reflection and between servers.
pub(super) fn methods() -> Vec<String> {
    let sets = [
        proto::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    let files = sets.map(|set| FileDescriptorSet::decode(set).expect("descriptors of this build decode").file);
    let mut methods = Vec::new();
    for file in files.iter().flatten() {
        for service in &file.service {
            let name = |method: &prost_types::MethodDescriptorProto| {
                format!("/{}.{}/{}", file.package(), service.name(), method.name())
            };
            methods.extend(service.method.iter().map(name));
        }
    }
    methods
}

/// Calls a method with an empty message over gRPC, as a stream on both sides, which is how every call looks at first.
pub(super) async fn call(channel: &PatientChannel, path: &str, authorization: Option<&str>) -> Status {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.expect("the server is there");
    let mut request = Request::new(tokio_stream::once(()));
    if let Some(value) = authorization {
        request.metadata_mut().insert("authorization", MetadataValue::try_from(value).expect("ASCII"));
    }
    let path = PathAndQuery::try_from(path).expect("a path");
    match grpc.streaming(request, path, ProstCodec::<(), ()>::default()).await {
        Ok(_) => Status::ok(""),
        Err(status) => status,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_valid_key_every_method_of_every_protocol_refuses_and_only_the_health_pages_answer() {
    let (server, key, _folder) = keyed();
    let channel = patient_channel(&server.url()).await;
    let mut wrong_secret = key.clone();
    let last = wrong_secret.pop().expect("a key has digits");
    wrong_secret.push(if last == '0' { '1' } else { '0' });
    let wrong_id = format!("ts_0123456789abcdef_{}", &key[20..]);
    let refused = [
        None,
        Some(format!("Bearer {wrong_secret}")),
        Some(format!("Bearer {wrong_id}")),
        Some(format!("Basic {key}")),
        Some(key.clone()),
        Some("Bearer ".to_owned()),
        Some(format!("Bearer {}", &key[..key.len() - 1])),
    ];
    let methods = methods();
    assert!(methods.len() > 60, "{methods:?}");
    for path in methods.iter().map(String::as_str).chain(["/tallystone.counter.v1.CounterService/Nothing"]) {
        for authorization in &refused {
            let status = call(&channel, path, authorization.as_deref()).await;
            assert_eq!(status.code(), Code::Unauthenticated, "{path} {authorization:?}: {status:?}");
            let reason = status.get_details_error_info().expect("an ErrorInfo").reason;
            assert_eq!(reason, "UNAUTHENTICATED", "{path}");
        }
        for kind in ["application/json", "application/grpc-web+proto"] {
            let headers = [("content-type", kind), ("authorization", "Bearer ts_x")];
            for headers in [&headers[..1], &headers[..]] {
                let answer = http(server.address, "POST", path, headers, "{}").expect("the server answers");
                match kind {
                    "application/json" => {
                        assert_eq!((answer.status, &answer.json()["code"]), (401, &json!(16)), "{path}: {answer:?}");
                        assert!(answer.head.to_ascii_lowercase().contains("www-authenticate: bearer"), "{answer:?}");
                    }
                    _ => assert!(
                        format!("{answer:?}").contains("grpc-status: 16")
                            || format!("{answer:?}").contains("grpc-status:16"),
                        "{path}: {answer:?}"
                    ),
                }
            }
        }
        let status = call(&channel, path, Some(&format!("Bearer {key}"))).await;
        let is_between_servers = path.starts_with("/tallystone.internal.");
        assert_eq!(status.code() == Code::Unauthenticated, is_between_servers, "{path}: {status:?}");
    }
    for (page, status) in [("/healthz", 200), ("/readyz", 200), ("/metrics", 401), ("/", 401), ("/x", 401)] {
        assert_eq!(server.get(page).status, status, "{page}");
    }
    let bearer = format!("Bearer {key}");
    let metrics = http(server.address, "GET", "/metrics", &[("authorization", &bearer)], "").expect("an answer").body;
    for why in ["missing", "invalid"] {
        let row = metrics.lines().find(|line| {
            line.starts_with("tallystone_calls_unauthenticated") && line.contains(&format!("why=\"{why}\""))
        });
        assert!(row.is_some_and(|row| !row.ends_with(" 0")), "{why}: {row:?}");
    }
}

#[test]
fn a_server_does_not_start_without_a_key_unless_it_is_told_to() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().to_str().expect("UTF-8");
    let settings = ["server", "start", "--listen", "127.0.0.1:0", "--data", data];
    let (code, _, told) = run(binary(&settings));
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("tallystone key create NAME --offline") && told.contains("auth.mode = \"off\""), "{told}");
    let (code, _, told) = run(binary(&[&["server", "start", "--listen", "127.0.0.1:0"][..], &IN_MEMORY].concat()));
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("keeps no API keys beyond the process"), "{told}");
    let open = Launch::of(binary(&[&settings[..], &["--set", "auth.mode=off"]].concat())).start();
    assert_eq!(open.post(LIST_KEYS, "{}").status, 200, "it was told to ask nobody");
}

#[test]
fn a_key_that_has_expired_starts_no_server() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().to_str().expect("UTF-8");
    let create = ["key", "create", "brief", "--offline", "--data", data, "--expires", "1s"];
    let (code, _, told) = run(binary(&create));
    let made = Instant::now();
    assert_eq!(code, 0, "{told}");
    assert!(eventually(ENDED_WITHIN, || made.elapsed() >= Duration::from_secs(1)), "time passes");
    let (code, _, told) = run(binary(&["server", "start", "--listen", "127.0.0.1:0", "--data", data]));
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("there is no valid API key"), "{told}");
}

#[test]
fn the_first_key_is_made_while_the_server_is_stopped() {
    let (server, key, folder) = keyed();
    assert!(key.len() == 84 && key.starts_with("ts_"), "{key}");
    assert!(is_valid(&server, &key));
    let data = folder.path().to_str().expect("UTF-8");
    let (code, _, told) = run(binary(&["key", "create", "bob", "--offline", "--data", data]));
    assert!(code != 0 && told.contains("in use"), "a running server owns the directory: {told}");
    assert!(server.stop().success());
    let (code, _, told) = run(binary(&["key", "create", "ann", "--offline", "--data", data]));
    assert!(code != 0 && told.contains("key ann exists"), "{told}");
    let second = first_key(folder.path(), "bob");
    let server = start(folder.path(), &[]);
    assert!(is_valid(&server, &key) && is_valid(&server, &second), "both are kept");
}

#[test]
fn a_development_server_needs_no_key_and_stays_on_this_machine() {
    let (code, _, told) = run(binary(&["dev", "--memory", "--listen", "0.0.0.0:0"]));
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("--set auth.mode=off"), "{told}");
    let (code, _, told) = run(binary(&["dev", "--memory", "--listen", "127.0.0.1:0", "--set", "auth.mode=keys"]));
    assert_eq!(code, 2, "what is written counts for it too: {told}");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let dev = Launch::dev(folder.path()).start();
    assert_eq!(dev.post(LIST_KEYS, "{}").status, 200);
}

#[test]
fn the_command_line_takes_a_key_from_an_option_a_file_or_the_environment() {
    let (server, key, folder) = keyed();
    let file = folder.path().join("ann.key");
    std::fs::write(&file, format!("{key}\n")).expect("the folder takes files");
    let (file, address) = (file.to_str().expect("UTF-8"), server.address.to_string());
    let listed = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut command = binary(arguments);
        command.args(["--server", &address]).envs(environment.iter().copied());
        run(command)
    };
    let (code, _, told) = listed(&["key", "ls"], &[]);
    assert_eq!(code, 4, "{told}");
    assert!(told.contains("UNAUTHENTICATED"), "{told}");
    assert!(told.contains("--key-file") && told.contains("TALLYSTONE_KEY"), "it says how to give a key: {told}");
    for (arguments, environment) in [
        (&["key", "ls", "--key", &key][..], &[][..]),
        (&["key", "ls", "--key-file", file], &[]),
        (&["--key-file", file, "key", "ls"], &[]),
        (&["key", "ls"], &[("TALLYSTONE_KEY", &*key)]),
        (&["key", "ls"], &[("TALLYSTONE_KEY_FILE", file)]),
        (&["key", "ls", "--key-file", file], &[("TALLYSTONE_KEY", "ts_wrong")]),
    ] {
        let (code, out, told) = listed(arguments, environment);
        assert_eq!(code, 0, "{arguments:?}: {told}");
        assert!(out.contains("ann") && !out.contains(&key[20..]), "{out}");
    }
    let (code, _, told) = listed(&["key", "ls", "--key-file", "absent"], &[]);
    assert!(code == 2 && told.contains("absent"), "{told}");
    let (code, ..) = run(binary(&["server", "wait-ready", "--server", &address]));
    assert_eq!(code, 0, "readiness needs no key");
}

#[test]
fn a_rotated_key_keeps_its_old_secret_for_as_long_as_it_is_told() {
    let (server, admin, _folder) = keyed();
    let made = |arguments: &[&str]| {
        let (code, out, told) = command_with(&server, &admin, &[&["key"], arguments].concat());
        assert_eq!(code, 0, "{told}");
        out.trim().to_owned()
    };
    let first = made(&["create", "orders", "--grant", "admin"]);
    let second = made(&["rotate", "orders"]);
    assert!(is_valid(&server, &first) && is_valid(&server, &second) && first[..20] == second[..20]);
    let third = made(&["rotate", "orders"]);
    assert!(!is_valid(&server, &first), "two are valid at a time");
    assert!(is_valid(&server, &second) && is_valid(&server, &third));
    let last = made(&["rotate", "orders", "--keep-old", "0s"]);
    assert!(is_valid(&server, &last) && !is_valid(&server, &second) && !is_valid(&server, &third));
    let stale = json!({"name": "orders", "etag": "0123456789abcdef-1"});
    assert_eq!(post(&server, ROTATE_KEY, &admin, &stale).json()["details"][0]["reason"], "ETAG_MISMATCH");
    made(&["rm", "orders", "--yes"]);
    assert!(!is_valid(&server, &last) && is_valid(&server, &admin));
    for (arguments, code, words) in [
        (&["create", "ann", "--grant", "viewer"][..], 4, "KEY_EXISTS"),
        (&["rotate", "orders"], 3, "KEY_NOT_FOUND"),
        (&["rm", "orders", "--yes"], 3, "KEY_NOT_FOUND"),
        (&["create", "a b", "--grant", "viewer"], 2, "INVALID_ARGUMENT"),
        (&["create", "useless", "--grant", "worker:server"], 2, "write worker:queue"),
        (&["rotate", "ann", "--keep-old", "91d"], 2, "90 days"),
    ] {
        let (ended, _, told) = command_with(&server, &admin, &[&["key"], arguments].concat());
        assert!(ended == code && told.contains(words), "{arguments:?} {ended}: {told}");
    }
}

/// A `Work` stream of a queue that waits for messages, until it has ended, with how it ended.
pub async fn working(client: &Client, queue: &str) -> tokio::task::JoinHandle<Status> {
    let request = WorkRequest { queue: queue.to_owned(), credit: 1, ..WorkRequest::default() };
    // The worker goes on to listen, and says nothing more.
    let requests = tokio_stream::once(request).chain(tokio_stream::pending());
    let mut stream = client.queues().work(requests).await.expect("a stream").into_inner();
    assert!(stream.message().await.expect("a first answer").is_some());
    tokio::spawn(async move {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok("the stream ended"),
                Err(status) => return status,
            }
        }
    })
}

/// A stream about a namespace and a waiting call about a queue, both of one name, until each has ended, with how it ended.
pub async fn waiting(
    server: &Server,
    key: &str,
    name: &'static str,
) -> (tokio::task::JoinHandle<Status>, tokio::task::JoinHandle<Status>) {
    let client = client(server, key);
    let mut counters = client.counters();
    let request = WatchCountsRequest { namespace: name.to_owned(), counter_names: vec!["front".to_owned()] };
    let mut stream = counters.watch_counts(request).await.expect("a watch").into_inner();
    let first: Option<WatchCountsResponse> = stream.message().await.expect("a first message");
    assert!(first.is_some());
    let watch = tokio::spawn(async move {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok("the stream ended"),
                Err(status) => return status,
            }
        }
    });
    let mut queues = client.queues();
    let dequeue = tokio::spawn(async move {
        let wait = prost_types::Duration { seconds: 20, nanos: 0 };
        let request = DequeueRequest { queue: name.to_owned(), wait: Some(wait), ..DequeueRequest::default() };
        queues.dequeue(request).await.err().unwrap_or_else(|| Status::ok("it answered"))
    });
    (watch, dequeue)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_deleted_or_expires_ends_its_waiting_calls_and_streams() {
    let (server, admin, _folder) = keyed();
    let (namespace, queue) = (json!({"namespace": {"name": "mail"}}), json!({"queue": {"name": "mail"}}));
    assert_eq!(post(&server, CREATE_NAMESPACE, &admin, &namespace).status, 200);
    let create_queue = "/tallystone.queue.v1.QueueService/CreateQueue";
    assert_eq!(post(&server, create_queue, &admin, &queue).status, 200);
    let made = |arguments: &[&str]| {
        let (code, out, told) = command_with(&server, &admin, arguments);
        assert_eq!(code, 0, "{told}");
        out.trim().to_owned()
    };
    // Long enough for a busy machine to open all three calls before.
    let lasts = Duration::from_secs(10);
    for (name, expires) in [("gone", "1h"), ("brief", "10s")] {
        let key =
            made(&["key", "create", name, "--grant", "worker", "--grant", "counter-reader", "--expires", expires]);
        let created = Instant::now(); // or a little earlier
        let (watch, dequeue) = waiting(&server, &key, "mail").await;
        let work = working(&client(&server, &key), "mail").await;
        let ends = if name == "gone" {
            made(&["key", "rm", name, "--yes"]);
            Instant::now()
        } else {
            created + lasts
        };
        let yardstick = beside(&server);
        for (what, ended) in [("watch", watch), ("dequeue", dequeue), ("work", work)] {
            let status = ended.await.expect("no task panics");
            assert_eq!(status.code(), Code::Unauthenticated, "{name} {what}: {status:?}");
            yardstick.holds(ends, ENDED_WITHIN, format!("{name} {what} ends after its key"));
        }
        assert!(!is_valid(&server, &key));
    }
}

#[test]
fn a_history_names_the_principal_beside_what_the_caller_claims() {
    let (server, key, _folder) = keyed();
    let bearer = format!("Bearer {key}");
    let create = |name: &str, claims: &[(&str, &str)]| {
        let headers = [&[("content-type", "application/json"), ("authorization", &bearer)][..], claims].concat();
        let body = json!({"namespace": {"name": name}}).to_string();
        let answer = http(server.address, "POST", CREATE_NAMESPACE, &headers, &body).expect("the server answers");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let changes = "/tallystone.admin.v1.NamespaceService/ListNamespaceChanges";
        post(&server, changes, &key, &json!({"name": name})).json()["changes"][0]["actor"].clone()
    };
    assert_eq!(create("plain", &[]), "ann");
    assert_eq!(create("claimed", &[("tallystone-actor", "root")]), "ann (root)");
    assert_eq!(create("forged", &[("tallystone-actor", "bob (root)")]), "ann (bob (root))");
}

#[test]
fn two_authorization_headers_are_told_from_none() {
    let (server, key, _folder) = keyed();
    let bearer = format!("Bearer {key}");
    let one = [("content-type", "application/json"), ("authorization", &*bearer)];
    let refused = |headers: &[(&str, &str)]| {
        let answer = http(server.address, "POST", LIST_KEYS, headers, "{}").expect("the server answers");
        assert_eq!((answer.status, answer.body.contains("UNAUTHENTICATED")), (401, true), "{}", answer.body);
        answer.body
    };
    let twice = refused(&[&one[..], &one[1..]].concat());
    assert!(twice.contains("more than one authorization header") && !twice.contains("no API key"), "{twice}");
    assert!(refused(&one[..1]).contains("the call has no API key"));
    assert_eq!(http(server.address, "POST", LIST_KEYS, &one, "{}").expect("the server answers").status, 200);
}

#[test]
fn a_stranger_is_refused_before_the_body_of_the_request() {
    let (server, _, _folder) = keyed();
    for kind in ["application/json", "application/grpc-web+proto"] {
        let head = format!(
            "POST {CREATE_NAMESPACE} HTTP/1.1\r\nhost: {}\r\ncontent-type: {kind}\r\ncontent-length: 1000000\r\n\r\n",
            server.address
        );
        let (began, yardstick) = (Instant::now(), beside(&server));
        let mut stream = TcpStream::connect(server.address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream.write_all(head.as_bytes()).expect("it is sent");
        let mut answer = [0; 1_024];
        let bytes = stream.read(&mut answer).expect("an answer, though no body came");
        yardstick.holds(began, Duration::from_secs(1), "an answer, though no body came");
        let answer = String::from_utf8_lossy(&answer[..bytes]).to_ascii_lowercase().replace(": ", ":");
        let is_told = answer.starts_with("http/1.1 401 ") || answer.contains("grpc-status:16");
        assert!(is_told, "{kind}: {answer}");
    }
}

/// Whether any file below a folder holds a text.
pub fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else {
            let bytes = std::fs::read(&path).expect("a file");
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

#[test]
fn no_secret_is_found_in_anything_that_a_server_writes() {
    let (server, admin, folder) = keyed();
    let made = |arguments: &[&str]| command_with(&server, &admin, arguments).1.trim().to_owned();
    let keys = [made(&["key", "create", "orders", "--grant", "admin"]), made(&["key", "rotate", "orders"])];
    let unknown = format!("ts_0123456789abcdef_{}", "5a".repeat(32));
    assert!(!is_valid(&server, &unknown) && keys.iter().all(|key| is_valid(&server, key)));
    let bearer = format!("Bearer {admin}");
    let read = |page| http(server.address, "GET", page, &[("authorization", &bearer)], "").expect("an answer").body;
    let (metrics, front) = (read("/metrics"), read("/"));
    let listed = post(&server, LIST_KEYS, &admin, &json!({})).body;
    let mut print = binary(&["server", "print-config"]);
    print.env("TALLYSTONE_KEY", &admin);
    let (_, settings, _) = run(print);
    let mut server = server;
    server.signal(libc::SIGTERM);
    assert!(server.wait().success());
    let texts = [("log", server.printed()), ("metrics", metrics), ("front page", front), ("list", listed)];
    assert!(texts[0].1.contains("a key was changed"), "the log was read: {}", texts[0].1);
    for key in keys.iter().chain([&admin, &unknown]) {
        let secret = &key[20..];
        for (what, text) in texts.iter().map(|(what, text)| (*what, text)).chain([("settings", &settings)]) {
            assert!(!text.contains(secret), "a secret is in the {what}");
        }
        assert_eq!(files_with(folder.path(), secret), [""; 0], "no file has a secret");
    }
    // The search finds what is there: the description of a key.
    assert!(!files_with(folder.path(), "orders").is_empty());
}

#[test]
fn the_last_key_that_may_manage_keys_stays_unless_it_is_forced_to_go() {
    let (server, admin, _folder) = keyed();
    let ran = |arguments: &[&str]| command_with(&server, &admin, arguments);
    assert_eq!(ran(&["key", "create", "bob", "--grant", "admin:queue", "--grant", "viewer:server"]).0, 0);
    let (code, brief, _) = ran(&["key", "create", "brief", "--grant", "admin", "--expires", "1s"]);
    assert_eq!(code, 0);
    let brief = brief.lines().find(|line| line.starts_with("ts_")).expect("the key is printed").to_owned();
    beside(&server).comes(Instant::now(), ENDED_WITHIN, "it ends by itself", || !is_valid(&server, &brief));
    let (less, none) = (["key", "update", "ann", "--grant", "admin:queue"], ["key", "rm", "ann", "--yes"]);
    for refused in [&less[..], &none[..]] {
        let (code, _, told) = ran(refused);
        assert!(code == 2 && told.contains("no valid key could manage keys any more"), "{refused:?}: {told}");
    }
    assert_eq!(ran(&["key", "update", "ann", "--grant", "admin:server", "--grant", "viewer"]).0, 0, "it still may");
    assert_eq!(ran(&["key", "create", "cyd", "--grant", "admin"]).0, 0);
    let (code, out, _) = ran(&["key", "ls"]);
    assert_eq!(code, 0);
    let cells = |name: &str| {
        let line = out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in:\n{out}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        (cells("brief")[2].as_str(), cells("ann")[2].as_str()),
        ("0", "1"),
        "expired secrets do not count\n{out}"
    );
    assert!(out.contains("viewer:server, admin:queue"), "grants are not cut\n{out}");
    assert_eq!(ran(&less).0, 0, "another key may");
    let (server, admin, _folder) = keyed();
    assert_eq!(command_with(&server, &admin, &[&none[..], &["--force"]].concat()).0, 0);
    assert!(!is_valid(&server, &admin));
}
