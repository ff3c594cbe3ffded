//! What requests and answers may take while they are under way: a budget for each connection, and one for the server.
//!
//! A place in both is taken before the bytes are, and given back when they are gone. Invariant: whoever holds a place can
//! finish without another one, so places come back by themselves, at the latest when a call is given up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::errors::Refusal;
use crate::api::http::metrics::CallMetrics;
use crate::domain::Reason;
use crate::domain::limits::{
    ANSWER_PAYLOADS_BYTES, BODY_BYTES_MAX, CONNECTION_ANSWER_BYTES_MAX, CONNECTION_REQUEST_BYTES_MAX,
    REQUEST_ROOM_WITHIN,
};

/// The budgets of a server.
#[derive(Debug)]
pub struct Buffers {
    requests: Budget,
    answers: Budget,
}

#[derive(Clone, Debug)]
struct Budget {
    bytes: Arc<Semaphore>,
    held: Gauge,
}

impl Buffers {
    /// Budgets of so many bytes for all requests and answers together, half each; each half takes one call at least.
    pub fn new(bytes: usize, metrics: &CallMetrics) -> Self {
        let least = (BODY_BYTES_MAX + FRAME_HEADER_BYTES).max(ANSWER_PAYLOADS_BYTES as usize);
        let half = (bytes / 2).clamp(least, Semaphore::MAX_PERMITS);
        let budget = |held: &Gauge| Budget { bytes: Arc::new(Semaphore::new(half)), held: held.clone() };
        Self { requests: budget(&metrics.request_bytes), answers: budget(&metrics.answer_bytes) }
    }
}

/// A gRPC frame begins with a compression flag and a length.
pub const FRAME_HEADER_BYTES: usize = 5;

/// A connection: who is at its other end, and what it may hold.
#[derive(Debug)]
pub struct Caller {
    /// The address of the other end.
    pub peer: SocketAddr,
    /// How long the rest of a message of it is waited for.
    pub unfinished_max: Duration,
    requests: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    server: Arc<Buffers>,
}

impl Caller {
    /// A connection that holds nothing.
    pub fn new(peer: SocketAddr, server: Arc<Buffers>, unfinished_max: Duration) -> Self {
        let requests = Arc::new(Semaphore::new(CONNECTION_REQUEST_BYTES_MAX));
        let answers = Arc::new(Semaphore::new(CONNECTION_ANSWER_BYTES_MAX));
        Self { peer, unfinished_max, requests, answers, server }
    }

    /// Waits for room for a request of so many bytes; refused after a while, because what waits unread holds up what
    /// comes after it on the same connection.
    pub async fn request_place(&self, bytes: usize) -> Result<Place, Refusal> {
        let taken = tokio::time::timeout(REQUEST_ROOM_WITHIN, take(&self.requests, &self.server.requests, bytes)).await;
        taken.map_err(|_elapsed| {
            let what = "there is no room for the bytes of this request: too many large ones are under way, on this \
                        connection or in all; nothing was applied: send it again a little later";
            Refusal { retry_after: Some(REQUEST_ROOM_WITHIN), ..Refusal::new(Reason::RetryLater, what) }
        })
    }

    /// Waits for room for an answer of up to so many bytes.
    pub async fn answer_place(&self, bytes: usize) -> Place {
        take(&self.answers, &self.server.answers, bytes).await
    }

    /// Waits until the connection may hold more answers.
    pub async fn answers_are_taken(&self) {
        drop(self.answer_place(1).await);
    }

    /// Whether the connection and the server may hold more answers.
    pub fn has_answer_room(&self) -> bool {
        self.answers.available_permits() > 0 && self.server.answers.bytes.available_permits() > 0
    }

    /// Makes a place as large as an answer has become. One that grew takes what room there is: it is there already.
    pub fn resize_answer(&self, place: &mut Place, bytes: usize) {
        if bytes < place.bytes() {
            let rest = place.bytes() - bytes;
            drop(place.connection.split(rest));
            drop(place.server.split(rest));
        } else {
            let more = as_permits(bytes - place.bytes());
            let connection = Arc::clone(&self.answers).try_acquire_many_owned(more);
            let server = Arc::clone(&self.server.answers.bytes).try_acquire_many_owned(more);
            if let (Ok(connection), Ok(server)) = (connection, server) {
                place.connection.merge(connection);
                place.server.merge(server);
            }
        }
        place.show();
    }

