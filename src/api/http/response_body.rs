//! Large responses: sent in chunks, counted until they are written, and reset if the client does not read them.
//!
//! The permit of a response belongs to its bytes: the last written chunk returns it. A client that opens no window for
//! a response, or reads none of it, loses its stream after a while. Invariant: a stream produces more only while its
//! connection has capacity.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use http_body_util::Full;
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use crate::http::buffers::{BufferPermit, Caller};
use tallystone_domain::limits::ANSWER_PIECE_BYTES;

/// Bytes with a permit.
struct PermittedBytes {
    bytes: Bytes,
    _place: BufferPermit,
}

impl AsRef<[u8]> for PermittedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The body of a large or streaming answer.
pub struct ResponseBody {
    /// The complete bytes that are not sent yet.
    unsent: Bytes,
    inner: Body,
    /// Of a stream: the connection whose capacity its messages need.
    caller: Option<Arc<Caller>>,
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    stall_tracking: Option<LargeResponseGuard>,
}

impl ResponseBody {
    /// A complete response, with the frames that follow it.
    pub fn complete(bytes: Bytes, mut place: Option<BufferPermit>, caller: &Caller, rest: Body) -> Self {
        if bytes.len() < ANSWER_PIECE_BYTES {
            return Self { unsent: bytes, inner: rest, caller: None, waiting: None, stall_tracking: None };
        }
        match &mut place {
            Some(place) => caller.resize_response(place, bytes.len()),
            None => place = caller.try_reserve_response(bytes.len()),
        }
        Self {
            unsent: with_permit(bytes, place),
            inner: rest,
            caller: None,
            waiting: None,
            stall_tracking: LargeResponseGuard::begin(),
        }
    }

    /// Creates the body of a stream of answers.
    pub fn stream(inner: Body, caller: Arc<Caller>) -> Self {
        Self { unsent: Bytes::new(), inner, caller: Some(caller), waiting: None, stall_tracking: None }
    }

    /// The next chunk of the complete bytes.
    fn next_chunk(&mut self) -> Bytes {
        let last = self.unsent.len() <= ANSWER_PIECE_BYTES;
        if let Some(pace) = &self.stall_tracking {
            pace.step();
        }
        if !last {
            return self.unsent.split_to(ANSWER_PIECE_BYTES);
        }
        // Copied, so that an unread last chunk does not keep all of them in memory.
        let piece = match self.stall_tracking {
            Some(_) => Bytes::copy_from_slice(&self.unsent),
            None => self.unsent.clone(),
        };
        self.unsent = Bytes::new();
        piece
    }

    /// Waits until the connection of a stream has capacity.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(caller) = &self.caller else { return Poll::Ready(()) };
        if self.waiting.is_none() && caller.has_response_capacity() {
            return Poll::Ready(());
        }
        let waiting = self.waiting.get_or_insert_with(|| {
            let caller = Arc::clone(caller);
            Box::pin(async move { caller.wait_for_response_capacity().await })
        });
        let waited = waiting.as_mut().poll(cx);
        if waited.is_ready() {
            self.waiting = None;
        }
        waited
    }
}

fn with_permit(bytes: Bytes, place: Option<BufferPermit>) -> Bytes {
    match place {
        Some(place) => Bytes::from_owner(PermittedBytes { bytes, _place: place }),
        None => bytes,
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.unsent.has_remaining() {
            return Poll::Ready(Some(Ok(Frame::data(this.next_chunk()))));
        }
        if this.caller.is_some() {
            this.stall_tracking = None;
        }
        if this.poll_capacity(cx).is_pending() {
            return Poll::Pending;
        }
        let frame = match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => frame,
            other => return other,
        };
        match (&this.caller, frame.into_data()) {
            (Some(caller), Ok(data)) if data.len() >= ANSWER_PIECE_BYTES => {
                let place = caller.try_reserve_response(data.len());
                this.unsent = with_permit(data, place);
                this.stall_tracking = LargeResponseGuard::begin();
                Poll::Ready(Some(Ok(Frame::data(this.next_chunk()))))
            }
            (_, Ok(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
            (_, Err(trailers)) => Poll::Ready(Some(Ok(trailers))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, hand) = (self.inner.size_hint(), self.unsent.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + hand);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + hand);
        }
        hint
    }
}

/// The progress of a task with responses: its large responses, and the chunks that were read.
#[derive(Debug, Default)]
struct SendProgress {
    answers: AtomicU64,
    pieces: AtomicU64,
}

thread_local! {
    /// The progress of the polled task.
    static TRACK: Cell<Option<Arc<SendProgress>>> = const { Cell::new(None) };
}

/// A large response in flight.
struct LargeResponseGuard(Arc<SendProgress>);

impl LargeResponseGuard {
    /// Starts one in the polled task; none in a task without a guard.
    fn begin() -> Option<Self> {
        let track = TRACK.take()?;
        TRACK.set(Some(Arc::clone(&track)));
        track.answers.fetch_add(1, Ordering::Relaxed);
        Some(Self(track))
    }

    fn step(&self) {
        self.0.pieces.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for LargeResponseGuard {
    fn drop(&mut self) {
        self.0.answers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A task that ends when a large response in it stalls for too long.
pub struct StallGuard<F> {
    inner: Pin<Box<F>>,
    track: Arc<SendProgress>,
    /// The chunks at the last check, and the deadline for another one.
    stall_check: Option<(u64, Pin<Box<Sleep>>)>,
    stall_timeout: Duration,
    resets: Counter,
}

impl<F> StallGuard<F> {
    /// Guards a task. Resets are counted.
    pub fn new(inner: F, pieces_within: Duration, resets: Counter) -> Self {
        Self { inner: Box::pin(inner), track: Arc::default(), stall_check: None, stall_timeout: pieces_within, resets }
    }

    /// Returns the wrapped task.
    pub fn inner(&mut self) -> Pin<&mut F> {
        self.inner.as_mut()
    }
}

impl<F: Future> Future for StallGuard<F> {
    /// None if the guard ended the task.
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let this = &mut *self;
        let outer = TRACK.replace(Some(Arc::clone(&this.track)));
        let polled = this.inner.as_mut().poll(cx);
        TRACK.set(outer);
        if let Poll::Ready(output) = polled {
            return Poll::Ready(Some(output));
        }
        if this.track.answers.load(Ordering::Relaxed) == 0 {
            this.stall_check = None;
            return Poll::Pending;
        }
        let pieces = this.track.pieces.load(Ordering::Relaxed);
        let within = this.stall_timeout;
        let (seen, timer) = this.stall_check.get_or_insert_with(|| (pieces, Box::pin(sleep(within))));
        if *seen != pieces {
            *seen = pieces;
            timer.set(sleep(within));
        }
        if timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        this.resets.inc();
        Poll::Ready(None)
    }
}

/// An answer with a body of a content type.
pub fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(body.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An answer with plain text.
pub fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    with_type(status, "text/plain; charset=utf-8", text)
}
