//! gRPC and gRPC-Web as strangers' clients speak them: unknown methods, deadlines, broken messages, health, reflection.

use std::time::Duration;

use serde_json::json;
use tallystone::proto::counter::v1 as wire;
use tokio_stream::StreamExt;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use super::stores::TRAP;
use super::{COUNTERS, Wire, at, item, reason};
use crate::support::harness::{PATIENCE, http_within};

fn add(counter: &str, token: &str) -> wire::AddCountRequest {
    let item = item(counter, 1, token);
    wire::AddCountRequest {
        namespace: "exact".to_owned(),
        counter_name: item.counter_name,
        delta: item.delta,
        idempotency_token: item.idempotency_token,
        provenance: item.provenance,
    }
}

#[tokio::test]
async fn an_error_carries_its_reason_its_field_and_its_delay() {
    let server = Wire::start().await;
    let mut client = server.counters().await;
    let mut request = add("views", "t");
    request.counter_name = "no good".to_owned();
    let status = client.add_count(request).await.expect_err("a bad name");
    assert_eq!((status.code(), reason(&status)), (Code::InvalidArgument, "INVALID_COUNTER_NAME".to_owned()));
    let violations = status.get_details_bad_request().expect("a BadRequest").field_violations;
    assert_eq!(violations[0].field, "counter_name");
    let mut request = add("views", "late");
    request.idempotency_token =
        Some(wire::IdempotencyToken { token: "late".to_owned(), generation_time: Some(at(-5.4)) });
    // Between closed and limit a token is pending; whatever it is, it is told with its reason.
    if let Err(status) = client.add_count(request).await {
        match reason(&status).as_str() {
            "PENDING" => assert!(status.get_details_retry_info().is_some_and(|info| info.retry_delay.is_some())),
            other => assert_eq!(other, "NOT_APPLIED"),
        }
    }
}