    /// A place for an answer that nobody knew of before.
    pub fn answer_place_now(&self, bytes: usize) -> Option<Place> {
        let connection = Arc::clone(&self.answers).try_acquire_owned().ok()?;
        let server = Arc::clone(&self.server.answers.bytes).try_acquire_owned().ok()?;
        let mut place = Place::new(connection, server, &self.server.answers.held);
        self.resize_answer(&mut place, bytes);
        Some(place)
    }
}

async fn take(connection: &Arc<Semaphore>, server: &Budget, bytes: usize) -> Place {
    const OPEN: &str = "budgets are never closed";
    let bytes = as_permits(bytes);
    let connection = Arc::clone(connection).acquire_many_owned(bytes).await.expect(OPEN);
    let in_all = Arc::clone(&server.bytes).acquire_many_owned(bytes).await.expect(OPEN);
    Place::new(connection, in_all, &server.held)
}

fn as_permits(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("requests and answers are below 4 GiB")
}

/// Room for a request or an answer; dropped, it is free again.
#[derive(Debug)]
pub struct Place {
    connection: OwnedSemaphorePermit,
    server: OwnedSemaphorePermit,
    held: Gauge,
    shown: i64,
}

impl Place {
    fn new(connection: OwnedSemaphorePermit, server: OwnedSemaphorePermit, held: &Gauge) -> Self {
        let mut place = Self { connection, server, held: held.clone(), shown: 0 };
        place.show();
        place
    }

    fn bytes(&self) -> usize {
        self.server.num_permits()
    }

    fn show(&mut self) {
        let bytes = i64::try_from(self.bytes()).expect("places are below 4 GiB");
        self.held.inc_by(bytes - self.shown);
        self.shown = bytes;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.held.dec_by(self.shown);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::domain::limits::ANSWER_UNTAKEN_MAX;

    fn callers<const MANY: usize>(server: &Arc<Buffers>) -> [Caller; MANY] {
        std::array::from_fn(|_| Caller::new(([127, 0, 0, 1], 1).into(), Arc::clone(server), ANSWER_UNTAKEN_MAX))
    }

    #[tokio::test]
    async fn all_connections_together_hold_no_more_than_the_server_may() {
        const LARGEST: usize = CONNECTION_REQUEST_BYTES_MAX;
        let metrics = CallMetrics::register(&mut Registry::default());
        let server = Arc::new(Buffers::new(4 * LARGEST, &metrics));
        let [one, two, three] = callers(&server);
        let first = one.request_place(LARGEST).await.expect("room");
        let second = two.request_place(LARGEST).await.expect("room");
        let refused = three.request_place(1).await.expect_err("half of the budget is for requests, and it is taken");
        assert_eq!(refused.reason, Reason::RetryLater);
        assert_eq!(metrics.request_bytes.get(), 2 * LARGEST as i64);
        drop(first);
        let third = three.request_place(LARGEST).await.expect("what was given back");
        assert_eq!(metrics.request_bytes.get(), 2 * LARGEST as i64);
        assert!(three.has_answer_room(), "answers have the other half");
        drop((second, third));
        assert_eq!(metrics.request_bytes.get(), 0);
    }

    #[tokio::test]
    async fn an_answer_waits_until_others_of_the_server_are_taken() {
        let metrics = CallMetrics::register(&mut Registry::default());
        let server = Arc::new(Buffers::new(2 * CONNECTION_ANSWER_BYTES_MAX, &metrics));
        let [one, two] = callers(&server);
        let held = one.answer_place(CONNECTION_ANSWER_BYTES_MAX).await;
        let mut waiting = std::pin::pin!(two.answer_place(1));
        assert!(poll!(waiting.as_mut()).is_pending());
        drop(held);
        assert!(poll!(waiting.as_mut()).is_ready());
    }
}
