//! Requests as protobuf over gRPC. An input is the path of a method, a new line, and the message in its wire form.

use std::cell::RefCell;
use std::time::Duration;

use prost_reflect::DynamicMessage;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use super::{Target, path_of};
use crate::descriptors::{self, Care};
use crate::driver::{Rng, Run, joined, split};
use crate::mutate;

/// A call that is not answered by then hangs: the deadline that it names is far below.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
/// Long enough for a call to do its work, short enough for those that wait for messages.
const DEADLINE: &str = "400m";

/// Messages as the bytes that they are.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(into, &item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let length = bytes::Buf::remaining(from);
        Ok(Some(bytes::Buf::copy_to_bytes(from, length).to_vec()))
    }
}

async fn call(channel: &Channel, key: &str, path: &str, message: &[u8]) -> Result<Vec<u8>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::try_from(path).map_err(|error| Status::unimplemented(error.to_string()))?;
    let mut request = Request::new(message.to_vec());
    request.metadata_mut().insert("grpc-timeout", DEADLINE.parse().expect("a literal is a header"));
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().expect("a key is a header"));
    Ok(client.unary(request, path, Raw).await?.into_inner())
}

/// The outcome of a call; fails if it is none that a caller may get.
fn outcome(method: &str, answer: Result<Vec<u8>, Status>) -> (String, Option<Vec<u8>>) {
    let status = match answer {
        Ok(answer) => return (format!("{method} OK"), Some(answer)),
        Err(status) => status,
    };
    let code = status.code();
    assert!(
        !matches!(code, Code::Internal | Code::Unknown | Code::DataLoss | Code::Unavailable),
        "{method} answers {code:?}: {}",
        status.message()
    );
    // The client's own clock may end the call before the server's answer is there.
    if matches!(code, Code::DeadlineExceeded | Code::Cancelled) {
        return (format!("{method} late"), None);
    }
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("{method} refuses with a reason: {status:?}"));
    assert_eq!(info.domain, "tallystone", "{method}");
    (format!("{method} {}", info.reason), None)
}

/// A stranger with a valid key, on a connection of its own.
pub struct Caller {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Caller {
    /// Connects to a server.
    pub fn connect(url: String) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        let endpoint = Endpoint::from_shared(url).expect("an address");
        let channel = runtime.block_on(endpoint.connect()).expect("the server takes connections");
        Self { runtime, channel }
    }

    /// Sends an input, and answers its outcome.
    pub fn judge(&self, target: &mut Target, input: &[u8]) -> String {
        let (path, message) = split(input);
        let Some(method) = target.method(path).cloned() else { return "no method".to_owned() };
        let answer = self.runtime.block_on(async {
            let answered = tokio::time::timeout(ANSWERED_WITHIN, call(&self.channel, &target.key, path, message)).await;
            answered.unwrap_or_else(|_elapsed| panic!("{path} is not answered within {ANSWERED_WITHIN:?}"))
        });
        let (outcome, answer) = outcome(method.name(), answer);
        if let Some(answer) = answer {
            let decoded = DynamicMessage::decode(method.output(), answer.as_slice()).expect("an answer is of its type");
            target.hear(&decoded);
        }
        target.check_sometimes();
        outcome
    }
}

/// An input: a change of a kept one, or a message of a random method.
pub fn make(target: &Target, rng: &mut Rng, pool: &[Vec<u8>]) -> Vec<u8> {
    if !pool.is_empty() && rng.one_in(5) {
        let (path, message) = split(rng.pick::<Vec<u8>>(pool));
        let mut changed = message.to_vec();
        mutate::change(rng, &mut changed, pool, &["default", "views", "jobs"]);
        return joined(path, &changed);
    }
    let method = rng.pick(&target.methods);
    let care = if rng.one_in(4) { Care::Wild } else { Care::Typed };
    joined(&path_of(method), &descriptors::message(rng, &method.input(), &target.words, care))
}

#[test]
fn any_message_is_answered_with_success_or_a_reason() {
    let target = RefCell::new(Target::start());
    let caller = Caller::connect(target.borrow().server.url());
    Run::of("requests_protobuf", 2_000)
        .judge(|rng, pool| make(&target.borrow(), rng, pool), |input| caller.judge(&mut target.borrow_mut(), input));
    target.borrow().check();
}
