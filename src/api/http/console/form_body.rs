//! Bodies of forms, which are read before anything is answered.
//!
//! A client over HTTP/2 that still sends its form when a refusal comes may take the end of its stream for an error, and
//! never show why it was refused.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use tonic::body::Body;

use super::query::PageQuery;
use tallystone_domain::limits::CONSOLE_FORM_BYTES_MAX;

/// How long the body of a form may take to arrive.
const FORM_WAIT: Duration = Duration::from_secs(10);

/// The request with its form in memory. A form that is too long or does not arrive stays one that cannot be read.
pub async fn with_whole_form(request: Request<Body>) -> Request<Body> {
    if request.method() != Method::POST {
        return request;
    }
    let (parts, body) = request.into_parts();
    let body = match read(body).await {
        Some(bytes) => Body::new(Full::new(bytes)),
        None => Body::new(Limited::new(Full::new(Bytes::from_static(b"?")), 0)),
    };
    Request::from_parts(parts, body)
}

/// Reads the body of a form; none if it did not arrive in full.
pub async fn form_of(request: Request<Body>) -> Option<PageQuery> {
    let bytes = read(request.into_body()).await?;
    Some(PageQuery::of(Some(&String::from_utf8_lossy(&bytes))))
}

async fn read(body: Body) -> Option<Bytes> {
    let body = Limited::new(body, CONSOLE_FORM_BYTES_MAX).collect();
    Some(tokio::time::timeout(FORM_WAIT, body).await.ok()?.ok()?.to_bytes())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;

    use futures_util::{poll, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::sync::oneshot;

    use super::*;

    fn post(body: Body) -> Request<Body> {
        Request::post("/console/act").body(body).expect("a request")
    }

    #[tokio::test]
    async fn nothing_is_answered_before_the_form_has_arrived() {
        let (send, arrives) = oneshot::channel::<Bytes>();
        let frames = stream::once(async { Ok::<_, Infallible>(Frame::data(arrives.await.expect("it is sent"))) });
        let mut read = pin!(with_whole_form(post(Body::new(StreamBody::new(frames)))));
        assert!(poll!(&mut read).is_pending(), "its form is on the way");
        send.send(Bytes::from_static(b"do=purge")).expect("it is awaited");
        let form = form_of(read.await).await.expect("it arrived");
        assert_eq!(form.text("do"), "purge");
    }

    #[tokio::test]
    async fn a_form_that_is_too_long_cannot_be_read_later_either() {
        let long = Bytes::from(vec![b'a'; CONSOLE_FORM_BYTES_MAX + 1]);
        assert!(form_of(with_whole_form(post(Body::new(Full::new(long)))).await).await.is_none());
        let longest = Bytes::from(vec![b'a'; CONSOLE_FORM_BYTES_MAX]);
        assert!(form_of(with_whole_form(post(Body::new(Full::new(longest)))).await).await.is_some());
    }
}
