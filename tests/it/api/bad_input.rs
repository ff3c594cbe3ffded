//! Bad input: each kind has its own reason and a text that says what to do, nothing is applied, the server stays up.

use serde_json::{Value, json};
use tallystone::domain::Reason;
use tallystone::proto::counter::v1 as wire;
use tonic::Code;

use super::{COUNTERS, Wire, at, item, reason};
use crate::support::harness::HttpAnswer;

fn check(what: &str, answer: &HttpAnswer, expected: Reason, words: &[&str]) {
    let body = super::json(&answer.body);
    let info = expected.info();
    assert_eq!(answer.status, info.http, "{what}: {body}");
    assert_eq!(body["code"], json!(info.code as i32), "{what}: {body}");
    let detail = &body["details"][0];
    assert_eq!(detail["@type"], "type.googleapis.com/google.rpc.ErrorInfo", "{what}: {body}");
    assert_eq!((&detail["reason"], &detail["domain"]), (&json!(info.name), &json!("tallystone")), "{what}: {body}");
    let message = body["message"].as_str().expect("a message");
    for word in words {
        assert!(message.contains(word), "{what}: `{word}` is missing in: {message}");
    }
}

fn add_body(change: impl FnOnce(&mut Value)) -> String {
    let mut body = json!({
        "namespace": "exact", "counter_name": "views", "delta": 1,
        "idempotency_token": {"token": "a-token", "generation_time": at(0.0).to_string()},
    });
    change(&mut body);
    body.to_string()
}

