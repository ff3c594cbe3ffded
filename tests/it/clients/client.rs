//! The client against a server that fails as it is told: what is sent again, under which token, what a failure says, and
//! what reads carry on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tallystone::client::{Client, RetryPolicy};
use tallystone::proto::counter::v1 as pb;
use tallystone::proto::counter::v1::counter_service_server::{CounterService, CounterServiceServer};
use tallystone::proto::error::v1::ItemError;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The counters of a read and its `at_least_as_of` in seconds.
type AskedRead = (String, Option<i64>);

/// What a batch answers: the refusals of its items, none where one is taken, or that of the whole call.
type BatchAnswer = Result<Vec<Option<&'static str>>, Status>;

/// Answers adds and reads from a script and keeps what it was asked.
#[derive(Clone, Default)]
struct Scripted {
    /// What the next calls answer, the last first; then all succeed.
    failures: Arc<Mutex<Vec<Status>>>,
    tokens: Arc<Mutex<Vec<String>>>,
    /// How far the next readings are rolled up, in seconds, the last first.
    as_ofs: Arc<Mutex<Vec<i64>>>,
    /// What reads asked for.
    reads: Arc<Mutex<Vec<AskedRead>>>,
    /// What the next batches answer, the last first; then all items are taken.
    batches: Arc<Mutex<Vec<BatchAnswer>>>,
    /// The tokens of each batch.
    batched: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Scripted {
    fn reading(&self) -> pb::GetCountResponse {
        let seconds = self.as_ofs.lock().expect("nobody panicked").pop().expect("the script goes so far");
        pb::GetCountResponse { count: seconds, as_of: Some(at(seconds)), ..Default::default() }
    }

    fn asked(&self, names: &[String], at_least_as_of: Option<prost_types::Timestamp>) {
        let asked = (names.join(","), at_least_as_of.map(|time| time.seconds));
        self.reads.lock().expect("nobody panicked").push(asked);
    }
}

fn at(seconds: i64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds, nanos: 0 }
}