#[tokio::test]
async fn a_method_that_does_not_exist_is_unimplemented_with_a_reason() {
    let server = Wire::start().await;
    let mut grpc = tonic::client::Grpc::new(server.patient_channel().await);
    // Nobody shares the store of this server, so it hears signals of nobody.
    let signals = "/tallystone.internal.v1.RollupSignalService/SignalRollups";
    for path in ["/tallystone.counter.v1.CounterService/AddCounts", "/nobody.v1.Nothing/Do", signals] {
        grpc.ready().await.expect("the channel is ready");
        let codec: tonic_prost::ProstCodec<wire::GetCountRequest, wire::GetCountResponse> =
            tonic_prost::ProstCodec::default();
        let request = Request::new(wire::GetCountRequest::default());
        let status = grpc.unary(request, path.parse().expect("a path"), codec).await.expect_err("no such method");
        assert_eq!((status.code(), reason(&status)), (Code::Unimplemented, "UNKNOWN_METHOD".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn messages_by_gzip_are_read_and_another_encoding_is_told_which_ones_are() {
    let server = Wire::start().await;
    let mut client = server.counters().await.send_compressed(CompressionEncoding::Gzip);
    client.add_count(add("packed", "t")).await.expect("it is read");
    let read = server.post("GetCount", r#"{"namespace": "exact", "counter_name": "packed"}"#).await.1;
    assert_eq!(read["count"], "1");
    // As gRPC-Web: no client of the library sends what it was not built for.
    let message = "\u{a}\u{5}exact\u{12}\u{6}packed";
    let frame =
        |flag: char| format!("{flag}\0\0\0{}{message}", char::from(u8::try_from(message.len()).expect("short")));
    let ask = async |encoding: Option<&str>, flag: char| {
        let mut headers = vec![("content-type", "application/grpc-web+proto"), ("x-grpc-web", "1")];
        headers.extend(encoding.map(|name| ("grpc-encoding", name)));
        let answer = server.http("POST", &format!("{COUNTERS}/GetCount"), &headers, &frame(flag)).await;
        format!("{}{}", answer.head, answer.body).to_ascii_lowercase().replace(": ", ":")
    };
    let told = ask(Some("snappy"), '\u{1}').await;
    assert!(told.contains("grpc-status:12") && told.contains("grpc-accept-encoding:gzip"), "{told}");
    let told = ask(None, '\u{1}').await;
    assert!(told.contains("grpc-status:13") && told.contains("compressed-flag"), "{told}");
    let told = ask(Some("gzip"), '\u{1}').await;
    assert!(told.contains("grpc-status:3"), "what is not gzip is a broken message: {told}");
}

#[tokio::test]
async fn a_message_of_another_method_is_refused_and_the_server_goes_on() {
    let server = Wire::start().await;
    let mut grpc = tonic::client::Grpc::new(server.patient_channel().await);
    grpc.ready().await.expect("the channel is ready");
    // A page size where AddCount has its idempotency token, which is a message.
    let codec: tonic_prost::ProstCodec<wire::ListCountEventsRequest, wire::AddCountResponse> =
        tonic_prost::ProstCodec::default();
    let request = wire::ListCountEventsRequest { page_size: 7, page_token: "t".to_owned(), ..Default::default() };
    let path = format!("{COUNTERS}/AddCount").parse().expect("a path");
    let status = grpc.unary(Request::new(request), path, codec).await.expect_err("no AddCountRequest");
    assert_eq!((status.code(), reason(&status)), (Code::InvalidArgument, "INVALID_ARGUMENT".to_owned()));
    assert!(status.message().contains("cannot be read"), "{status:?}");
    server.counters().await.add_count(add("views", "t")).await.expect("the server goes on");
}

#[tokio::test]
async fn a_deadline_that_passes_says_that_the_write_may_have_been_applied() {
    let server = Wire::start().await;
    let message = add("views", "slow");
    server.gate.close();
    // As JSON, because the Rust client watches its deadline itself and would not wait for the answer.
    let headers = [("content-type", "application/json"), ("grpc-timeout", "100m")];
    let answer = server.http("POST", &format!("{COUNTERS}/AddCount"), &headers, &as_json(&message)).await;
    assert_eq!(answer.status, 504, "{}", answer.body);
    for word in ["DEADLINE_EXCEEDED", "100ms", "same token"] {
        assert!(answer.body.contains(word), "{}", answer.body);
    }
    assert!(!answer.body.contains("\"effect\""), "what may have been applied is not said to be nothing");
    server.gate.open();
    let answer = server.counters().await.add_count(message).await.expect("a retry").into_inner();
    assert_eq!(answer.outcome(), wire::Outcome::AlreadyApplied, "the write went on without its caller");
}

fn as_json(message: &wire::AddCountRequest) -> String {
    let token = message.idempotency_token.clone().expect("a token");
    let generation_time = token.generation_time.expect("a time").to_string();
    let token = json!({"token": token.token, "generation_time": generation_time});
    json!({
        "namespace": message.namespace, "counter_name": message.counter_name, "delta": message.delta,
        "idempotency_token": token,
    })
    .to_string()
}

#[tokio::test]
async fn a_call_without_a_deadline_gets_the_default_one() {
    let server = Wire::start().await;
    server.gate.close();
    let (address, path) = (server.address, format!("{COUNTERS}/AddCount"));
    let call = tokio::task::spawn_blocking(move || {
        let body = r#"{"namespace": "exact", "counter_name": "a", "delta": 1}"#;
        http_within(PATIENCE, address, ("POST", &path), &[("content-type", "application/json")], body)
    });
    let answer = call.await.expect("no panic").expect("the server answers");
    assert_eq!(
        (answer.status, &answer.json()["details"][0]["reason"]),
        (504, &json!("DEADLINE_EXCEEDED")),
        "{}",
        answer.body
    );
    server.gate.open();
}

#[tokio::test]
async fn a_deadline_too_near_starts_nothing() {
    let server = Wire::start().await;
    let message = add("views", "hopeless");
    let (path, body) = (format!("{COUNTERS}/AddCount"), as_json(&message));
    let headers = [("content-type", "application/json"), ("grpc-timeout", "10u")];
    let answer = server.http("POST", &path, &headers, &body).await;
    assert!(answer.status == 504 && answer.body.contains("nothing was started"), "{}", answer.body);
    let told: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(told["details"][0]["metadata"]["effect"], "nothing", "{told}");
    let headers = [("content-type", "application/json"), ("grpc-timeout", "soon")];
    let answer = server.http("POST", &path, &headers, &body).await;
    assert!(answer.status == 400 && answer.body.contains("500m"), "{}", answer.body);
    let answer = server.counters().await.add_count(message).await.expect("the first try").into_inner();
    assert_eq!(answer.outcome(), wire::Outcome::Applied);
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_its_write_running() {
    let server = Wire::start().await;
    let message = add("views", "left");
    server.gate.close();
    let mut client = server.counters().await;
    let call = tokio::spawn({
        let message = message.clone();
        async move { client.add_count(message).await }
    });
    server.gate.until_arrived(1).await;
    call.abort();
    assert!(call.await.expect_err("aborted").is_cancelled());
    server.gate.open();
    let answer = server.counters().await.add_count(message).await.expect("a retry").into_inner();
    assert_eq!(answer.outcome(), wire::Outcome::AlreadyApplied);
}

#[tokio::test]
async fn a_panic_is_answered_and_the_server_stays_up() {
    let server = Wire::start().await;
    let mut client = server.counters().await;
    let get = |counter: &str| wire::GetCountRequest {
        namespace: "shop".to_owned(),
        counter_name: counter.to_owned(),
        ..wire::GetCountRequest::default()
    };
    let status = client.get_count(get(TRAP)).await.expect_err("a trap");
    assert_eq!((status.code(), reason(&status)), (Code::Internal, "INTERNAL".to_owned()));
    let (status, answer) =
        server.post("GetCount", &format!(r#"{{"namespace": "shop", "counter_name": "{TRAP}"}}"#)).await;
    assert_eq!((status, &answer["details"][0]["reason"]), (500, &json!("INTERNAL")), "{answer}");
    let mut watch = client
        .watch_counts(wire::WatchCountsRequest { namespace: "shop".to_owned(), counter_names: vec![TRAP.to_owned()] })
        .await
        .expect("a stream")
        .into_inner();
    let status = watch.next().await.expect("an end").expect_err("a trap");
    assert_eq!((status.code(), reason(&status)), (Code::Internal, "INTERNAL".to_owned()));
    client.get_count(get("views")).await.expect("the same connection goes on");
    let metrics = server.http("GET", "/metrics", &[], "").await.body;
    assert!(metrics.contains("tallystone_call_panics_total 3"), "{metrics}");
}

#[tokio::test]
async fn a_watch_shows_the_present_value_and_then_each_change() {
    let server = Wire::start().await;
    let mut client = server.counters().await;
    let request = wire::WatchCountsRequest { namespace: "exact".to_owned(), counter_names: vec!["views".to_owned()] };
    let mut watch = client.watch_counts(request).await.expect("a stream").into_inner();
    let first = watch.next().await.expect("the present value").expect("a reading");
    assert_eq!((first.counter_name.as_str(), first.reading.map(|reading| reading.count)), ("views", Some(0)));
    client.add_count(add("views", "t")).await.expect("an add");
    let seen = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let next = watch.next().await.expect("a change").expect("a reading");
            if next.reading.is_some_and(|reading| reading.count == 1) {
                return;
            }
        }
    });
    seen.await.expect("the change is shown");
    let names = |names: usize| (0..names).map(|at| format!("c{at}")).collect();
    for counter_names in [names(0), names(101)] {
        let request = wire::WatchCountsRequest { namespace: "exact".to_owned(), counter_names };
        let status = client.watch_counts(request).await.expect_err("1 to 100");
        assert_eq!(reason(&status), "INVALID_BATCH_SIZE");
    }
}

#[tokio::test]
async fn grpc_web_works_over_http_1_1() {
    let server = Wire::start().await;
    // namespace = "exact", counter_name = "web", delta = 3, in protobuf, in one frame of 14 bytes.
    let message = "\u{a}\u{5}exact\u{12}\u{3}web\u{18}\u{3}";
    let frame = format!("\0\0\0\0{}{message}", char::from(u8::try_from(message.len()).expect("short")));
    let headers = [("content-type", "application/grpc-web+proto"), ("x-grpc-web", "1")];
    let answer = server.http("POST", &format!("{COUNTERS}/AddCount"), &headers, &frame).await;
    assert!(answer.status == 200 && answer.body.contains("grpc-status:0"), "{answer:?}");
    let read = server.post("GetCount", r#"{"namespace": "exact", "counter_name": "web"}"#).await.1;
    assert_eq!(read["count"], "3");
    let answer = server.http("POST", &format!("{COUNTERS}/Nothing"), &headers, &frame).await;
    let told = format!("{}{}", answer.head, answer.body).to_ascii_lowercase().replace(": ", ":");
    assert!(answer.status == 200 && told.contains("grpc-status:12"), "{answer:?}");
}

#[tokio::test]
async fn a_stream_ends_at_the_deadline_that_its_caller_set() {
    let server = Wire::start().await;
    // namespace = "shop", counter_names = ["web"], in protobuf. As gRPC-Web, because the Rust client would not wait.
    let message = "\u{a}\u{4}shop\u{12}\u{3}web";
    let frame = format!("\0\0\0\0{}{message}", char::from(u8::try_from(message.len()).expect("short")));
    let headers = [("content-type", "application/grpc-web+proto"), ("grpc-timeout", "300m")];
    let answer = server.http("POST", &format!("{COUNTERS}/WatchCounts"), &headers, &frame).await;
    assert!(answer.status == 200 && answer.body.contains("grpc-status:4"), "{answer:?}");
    let told = answer.body.replace("%20", " ");
    assert!(told.contains("nothing was changed") && !told.contains("may have been applied"), "of a read: {told}");
}

async fn health(server: &Wire, service: &str) -> Result<ServingStatus, Status> {
    let mut client = HealthClient::new(server.patient_channel().await);
    let answer = client.check(HealthCheckRequest { service: service.to_owned() }).await?;
    Ok(answer.into_inner().status())
}

#[tokio::test]
async fn health_is_told_for_each_service() {
    let server = Wire::start().await;
    for service in ["", "tallystone.counter.v1.CounterService", "tallystone.admin.v1.NamespaceService"] {
        assert_eq!(health(&server, service).await.expect("known"), ServingStatus::Serving, "{service}");
    }
    assert_eq!(health(&server, "nobody.v1.Nothing").await.expect_err("unknown").code(), Code::NotFound);
    server.gateway.set_phase(tallystone::api::http::ServerPhase::Draining).await;
    for service in ["", "tallystone.counter.v1.CounterService", "tallystone.admin.v1.NamespaceService"] {
        assert_eq!(health(&server, service).await.expect("known"), ServingStatus::NotServing, "{service}");
    }
}

#[tokio::test]
async fn reflection_lists_the_services_in_both_versions() {
    let server = Wire::start().await;
    let channel = server.channel().await;
    let listed = {
        use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::v1::{ServerReflectionRequest, server_reflection_response::MessageResponse};
        let ask = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut client = ServerReflectionClient::new(channel.clone());
        let mut answers =
            client.server_reflection_info(tokio_stream::once(ask)).await.expect("reflection").into_inner();
        let answer = answers.next().await.expect("one answer").expect("a list");
        match answer.message_response.expect("a response") {
            MessageResponse::ListServicesResponse(list) => list.service,
            other => panic!("{other:?}"),
        }
    };
    let mut names: Vec<&str> = listed.iter().map(|service| service.name.as_str()).collect();
    names.sort_unstable();
    let public = [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
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
    assert_eq!(names, public, "all that callers may call, and nothing that servers say to each other");
    use tonic_reflection::pb::v1alpha as alpha;
    let mut client = alpha::server_reflection_client::ServerReflectionClient::new(channel);
    for (symbol, is_described) in
        [("tallystone.counter.v1.CounterService", true), ("tallystone.internal.v1.RollupSignalService", false)]
    {
        let ask = alpha::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
                symbol.to_owned(),
            )),
        };
        let answers = client.server_reflection_info(tokio_stream::once(ask)).await.expect("reflection");
        let answer = answers.into_inner().next().await.expect("one answer");
        let file = answer.ok().and_then(|answer| answer.message_response);
        let described =
            matches!(file, Some(alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_)));
        assert_eq!(described, is_described, "{symbol}");
    }
}
