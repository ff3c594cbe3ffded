//! What a server refuses while calls take too long, and what it does not.

use std::time::Duration;

use serde_json::{Value, json};
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::system::SystemClock;
use tallystone::domain::call_limit::CallClass;
use tallystone::engine::call_limiter::CallLimiter;
use tallystone::ports::Clock as _;
use tallystone::proto::counter::v1::{
    AddCountRequest, AddCountResponse, AddItem, GetCountRequest, StreamAddCountsRequest, WatchCountsRequest,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::Wire;

const WITHIN: Duration = Duration::from_secs(60);
const QUEUES: &str = "/tallystone.queue.v1.QueueService";
const GET: &str = r#"{"namespace": "fast", "counter_name": "views"}"#;
const LIST: &str = r#"{"namespace": "shop"}"#;

/// A server whose adds stand still.
struct Busy {
    server: Wire,
    clock: ManualClock,
    adds: JoinSet<Result<tonic::Response<AddCountResponse>, Status>>,
}

impl Busy {
    async fn start() -> Self {
        let clock = ManualClock::at(SystemClock.now());
        let server = Wire::with_clock(&clock).await;
        Self { server, clock, adds: JoinSet::new() }
    }

    fn limiter(&self) -> &CallLimiter {
        self.server.gateway.limiter()
    }

    /// Begins adds until a number of them is in progress.
    async fn hold(&mut self, adds: usize) {
        self.server.gate.close();
        let counters = self.server.counters().await;
        while self.adds.len() < adds {
            let mut counters = counters.clone();
            let (namespace, counter_name) = ("shop".to_owned(), "front".to_owned());
            let add = AddCountRequest { namespace, counter_name, delta: Some(1), ..AddCountRequest::default() };
            self.adds.spawn(async move { counters.add_count(add).await });
        }
        until(|| self.limiter().in_progress(CallClass::Work) == adds).await;
    }

    /// Lets two windows pass in which no add ends.
    async fn stand_still(&self) {
        for _ in 0..2 {
            self.pass().await;
        }
        assert_eq!(self.limiter().limit(), Some(64));
    }

    async fn pass(&self) {
        self.clock.advance(self.limiter().target());
        // Any call looks whether a window has passed.
        let (status, _) = self.ask("CloseSession", &json!({"session_id": "none"})).await;
        assert_ne!(status, 429);
    }

    async fn ask(&self, method: &str, body: &Value) -> (u16, Value) {
        let headers = [("content-type", "application/json")];
        let answer = self.server.http("POST", &format!("{QUEUES}/{method}"), &headers, &body.to_string()).await;
        (answer.status, super::json(&answer.body))
    }

    async fn done(&self, method: &str, body: &Value) -> Value {
        let (status, answer) = self.ask(method, body).await;
        assert_eq!(status, 200, "{method}: {answer}");
        answer
    }

    /// Lets the adds end. None was refused.
    async fn release(&mut self) {
        self.server.gate.open();
        while let Some(added) = self.adds.join_next().await {
            added.expect("no panic").expect("an add that began ends");
        }
    }
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let all = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WITHIN, all).await.expect("it comes to that");
}

fn is_refusal(answer: &(u16, Value), class: &str, delay: &str) -> bool {
    let (info, retry) = (&answer.1["details"][0], &answer.1["details"][1]);
    answer.0 == 429
        && info["reason"] == "RETRY_LATER"
        && info["metadata"] == json!({"limit": "calls-in-progress", "class": class})
        && retry["retryDelay"] == delay
}