struct Running {
    script: Scripted,
    address: String,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    async fn with(mut failures: Vec<Status>) -> Self {
        failures.reverse();
        let script = Scripted { failures: Arc::new(Mutex::new(failures)), ..Scripted::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (stop, stopped) = oneshot::channel::<()>();
        let (service, incoming) = (CounterServiceServer::new(script.clone()), TcpListenerStream::new(listener));
        let server = tonic::transport::Server::builder().serve_with_incoming_shutdown(service, incoming, async {
            let _ = stopped.await; // dropping the sender stops it too
        });
        let task = tokio::spawn(async { server.await.expect("the server runs") });
        Self { script, address, stop, task }
    }

    /// A server whose readings are rolled up to these times, in this order.
    async fn rolled_up_to(as_ofs: &[i64]) -> Self {
        let server = Self::with(Vec::new()).await;
        *server.script.as_ofs.lock().expect("nobody panicked") = as_ofs.iter().rev().copied().collect();
        server
    }

    /// A server whose batches are answered so, in this order.
    async fn with_batches(mut answers: Vec<BatchAnswer>) -> Self {
        let server = Self::with(Vec::new()).await;
        answers.reverse();
        *server.script.batches.lock().expect("nobody panicked") = answers;
        server
    }

    /// The tokens of each batch that came.
    fn batched(&self) -> Vec<Vec<String>> {
        self.script.batched.lock().expect("nobody panicked").clone()
    }

    async fn reads(self) -> Vec<AskedRead> {
        let reads = Arc::clone(&self.script.reads);
        self.tokens().await;
        let reads = reads.lock().expect("nobody panicked");
        reads.clone()
    }

    fn client(&self) -> Client {
        // Attempts are what ends these calls, however long the machine stands still.
        let patience = Duration::from_mins(10);
        let policy = RetryPolicy {
            total: patience,
            attempt_max: patience,
            pause_first: Duration::from_millis(1),
            ..RetryPolicy::default()
        };
        Client::new(&self.address, policy).expect("a valid address")
    }

    async fn tokens(self) -> Vec<String> {
        self.stop.send(()).expect("it still runs");
        self.task.await.expect("it stops");
        let tokens = self.script.tokens.lock().expect("nobody panicked");
        tokens.clone()
    }
}

fn refusal(code: Code, reason: &str, metadata: &[(&str, &str)]) -> Status {
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Status::with_error_details(code, "refused", ErrorDetails::with_error_info(reason, "tallystone", metadata))
}

fn add() -> pb::AddCountRequest {
    pb::AddCountRequest { counter_name: "views".to_owned(), delta: Some(1), ..Default::default() }
}

fn millis_of(token: &str) -> u64 {
    let uuid = uuid::Uuid::parse_str(token).expect("a UUID");
    let (seconds, nanos) = uuid.get_timestamp().expect("a UUIDv7").to_unix();
    seconds * 1_000 + u64::from(nanos) / 1_000_000
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_under_the_same_token() {
    let server = Running::with(vec![
        refusal(Code::Unknown, "OUTCOME_UNKNOWN", &[]),
        refusal(Code::Unavailable, "STORE_UNAVAILABLE", &[]),
        refusal(Code::Aborted, "PENDING", &[]),
        Status::unavailable("a proxy lost it"),
    ])
    .await;
    let added = server.client().add_count(add()).await.expect("the fifth attempt succeeds");
    let tokens = server.tokens().await;
    assert_eq!(tokens.len(), 5);
    assert!(tokens.iter().all(|token| *token == tokens[0] && !token.is_empty()), "{tokens:?}");
    assert_eq!(added.idempotency_token.expect("it is answered").token, tokens[0]);
}

#[tokio::test]
async fn a_refusal_is_not_asked_for_again() {
    let server = Running::with(vec![refusal(Code::InvalidArgument, "INVALID_COUNTER_NAME", &[])]).await;
    let error = server.client().add_count(add()).await.expect_err("it is refused");
    assert_eq!(error.error.reason().as_deref(), Some("INVALID_COUNTER_NAME"));
    assert!(!error.error.may_be_applied);
    assert_eq!(server.tokens().await, [error.token.token]);
}

#[tokio::test]
async fn a_failure_for_good_says_that_it_may_have_been_applied_and_names_the_token() {
    let server = Running::with(vec![refusal(Code::Unknown, "OUTCOME_UNKNOWN", &[]); 5]).await;
    let error = server.client().add_count(add()).await.expect_err("five are the most");
    assert!(error.error.may_be_applied);
    assert_eq!(error.error.attempts, 5);
    assert_eq!(server.tokens().await, vec![error.token.token; 5]);
}

#[tokio::test]
async fn what_settles_the_token_wins_over_what_was_unknown_before() {
    let script =
        vec![refusal(Code::Unknown, "OUTCOME_UNKNOWN", &[]), refusal(Code::FailedPrecondition, "NOT_APPLIED", &[])];
    let server = Running::with(script).await;
    let mut request = add();
    request.idempotency_token = Some(pb::IdempotencyToken { token: "mine".to_owned(), generation_time: None });
    let error = server.client().add_count(request).await.expect_err("it is final");
    assert!(!error.error.may_be_applied);
    assert_eq!(server.tokens().await, ["mine", "mine"]);
}

#[tokio::test]
async fn refusals_that_outlast_the_time_of_a_token_of_ours_are_told_as_what_they_are() {
    let full = || refusal(Code::ResourceExhausted, "STORAGE_FULL", &[]);
    let pending = || refusal(Code::Aborted, "PENDING", &[]);
    for last in [pending(), refusal(Code::FailedPrecondition, "NOT_APPLIED", &[])] {
        let server = Running::with(vec![full(), full(), pending(), pending(), last]).await;
        let error = server.client().add_count(add()).await.expect_err("the store stays full");
        assert_eq!(error.error.reason().as_deref(), Some("STORAGE_FULL"));
        assert!(!error.error.may_be_applied, "no attempt did anything");
        assert_eq!(server.tokens().await, vec![error.token.token; 5]);
    }
    // What was unknown once stays unknown, and a token of the caller may have been sent before.
    let lost = refusal(Code::Unknown, "OUTCOME_UNKNOWN", &[]);
    let server = Running::with(vec![full(), lost, full(), pending(), pending()]).await;
    let error = server.client().add_count(add()).await.expect_err("five are the most");
    assert_eq!((error.error.reason().as_deref(), error.error.may_be_applied), (Some("PENDING"), true));
    let server = Running::with(vec![full(), full(), full(), pending(), pending()]).await;
    let mut request = add();
    request.idempotency_token = Some(pb::IdempotencyToken { token: "mine".to_owned(), generation_time: None });
    let error = server.client().add_count(request).await.expect_err("five are the most");
    assert_eq!((error.error.reason().as_deref(), error.error.may_be_applied), (Some("PENDING"), true));
}

#[tokio::test]
async fn a_token_of_ours_that_was_finally_not_applied_is_replaced_once_by_the_servers_clock() {
    let not_applied = refusal(Code::FailedPrecondition, "NOT_APPLIED", &[("server_time", "2040-01-01T00:00:00Z")]);
    let server = Running::with(vec![not_applied.clone()]).await;
    server.client().add_count(add()).await.expect("the new token is taken");
    let tokens = server.tokens().await;
    assert_ne!(tokens[0], tokens[1]);
    assert!((2_208_988_800_000..2_208_988_860_000).contains(&millis_of(&tokens[1])), "{tokens:?}");

    let server = Running::with(vec![not_applied; 2]).await;
    server.client().add_count(add()).await.expect_err("once is enough");
    assert_eq!(server.tokens().await.len(), 2);
}

#[tokio::test]
async fn a_token_of_the_caller_is_never_replaced() {
    let not_applied = refusal(Code::FailedPrecondition, "NOT_APPLIED", &[("server_time", "2040-01-01T00:00:00Z")]);
    let server = Running::with(vec![not_applied]).await;
    let mut request = add();
    request.idempotency_token = Some(pb::IdempotencyToken { token: "mine".to_owned(), generation_time: None });
    server.client().add_count(request).await.expect_err("it is final");
    assert_eq!(server.tokens().await, ["mine"]);
}

#[tokio::test]
async fn nothing_was_applied_where_nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    drop(listener);
    let policy = RetryPolicy { attempts_max: 2, pause_first: Duration::from_millis(1), ..RetryPolicy::default() };
    let client = Client::new(&address, policy).expect("a valid address");
    let error = client.add_count(add()).await.expect_err("nobody listens");
    assert!(error.error.is_unreachable() && !error.error.may_be_applied);
    assert_eq!(error.error.attempts, 2);
}

fn batch(items: usize) -> pb::BatchAddCountsRequest {
    let item = || pb::AddItem { counter_name: "views".to_owned(), delta: Some(1), ..Default::default() };
    pb::BatchAddCountsRequest { items: (0..items).map(|_| item()).collect(), ..Default::default() }
}

/// The refusals of a batch's items.
fn reasons(results: &[pb::AddResult]) -> Vec<Option<&str>> {
    results.iter().map(|result| result.error.as_ref().map(|error| error.reason.as_str())).collect()
}

#[tokio::test]
async fn an_item_that_a_lost_try_may_have_applied_says_so_whatever_a_later_one_is_refused_for() {
    let lost = || Err(Status::unavailable("a proxy lost it"));
    let refusals = [
        (Some("NAMESPACE_READ_ONLY"), Some("OUTCOME_UNKNOWN")),
        (Some("INVALID_FUTURE_TIME"), Some("OUTCOME_UNKNOWN")),
        (Some("TOO_OLD"), Some("TOO_OLD")),
        (Some("INVALID_COUNTER_NAME"), Some("INVALID_COUNTER_NAME")),
        (Some("ALREADY_EXISTS"), Some("ALREADY_EXISTS")),
        (None, None),
    ];
    let second = refusals.iter().map(|(reason, _)| *reason).collect();
    let server = Running::with_batches(vec![lost(), Ok(second)]).await;
    let results = server.client().batch_add_counts(batch(refusals.len())).await.expect("the second is answered");
    assert_eq!(reasons(&results), refusals.map(|(_, told)| told));
    let batched = server.batched();
    assert_eq!(batched.len(), 2, "none of them is worth another try");
    assert_eq!(batched[0], batched[1], "under the same tokens");
    let told: Vec<_> =
        results.iter().map(|result| result.idempotency_token.clone().unwrap_or_default().token).collect();
    assert_eq!(told, batched[0]);
    let text = &results[0].error.as_ref().expect("it is refused").message;
    assert!(text.contains("refused for NAMESPACE_READ_ONLY"), "{text}");

    let server = Running::with_batches(vec![Ok(vec![Some("NAMESPACE_READ_ONLY")])]).await;
    let results = server.client().batch_add_counts(batch(1)).await.expect("it is answered");
    assert_eq!(reasons(&results), [Some("NAMESPACE_READ_ONLY")], "nothing was lost before");
}

#[tokio::test]
async fn an_item_whose_token_was_settled_begins_anew_and_its_lost_repeat_leaves_it_open() {
    let lost = || Err(Status::unavailable("a proxy lost it"));
    let mut script = vec![lost(), Ok(vec![Some("NOT_APPLIED"), Some("RETRY_LATER"), None])];
    script.extend((0..9).map(|_| lost()));
    let server = Running::with_batches(script).await;
    let results = server.client().batch_add_counts(batch(3)).await.expect("one of them was answered");
    assert_eq!(reasons(&results), [Some("OUTCOME_UNKNOWN"), Some("OUTCOME_UNKNOWN"), None]);
    let batched = server.batched();
    assert_ne!(batched[0][0], batched[2][0], "it has a new token");
    assert_eq!(results[0].idempotency_token.as_ref().expect("it is told").token, batched[2][0]);
    assert_eq!(batched[0][1], batched[2][1]);

    // Only what an unanswered try may have done is open.
    let server = Running::with_batches(vec![Ok(vec![Some("NOT_APPLIED")]), Ok(vec![Some("NOT_APPLIED")])]).await;
    let results = server.client().batch_add_counts(batch(1)).await.expect("it is answered");
    assert_eq!((reasons(&results), server.batched().len()), (vec![Some("NOT_APPLIED")], 2), "replaced once");
}

#[tokio::test]
async fn an_item_that_the_answer_leaves_out_is_asked_for_again() {
    let server = Running::with_batches(vec![Ok(vec![None])]).await;
    let results = server.client().batch_add_counts(batch(3)).await.expect("it is answered");
    assert_eq!(reasons(&results), [None; 3]);
    let batched = server.batched();
    assert_eq!(batched[1], batched[0][1..]);
}

#[tokio::test]
async fn a_batch_and_what_is_sent_again_of_it_have_one_budget() {
    let busy = || Ok(vec![Some("RETRY_LATER")]);
    let away = || Err(refusal(Code::Unavailable, "STORE_UNAVAILABLE", &[]));
    let script: Vec<BatchAnswer> =
        vec![away(), away(), busy(), away(), busy(), away(), busy(), away(), busy(), away(), busy(), away()];
    let server = Running::with_batches(script).await;
    let results = server.client().batch_add_counts(batch(1)).await.expect("it was answered once");
    assert_eq!(reasons(&results), [Some("RETRY_LATER")], "no try did anything");
    assert_eq!(server.batched().len(), 5, "five attempts are the most");
}

#[tokio::test]
async fn a_gathered_add_says_what_its_batch_knows_of_earlier_tries() {
    let lost = || Err(Status::unavailable("a proxy lost it"));
    let server = Running::with_batches(vec![lost(), Ok(vec![Some("NAMESPACE_READ_ONLY")])]).await;
    let item = batch(1).items.remove(0);
    let error = server.client().gathering("").add(item.clone()).await.expect_err("it is refused");
    assert!(error.error.may_be_applied, "{error}");
    assert_eq!(server.batched(), vec![vec![error.token.token]; 2]);
    let server = Running::with_batches(vec![Ok(vec![Some("NAMESPACE_READ_ONLY")])]).await;
    let error = server.client().gathering("").add(item).await.expect_err("it is refused");
    assert_eq!((error.error.reason().as_deref(), error.error.may_be_applied), (Some("NAMESPACE_READ_ONLY"), false));
}

fn get(counter_name: &str, at_least_as_of: Option<i64>) -> pb::GetCountRequest {
    let at_least_as_of = at_least_as_of.map(at);
    pb::GetCountRequest { counter_name: counter_name.to_owned(), at_least_as_of, ..Default::default() }
}

#[tokio::test]
async fn a_read_asks_for_what_the_client_has_seen_of_the_counter() {
    let server = Running::rolled_up_to(&[10, 20, 15, 30, 40, 50]).await;
    let client = server.client();
    for request in [get("views", None), get("views", None), get("views", None), get("likes", None)] {
        client.get_count(request).await.expect("a reading");
    }
    client.clone().get_count(get("views", Some(35))).await.expect("a reading");
    let add = pb::AddAndGetCountRequest { counter_name: "views".to_owned(), delta: Some(1), ..Default::default() };
    client.add_and_get_count(add).await.expect("an add");
    server.script.as_ofs.lock().expect("nobody panicked").push(60);
    client.get_count(get("views", Some(45))).await.expect("a reading");
    let reads = server.reads().await;
    let views = |at_least| ("views".to_owned(), at_least);
    let expected =
        [views(None), views(Some(10)), views(Some(20)), ("likes".to_owned(), None), views(Some(35)), views(Some(50))];
    assert_eq!(reads, expected, "an older answer is not carried on, the caller's own wish is, and clones share");
}

#[tokio::test]
async fn a_batch_asks_again_for_those_counters_that_came_back_older() {
    let server = Running::rolled_up_to(&[10, 20, 12, 15, 19, 21, 22, 25, 26]).await;
    let client = server.client();
    let batch = |names: &[&str]| pb::BatchGetCountsRequest {
        counter_names: names.iter().map(|&name| name.to_owned()).collect(),
        ..Default::default()
    };
    client.batch_get_counts(batch(&["a", "b"])).await.expect("readings");
    let answer = client.batch_get_counts(batch(&["a", "refused", "b", "new", "b"])).await.expect("readings");
    let shown: Vec<_> =
        answer.results.iter().map(|one| (one.counter_name.as_str(), one.reading.map_or(0, |one| one.count))).collect();
    assert_eq!(shown, [("a", 12), ("refused", 0), ("b", 22), ("new", 19), ("b", 21)]);
    client.get_count(get("b", None)).await.expect("a reading");
    let reads = server.reads().await;
    let expected = [
        ("a,b".to_owned(), None),
        ("a,refused,b,new,b".to_owned(), None),
        ("b".to_owned(), Some(20)),
        ("b".to_owned(), Some(22)),
    ];
    assert_eq!(reads, expected);
}

#[test]
fn an_address_is_checked_before_anything_is_sent() {
    for address in ["", "nowhere", "ftp://127.0.0.1:7450", "127.0.0.1", "a b:1"] {
        assert!(Client::new(address, RetryPolicy::default()).is_err(), "{address}");
    }
}

type Unimplemented<T> = Result<Response<T>, Status>;

fn unscripted<T>() -> Unimplemented<T> {
    Err(Status::unimplemented("not in the script"))
}

#[tonic::async_trait]
impl CounterService for Scripted {
    type StreamAddCountsStream = tokio_stream::Empty<Result<pb::StreamAddCountsResponse, Status>>;
    type WatchCountsStream = tokio_stream::Empty<Result<pb::WatchCountsResponse, Status>>;

