//! The body of a gRPC request on its way to the decoder: whole messages only, counted before they are built.
//!
//! A message in one piece passes unchanged. A message in several pieces takes a permit for all its bytes as soon as its
//! length is known, and must keep arriving. Invariant: the decoder never sees a message with too many items.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use crate::errors::ApiError;
use crate::http::buffers::{BufferPermit, Caller, FRAME_HEADER_BYTES};
use crate::http::list_limits::ListLimits;
use tallystone_domain::Reason;
use tallystone_domain::limits::BODY_BYTES_MAX;
use tallystone_engine::call_limiter::CallPlace;

pub type ResponsePermitSlot = Arc<Mutex<Option<BufferPermit>>>;

/// The pending permit of a response. It is taken after the request has arrived, so a stalled request holds none.
pub struct PendingResponsePermit {
    bytes: Option<u32>,
    room: ResponsePermitSlot,
    waiting: Option<Pin<Box<dyn Future<Output = Option<BufferPermit>> + Send>>>,
}

impl PendingResponsePermit {
    /// Requests a permit for a number of bytes; or only waits for capacity, if the response may take long.
    pub fn new(bytes: Option<u32>, room: &ResponsePermitSlot) -> Self {
        Self { bytes, room: Arc::clone(room), waiting: None }
    }

    fn poll(&mut self, caller: &Arc<Caller>, cx: &mut Context<'_>) -> Poll<()> {
        let bytes = self.bytes;
        let waiting = self.waiting.get_or_insert_with(|| {
            let caller = Arc::clone(caller);
            Box::pin(async move {
                match bytes {
                    Some(bytes) => Some(caller.reserve_response(bytes as usize).await),
                    None => {
                        caller.wait_for_response_capacity().await;
                        None
                    }
                }
            })
        });
        let place = ready!(waiting.as_mut().poll(cx));
        *self.room.lock() = place;
        Poll::Ready(())
    }
}

type RequestPermitFuture = Pin<Box<dyn Future<Output = Result<BufferPermit, ApiError>> + Send>>;

/// The body of a gRPC request.
pub struct RequestBody {
    inner: Body,
    caller: Arc<Caller>,
    lists: Option<Arc<ListLimits>>,
    /// The received bytes of incomplete messages.
    partial: BytesMut,
    /// The permit for the message in `partial`, or for the last complete one.
    permit: Option<BufferPermit>,
    waiting: Option<RequestPermitFuture>,
    /// Ends a stream that stalls in the middle of a message.
    stall_timer: Option<Pin<Box<Sleep>>>,
    /// Whether the rest passes unchanged, for the decoder to refuse.
    pass_through: bool,
    /// Of a unary call: the permit of its response, taken before its request is passed on.
    response_permit: Option<PendingResponsePermit>,
    /// Of a unary call: its place among the calls in progress, taken when its request is passed on.
    place: Option<Arc<CallPlace>>,
    /// The request that waits for that permit.
    ready: Option<Bytes>,
}

impl RequestBody {
    /// Wraps a body and counts its messages.
    pub fn new(
        inner: Body,
        caller: Arc<Caller>,
        lists: Option<Arc<ListLimits>>,
        wanted: Option<PendingResponsePermit>,
        place: Option<Arc<CallPlace>>,
    ) -> Self {
        let part = BytesMut::new();
        let (permit, waiting, silence, ready) = (None, None, None, None);
        Self {
            inner,
            caller,
            lists,
            partial: part,
            permit,
            waiting,
            stall_timer: silence,
            pass_through: false,
            response_permit: wanted,
            place,
            ready,
        }
    }

    fn check(&self, message: &[u8]) -> Result<(), Status> {
        self.lists.as_ref().map_or(Ok(()), |lists| lists.check(message)).map_err(Status::from)
    }

    /// The bytes of the complete, checked messages at the beginning.
    fn complete_messages_bytes(&self, data: &[u8]) -> Result<usize, Status> {
        let mut at = 0;
        while let Some(bytes) = frame_bytes(&data[at..]).filter(|bytes| *bytes <= data.len() - at) {
            self.check(&data[at + FRAME_HEADER_BYTES..at + bytes])?;
            at += bytes;
        }
        Ok(at)
    }

