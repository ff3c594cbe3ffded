//! Large answers on their way to a client: handed on in pieces, counted until they are gone, reset when nobody takes them.
//!
//! The place of an answer belongs to its bytes: the last piece that is written gives it back. A client that opens no window
//! for an answer, or reads none of it, loses its stream after a while, and with it the bytes. Invariant: a stream is asked
//! for more only while its connection may hold more.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use crate::api::http::buffers::{Caller, Place};
use crate::domain::limits::ANSWER_PIECE_BYTES;

/// Bytes that hold a place.
struct Counted {
    bytes: Bytes,
    _place: Place,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The body.
pub struct AnswerBody {
    /// What was made and not handed on.
    hand: Bytes,
    inner: Body,
    /// Of a stream: whose room its messages need.
    caller: Option<Arc<Caller>>,
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pace: Option<Pace>,
}

impl AnswerBody {
    /// An answer whose bytes are there, with what follows them.
    pub fn made(bytes: Bytes, mut place: Option<Place>, caller: &Caller, rest: Body) -> Self {
        if bytes.len() < ANSWER_PIECE_BYTES {
            return Self { hand: bytes, inner: rest, caller: None, waiting: None, pace: None };
        }
        match &mut place {
            Some(place) => caller.resize_answer(place, bytes.len()),
            None => place = caller.answer_place_now(bytes.len()),
        }
        Self { hand: counted(bytes, place), inner: rest, caller: None, waiting: None, pace: Pace::begin() }
    }

    /// A stream of answers.
    pub fn stream(inner: Body, caller: Arc<Caller>) -> Self {
        Self { hand: Bytes::new(), inner, caller: Some(caller), waiting: None, pace: None }
    }

    /// The next piece of what was made.
    fn piece(&mut self) -> Bytes {
        let last = self.hand.len() <= ANSWER_PIECE_BYTES;
        if let Some(pace) = &self.pace {
            pace.step();
        }
        if !last {
            return self.hand.split_to(ANSWER_PIECE_BYTES);
        }
        // Copied, so that a client that leaves a last piece behind does not hold all of them.
        let piece = match self.pace {
            Some(_) => Bytes::copy_from_slice(&self.hand),
            None => self.hand.clone(),
        };
        self.hand = Bytes::new();
        piece
    }

    /// Waits until the connection of a stream may hold more.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(caller) = &self.caller else { return Poll::Ready(()) };
        if self.waiting.is_none() && caller.has_answer_room() {
            return Poll::Ready(());
        }
        let waiting = self.waiting.get_or_insert_with(|| {
            let caller = Arc::clone(caller);
            Box::pin(async move { caller.answers_are_taken().await })
        });
        let waited = waiting.as_mut().poll(cx);
        if waited.is_ready() {
            self.waiting = None;
        }
        waited
    }
}

fn counted(bytes: Bytes, place: Option<Place>) -> Bytes {
    match place {
        Some(place) => Bytes::from_owner(Counted { bytes, _place: place }),
        None => bytes,
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.hand.has_remaining() {
            return Poll::Ready(Some(Ok(Frame::data(this.piece()))));
        }
        if this.caller.is_some() {
            this.pace = None;
        }
        if this.poll_room(cx).is_pending() {
            return Poll::Pending;
        }
        let frame = match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => frame,
            other => return other,
        };
        match (&this.caller, frame.into_data()) {
            (Some(caller), Ok(data)) if data.len() >= ANSWER_PIECE_BYTES => {
                let place = caller.answer_place_now(data.len());
                this.hand = counted(data, place);
                this.pace = Pace::begin();
                Poll::Ready(Some(Ok(Frame::data(this.piece()))))
            }
            (_, Ok(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
            (_, Err(trailers)) => Poll::Ready(Some(Ok(trailers))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.hand.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, hand) = (self.inner.size_hint(), self.hand.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + hand);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + hand);
        }
        hint
    }
}

/// What the task of a stream knows of its answer: how many large ones it has, and how many pieces were taken.
#[derive(Debug, Default)]
struct Track {
    answers: AtomicU64,
    pieces: AtomicU64,
}

thread_local! {
    /// The track of the task that is polled.
    static TRACK: Cell<Option<Arc<Track>>> = const { Cell::new(None) };
}

/// A large answer under way.
struct Pace(Arc<Track>);

impl Pace {
    /// Begins one in the task that is polled; none where nobody watches.
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

impl Drop for Pace {
    fn drop(&mut self) {
        self.0.answers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A task that ends when a large answer in it goes untaken for too long.
pub struct Watched<F> {
    inner: Pin<Box<F>>,
    track: Arc<Track>,
    /// The pieces at the last look, and how long they may stay so many.
    untaken: Option<(u64, Pin<Box<Sleep>>)>,
    pieces_within: Duration,
    resets: Counter,
}

impl<F> Watched<F> {
    /// Watches over a task. Resets are counted.
    pub fn new(inner: F, pieces_within: Duration, resets: Counter) -> Self {
        Self { inner: Box::pin(inner), track: Arc::default(), untaken: None, pieces_within, resets }
    }

    /// The task itself.
    pub fn inner(&mut self) -> Pin<&mut F> {
        self.inner.as_mut()
    }
}

impl<F: Future> Future for Watched<F> {
    /// None if it was ended.
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
            this.untaken = None;
            return Poll::Pending;
        }
        let pieces = this.track.pieces.load(Ordering::Relaxed);
        let within = this.pieces_within;
        let (seen, timer) = this.untaken.get_or_insert_with(|| (pieces, Box::pin(sleep(within))));
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