    async fn add_count(&self, request: Request<pb::AddCountRequest>) -> Unimplemented<pb::AddCountResponse> {
        let token = request.into_inner().idempotency_token;
        self.tokens
            .lock()
            .expect("nobody panicked")
            .push(token.as_ref().map(|token| token.token.clone()).unwrap_or_default());
        match self.failures.lock().expect("nobody panicked").pop() {
            Some(status) => Err(status),
            None => Ok(Response::new(pb::AddCountResponse { idempotency_token: token, ..Default::default() })),
        }
    }

    async fn add_and_get_count(
        &self,
        _: Request<pb::AddAndGetCountRequest>,
    ) -> Unimplemented<pb::AddAndGetCountResponse> {
        let as_of = self.reading().as_of;
        Ok(Response::new(pb::AddAndGetCountResponse { as_of, ..Default::default() }))
    }

    async fn get_count(&self, request: Request<pb::GetCountRequest>) -> Unimplemented<pb::GetCountResponse> {
        let request = request.into_inner();
        self.asked(&[request.counter_name], request.at_least_as_of);
        Ok(Response::new(self.reading()))
    }

    async fn clear_count(&self, _: Request<pb::ClearCountRequest>) -> Unimplemented<pb::ClearCountResponse> {
        unscripted()
    }

