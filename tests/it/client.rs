//! The client against a server that fails as it is told: what is sent again, under which token, and what a failure says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tallystone::client::{Client, RetryPolicy};
use tallystone::proto::counter::v1 as pb;
use tallystone::proto::counter::v1::counter_service_server::{CounterService, CounterServiceServer};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Answers adds from a script and keeps the tokens that it saw.
#[derive(Clone, Default)]
struct Scripted {
    /// What the next calls answer, the last first; then all succeed.
    failures: Arc<Mutex<Vec<Status>>>,
    tokens: Arc<Mutex<Vec<String>>>,
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
        let server = tonic::transport::Server::builder()
            .add_service(CounterServiceServer::new(script.clone()))
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
                let _ = stopped.await; // dropping the sender stops it too
            });
        let task = tokio::spawn(async { server.await.expect("the server runs") });
        Self { script, address, stop, task }
    }

    fn client(&self) -> Client {
        let policy = RetryPolicy { pause_first: Duration::from_millis(1), ..RetryPolicy::default() };
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
    pb::AddCountRequest { counter_name: "views".to_owned(), delta: 1, ..Default::default() }
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

#[test]
fn an_address_is_checked_before_anything_is_sent() {
    for address in ["", "nowhere", "https://127.0.0.1:7450", "127.0.0.1", "a b:1"] {
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
        unscripted()
    }

    async fn get_count(&self, _: Request<pb::GetCountRequest>) -> Unimplemented<pb::GetCountResponse> {
        unscripted()
    }

    async fn clear_count(&self, _: Request<pb::ClearCountRequest>) -> Unimplemented<pb::ClearCountResponse> {
        unscripted()
    }

    async fn batch_add_counts(
        &self,
        _: Request<pb::BatchAddCountsRequest>,
    ) -> Unimplemented<pb::BatchAddCountsResponse> {
        unscripted()
    }

    async fn batch_get_counts(
        &self,
        _: Request<pb::BatchGetCountsRequest>,
    ) -> Unimplemented<pb::BatchGetCountsResponse> {
        unscripted()
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
}
