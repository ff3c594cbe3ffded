//! The body of a streaming answer: it ends at the deadline, at the drain or at a panic, and records the call's metrics.
//!
//! Invariant: the stream always ends with a status, and is recorded exactly once, also when the client goes away.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::http::metrics::MethodMetrics;
use tallystone_engine::access::{AccountPermit, Identity, PrincipalAccount};
use tallystone_ports::Clock;

/// The conditions that end a stream, and its metrics.
pub struct StreamMonitor {
    /// The client's deadline, and the status after it.
    pub deadline: Option<(Pin<Box<Sleep>>, Status)>,
    /// The drain, for streams that do not end by themselves, and the status after it.
    pub drain: Option<(Pin<Box<WaitForCancellationFutureOwned>>, Status)>,
    /// The end of the caller's key, and the status after it, which says why it ended.
    pub key_end: Option<(Arc<Identity>, Pin<Box<WaitForCancellationFutureOwned>>, KeyEndStatus)>,
    /// Its place within the quota of its caller's key, for as long as it is open.
    pub place: Option<AccountPermit>,
    /// The status after a panic.
    pub panicked: Status,
    /// The metrics that record the stream.
    pub metrics: MethodMetrics,
    pub clock: Arc<dyn Clock>,
    /// The time at which the call began.
    pub began: Duration,
}

/// The status of a stream whose caller's key ended.
pub struct KeyEndStatus {
    /// The secret is not valid any more.
    pub ended: Status,
    /// Only the grants differ.
    pub regranted: Status,
}

impl KeyEndStatus {
    fn of(&self, identity: &Identity) -> Status {
        if identity.is_regranted() { self.regranted.clone() } else { self.ended.clone() }
    }
}

pub struct StreamBody {
    inner: Body,
    monitor: StreamMonitor,
    ended: bool,
}

impl StreamBody {
    pub fn new(inner: Body, watch: StreamMonitor) -> Self {
        Self { inner, monitor: watch, ended: false }
    }

    fn record(&mut self, code: Code) {
        if !self.ended {
            self.ended = true;
            self.monitor.metrics.record(code, self.monitor.clock.elapsed().saturating_sub(self.monitor.began));
        }
    }

    fn end(&mut self, status: &Status) -> Frame<Bytes> {
        self.record(status.code());
        self.monitor.place = None;
        self.inner = Body::empty();
        let mut trailers = HeaderMap::new();
        if status.add_header(&mut trailers).is_err() {
            trailers.insert(Status::GRPC_STATUS, (status.code() as i32).into());
        }
        Frame::trailers(trailers)
    }

    fn poll_termination(&mut self, cx: &mut Context<'_>) -> Option<Status> {
        if let Some((sleep, status)) = &mut self.monitor.deadline
            && sleep.as_mut().poll(cx).is_ready()
        {
            return Some(status.clone());
        }
        if let Some((identity, ended, status)) = &mut self.monitor.key_end
            && ended.as_mut().poll(cx).is_ready()
        {
            return Some(status.of(identity));
        }
        if let Some((drain, status)) = &mut self.monitor.drain
            && drain.as_mut().poll(cx).is_ready()
        {
            return Some(status.clone());
        }
        None
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        // A stream that always has something to send ends too.
        if let Some((identity, _, status)) = this.monitor.key_end.take_if(|(identity, ..)| identity.has_ended()) {
            return Poll::Ready(Some(Ok(this.end(&status.of(&identity)))));
        }
        // It works on behalf of its caller.
        let account = this.monitor.key_end.as_ref().map(|(identity, ..)| &identity.account);
        let inner = &mut this.inner;
        let poll = || PrincipalAccount::poll_on_behalf(account, || Pin::new(inner).poll_frame(cx));
        let polled = catch_unwind(AssertUnwindSafe(poll));
        match polled {
            Ok(Poll::Ready(frame)) => {
                match &frame {
                    Some(Ok(frame)) => {
                        if let Some(trailers) = frame.trailers_ref() {
                            this.record(Status::from_header_map(trailers).map_or(Code::Ok, |status| status.code()));
                        }
                    }
                    Some(Err(status)) => this.record(status.code()),
                    None => this.record(Code::Ok),
                }
                Poll::Ready(frame)
            }
            Ok(Poll::Pending) => match this.poll_termination(cx) {
                Some(status) => Poll::Ready(Some(Ok(this.end(&status)))),
                None => Poll::Pending,
            },
            Err(_panic) => {
                this.monitor.metrics.panicked();
                let status = this.monitor.panicked.clone();
                Poll::Ready(Some(Ok(this.end(&status))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        // A body that ended with its headers has not been recorded yet; any other unrecorded body was abandoned by its
        // client.
        let code = if http_body::Body::is_end_stream(&self.inner) { Code::Ok } else { Code::Cancelled };
        self.record(code);
    }
}