    /// Adds bytes. Returns complete messages, if there are any now.
    fn take(&mut self, mut data: Bytes) -> Result<Option<Bytes>, Status> {
        if self.pass_through {
            return Ok(Some(data));
        }
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(&data);
            return self.next();
        }
        let whole = self.complete_messages_bytes(&data)?;
        if whole < data.len() {
            self.partial.extend_from_slice(&data.split_off(whole));
        }
        if whole == 0 { self.next() } else { Ok(Some(data)) }
    }

    /// The next complete message of several pieces.
    fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(bytes) = frame_bytes(&self.partial) else { return Ok(None) };
        if bytes > BODY_BYTES_MAX + FRAME_HEADER_BYTES {
            self.pass_through = true;
            return Ok(Some(self.partial.split().freeze()));
        }
        if self.partial.len() < bytes {
            return Ok(None);
        }
        self.check(&self.partial[FRAME_HEADER_BYTES..bytes])?;
        Ok(Some(self.partial.split_to(bytes).freeze()))
    }

    /// Takes the permit for the incomplete message.
    fn poll_permit(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let Some(bytes) = frame_bytes(&self.partial).filter(|_| self.permit.is_none() && !self.pass_through) else {
            return Poll::Ready(Ok(()));
        };
        let caller = &self.caller;
        let waiting = self.waiting.get_or_insert_with(|| {
            let caller = Arc::clone(caller);
            Box::pin(async move { caller.reserve_request(bytes).await })
        });
        let taken = ready!(waiting.as_mut().poll(cx));
        self.waiting = None;
        self.permit = Some(taken?);
        Poll::Ready(Ok(()))
    }

    /// Whether the rest of a message has stalled for too long.
    fn has_stalled(&mut self, cx: &mut Context<'_>) -> bool {
        if self.partial.is_empty() {
            return false;
        }
        let most = self.caller.unfinished_max;
        let silence = self.stall_timer.get_or_insert_with(|| Box::pin(sleep(most)));
        silence.as_mut().poll(cx).is_ready()
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // The decoder has finished the message before.
        if self.waiting.is_none() && self.partial.len() < FRAME_HEADER_BYTES {
            self.permit = None;
        }
        if let Some(data) = self.next()? {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        loop {
            ready!(self.poll_permit(cx))?;
            let frame = match Pin::new(&mut self.inner).poll_frame(cx) {
                Poll::Ready(Some(frame)) => frame?,
                Poll::Ready(None) => {
                    // The stream was cut off; the decoder reports it.
                    let rest = self.partial.split().freeze();
                    let rest = (!rest.is_empty()).then(|| Ok(Frame::data(rest)));
                    return Poll::Ready(rest);
                }
                Poll::Pending if self.has_stalled(cx) => {
                    return Poll::Ready(Some(Err(stalled(self.caller.unfinished_max).into())));
                }
                Poll::Pending => return Poll::Pending,
            };
            self.stall_timer = None;
            match frame.into_data() {
                Ok(data) => {
                    if let Some(data) = self.take(data)? {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                }
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }
}

/// The bytes of the frame that begins here, if its length has arrived.
fn frame_bytes(data: &[u8]) -> Option<usize> {
    let length = data.get(1..FRAME_HEADER_BYTES)?.try_into().ok().map(u32::from_be_bytes)?;
    Some(FRAME_HEADER_BYTES + length as usize)
}

fn stalled(most: Duration) -> ApiError {
    let what = format!("no data arrived for {most:?}; the message was not processed: send it again");
    ApiError::new(Reason::DeadlineExceeded, what).without_effect()
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let data = match this.ready.take() {
            Some(data) => data,
            None => match ready!(this.poll_data(cx)).transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => data,
                Some(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
                None => return Poll::Ready(None),
            },
        };
        if let Some(wanted) = &mut this.response_permit
            && wanted.poll(&this.caller, cx).is_pending()
        {
            this.ready = Some(data);
            return Poll::Pending;
        }
        this.response_permit = None;
        if let Some(place) = this.place.take() {
            place.begin();
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.partial.is_empty() && self.ready.is_none() && self.inner.is_end_stream()
    }
}
