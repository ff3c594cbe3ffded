//! HTTP/2 streams that no well-behaved library sends: windows of 0, bodies that never end or take for ever.

use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::{BufMut as _, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderValue, Request};
use prost::Message as _;
use tallystone_client::proto::queue::v1 as pb;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use super::{Site, queues};

/// The most bytes of a message that servers take.
pub const BODY_BYTES: usize = 4 * 1024 * 1024;
/// A stream that the server does not let open by then counts as refused.
const OPENED_WITHIN: Duration = Duration::from_secs(5);
const WINDOW_DEFAULT: u32 = 65_535;

/// A connection whose streams have this window for answers; its own task goes on in `tasks`.
pub async fn connect(site: &Site, window: u32, tasks: &mut JoinSet<()>) -> Result<SendRequest<Bytes>> {
    let stream = TcpStream::connect(site.address).await.context("connecting")?;
    let mut builder = h2::client::Builder::new();
    let (sender, connection) = builder.initial_window_size(window).handshake(stream).await.context("a handshake")?;
    tasks.spawn(async move {
        let _ = connection.await; // how the server ends it is what the attack counts elsewhere
    });
    Ok(sender)
}

/// A message of gRPC.
pub fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("messages of attacks are small"));
    framed.put_slice(message);
    framed.freeze()
}

/// Opens a stream of a method.
async fn open(
    site: &Site,
    sender: &SendRequest<Bytes>,
    method: &str,
    grpc_timeout: &'static str,
    ends: bool,
) -> Result<(ResponseFuture, SendStream<Bytes>)> {
    let mut request = Request::post(format!("http://{}{method}", site.address))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", HeaderValue::from_static(grpc_timeout));
    if let Some(bearer) = site.bearer() {
        request = request.header("authorization", bearer);
    }
    let request = request.body(())?;
    let mut ready = timeout(OPENED_WITHIN, sender.clone().ready()).await.context("no stream may be opened")??;
    Ok(ready.send_request(request, ends)?)
}

/// Asks for answers and takes none: their windows are 0.
pub async fn unread_answers(site: &Site, streams: usize) -> Result<()> {
    let mut tasks = JoinSet::new();
    let sender = connect(site, 0, &mut tasks).await?;
    let request = pb::PeekMessagesRequest { queue: queues::NAME.to_owned(), max_messages: 100 };
    let body = framed(&request.encode_to_vec());
    let mut held = Vec::new();
    for _ in 0..streams {
        if site.is_over() {
            break;
        }
        match open(site, &sender, "/tallystone.queue.v1.QueueService/PeekMessages", "1H", false).await {
            Ok((answer, mut stream)) => {
                stream.send_data(body.clone(), true)?;
                held.push((answer, stream));
                site.tell("asked");
            }
            Err(error) => {
                site.tell(format!("{error:#}"));
                break;
            }
        }
    }
    let mut heads = JoinSet::new();
    for (answer, stream) in held {
        heads.spawn(async move {
            let answer = answer.await.ok()?;
            Some((answer.into_body(), stream))
        });
    }
    let mut bodies: Vec<(RecvStream, SendStream<Bytes>)> = Vec::new();
    while let Ok(Some(head)) = tokio::time::timeout_at(site.until(), heads.join_next()).await {
        if let Ok(Some(body)) = head {
            bodies.push(body);
            site.tell("answered and left");
        }
    }
    sleep_until(site.until()).await;
    Ok(())
}

/// Sends as much of a body as the server takes.
async fn send(stream: &mut SendStream<Bytes>, mut rest: Bytes) -> Result<()> {
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        let allowed = std::future::poll_fn(|ctx| stream.poll_capacity(ctx)).await.context("the stream was reset")??;
        if allowed > 0 {
            stream.send_data(rest.split_to(allowed.min(rest.len())), false)?;
        }
    }
    Ok(())
}

/// Sends all of a large message but its end, many times on one connection.
pub async fn unfinished(site: &Site, streams: usize) -> Result<()> {
    let mut tasks = JoinSet::new();
    let sender = connect(site, WINDOW_DEFAULT, &mut tasks).await?;
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(u32::try_from(BODY_BYTES - 16).expect("4 MiB"));
    message.resize(BODY_BYTES - 1_024, b'x');
    let message = message.freeze();
    let held = async |_: usize| {
        let begun = open(site, &sender, "/tallystone.queue.v1.QueueService/Enqueue", "1H", false).await;
        let (_answer, mut stream) = begun?;
        let sent = tokio::time::timeout_at(site.until(), send(&mut stream, message.clone())).await;
        site.tell(match sent {
            Ok(Ok(())) => "held",
            Ok(Err(_)) => "reset",
            Err(_elapsed) => "not taken",
        });
        sleep_until(site.until()).await;
        anyhow::Ok(())
    };
    for outcome in futures_util::future::join_all((0..streams).map(held)).await {
        if let Err(error) = outcome {
            site.tell(format!("{error:#}"));
        }
    }
    Ok(())
}

/// Sends a byte a second with the longest time limit that a header can hold.
pub async fn slow_bodies(site: &Site, streams: usize) -> Result<()> {
    let mut tasks = JoinSet::new();
    let sender = connect(site, WINDOW_DEFAULT, &mut tasks).await?;
    let slow = async |_: usize| {
        let begun = open(site, &sender, "/tallystone.queue.v1.QueueService/Enqueue", "99999999H", false).await;
        let (answer, mut stream) = begun?;
        send(&mut stream, Bytes::from_static(&[0, 0, 16, 0, 0])).await?;
        site.tell("held");
        let trickle = async {
            while !site.is_over() {
                sleep(Duration::from_secs(1)).await;
                send(&mut stream, Bytes::from_static(b"x")).await?;
            }
            anyhow::Ok(())
        };
        tokio::select! {
            ended = trickle => site.tell(if ended.is_ok() { "held to the end" } else { "reset" }),
            _ = answer => site.tell("answered before its end"),
        }
        anyhow::Ok(())
    };
    for outcome in futures_util::future::join_all((0..streams).map(slow)).await {
        if let Err(error) = outcome {
            site.tell(format!("{error:#}"));
        }
    }
    Ok(())
}