#[tokio::test]
async fn every_bad_argument_of_an_add_has_its_reason() {
    let server = Wire::start().await;
    let v7 = "0192f5a0-1c2b-7def-8abc-0123456789ab";
    type Change<'a> = Box<dyn Fn(&mut Value) + 'a>;
    let set = |pointer: &'static str, value: Value| -> Change<'_> {
        Box::new(move |body: &mut Value| *body.pointer_mut(pointer).expect("the field is there") = value.clone())
    };
    let cases: Vec<(Change, Reason, &[&str])> = vec![
        (set("/namespace", json!("nowhere")), Reason::NamespaceNotFound, &["nowhere", "create it first"]),
        (set("/namespace", json!("")), Reason::InvalidNamespace, &["namespace is empty", "send 1 to 64 bytes"]),
        (set("/namespace", json!("no good")), Reason::InvalidNamespace, &["' ' as character 3", "letters, digits"]),
        (set("/namespace", json!("n".repeat(65))), Reason::InvalidNamespace, &["65 bytes", "at most 64"]),
        (
            set("/counter_name", json!("")),
            Reason::InvalidCounterName,
            &["counter name is empty", "send 1 to 256 bytes"],
        ),
        (set("/counter_name", json!(".hidden")), Reason::InvalidCounterName, &["begin with a letter or digit"]),
        (set("/counter_name", json!("c".repeat(257))), Reason::InvalidCounterName, &["257 bytes"]),
        (set("/idempotency_token/token", json!("")), Reason::InvalidToken, &["present but empty", "omit"]),
        (
            set("/idempotency_token/token", json!("t".repeat(65))),
            Reason::InvalidToken,
            &["65 bytes", "shorten it to 64"],
        ),
        (
            set("/idempotency_token", json!({"token": "no time"})),
            Reason::InvalidGenerationTime,
            &["no generation_time", "the same on"],
        ),
        (set("/idempotency_token/token", json!(v7)), Reason::InvalidGenerationTime, &["differs", "omit"]),
        (
            set("/idempotency_token/generation_time", json!(at(3_600.0).to_string())),
            Reason::InvalidFutureTime,
            &["ahead of the server's clock", "correct the client's clock"],
        ),
        (set("/idempotency_token/generation_time", json!(at(-60.0).to_string())), Reason::NotApplied, &["new token"]),
        (
            set("/idempotency_token/generation_time", json!("1971-01-01T00:00:00Z")),
            Reason::TooOld,
            &["oldest live slice", "new token only if"],
        ),
        (
            Box::new(|body| body["provenance"] = json!("p".repeat(257))),
            Reason::InvalidProvenance,
            &["257 bytes", "shorten it to 256"],
        ),
        (set("/namespace", json!("totals")), Reason::WrongTemporality, &["ReportTotals"]),
    ];
    for (change, expected, words) in cases {
        let body = add_body(change);
        let path = format!("{COUNTERS}/AddCount");
        let answer = server.http("POST", &path, &[("content-type", "application/json")], &body).await;
        check(&body, &answer, expected, words);
    }
    let (_, read) = server.post("GetCount", r#"{"namespace": "exact", "counter_name": "views"}"#).await;
    assert_eq!(read["count"], "0", "nothing was applied");
}

#[tokio::test]
async fn clocks_can_be_corrected_by_the_answer() {
    let server = Wire::start().await;
    for seconds in [3_600.0, -60.0] {
        let body = add_body(|body| body["idempotency_token"]["generation_time"] = json!(at(seconds).to_string()));
        let (_, answer) = server.post("AddCount", &body).await;
        let shown = answer["details"][0]["metadata"]["server_time"].as_str().expect("the server's time");
        let shown: prost_types::Timestamp = shown.parse().expect("RFC 3339");
        assert!((shown.seconds - at(0.0).seconds).abs() <= 10, "{answer}");
    }
}

#[tokio::test]
async fn a_token_names_one_change_and_both_are_shown() {
    let server = Wire::start().await;
    let (_, first) = server.post("AddCount", &add_body(|_| ())).await;
    let time = first["idempotencyToken"]["generationTime"].clone();
    let second = add_body(|body| {
        body["delta"] = json!(7);
        body["idempotency_token"]["generation_time"] = time.clone();
    });
    let path = format!("{COUNTERS}/AddCount");
    let answer = server.http("POST", &path, &[("content-type", "application/json")], &second).await;
    check("another delta", &answer, Reason::AlreadyExists, &["an add of 1", "an add of 7", "new token"]);
    let body = super::json(&answer.body);
    let metadata = &body["details"][0]["metadata"];
    assert_eq!((&metadata["found"], &metadata["asked"]), (&json!("an add of 1"), &json!("an add of 7")));
}

#[tokio::test]
async fn both_ends_of_a_delta_add_up_and_a_sum_beyond_saturates() {
    let server = Wire::start().await;
    let mut client = server.counters().await;
    let mut add = async |counter: &str, delta| {
        let request = wire::AddAndGetCountRequest {
            namespace: "exact".to_owned(),
            counter_name: counter.to_owned(),
            delta,
            freshness: wire::Freshness::UpToDate.into(),
            ..wire::AddAndGetCountRequest::default()
        };
        let answer = client.add_and_get_count(request).await.expect("an add").into_inner();
        (answer.count, answer.saturated)
    };
    assert_eq!(add("high", Some(i64::MAX)).await, (i64::MAX, false));
    assert_eq!(add("high", Some(1)).await, (i64::MAX, true));
    assert_eq!(add("high", Some(-2)).await, (i64::MAX - 1, false), "the true sum was kept");
    assert_eq!(add("low", Some(i64::MIN)).await, (i64::MIN, false));
    assert_eq!(add("low", Some(i64::MIN)).await, (i64::MIN, true));
}

#[tokio::test]
async fn batches_hold_1_to_1000_items() {
    let server = Wire::start().await;
    let mut client = server.counters().await;
    let mut add = async |items: usize| {
        let items = (0..items).map(|at| item("batch", 1, &format!("{at}"))).collect();
        client.batch_add_counts(wire::BatchAddCountsRequest { namespace: "exact".to_owned(), items }).await
    };
    for items in [0, 1_001] {
        let status = add(items).await.expect_err("no batch");
        assert_eq!((status.code(), reason(&status)), (Code::InvalidArgument, "INVALID_BATCH_SIZE".to_owned()));
        assert!(status.message().contains(&format!("{items} items")), "{status:?}");
    }
    let answer = add(1_000).await.expect("the largest batch").into_inner();
    assert!(answer.results.iter().all(|result| result.outcome() == wire::Outcome::Applied));
    let (_, read) = server.post("GetCount", r#"{"namespace": "exact", "counter_name": "batch"}"#).await;
    assert_eq!(read["count"], "1000", "nothing of the refused batches was applied");
}

#[tokio::test]
async fn a_batch_of_the_largest_items_fits() {
    let server = Wire::start().await;
    let mut client = server.counters().await;
    let items = (0..1_000).map(|at| wire::AddItem {
        counter_name: format!("{at:0>256}"),
        provenance: "\u{1}".repeat(256),
        ..item("", i64::MIN, &format!("{at:\u{1}>64}"))
    });
    let request = wire::BatchAddCountsRequest { namespace: "exact".to_owned(), items: items.collect() };
    let body = json!({"namespace": "exact", "items": request.items.iter().map(|item| json!({
        "counter_name": item.counter_name,
        "delta": item.delta().to_string(),
        "idempotency_token": {
            "token": item.idempotency_token.as_ref().expect("a token").token,
            "generation_time": at(0.0).to_string(),
        },
        "provenance": item.provenance,
    })).collect::<Vec<_>>()});
    let answer = client.batch_add_counts(request).await.expect("it fits").into_inner();
    assert!(answer.results.iter().all(|result| result.error.is_none()));
    let (status, answer) = server.post("BatchAddCounts", &body.to_string()).await;
    assert_eq!(status, 200, "every byte escaped, it fits as JSON too: {}", answer["message"]);
}

#[tokio::test]
async fn questions_with_bad_bounds_are_refused() {
    let server = Wire::start().await;
    let now = at(0.0).to_string();
    let counter = r#""namespace": "exact", "counter_name": "views""#;
    for (method, body, expected, words) in [
        ("ListCounters", r#"{"namespace": "exact", "page_size": -1}"#.to_owned(), Reason::InvalidPageSize, &["-1"][..]),
        (
            "ListCounters",
            r#"{"namespace": "exact", "page_token": "Zm9yZ2Vk"}"#.to_owned(),
            Reason::InvalidPageToken,
            &["next_page_token"],
        ),
        ("ListCountEvents", format!("{{{counter}, \"page_size\": -5}}"), Reason::InvalidPageSize, &["-5"]),
        ("ListCountEvents", format!("{{{counter}, \"page_token\": \"x\"}}"), Reason::InvalidPageToken, &["start over"]),
        (
            "ListCountEvents",
            format!("{{{counter}, \"from\": \"{now}\", \"to\": \"{now}\"}}"),
            Reason::InvalidRange,
            &["from must be before to"],
        ),
        ("ExplainCounter", format!("{{{counter}, \"rows\": -1}}"), Reason::InvalidRange, &["1 to 100"]),
        ("TopCounters", r#"{"namespace": "exact", "n": -1}"#.to_owned(), Reason::InvalidRange, &["1 to 1000"]),
        ("TopCounters", r#"{"namespace": "exact", "n": 1001}"#.to_owned(), Reason::InvalidRange, &["1 to 1000"]),
        ("GetCount", format!("{{{counter}, \"max_staleness\": \"-1s\"}}"), Reason::InvalidRange, &["negative"]),
        ("GetCount", format!("{{{counter}, \"freshness\": 9}}"), Reason::InvalidArgument, &["UP_TO_DATE"]),
        ("GetCountSeries", format!("{{{counter}}}"), Reason::InvalidRange, &["from is missing"]),
        (
            "GetCountSeries",
            format!("{{{counter}, \"from\": \"{now}\"}}"),
            Reason::SeriesNotKept,
            &["keeps no series", "series setting"],
        ),
        (
            "BatchGetCountSeries",
            r#"{"namespace": "exact", "counter_names": ["a"]}"#.to_owned(),
            Reason::InvalidRange,
            &["from is missing"],
        ),
        (
            "BatchGetCountSeries",
            format!("{{\"namespace\": \"exact\", \"from\": \"{now}\"}}"),
            Reason::InvalidBatchSize,
            &["send 1 to 200"],
        ),
        ("CheckToken", format!("{{{counter}}}"), Reason::InvalidToken, &["send the token"]),
        (
            "RecountCounter",
            format!("{{{counter}, \"repair\": true}}"),
            Reason::InvalidArgument,
            &["does not support repair", "omit repair"],
        ),
        (
            "ListCountEvents",
            r#"{"namespace": "fast", "counter_name": "views"}"#.to_owned(),
            Reason::WrongCounterType,
            &["BEST_EFFORT"],
        ),
        ("BatchGetCounts", r#"{"namespace": "exact"}"#.to_owned(), Reason::InvalidBatchSize, &["0 items"]),
    ] {
        let path = format!("{COUNTERS}/{method}");
        let answer = server.http("POST", &path, &[("content-type", "application/json")], &body).await;
        check(&format!("{method} {body}"), &answer, expected, words);
    }
}

#[tokio::test]
async fn a_report_whose_serial_goes_back_is_refused() {
    let server = Wire::start().await;
    let report = |source: &str, serial: u64, total: i64| {
        json!({"namespace": "totals", "source": source, "epoch": 1, "serial": serial,
               "items": [{"counter_name": "bytes", "total": total}]})
        .to_string()
    };
    server.post("ReportTotals", &report("node-1", 7, 70)).await;
    let (status, answer) = server.post("ReportTotals", &report("node-1", 6, 60)).await;
    let error = &answer["results"][0]["error"];
    assert_eq!((status, &error["reason"]), (200, &json!("SERIAL_BACK")), "{answer}");
    assert_eq!(error["metadata"]["known_serial"], "7", "{answer}");
    let (_, answer) = server.post("ReportTotals", &report("node-1", 7, 71)).await;
    let error = &answer["results"][0]["error"];
    assert_eq!(error["reason"], "ALREADY_EXISTS", "{answer}");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("a total of 70") && message.ends_with("raise the serial with each report"), "{message}");
    assert!(!message.contains("token"), "reports have none: {message}");
    let path = format!("{COUNTERS}/ReportTotals");
    for body in [report("", 1, 1), report(&"s".repeat(41), 1, 1)] {
        let answer = server.http("POST", &path, &[("content-type", "application/json")], &body).await;
        check(&body, &answer, Reason::InvalidReport, &["1 to 40"]);
    }
    let body = json!({"namespace": "exact", "source": "s", "items": [{"counter_name": "a", "total": 1}]}).to_string();
    let answer = server.http("POST", &path, &[("content-type", "application/json")], &body).await;
    check(&body, &answer, Reason::WrongTemporality, &["AddCount"]);
}

#[tokio::test]
async fn bodies_that_cannot_be_read_are_refused_with_their_place() {
    let server = Wire::start().await;
    let path = format!("{COUNTERS}/AddCount");
    for (body, expected, words) in [
        ("", Reason::InvalidJson, &["line 1 column 0", "{}"][..]),
        ("{\n  \"namespace\": \"exact\",,\n}", Reason::InvalidJson, &["line 2 column"]),
        ("[1, 2]", Reason::InvalidJson, &["AddCountRequest"]),
        (
            r#"{"namespace": "exact", "counter": "views"}"#,
            Reason::InvalidField,
            &["counter", "did you mean counter_name"],
        ),
        (r#"{"idempotency_token": {"id": "x"}}"#, Reason::InvalidField, &["idempotency_token.id", "IdempotencyToken"]),
        (r#"{"delta": "many"}"#, Reason::InvalidJson, &["delta", "a whole number of 64 bits"]),
        (r#"{"delta": 9223372036854775808}"#, Reason::InvalidJson, &["delta"]),
    ] {
        let answer = server.http("POST", &path, &[("content-type", "application/json")], body).await;
        check(body, &answer, expected, words);
    }
}

#[tokio::test]
async fn a_body_of_5_mib_is_refused_on_every_protocol() {
    let server = Wire::start().await;
    let large = format!(r#"{{"namespace": "{}"}}"#, "n".repeat(5 * 1024 * 1024));
    let path = format!("{COUNTERS}/AddCount");
    let answer = server.http("POST", &path, &[("content-type", "application/json")], &large).await;
    check("5 MiB as JSON", &answer, Reason::InvalidBodyTooLarge, &["4194304 bytes", "split"]);
    let mut client = server.counters().await;
    let request = wire::AddCountRequest { namespace: "n".repeat(5 * 1024 * 1024), ..wire::AddCountRequest::default() };
    let status = client.add_count(request).await.expect_err("too large");
    assert_eq!((status.code(), reason(&status)), (Code::InvalidArgument, "INVALID_BODY_TOO_LARGE".to_owned()));
    let padded = format!(r#"{{"namespace": "exact", "counter_name": "padded", "delta": 1}}{}"#, " ".repeat(4_194_000));
    let answer = server.http("POST", &path, &[("content-type", "application/json")], &padded).await;
    assert_eq!(answer.status, 200, "below 4 MiB: {}", answer.body);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_not_waited_for() {
    use std::io::{Read, Write};
    let server = Wire::start().await;
    let address = server.address;
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = std::net::TcpStream::connect(address).expect("a connection");
        let head = format!(
            "POST {COUNTERS}/AddCount HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             grpc-timeout: 100m\r\nconnection: close\r\ncontent-length: 100\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).expect("the bytes are taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    });
    let answer = answer.await.expect("no panic");
    assert!(answer.starts_with("HTTP/1.1 504") && answer.contains("nothing was applied"), "{answer}");
}

#[tokio::test]
async fn a_content_type_that_is_not_read_is_refused() {
    let server = Wire::start().await;
    let path = format!("{COUNTERS}/GetCount");
    let body = r#"{"namespace": "exact", "counter_name": "views"}"#;
    for headers in [
        &[][..],
        &[("content-type", "text/plain")],
        &[("content-type", "application/x-www-form-urlencoded")],
        &[("content-type", "application/json; charset=latin-1")],
        &[("content-type", "application/grpc+json")],
    ] {
        let answer = server.http("POST", &path, headers, body).await;
        check(&format!("{headers:?}"), &answer, Reason::InvalidContentType, &["application/json"]);
    }
    let packed = [("content-type", "application/json"), ("content-encoding", "gzip")];
    let answer = server.http("POST", &path, &packed, body).await;
    check("gzip", &answer, Reason::InvalidContentType, &["content-encoding gzip", "uncompressed"]);
    let plain = [("content-type", "application/json"), ("content-encoding", "identity")];
    assert_eq!(server.http("POST", &path, &plain, body).await.status, 200);
    let answer = server.http("POST", &path, &[("content-type", "application/grpc")], body).await;
    let reason = answer.head.to_ascii_lowercase();
    assert!(reason.contains("grpc-status: 3") && reason.contains("http/2"), "gRPC on HTTP/1.1: {}", answer.head);
}

#[tokio::test]
async fn unknown_paths_and_verbs_are_told_apart() {
    let server = Wire::start().await;
    let json_type = [("content-type", "application/json")];
    let answer = server.http("POST", &format!("{COUNTERS}/GetCounts"), &json_type, "{}").await;
    check("a typo", &answer, Reason::UnknownMethod, &["did you mean", "/GetCount?"]);
    let answer = server.http("POST", "/counters", &json_type, "{}").await;
    check("nothing like it", &answer, Reason::UnknownMethod, &["POST /package.Service/Method"]);
    let signals = "/tallystone.internal.v1.RollupSignalService/SignalRollups";
    let answer = server.http("POST", signals, &json_type, "{}").await;
    check("between servers", &answer, Reason::UnknownMethod, &["there is no"]);
    let answer = server.http("POST", signals, &[("content-type", "application/grpc-web")], "").await;
    assert!(answer.head.to_ascii_lowercase().contains("grpc-status: 12"), "between servers: {answer:?}");
    let answer = server.http("GET", &format!("{COUNTERS}/GetCount"), &[], "").await;
    check("GET", &answer, Reason::MethodNotAllowed, &["POST"]);
    assert!(answer.head.to_ascii_lowercase().contains("allow: post"), "{}", answer.head);
    for (verb, page) in [("DELETE", "/healthz"), ("POST", "/")] {
        let answer = server.http(verb, page, &json_type, "").await;
        check(page, &answer, Reason::MethodNotAllowed, &["with GET"]);
        assert!(answer.head.to_ascii_lowercase().contains("allow: get, head"), "{}", answer.head);
    }
    let answer = server.http("POST", &format!("{COUNTERS}/StreamAddCounts"), &json_type, "{}").await;
    check("a stream", &answer, Reason::UnknownMethod, &["gRPC"]);
}

#[tokio::test]
async fn what_is_no_http_at_all_leaves_the_server_up() {
    use std::io::{Read, Write};
    let server = Wire::start().await;
    for garbage in [
        &b"\0\0\0\0garbage\r\n\r\n"[..],
        b"GET",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let address = server.address;
        let sent = tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).expect("a connection");
            stream.write_all(garbage).expect("the bytes are taken");
            stream.shutdown(std::net::Shutdown::Write).expect("the connection is open");
            // Whatever comes back, it ends.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        sent.await.expect("no panic");
    }
    assert_eq!(server.http("GET", "/healthz", &[], "").await.status, 200);
}
