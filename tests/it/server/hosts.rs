//! Who can reach a server. A page of a stranger, whose name was led to this machine, does not reach a development server
//! through a browser; a server that listens beyond its machine says so.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::support::harness::{IN_MEMORY, Launch, Server};

/// The status and the text that a request under a host is answered with.
fn status(server: &Server, request: &str, host: &str) -> String {
    let body = r#"{"namespace": "default", "counterName": "views", "delta": 1}"#;
    let mut stream = TcpStream::connect(server.address).expect("it takes connections");
    let head = format!("{request} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n");
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn a_development_server_answers_no_name_that_a_page_could_have() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).arg("--set").arg("server.hosts=counts.example").start();
    let port = server.address.port();
    let add = "POST /tallystone.counter.v1.CounterService/AddCount";
    for own in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), "counts.example".to_owned()] {
        assert!(status(&server, add, &own).starts_with("HTTP/1.1 200"), "{own}");
    }
    for request in [add, "GET /metrics", "GET /healthz", "GET /"] {
        let refused = status(&server, request, &format!("evil.example:{port}"));
        assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("HOST_NOT_ALLOWED"), "{request}: {refused}");
    }
    let get = r#"{"namespace": "default", "counterName": "views", "freshness": "UP_TO_DATE"}"#;
    let counted = server.post("/tallystone.counter.v1.CounterService/GetCount", get).json();
    assert_eq!(counted["count"], "3", "what was refused changed nothing");
}

/// The status line and the rest that a head is answered with.
fn answer_to(server: &Server, head: &str) -> String {
    let mut stream = TcpStream::connect(server.address).expect("it takes connections");
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

/// Source: RFC 9112, section 3.2.
#[test]
fn http_1_1_needs_one_valid_host_and_1_0_none() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).start();
    let own = format!("host: {}\r\n", server.address);
    let over = |version: &str, hosts: &str| {
        answer_to(&server, &format!("GET /healthz HTTP/{version}\r\n{hosts}connection: close\r\n\r\n"))
    };
    assert!(over("1.1", &own).starts_with("HTTP/1.1 200"), "{}", over("1.1", &own));
    for (hosts, told) in [
        (String::new(), "no host header"),
        (own.repeat(2), "more than one host header"),
        ("host: a b\r\n".to_owned(), "not NAME, NAME:PORT"),
        ("host: ann@localhost\r\n".to_owned(), "not NAME, NAME:PORT"),
    ] {
        let refused = over("1.1", &hosts);
        assert!(
            refused.starts_with("HTTP/1.1 400") && refused.contains(told) && refused.contains("; send "),
            "{refused}"
        );
        assert!(refused.contains("content-type: text/plain"), "{refused}");
    }
    let older = over("1.0", "");
    assert!(older.starts_with("HTTP/1.0 200"), "{older}");
}

/// A server without files, at an address.
fn start_at(address: &str) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(["server", "start"]).args(IN_MEMORY).args(["--set", "auth.mode=off", "--listen", address]);
    Launch::of(command).env("TALLYSTONE__LOG__FORMAT", "json").start()
}

#[test]
fn a_server_on_a_public_address_warns_on_stdout_and_in_the_log() {
    const WARNING: &str = "there is no authentication and no TLS: anyone who reaches this address can read and change";
    let mut server = start_at("0.0.0.0:0");
    server.wait_for_line(&format!("warning: {WARNING}"));
    let logged: serde_json::Value =
        serde_json::from_str(&server.wait_for_line(&format!("\"message\":\"{WARNING}"))).expect("JSON");
    assert_eq!(
        (&logged["level"], &logged["address"]),
        (&"WARN".into(), &server.address.to_string().into()),
        "{logged}"
    );
    server.signal(libc::SIGTERM);
    assert!(server.wait().success());

    let mut server = start_at("127.0.0.1:0");
    server.signal(libc::SIGTERM);
    assert!(server.wait().success());
    assert!(!server.printed().contains(WARNING), "{}", server.printed());
}