fn is_refused(status: &Status, class: &str) -> bool {
    let info = status.get_details_error_info();
    let delay = status.get_details_retry_info().and_then(|info| info.retry_delay);
    status.code() == Code::ResourceExhausted
        && info.is_some_and(|info| info.metadata.get("class").is_some_and(|of| of == class))
        && delay.is_some_and(|delay| !delay.is_zero())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_adds_stand_still_lists_reads_and_enqueues_are_refused_and_settlements_pass() {
    let mut busy = Busy::start().await;
    busy.done("CreateQueue", &json!({"queue": {"name": "mail"}})).await;
    let message = |id: &str| json!({"queue": "mail", "message": {"message_id": id}});
    busy.done("Enqueue", &message("m1")).await;
    let leased = busy.done("Dequeue", &json!({"queue": "mail", "max_messages": 1})).await;
    busy.hold(48).await;
    let before = [busy.server.post("ListCounters", LIST).await.0, busy.server.post("GetCount", GET).await.0];
    assert_eq!(before, [200, 200], "nothing is refused before calls take too long");
    busy.stand_still().await;

    let listed = busy.server.post("ListCounters", LIST).await;
    assert!(is_refusal(&listed, "list", "1s"), "{listed:?}");
    let read = busy.server.post("GetCount", GET).await;
    assert!(is_refusal(&read, "read", "0.750s"), "{read:?}");
    let enqueued = busy.ask("Enqueue", &message("m2")).await;
    assert!(is_refusal(&enqueued, "enqueue", "0.500s"), "{enqueued:?}");
    let mut counters = busy.server.counters().await;
    let (namespace, counter_name) = ("fast".to_owned(), "views".to_owned());
    let read = GetCountRequest { namespace: namespace.clone(), counter_name, ..GetCountRequest::default() };
    let status = counters.get_count(read).await.expect_err("refused over gRPC too");
    assert!(is_refused(&status, "read"), "{status:?}");
    let watch = WatchCountsRequest { namespace, counter_names: vec!["views".to_owned()] };
    let status = counters.watch_counts(watch).await.expect_err("a stream that would open is a call");
    assert!(is_refused(&status, "read"), "{status:?}");
    busy.done("Complete", &json!({"queue": "mail", "lease_token": leased["leases"][0]["leaseToken"]})).await;
    busy.hold(50).await;
    let refused = CallClass::ALL.map(|class| busy.limiter().refused(class));
    assert_eq!(refused, [0, 0, 1, 3, 1], "adds begin behind their own limit");

    busy.release().await;
    busy.done("Enqueue", &message("m2")).await;
    assert_eq!(busy.server.post("ListCounters", LIST).await.0, 200);
    for _ in 0..3 {
        busy.pass().await;
    }
    assert_eq!(busy.limiter().limit(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_waits_where_a_call_is_refused_and_counts_for_nothing_while_it_is_open() {
    let mut busy = Busy::start().await;
    let (messages, sent) = mpsc::channel(1);
    let mut counters = busy.server.counters().await;
    let opened = counters.stream_add_counts(ReceiverStream::new(sent)).await.expect("a stream");
    let mut answers = opened.into_inner();
    busy.hold(56).await;
    assert_eq!(CallClass::ALL.map(|class| busy.limiter().in_progress(class)), [0, 56, 0, 0, 0]);
    busy.stand_still().await;
    // Without a token, which would be old when the clock has moved.
    let items = vec![AddItem { counter_name: "front".to_owned(), delta: Some(1), ..AddItem::default() }];
    let message = StreamAddCountsRequest { namespace: "shop".to_owned(), items };
    messages.send(message).await.expect("the stream is open");
    until(|| busy.limiter().refused(CallClass::Work) > 0).await;
    busy.release().await;
    let answer = async {
        loop {
            tokio::select! {
                biased;
                answer = answers.message() => return answer,
                () = tokio::task::yield_now() => busy.clock.advance(CallClass::Work.retry_after()),
            }
        }
    };
    let answer = tokio::time::timeout(WITHIN, answer).await.expect("it goes on").expect("the stream is open");
    assert_eq!(answer.map(|answer| (answer.first_item, answer.last_item, answer.exceptions.len())), Some((1, 1, 0)));
}
