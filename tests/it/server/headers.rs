//! The limit of a request's headers is the same over HTTP/1.1 and HTTP/2, and whoever exceeds it is told why.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use tallystone::proto::counter::v1::GetCountRequest;
use tallystone::proto::counter::v1::counter_service_client::CounterServiceClient;
use tonic::Request;

use super::keys::keyed;
use crate::crash::load::reason;
use crate::support::harness::{Launch, Server};
use crate::support::patience::patient_channel;

/// What a JSON call over HTTP/1.1 with more headers is answered with.
fn answer_over_http_1(server: &Server, headers: &str) -> String {
    let body = r#"{"namespace": "default", "counterName": "views"}"#;
    let mut stream = TcpStream::connect(server.address).expect("it takes connections");
    let head =
        "POST /tallystone.counter.v1.CounterService/GetCount HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    write!(stream, "{head}content-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
        .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

/// The reason that a gRPC call with a header of a size is refused with; none if it was answered.
async fn refusal_over_http_2(server: &Server, bytes: usize) -> Option<String> {
    let channel = patient_channel(&format!("http://{}", server.address)).await;
    let mut request = Request::new(GetCountRequest {
        namespace: "default".to_owned(),
        counter_name: "views".to_owned(),
        ..Default::default()
    });
    request.metadata_mut().insert("x-long", "x".repeat(bytes).parse().expect("a header"));
    CounterServiceClient::new(channel).get_count(request).await.err().map(|status| reason(&status))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_above_the_limit_are_refused_with_a_reason_over_both_versions_of_http() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).start();
    let one = |bytes: usize| format!("x-long: {}\r\n", "x".repeat(bytes));
    let many = |count: usize| (0..count).map(|at| format!("x-{at}: v\r\n")).collect::<String>();
    for small in [one(15_000), many(300)] {
        let answer = answer_over_http_1(&server, &small);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    for large in [one(17_000), one(40_000), many(450)] {
        let answer = answer_over_http_1(&server, &large);
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
        assert!(answer.contains("INVALID_HEADERS_TOO_LARGE") && answer.contains("at most 16384"), "{answer}");
    }
    assert_eq!(refusal_over_http_2(&server, 15_000).await, None);
    for bytes in [17_000, 40_000] {
        assert_eq!(refusal_over_http_2(&server, bytes).await.as_deref(), Some("INVALID_HEADERS_TOO_LARGE"), "{bytes}");
    }
}

/// The first line of the answer to a request whose client waits to be asked for its body, and never sends it.
fn first_line_without_a_body(server: &Server, path: &str, headers: &str) -> String {
    first_line(
        server,
        &format!("POST {path}"),
        &format!("expect: 100-continue\r\ncontent-type: application/json\r\n{headers}"),
    )
}

/// The first line of the answer to a head.
fn first_line(server: &Server, what: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(server.address).expect("it takes connections");
    write!(stream, "{what} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").expect("it reads");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("it answers");
    line.trim_end().to_owned()
}

#[test]
fn what_the_head_of_a_request_refuses_is_refused_before_its_body_is_asked_for() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).start();
    let call = "/tallystone.counter.v1.CounterService/GetCount";
    let line = |path: &str, headers: &str| first_line_without_a_body(&server, path, headers);
    assert_eq!(line(call, "content-length: 20\r\n"), "HTTP/1.1 100 Continue");
    assert_eq!(
        line("/tallystone.counter.v1.CounterService/Nothing", "content-length: 20\r\n"),
        "HTTP/1.1 404 Not Found"
    );
    assert_eq!(line(call, "content-length: 999999999\r\n"), "HTTP/1.1 400 Bad Request");
    assert_eq!(line(call, "content-encoding: br\r\ncontent-length: 20\r\n"), "HTTP/1.1 400 Bad Request");
    // Nor is a body waited for that another client would send unasked.
    let plain = "content-type: application/json\r\ncontent-length: 999999999\r\n";
    assert_eq!(first_line(&server, &format!("POST {call}"), plain), "HTTP/1.1 400 Bad Request");

    let (server, _admin, _folder) = keyed();
    let refused = first_line_without_a_body(&server, call, "content-length: 20\r\n");
    assert_eq!(refused, "HTTP/1.1 401 Unauthorized");
}

#[test]
fn grpc_by_another_method_than_post_is_refused_so_that_no_proxy_repeats_it() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).start();
    let call = "/tallystone.counter.v1.CounterService/AddCount";
    for content_type in ["application/grpc", "application/grpc+proto", "application/grpc-web", "application/json"] {
        for method in ["GET", "DELETE", "PUT"] {
            let head = format!("content-type: {content_type}\r\ncontent-length: 0\r\n");
            assert_eq!(
                first_line(&server, &format!("{method} {call}"), &head),
                "HTTP/1.1 405 Method Not Allowed",
                "{content_type}"
            );
        }
    }
}
