//! The console over plain HTTP: its pages, its policy, who may call it, its actions and its streams.

mod actions;
mod away;
mod browser;
mod charts;
mod chromium;
mod driver_calls;
mod everyday;
mod experiments;
mod keyboard;
mod live_pages;
mod many;
mod pages;
mod payloads;
mod rare_states;
mod selections;
mod sign_in;
mod streams;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::harness::{HttpAnswer, Launch, Server, http};

/// How long the console waits for the end of what a form began.
const CONSOLE_WAITS: std::time::Duration = std::time::Duration::from_secs(2);
const QUEUES: &str = "/tallystone.queue.v1.QueueService";
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// A development server with some queues, a counter, and messages in several states.
fn used_server(data: &std::path::Path) -> Server {
    let server = Launch::dev(data).start();
    fill(&server);
    server
}

fn fill(server: &Server) {
    done(server, "CreateQueue", &json!({"queue": {"name": "mail", "default_max_attempts": 1}}));
    done(
        server,
        "CreateQueue",
        &json!({"queue": {"name": "odd/name:50", "type": "QUEUE_TYPE_EXCLUSIVE", "exclusivity_key": "tenant"}}),
    );
    for number in 0..12 {
        let message = json!({"messageId": format!("m{number}"), "payload": "c2VjcmV0", "metadata": {"tenant": "acme", "note": "<b>50%"}});
        done(server, "Enqueue", &json!({"queue": "mail", "message": message}));
    }
    let lease = done(server, "Dequeue", &json!({"queue": "mail"}))["leases"][0]["leaseToken"].clone();
    let error = json!({"signature": "SmtpDown", "text": "the mail server <i>refuses</i>"});
    done(server, "Fail", &json!({"queue": "mail", "leaseToken": lease, "error": error}));
    for name in ["views", "odd/name=50%"] {
        let add = json!({"namespace": "default", "counterName": name, "delta": 5});
        let added = server.post("/tallystone.counter.v1.CounterService/AddCount", &add.to_string());
        assert_eq!(added.status, 200, "{}", added.body);
    }
}

fn done(server: &Server, method: &str, body: &Value) -> Value {
    let answer = server.post(&format!("{QUEUES}/{method}"), &body.to_string());
    assert_eq!(answer.status, 200, "{method}: {}", answer.body);
    answer.json()
}

/// The opening tags of all elements with a test id.
fn tags_of<'a>(page: &'a str, testid: &str) -> Vec<&'a str> {
    let mark = format!("data-testid=\"{testid}\"");
    let tag = |(at, _): (usize, &str)| {
        let start = page[..at].rfind('<').expect("a tag begins");
        &page[start..=at + page[at..].find('>').expect("a tag ends")]
    };
    page.match_indices(&mark).map(tag).collect()
}

fn header<'a>(answer: &'a HttpAnswer, name: &str) -> Option<&'a str> {
    answer.head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

pub fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
    http(server.address, "GET", path, headers, "").expect("the server answers")
}

fn post(server: &Server, form: &str, headers: &[(&str, &str)]) -> HttpAnswer {
    let typed = [&[("content-type", "application/x-www-form-urlencoded")], headers].concat();
    http(server.address, "POST", "/console/act", &typed, form).expect("the server answers")
}

/// The status with which a request under another host name is answered.
fn status_under(server: &Server, request: &str, host: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(server.address).expect("it takes connections");
    let head = format!("{request} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    let typed = "content-type: application/x-www-form-urlencoded\r\n";
    write!(stream, "{head}{typed}content-length: {}\r\n\r\n{body}", body.len()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no status: {answer}"))
}

/// The text of the first element with a test id.
pub fn text_of<'a>(page: &'a str, testid: &str) -> &'a str {
    let at =
        page.find(&format!("data-testid=\"{testid}\"")).unwrap_or_else(|| panic!("there is no {testid} in {page}"));
    let rest = &page[at..];
    let start = rest.find('>').expect("a tag ends") + 1;
    let end = rest[start..].find('<').expect("an element ends") + start;
    rest[start..end].trim()
}

/// The value of a hidden field.
fn hidden<'a>(page: &'a str, name: &str) -> &'a str {
    let mark = format!("name=\"{name}\" value=\"");
    let at = page.find(&mark).unwrap_or_else(|| panic!("there is no field {name} in {page}")) + mark.len();
    &page[at..at + page[at..].find('"').expect("a value ends")]
}
