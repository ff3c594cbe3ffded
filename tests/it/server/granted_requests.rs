//! What each method touches, and a request of each about a thing with a given name.

use serde_json::{Value, json};

/// What a method touches, as `docs/roles.md` says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touched {
    /// One queue, by name.
    Queue,
    /// One queue, or all: without a name, the right to all.
    QueueOrAll,
    /// All queues.
    EveryQueue,
    /// One namespace.
    Namespace,
    /// Counters of one namespace.
    Counters,
    /// A list, which shows what the caller may see.
    List,
    /// A rule, which belongs to its queue.
    Rule,
    /// The counters of an experiment that is kept.
    Experiment,
    /// The namespace of an experiment that is kept.
    ExperimentNamespace,
    /// An operation, which belongs to its queue.
    Operation,
    /// The server itself.
    Server,
    /// Nothing that has a name, or what only its owner knows the id of.
    Nothing,
}

impl Touched {
    pub fn words(self) -> &'static str {
        match self {
            Self::Queue => "the queue",
            Self::QueueOrAll => "the queue; every queue if none is named",
            Self::EveryQueue => "every queue",
            Self::Namespace => "the namespace",
            Self::Counters => "each counter, in its namespace",
            Self::List => "each thing that the list shows",
            Self::Rule => "the queue of the rule",
            Self::Experiment => "each counter of the experiment",
            Self::ExperimentNamespace => "the namespace of the experiment",
            Self::Operation => "the queue of the operation; every queue if it has none",
            Self::Server => "the server",
            Self::Nothing => "nothing",
        }
    }
}

/// What a method of a service touches, and a request about a name. None: the method is not known here.
pub fn request(method: &str, name: &str) -> Option<(Touched, Value)> {
    let (service, call) = method.rsplit_once('.')?;
    let read = match service.rsplit_once('.')?.1 {
        "CounterService" => of_counters(call, name)?,
        "QueueService" => of_queues(call, name)?,
        "NamespaceService" => of_namespaces(call, name)?,
        "HistoryService" => match call {
            "GetMessageTrace" => (Touched::Queue, json!({"queue": name, "messageId": "m"})),
            "SearchMessages" => (Touched::Queue, json!({"queue": name})),
            "CheckQueues" => (Touched::QueueOrAll, json!({"queue": name})),
            "ListFindings" => (Touched::Operation, json!({"operationId": "none"})),
            _ => return None,
        },
        "RuleService" => match call {
            "CreateRule" => (Touched::Queue, json!({"rule": rule(name)})),
            "ListRules" => (Touched::List, json!({})),
            "GetRule" | "DeleteRule" => (Touched::Rule, json!({"name": format!("{name}-rule")})),
            _ => return None,
        },
        "ExperimentService" => of_experiments(call, name)?,
        "BridgeService" => (Touched::EveryQueue, json!({"reason": name, "dryRun": true})),
        "KeyService" | "AuditService" | "StatusService" | "BackupService" => (Touched::Server, json!({})),
        _ => return None,
    };
    Some(read)
}

/// A rule of a queue, about a counter of the namespace with the same name.
pub fn rule(name: &str) -> Value {
    json!({"name": format!("{name}-rule"), "namespace": name, "counterName": "c", "at": "5", "queue": name})
}

/// An experiment about counters of the namespace with the same name.
pub fn experiment(name: &str) -> Value {
    json!({"name": name, "namespace": name, "arms": [{"name": "a"}, {"name": "b"}], "metric": "m", "plannedExposures": "10"})
}

fn of_experiments(call: &str, name: &str) -> Option<(Touched, Value)> {
    let kept = json!({"name": name});
    Some(match call {
        "PlanExperiment" => (Touched::Nothing, json!({"baseline": 0.1, "effect": 0.05})),
        // The other form of the request names the counters itself.
        "CompareExperiment" | "GetExperiment" | "ListExperimentChanges" | "ListExperimentLooks" => {
            (Touched::Experiment, kept)
        }
        "ListExperiments" => (Touched::List, json!({})),
        "CreateExperiment" => (Touched::Namespace, json!({"experiment": experiment(name)})),
        "UpdateExperiment" => (Touched::ExperimentNamespace, json!({"experiment": experiment(name)})),
        // A malformed etag, so that it goes on and stays.
        "StopExperiment" | "DeleteExperiment" => (Touched::ExperimentNamespace, json!({"name": name, "etag": "x"})),
        _ => return None,
    })
}

