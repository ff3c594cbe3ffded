//! Live numbers: a stream tells what changed, and one too many is told when to come again.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::{done, get, header, used_server};
use crate::support::harness::Server;

/// A queue in which nothing happens.
const OTHER: &str = "odd/name:50";
/// The streams of one server.
const STREAMS_MAX: usize = 256;

fn stream(server: &Server, place: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(server.address).expect("the server takes connections");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let request =
        format!("GET /console/{place} HTTP/1.1\r\nhost: {}\r\naccept: text/event-stream\r\n\r\n", server.address);
    stream.write_all(request.as_bytes()).expect("the server reads");
    BufReader::new(stream)
}

fn next(stream: &mut BufReader<TcpStream>) -> Value {
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).expect("a line") > 0, "the stream ended");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data.trim()).expect("JSON");
        }
    }
}

#[test]
fn a_stream_tells_a_number_that_changed_and_nothing_of_the_others() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let mut events = stream(&server, "live");
    // A row is told again when its rates are known, 5 s after its first reading. From then on nothing changes in the other one.
    let (mut mail, mut other) = (Value::Null, Value::Null);
    loop {
        let rows = next(&mut events)["rows"].take();
        let is_other_told = rows[OTHER].is_object();
        for (known, told) in [(&mut mail, &rows["mail"]), (&mut other, &rows[OTHER])] {
            if told.is_object() {
                *known = told.clone();
            }
        }
        if mail["pending"] == json!("11") && other["in"].as_str().is_some_and(|rate| rate != "–") && !is_other_told {
            break;
        }
    }
    done(&server, "Enqueue", &json!({"queue": "mail", "message": {"messageId": "late"}}));
    let changed = loop {
        let news = next(&mut events);
        if news["rows"]["mail"]["pending"] == json!("12") {
            break news;
        }
    };
    assert_eq!(changed["rows"].as_object().expect("rows").len(), 1, "{changed}");
    assert_eq!(changed["isAway"], json!(false));
    assert!(changed["serverTime"].as_i64() >= changed["asOf"].as_i64(), "{changed}");
}

#[test]
fn a_stream_too_many_is_told_when_to_come_again_and_pages_still_load() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let mut open: Vec<_> = (0..STREAMS_MAX).map(|_| stream(&server, "live?name=mail")).collect();
    open.iter_mut().for_each(|stream| drop(next(stream)));
    let refused = get(&server, "/console/live?name=mail", &[]);
    assert_eq!((refused.status, header(&refused, "retry-after")), (503, Some("5")));
    assert_eq!(get(&server, "/console/", &[]).status, 200);
    assert!(server.stop().success(), "open streams do not hold up a stop");
}
