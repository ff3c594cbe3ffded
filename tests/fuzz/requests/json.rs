//! Requests as JSON over HTTP/1.1. An input is the path of a method, a new line, and the body.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use prost_reflect::{DynamicMessage, SerializeOptions};
use serde_json::Value;

use super::{Target, path_of};
use crate::descriptors::{self, Care, Words};
use crate::driver::{Rng, Run, joined, split};
use crate::mutate;

/// A call that is not answered by then hangs: the deadline that it names is far below.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
const WORDS: &[&str] = &[
    "null",
    "true",
    "{}",
    "[]",
    "[[[[",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "1e400",
    "-0",
    "0.5",
    "\"NaN\"",
    "\"1s\"",
    "\"2026-01-01T00:00:00Z\"",
    "\"default\"",
    "\"@type\"",
    "99999999999999999999",
    "\u{feff}",
    ",",
    ":",
    "\"queue\":",
    "\"jobs\"",
];
const DEPTHS: &[usize] = &[1, 2, 99, 100, 101, 128, 5_000];

/// The status and body of a POST whose body may be any bytes.
fn post(address: SocketAddr, key: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(address).expect("the server takes connections");
    stream.set_read_timeout(Some(ANSWERED_WITHIN)).expect("a time limit can be set");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         authorization: Bearer {key}\r\ngrpc-timeout: 400m\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(&[head.as_bytes(), body].concat()); // a body may be refused before it was read
    let mut answer = Vec::new();
    stream
        .read_to_end(&mut answer)
        .unwrap_or_else(|error| panic!("{path} is answered within {ANSWERED_WITHIN:?}: {error}"));
    let split = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer has a head");
    let status = String::from_utf8_lossy(&answer[..split]).split_whitespace().nth(1).and_then(|word| word.parse().ok());
    (status.expect("an answer has a status"), answer[split + 4..].to_vec())
}

/// The outcome of a call; fails if it is none that a caller may get.
fn outcome(method: &str, sent: usize, (status, body): &(u16, Vec<u8>)) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_else(|error| {
        panic!("{method} answers {status} and no JSON ({error}): {}", String::from_utf8_lossy(body))
    });
    if *status == 200 {
        return format!("{method} OK");
    }
    assert!(![500, 501, 503].contains(status), "{method} answers {status}: {body}");
    let detail = &body["details"][0];
    assert_eq!(detail["domain"], "tallystone", "{method} refuses with a reason: {body}");
    let message = body["message"].as_str().expect("a refusal has a text");
    assert!(message.len() < 4_096 && !message.is_empty(), "{method} echoes {} of {sent} bytes", message.len());
    format!("{method} {}", detail["reason"].as_str().unwrap_or_default())
}

/// Puts one value of a document in another's place, or one more beside them.
fn change(rng: &mut Rng, value: &mut Value, depth: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() && depth < 6 && !rng.one_in(4) => {
            let at = rng.below(fields.len());
            if let Some((_, inner)) = fields.iter_mut().nth(at) {
                change(rng, inner, depth + 1);
            }
        }
        Value::Array(items) if !items.is_empty() && depth < 6 && !rng.one_in(4) => {
            let at = rng.below(items.len());
            change(rng, &mut items[at], depth + 1);
        }
        Value::Object(fields) if rng.one_in(2) => {
            fields.insert((*rng.pick(&["x", "namespace", "@type", ""])).to_owned(), Value::Bool(true));
        }
        other => {
            let text = *rng.pick(WORDS);
            *other = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
        }
    }
}

/// The body of a request of a random method.
fn body(rng: &mut Rng, input: &prost_reflect::MessageDescriptor, words: &Words) -> Vec<u8> {
    let wire = descriptors::message(rng, input, words, Care::Typed);
    let Ok(message) = DynamicMessage::decode(input.clone(), wire.as_slice()) else { return b"{}".to_vec() };
    let options = SerializeOptions::new().use_proto_field_name(rng.one_in(2)).stringify_64_bit_integers(rng.one_in(2));
    // Times out of range have no JSON form.
    let Ok(mut value) = message.serialize_with_options(serde_json::value::Serializer, &options) else {
        return b"{\"namespace\": \"default\"}".to_vec();
    };
    if rng.one_in(2) {
        change(rng, &mut value, 0);
    }
    if rng.one_in(50) {
        let depth = *rng.pick(DEPTHS);
        return [b"{\"filter\": ".repeat(depth), b"1".to_vec(), b"}".repeat(depth)].concat();
    }
    value.to_string().into_bytes()
}

#[test]
fn any_body_is_answered_with_success_or_a_reason() {
    let target = RefCell::new(Target::start());
    let make = |rng: &mut Rng, pool: &[Vec<u8>]| {
        if rng.one_in(4) {
            let (path, body) = split(rng.pick::<Vec<u8>>(pool));
            let mut changed = body.to_vec();
            mutate::change(rng, &mut changed, pool, WORDS);
            return joined(path, &changed);
        }
        let target = target.borrow();
        let method = rng.pick(&target.methods);
        joined(&path_of(method), &body(rng, &method.input(), &target.words))
    };
    Run::of("requests_json", 2_000).judge(make, |input| {
        let (path, body) = split(input);
        let mut target = target.borrow_mut();
        let Some(method) = target.method(path).cloned() else { return "no method".to_owned() };
        let answer = post(target.server.address, &target.key, path, body);
        let outcome = outcome(method.name(), body.len(), &answer);
        if answer.0 == 200 {
            let mut json = serde_json::Deserializer::from_slice(&answer.1);
            let decoded = DynamicMessage::deserialize(method.output(), &mut json).expect("an answer is of its type");
            target.hear(&decoded);
        }
        target.check_sometimes();
        outcome
    });
    target.borrow().check();
}