    async fn batch_add_counts(
        &self,
        request: Request<pb::BatchAddCountsRequest>,
    ) -> Unimplemented<pb::BatchAddCountsResponse> {
        let tokens: Vec<_> = request.into_inner().items.into_iter().map(|item| item.idempotency_token).collect();
        let names = tokens.iter().map(|token| token.clone().unwrap_or_default().token).collect();
        self.batched.lock().expect("nobody panicked").push(names);
        let answer = self.batches.lock().expect("nobody panicked").pop();
        let refusals = answer.unwrap_or_else(|| Ok(vec![None; tokens.len()]))?;
        // A script shorter than the batch leaves items out of the answer.
        let result = |(reason, idempotency_token): (Option<&str>, _)| {
            let error = reason.map(|reason| ItemError {
                code: Code::FailedPrecondition.into(),
                reason: reason.to_owned(),
                message: format!("refused for {reason}"),
                metadata: HashMap::from([("server_time".to_owned(), "2040-01-01T00:00:00Z".to_owned())]),
            });
            pb::AddResult { idempotency_token, error, ..Default::default() }
        };
        let results = refusals.into_iter().zip(tokens).map(result).collect();
        Ok(Response::new(pb::BatchAddCountsResponse { results, ..Default::default() }))
    }

    async fn batch_get_counts(
        &self,
        request: Request<pb::BatchGetCountsRequest>,
    ) -> Unimplemented<pb::BatchGetCountsResponse> {
        let request = request.into_inner();
        self.asked(&request.counter_names, request.at_least_as_of);
        let result = |counter_name: String| match counter_name.as_str() {
            "refused" => pb::GetResult { counter_name, error: Some(Default::default()), reading: None },
            _ => pb::GetResult { counter_name, reading: Some(self.reading()), error: None },
        };
        let results = request.counter_names.into_iter().map(result).collect();
        Ok(Response::new(pb::BatchGetCountsResponse { results }))
    }