fn of_counters(call: &str, name: &str) -> Option<(Touched, Value)> {
    let one = json!({"namespace": name, "counterName": "c"});
    let with = |field: &str, value: Value| {
        let mut body = one.clone();
        body[field] = value;
        body
    };
    let names = |field: &str, value: Value| json!({"namespace": name, field: value});
    let body = match call {
        "AddCount" | "AddAndGetCount" => with("delta", json!("1")),
        "GetCount" | "ClearCount" | "ListCountEvents" | "RecountCounter" | "ExplainCounter" => one,
        "BatchAddCounts" | "StreamAddCounts" => names("items", json!([{"counterName": "c", "delta": "1"}])),
        "BatchGetCounts" | "WatchCounts" => names("counterNames", json!(["c"])),
        "ReportTotals" => names("items", json!([{"counterName": "c", "total": "1"}])),
        "CheckToken" => with("idempotencyToken", json!({"token": "t"})),
        "GetCountSeries" => with("from", json!("2024-01-01T00:00:00Z")),
        "BatchGetCountSeries" => {
            json!({"namespace": name, "counterNames": ["c"], "from": "2024-01-01T00:00:00Z"})
        }
        "ListCounters" | "TopCounters" => json!({"namespace": name}),
        _ => return None,
    };
    Some((Touched::Counters, body))
}

fn of_namespaces(call: &str, name: &str) -> Option<(Touched, Value)> {
    Some(match call {
        "CreateNamespace" | "UpdateNamespace" => (Touched::Namespace, json!({"namespace": {"name": name}})),
        // A malformed etag, so that nothing is deleted.
        "DeleteNamespace" => (Touched::Namespace, json!({"name": name, "etag": "x"})),
        "GetNamespace" | "ListNamespaceChanges" => (Touched::Namespace, json!({"name": name})),
        "ListNamespaces" => (Touched::List, json!({})),
        "ApplyNamespace" => {
            let document = json!({"namespaces": [{"name": name}]}).to_string();
            (Touched::Namespace, json!({"document": document, "dryRun": true}))
        }
        _ => return None,
    })
}

fn of_queues(call: &str, name: &str) -> Option<(Touched, Value)> {
    let one = json!({"queue": name});
    let with = |field: &str, value: Value| {
        let mut body = one.clone();
        body[field] = value;
        body
    };
    let body = match call {
        "ListQueues" | "ListQueueActivity" => return Some((Touched::List, json!({}))),
        "ListSessions" => return Some((Touched::QueueOrAll, one)),
        "OpenSession" => return Some((Touched::Nothing, json!({}))),
        "Heartbeat" | "CloseSession" => return Some((Touched::Nothing, json!({"sessionId": "none"}))),
        "GetOperation" | "CancelOperation" => return Some((Touched::Operation, json!({"operationId": "none"}))),
        "ResetQueueClock" => return Some((Touched::Server, json!({"dryRun": true}))),
        "CreateQueue" | "UpdateQueue" => json!({"queue": {"name": name}}),
        "GetQueue" | "ListQueueChanges" | "ListOperations" | "PurgeQueue" | "PeekMessages" | "GetDepth"
        | "ExplainQueue" | "GetQueueActivity" | "WatchQueue" => one,
        "DeleteQueue" => with("etag", json!("x")),
        "Enqueue" => with("message", json!({"payload": "aGVsbG8="})),
        "BatchEnqueue" => with("messages", json!([{"payload": "aGVsbG8="}])),
        "Dequeue" => with("maxMessages", json!(1)),
        "Work" => with("credit", json!(1)),
        "Complete" | "Cancel" | "Fail" | "Release" | "ExtendLease" => with("leaseToken", json!("none")),
        "SettleMessages" => with("items", json!([{"leaseToken": "none"}])),
        "UpdateMessage" => json!({"queue": name, "messageId": "m", "priority": "1"}),
        "CancelMessage" | "GetMessage" | "ExplainMessage" => with("messageId", json!("m")),
        "SetValueLimit" => with("value", json!("v")),
        "ListMessages" => with("state", json!("MESSAGE_STATE_PENDING")),
        "RedriveMessages" => with("dryRun", json!(true)),
        "DiscardMessages" | "CancelMessages" => json!({"queue": name, "all": true, "dryRun": true}),
        _ => return None,
    };
    Some((Touched::Queue, body))
}
