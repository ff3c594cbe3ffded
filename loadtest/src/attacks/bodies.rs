//! Whole requests that cost far more to read than to send.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use prost::Message as _;
use tallystone_client::proto::queue::v1 as pb;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};

use super::{Site, flood, queues, raw};
use crate::client::reason_of;

/// Longer than a server may take for one such request, so that its own deadline is what ends it.
const DEADLINE: Duration = Duration::from_secs(5);
const CALLS_MAX: u64 = 10_000;

/// Messages as the bytes that they are; answers are dropped.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = ();
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
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put(into, item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        bytes::Buf::advance(from, bytes::Buf::remaining(from));
        Ok(Some(()))
    }
}

/// A batch of messages of no byte each: two bytes of the request for each of them.
pub async fn empty_messages(site: &Site, clients: usize) -> Result<()> {
    let mut body = pb::BatchEnqueueRequest { queue: queues::NAME.to_owned(), messages: Vec::new() }.encode_to_vec();
    let empty = [0x12, 0x00];
    body.extend(empty.iter().copied().cycle().take((raw::BODY_BYTES - body.len() - 16) / 2 * 2));
    let body = Bytes::from(body);
    let connections = site.connections(clients).await?;
    flood(site, clients, CALLS_MAX, |number| {
        let mut client = tonic::client::Grpc::new(connections.channel(number as usize));
        let body = body.clone();
        async move {
            client.ready().await.map_err(|error| error.to_string())?;
            let path = PathAndQuery::from_static("/tallystone.queue.v1.QueueService/BatchEnqueue");
            let mut request = Request::new(body);
            request.set_timeout(DEADLINE);
            client.unary(request, path, Raw).await.map(|_answer| ()).map_err(|status| reason_of(&status))
        }
    })
    .await;
    Ok(())
}

/// JSON whose unknown field is as long as a body may be.
pub async fn unknown_field(site: &Site, clients: usize) -> Result<()> {
    let body = format!("{{\"namespace\": \"default\", \"{}\": 1}}", "x".repeat(raw::BODY_BYTES - 64));
    let body = Bytes::from(body);
    flood(site, clients, CALLS_MAX, |_| {
        let body = body.clone();
        async move {
            let answer = post(site, &body).await.map_err(|error| error.kind().to_string())?;
            let size = if answer.len() > 64 * 1024 { "answers above 64 KiB" } else { "short answers" };
            site.tell(size);
            Ok(())
        }
    })
    .await;
    Ok(())
}

async fn post(site: &Site, body: &[u8]) -> std::io::Result<Vec<u8>> {
    let address = site.address;
    let authorization = site.bearer().map(|bearer| format!("authorization: {bearer}\r\n")).unwrap_or_default();
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "POST /tallystone.counter.v1.CounterService/GetCount HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         {authorization}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    let _ = stream.write_all(body).await; // a server may refuse it before the end
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}
