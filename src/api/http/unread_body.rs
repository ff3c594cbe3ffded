//! Bodies of requests that are refused before they are read.
//!
//! A client over HTTP/2 that still sends its body when a refusal comes may take the end of its stream for an error, and
//! never show why it was refused. Clients of gRPC do not.
//!
//! A client that waits for `100 Continue` sends no body before it is asked for it (RFC 9110, section 10.1.1). It is not
//! asked then.

use std::time::Duration;

use http::{HeaderMap, Request, header};
use http_body::Body as HttpBody;
use http_body_util::BodyExt as _;

/// The most bytes that are read of such a body.
const DISCARDED_BYTES: usize = 64 * 1024;
/// How long they may take to arrive.
const DISCARD_WAIT: Duration = Duration::from_millis(500);
/// A client of which nothing comes for so long waits for its answer.
const DISCARD_PAUSE: Duration = Duration::from_millis(100);

/// Whether a client sends its body only once it is asked for it.
fn waits_to_be_asked(sent: &HeaderMap) -> bool {
    sent.get(header::EXPECT).is_some_and(|expected| expected.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Reads the rest of a body, as far as it is short and comes soon, and throws it away. Asks no client for a body.
pub async fn discard(request: Request<impl HttpBody>) {
    discard_up_to(request, DISCARDED_BYTES, DISCARD_WAIT).await;
}

/// Does the same with a body whose client does not read an answer while its upload goes on: up to a number of bytes,
/// within a time, and no longer than something comes.
pub async fn discard_up_to(request: Request<impl HttpBody>, bytes_max: usize, within: Duration) {
    if waits_to_be_asked(request.headers()) {
        return;
    }
    let read = async {
        let mut body = std::pin::pin!(request.into_body());
        let mut bytes = 0_usize;
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(DISCARD_PAUSE, body.frame()).await {
            bytes += frame.data_ref().map_or(0, bytes::Buf::remaining);
            if bytes > bytes_max {
                break;
            }
        }
    };
    // A client that is slower sees the end of its stream.
    let _ = tokio::time::timeout(within, read).await;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use futures_util::{poll, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_refusal_waits_for_a_body_that_is_on_its_way() {
        let (send, arrives) = oneshot::channel::<Bytes>();
        let frames = stream::once(async { Ok::<_, Infallible>(Frame::data(arrives.await.expect("it is sent"))) });
        let mut discarded = pin!(discard(Request::new(StreamBody::new(frames))));
        assert!(poll!(&mut discarded).is_pending());
        send.send(Bytes::from_static(b"{}")).expect("it is awaited");
        discarded.await;
    }

    #[tokio::test]
    async fn a_client_that_sends_nothing_is_not_waited_for() {
        let frames = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        discard(Request::new(StreamBody::new(frames))).await;
    }

    #[tokio::test]
    async fn no_more_is_read_of_an_endless_body_than_a_short_one_has() {
        let read = AtomicUsize::new(0);
        let frame = |()| {
            read.fetch_add(1, Ordering::Relaxed);
            async { Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[0; 1_024]))), ())) }
        };
        discard(Request::new(StreamBody::new(Box::pin(stream::unfold((), frame))))).await;
        assert_eq!(read.load(Ordering::Relaxed), DISCARDED_BYTES / 1_024 + 1);
    }
}
