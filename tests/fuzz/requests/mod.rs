//! Requests of every unary method of the public services, with a valid key, to the real binary over loopback: each is answered
//! in time, by a success or a refusal of the closed list, never INTERNAL, and no call panics.

mod json;
mod kills;
mod protobuf;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use prost_reflect::{DynamicMessage, MethodDescriptor, Value};

use crate::descriptors::{POOL, Words};
use crate::harness::{HttpAnswer, Launch, Server, http};

const SERVICES: &[&str] = &[
    "tallystone.admin.v1.AuditService",
    "tallystone.admin.v1.BridgeService",
    "tallystone.admin.v1.KeyService",
    "tallystone.admin.v1.NamespaceService",
    "tallystone.admin.v1.StatusService",
    "tallystone.counter.v1.CounterService",
    "tallystone.experiment.v1.ExperimentService",
    "tallystone.history.v1.HistoryService",
    "tallystone.queue.v1.QueueService",
    "tallystone.rule.v1.RuleService",
];
/// What the foreign caller may do: everything but to manage the server, and to touch what the ledger of `kills` counts.
const DENIED: [&str; 4] = ["admin:server", "admin:namespace:ledger", "admin:queue:ledger", "admin:counter:ledger#*"];
/// What answers may tell for later requests: a longer text is a payload.
const HEARD_BYTES_MAX: usize = 256;

/// A server with a namespace and queues to begin with, and what is known of it.
struct Target {
    server: Server,
    /// The key of an admin.
    admin: String,
    /// The key that requests show.
    key: String,
    methods: Vec<MethodDescriptor>,
    words: Words,
    calls: AtomicU64,
    data: tempfile::TempDir,
}

impl Target {
    fn start() -> Self {
        let data = tempfile::tempdir().expect("a directory for data");
        let admin = new_key(data.path(), "operator", &[]);
        let denied = DENIED.iter().flat_map(|grant| ["--deny", grant]);
        let key = new_key(data.path(), "stranger", &["--grant", "admin"].into_iter().chain(denied).collect::<Vec<_>>());
        let server = asking_for_keys(data.path());
        for (path, body) in [
            (
                "/tallystone.admin.v1.NamespaceService/CreateNamespace",
                r#"{"namespace": {"name": "fast", "counterType": "BEST_EFFORT"}}"#,
            ),
            ("/tallystone.queue.v1.QueueService/CreateQueue", r#"{"queue": {"name": "jobs"}}"#),
            ("/tallystone.queue.v1.QueueService/CreateQueue", r#"{"queue": {"name": "wide", "shards": 4}}"#),
            (
                "/tallystone.queue.v1.QueueService/CreateQueue",
                r#"{"queue": {"name": "users", "type": "EXCLUSIVE", "exclusivityKey": "user"}}"#,
            ),
        ] {
            let answer = called(&server, &key, "POST", path, body);
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        }
        let methods = SERVICES.iter().flat_map(|name| {
            let service = POOL.get_service_by_name(name).expect("a public service");
            service.methods().collect::<Vec<_>>()
        });
        let methods = methods.filter(|method| !method.is_client_streaming() && !method.is_server_streaming()).collect();
        let words = Words::default()
            .with("namespace", &["default", "fast"])
            .with("counter_name", &["views", "likes"])
            .with("queue", &["jobs", "wide", "users", "timed/hello"])
            .with("name", &["default", "jobs", "other"])
            .with("key", &["user", "kind"])
            .with("document", &["name = \"default\"", "{}", "[[namespaces]]\nname = \"x\""]);
        Self { server, admin, key, methods, words, calls: AtomicU64::new(0), data }
    }

    /// The method of a path.
    fn method(&self, path: &str) -> Option<&MethodDescriptor> {
        self.methods.iter().find(|method| path_of(method) == path)
    }

    /// Takes in the strings of an answer, so that later requests name what is there.
    fn hear(&mut self, answer: &DynamicMessage) {
        for (field, value) in answer.fields() {
            let values = match value {
                Value::List(values) => values.as_slice(),
                single => std::slice::from_ref(single),
            };
            for value in values {
                match value {
                    Value::String(text) if !text.is_empty() && text.len() <= HEARD_BYTES_MAX => {
                        self.words.hear(field.name().strip_prefix("next_").unwrap_or(field.name()), text);
                    }
                    Value::Message(inner) => self.hear(inner),
                    // Numbers are drawn near their edges anyway.
                    _ => {}
                }
            }
        }
    }

    /// Fails if a call has panicked, or the server no longer answers.
    fn check(&self) {
        let ready = self.server.get("/readyz");
        assert_eq!(ready.status, 200, "the server is ready: {}\n{}", ready.body, self.server.printed());
        let metrics = called(&self.server, &self.admin, "GET", "/metrics", "").body;
        let panics = metrics.lines().find(|line| line.starts_with("tallystone_call_panics_total"));
        let panics = panics.expect("panics are counted").rsplit(' ').next();
        assert_eq!(panics, Some("0"), "no call panics:\n{}", self.server.printed());
        let printed = self.server.printed();
        assert!(!printed.contains("panicked at"), "nothing panics beside the calls either:\n{printed}");
    }

    /// Checks now and then, because a check costs more than a call.
    fn check_sometimes(&self) {
        const CALLS_BETWEEN: u64 = 100;
        if self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(CALLS_BETWEEN) {
            self.check();
        }
    }
}

/// Makes a key in the directory of a stopped server.
fn new_key(data: &Path, name: &str, grants: &[&str]) -> String {
    let mut create = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    create.args(["key", "create", name, "--offline", "--data"]).arg(data).args(grants);
    let ran = create.output().expect("the binary of this build starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("a key is text").trim().to_owned()
}

fn asking_for_keys(data: &Path) -> Server {
    Launch::dev(data).arg("--set").arg("auth.mode=keys").start()
}

/// A call over plain HTTP that shows a key.
fn called(server: &Server, key: &str, method: &str, path: &str, body: &str) -> HttpAnswer {
    let bearer = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", &*bearer)];
    http(server.address, method, path, &headers, body).expect("the server answers")
}

fn path_of(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}