    async fn stream_add_counts(
        &self,
        _: Request<tonic::Streaming<pb::StreamAddCountsRequest>>,
    ) -> Unimplemented<Self::StreamAddCountsStream> {
        unscripted()
    }

    async fn report_totals(&self, _: Request<pb::ReportTotalsRequest>) -> Unimplemented<pb::ReportTotalsResponse> {
        unscripted()
    }

    async fn check_token(&self, _: Request<pb::CheckTokenRequest>) -> Unimplemented<pb::CheckTokenResponse> {
        unscripted()
    }

    async fn get_count_series(
        &self,
        _: Request<pb::GetCountSeriesRequest>,
    ) -> Unimplemented<pb::GetCountSeriesResponse> {
        unscripted()
    }

    async fn batch_get_count_series(
        &self,
        _: Request<pb::BatchGetCountSeriesRequest>,
    ) -> Unimplemented<pb::BatchGetCountSeriesResponse> {
        unscripted()
    }

    async fn list_counters(&self, _: Request<pb::ListCountersRequest>) -> Unimplemented<pb::ListCountersResponse> {
        unscripted()
    }

    async fn top_counters(&self, _: Request<pb::TopCountersRequest>) -> Unimplemented<pb::TopCountersResponse> {
        unscripted()
    }

    async fn watch_counts(&self, _: Request<pb::WatchCountsRequest>) -> Unimplemented<Self::WatchCountsStream> {
        unscripted()
    }

    async fn list_count_events(
        &self,
        _: Request<pb::ListCountEventsRequest>,
    ) -> Unimplemented<pb::ListCountEventsResponse> {
        unscripted()
    }

    async fn recount_counter(
        &self,
        _: Request<pb::RecountCounterRequest>,
    ) -> Unimplemented<pb::RecountCounterResponse> {
        unscripted()
    }

    async fn explain_counter(
        &self,
        _: Request<pb::ExplainCounterRequest>,
    ) -> Unimplemented<pb::ExplainCounterResponse> {
        unscripted()
    }
}
