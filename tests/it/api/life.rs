//! The life of the port: open before the stores are, measured while it serves, ended without losing a call.

use std::time::Duration;

use tallystone::adapters::memory;
use tallystone::api::http::ServerPhase;
use tallystone::domain::counter::{CounterName, NamespaceName};
use tallystone::domain::rollup::ReadOptions;
use tallystone::proto::counter::v1 as wire;

use super::{COUNTERS, DRAIN_DEADLINE, Wire, item, json, reason};

#[tokio::test]
async fn the_port_is_open_before_the_stores_are() {
    let mut server = Wire::bind(memory::stores(), DRAIN_DEADLINE).await;
    assert_eq!(server.http("GET", "/healthz", &[], "").await.status, 200);
    let ready = server.http("GET", "/readyz", &[], "").await;
    assert!(ready.status == 503 && ready.body.contains("starting"), "{ready:?}");
    let body = r#"{"namespace": "exact", "counter_name": "early", "delta": 1}"#;
    let (status, answer) = server.post("AddCount", body).await;
    assert_eq!((status, &answer["details"][0]["reason"]), (503, &"STORE_UNAVAILABLE".into()), "{answer}");
    server.open().await;
    assert_eq!(server.http("GET", "/readyz", &[], "").await.status, 200);
    assert_eq!(server.post("AddCount", body).await.0, 200);
    server.gateway.set_phase(ServerPhase::Draining).await;
    assert_eq!(server.http("GET", "/readyz", &[], "").await.status, 503);
}

#[tokio::test]
async fn the_health_of_the_whole_server_is_that_of_its_services() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus::{self, NotServing, Serving};
    use tonic_health::pb::health_client::HealthClient;
    let mut server = Wire::bind(memory::stores(), DRAIN_DEADLINE).await;
    let mut client = HealthClient::new(server.patient_channel().await);
    let mut check = async |status: ServingStatus| {
        for service in ["", "tallystone.counter.v1.CounterService", "tallystone.admin.v1.NamespaceService"] {
            let answer = client.check(HealthCheckRequest { service: service.to_owned() }).await.expect("an answer");
            assert_eq!(answer.into_inner().status(), status, "{service:?}");
        }
    };
    check(NotServing).await;
    server.open().await;
    check(Serving).await;
    server.gateway.set_phase(ServerPhase::Draining).await;
    check(NotServing).await;
}

