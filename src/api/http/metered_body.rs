//! A body whose bytes are counted against the quota of its caller's key.
//!
//! Bytes that come or go are counted as they pass: whether more calls are admitted is decided before the next one is
//! read. A stream that a client sends is read no faster than its quota allows, since nothing of it can be refused.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use tallystone_domain::access::KeyQuota;
use tallystone_engine::access::{Identity, PrincipalAccount};
use tallystone_ports::Clock;

/// The account that pays for the bytes of a call.
#[derive(Clone)]
pub struct ByteMeter {
    account: Arc<PrincipalAccount>,
    clock: Arc<dyn Clock>,
}

/// The body of a request or of an answer.
struct MeteredBody {
    inner: Body,
    meter: ByteMeter,
    /// Whether more is read only when the quota allows.
    paced: bool,
    pause: Option<Pin<Box<Sleep>>>,
}

impl ByteMeter {
    /// The meter of a call; none if nothing is to be counted. A stream has one in case its quota changes.
    pub fn of(request: &Request<Body>, streaming: bool, clock: &Arc<dyn Clock>) -> Option<Self> {
        Self::of_caller(request.extensions().get::<Arc<Identity>>()?, streaming, clock)
    }

    /// The meter of what a caller is known to ask for.
    pub fn of_caller(identity: &Identity, streaming: bool, clock: &Arc<dyn Clock>) -> Option<Self> {
        let account = &identity.account;
        let is_limited = streaming || account.limit(KeyQuota::BytesPerSecond).is_some();
        is_limited.then(|| Self { account: Arc::clone(account), clock: Arc::clone(clock) })
    }

    /// Counts the body of a request.
    pub fn count_request(self, body: Body, streaming: bool) -> Body {
        Body::new(MeteredBody { inner: body, meter: self, paced: streaming, pause: None })
    }

    /// Counts the body of an answer.
    pub fn count_answer(self, body: Body) -> Body {
        Body::new(MeteredBody { inner: body, meter: self, paced: false, pause: None })
    }
}

impl http_body::Body for MeteredBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let wait = this.meter.account.charge_bytes(data.len(), &*this.meter.clock);
            this.pause = wait.filter(|_| this.paced).map(|wait| Box::pin(sleep(wait)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