#[tokio::test]
async fn pages_are_read_and_the_front_page_says_what_to_try() {
    let server = Wire::start().await;
    let page = server.http("GET", "/", &[], "").await;
    assert!(page.status == 200 && page.head.contains("text/plain"), "{page:?}");
    let call = |service: &str| format!("curl -s http://{}{service}", server.address);
    let calls = [call(&format!("{COUNTERS}/AddCount")), call("/tallystone.queue.v1.QueueService/Enqueue")];
    for words in ["/readyz", "/metrics", &calls[0], &calls[1]] {
        assert!(page.body.contains(words), "{words}: {}", page.body);
    }
    assert!(!page.body.contains("/console/"), "this server shows none: {}", page.body);
    for path in ["/", "/healthz", "/readyz", "/metrics"] {
        let answer = server.http("POST", path, &[("content-type", "application/json")], "{}").await;
        assert_eq!(answer.status, 405, "{path}: {answer:?}");
        assert!(answer.head.to_ascii_lowercase().contains("allow: get, head"), "{path}: {}", answer.head);
        assert_eq!(json(&answer.body)["details"][0]["reason"], "METHOD_NOT_ALLOWED", "{path}");
        assert_eq!(server.http("HEAD", path, &[], "").await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn calls_are_measured_by_method_and_code() {
    let server = Wire::start().await;
    let body = r#"{"namespace": "exact", "counter_name": "seen", "delta": 1}"#;
    server.post("AddCount", body).await;
    server.post("AddCount", body).await;
    server.post("AddCount", "{").await;
    let older = server.http("GET", "/metrics", &[("accept", "text/plain;version=0.0.4")], "").await;
    assert!(older.head.to_ascii_lowercase().contains("content-type: text/plain; version=0.0.4"), "{}", older.head);
    assert!(!older.body.contains("# EOF") && !older.body.contains("# UNIT"), "{}", older.body);
    let page = server.http("GET", "/metrics", &[], "").await;
    assert!(page.head.to_ascii_lowercase().contains("content-type: application/openmetrics-text"), "{}", page.head);
    let method = "tallystone.counter.v1.CounterService/AddCount";
    for line in [
        format!("tallystone_call_duration_seconds_count{{method=\"{method}\",code=\"ok\"}} 2"),
        format!("tallystone_call_duration_seconds_count{{method=\"{method}\",code=\"invalid_argument\"}} 1"),
        "# EOF".to_owned(),
    ] {
        assert!(page.body.lines().any(|found| found == line), "{line} is missing in:\n{}", page.body);
    }
}

#[tokio::test]
async fn a_stop_finishes_the_calls_under_way() {
    let server = Wire::start().await;
    let mut client = server.counters().await;
    server.gate.close();
    let one = item("views", 1, "last");
    let request = wire::AddCountRequest {
        namespace: "exact".to_owned(),
        counter_name: one.counter_name,
        delta: one.delta,
        idempotency_token: one.idempotency_token,
        provenance: one.provenance,
    };
    let call = tokio::spawn(async move { client.add_count(request).await });
    server.gate.until_arrived(1).await;
    server.stop.cancel();
    server.gate.open();
    let answer = call.await.expect("no panic").expect("the call is finished").into_inner();
    assert_eq!(answer.outcome(), wire::Outcome::Applied);
    let ended = server.serving.await.expect("no panic");
    assert_eq!((ended.open, ended.cut_off), (1, 0));
    assert!(std::net::TcpStream::connect(server.address).is_err(), "the port is closed");
}

#[tokio::test]
async fn a_stop_ends_watches() {
    use tokio_stream::StreamExt;
    let server = Wire::start().await;
    let request = wire::WatchCountsRequest { namespace: "exact".to_owned(), counter_names: vec!["views".to_owned()] };
    let mut watch = server.counters().await.watch_counts(request).await.expect("a stream").into_inner();
    watch.next().await.expect("the present value").expect("a reading");
    server.stop.cancel();
    let status = watch.next().await.expect("an end").expect_err("the server stops");
    assert_eq!(reason(&status), "SHUTTING_DOWN");
    assert_eq!(server.serving.await.expect("no panic").cut_off, 0);
}

#[tokio::test]
async fn a_stop_ends_streams_of_health_as_well() {
    use tokio_stream::StreamExt;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let server = Wire::start().await;
    let mut client = HealthClient::new(server.patient_channel().await);
    let mut watch = client.watch(HealthCheckRequest::default()).await.expect("a stream").into_inner();
    watch.next().await.expect("the present status").expect("a status");
    server.stop.cancel();
    let status = watch.next().await.expect("an end").expect_err("the server stops");
    assert_eq!(reason(&status), "SHUTTING_DOWN");
    assert_eq!(server.serving.await.expect("no panic").cut_off, 0);
}

#[tokio::test]
async fn a_call_that_does_not_end_is_cut_off_and_its_write_goes_on() {
    let server = Wire::with_drain_deadline(Duration::from_millis(100)).await;
    let mut client = server.counters().await;
    server.gate.close();
    let request = wire::AddCountRequest {
        namespace: "exact".to_owned(),
        counter_name: "views".to_owned(),
        delta: Some(5),
        ..wire::AddCountRequest::default()
    };
    let call = tokio::spawn(async move { client.add_count(request).await });
    server.gate.until_arrived(1).await;
    server.stop.cancel();
    let ended = server.serving.await.expect("no panic");
    assert_eq!((ended.open, ended.cut_off), (1, 1));
    call.await.expect("no panic").expect_err("the connection was cut off");
    server.gate.open();
    let (exact, views) = (NamespaceName::new("exact"), CounterName::new("views"));
    let options = ReadOptions::default();
    let counted = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let (exact, views) = (exact.as_ref().expect("a name"), views.clone().expect("a name"));
            if server.engine.counting().get(exact, views, options).await.expect("a reading").count == 5 {
                return;
            }
            tokio::task::yield_now().await;
        }
    });
    counted.await.expect("the write goes on without its caller");
}
