//! Byte budgets of requests and responses in flight: one for each connection, and one for the server.
//!
//! A permit of both is taken before the bytes are allocated, and returned after they are freed. Invariant: a call with
//! a permit can finish without another one, so permits always come back, at the latest when the call is given up.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::errors::ApiError;
use crate::http::metrics::CallMetrics;
use crate::tls::ClientCertificate;
use tallystone_domain::Reason;
use tallystone_domain::access::{KeyQuota, QuotaRefusal};
use tallystone_domain::limits::{
    ANSWER_PAYLOADS_BYTES, BODY_BYTES_MAX, CONNECTION_ANSWER_BYTES_MAX, CONNECTION_CALLS_MAX,
    CONNECTION_REQUEST_BYTES_MAX, REQUEST_ROOM_WITHIN,
};
use tallystone_engine::access::{AccountPermit, PrincipalAccount};

/// The budgets of a server.
#[derive(Debug)]
pub struct Buffers {
    requests: ByteBudget,
    answers: ByteBudget,
}

#[derive(Clone, Debug)]
struct ByteBudget {
    bytes: Arc<Semaphore>,
    held: Gauge,
}

impl Buffers {
    /// Budgets of a number of bytes for all requests and responses together, half each. Each half fits at least one
    /// call.
    pub fn new(bytes: usize, metrics: &CallMetrics) -> Self {
        let least = (BODY_BYTES_MAX + FRAME_HEADER_BYTES).max(ANSWER_PAYLOADS_BYTES as usize);
        let half = (bytes / 2).clamp(least, Semaphore::MAX_PERMITS);
        let budget = |held: &Gauge| ByteBudget { bytes: Arc::new(Semaphore::new(half)), held: held.clone() };
        Self { requests: budget(&metrics.request_bytes), answers: budget(&metrics.answer_bytes) }
    }
}

/// A gRPC frame begins with a compression flag and a length.
pub const FRAME_HEADER_BYTES: usize = 5;

/// A connection: its peer, its budget, and the principal that it counts for.
#[derive(Debug)]
pub struct Caller {
    /// The address of the other end.
    pub peer: SocketAddr,
    /// Whether it speaks TLS.
    pub is_tls: bool,
    /// The certificate that it has shown.
    pub certificate: Option<ClientCertificate>,
    /// The timeout of the rest of a message.
    pub unfinished_max: Duration,
    /// Cancelled when the connection has no place within the quota of its principal. It takes no further calls then.
    pub no_place: CancellationToken,
    owner: OnceLock<AccountPermit>,
    /// Held while an owner is found, so that calls that are first at once take one place.
    claim: Mutex<()>,
    requests: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    recorded: Arc<Semaphore>,
    server: Arc<Buffers>,
}

impl Caller {
    /// Creates a connection in clear text, without reservations.
    pub fn new(peer: SocketAddr, server: Arc<Buffers>, unfinished_max: Duration) -> Self {
        let requests = Arc::new(Semaphore::new(CONNECTION_REQUEST_BYTES_MAX));
        let answers = Arc::new(Semaphore::new(CONNECTION_ANSWER_BYTES_MAX));
        let recorded = Arc::new(Semaphore::new(CONNECTION_CALLS_MAX as usize));
        let (no_place, owner) = (CancellationToken::new(), OnceLock::new());
        let (is_tls, certificate, claim) = (false, None, Mutex::default());
        Self { peer, is_tls, certificate, unfinished_max, no_place, owner, claim, requests, answers, recorded, server }
    }

    /// How addresses of this server begin for the other end.
    pub fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// Counts the connection for the first principal that shows a key on it. Others may call over it too.
    pub fn occupy(&self, account: &Arc<PrincipalAccount>) -> Result<(), QuotaRefusal> {
        if self.owner.get().is_some() {
            return Ok(());
        }
        let _claim = self.claim.lock();
        if self.owner.get().is_none() {
            let place = account.take(KeyQuota::Connections).inspect_err(|_| self.no_place.cancel())?;
            // Nobody else sets it: the claim is held.
            let _ = self.owner.set(place);
        }
        Ok(())
    }

    /// Waits until the connection may have one more recorded call in progress.
    pub async fn begin_recorded(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.recorded).acquire_owned().await.expect("it is never closed")
    }

    /// Waits for capacity for a request of a number of bytes. Refused after a while, because an unread request blocks
    /// the data behind it on the same connection.
    pub async fn reserve_request(&self, bytes: usize) -> Result<BufferPermit, ApiError> {
        let taken =
            tokio::time::timeout(REQUEST_ROOM_WITHIN, acquire(&self.requests, &self.server.requests, bytes)).await;
        taken.map_err(|_elapsed| {
            let what = "the request buffers are full: too many large requests are in progress on this connection or \
                on the server; nothing was applied: retry later";
            ApiError { retry_after: Some(REQUEST_ROOM_WITHIN), ..ApiError::new(Reason::RetryLater, what) }
        })
    }

    /// Waits for capacity for a response of up to a number of bytes.
    pub async fn reserve_response(&self, bytes: usize) -> BufferPermit {
        acquire(&self.answers, &self.server.answers, bytes).await
    }

    /// Waits until the connection may have more responses.
    pub async fn wait_for_response_capacity(&self) {
        drop(self.reserve_response(1).await);
    }

    /// Whether the connection and the server may have more responses.
    pub fn has_response_capacity(&self) -> bool {
        self.answers.available_permits() > 0 && self.server.answers.bytes.available_permits() > 0
    }

    /// Resizes a permit to the size of a response. A larger response takes the remaining capacity: it already exists.
    pub fn resize_response(&self, place: &mut BufferPermit, bytes: usize) {
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
        place.update_gauge();
    }

    /// A permit for a response without a reservation.
    pub fn try_reserve_response(&self, bytes: usize) -> Option<BufferPermit> {
        let connection = Arc::clone(&self.answers).try_acquire_owned().ok()?;
        let server = Arc::clone(&self.server.answers.bytes).try_acquire_owned().ok()?;
        let mut place = BufferPermit::new(connection, server, &self.server.answers.held);
        self.resize_response(&mut place, bytes);
        Some(place)
    }
}

async fn acquire(connection: &Arc<Semaphore>, server: &ByteBudget, bytes: usize) -> BufferPermit {
    const OPEN: &str = "budgets are never closed";
    let bytes = as_permits(bytes);
    let connection = Arc::clone(connection).acquire_many_owned(bytes).await.expect(OPEN);
    let in_all = Arc::clone(&server.bytes).acquire_many_owned(bytes).await.expect(OPEN);
    BufferPermit::new(connection, in_all, &server.held)
}

fn as_permits(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("requests and answers are below 4 GiB")
}

/// A permit for the bytes of a request or response. Dropping it frees them.
#[derive(Debug)]
pub struct BufferPermit {
    connection: OwnedSemaphorePermit,
    server: OwnedSemaphorePermit,
    held: Gauge,
    shown: i64,
}

impl BufferPermit {
    fn new(connection: OwnedSemaphorePermit, server: OwnedSemaphorePermit, held: &Gauge) -> Self {
        let mut place = Self { connection, server, held: held.clone(), shown: 0 };
        place.update_gauge();
        place
    }

    fn bytes(&self) -> usize {
        self.server.num_permits()
    }

    fn update_gauge(&mut self) {
        let bytes = i64::try_from(self.bytes()).expect("places are below 4 GiB");
        self.held.inc_by(bytes - self.shown);
        self.shown = bytes;
    }
}

impl Drop for BufferPermit {
    fn drop(&mut self) {
        self.held.dec_by(self.shown);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use prometheus_client::registry::Registry;

    use super::*;
    use tallystone_domain::limits::ANSWER_UNTAKEN_MAX;

    fn callers<const MANY: usize>(server: &Arc<Buffers>) -> [Caller; MANY] {
        std::array::from_fn(|_| Caller::new(([127, 0, 0, 1], 1).into(), Arc::clone(server), ANSWER_UNTAKEN_MAX))
    }

    #[tokio::test]
    async fn all_connections_together_hold_no_more_than_the_server_may() {
        const LARGEST: usize = CONNECTION_REQUEST_BYTES_MAX;
        let metrics = CallMetrics::register(&mut Registry::default());
        let server = Arc::new(Buffers::new(4 * LARGEST, &metrics));
        let [one, two, three] = callers(&server);
        let first = one.reserve_request(LARGEST).await.expect("room");
        let second = two.reserve_request(LARGEST).await.expect("room");
        let refused = three.reserve_request(1).await.expect_err("half of the budget is for requests, and it is taken");
        assert_eq!(refused.reason, Reason::RetryLater);
        assert_eq!(metrics.request_bytes.get(), 2 * LARGEST as i64);
        drop(first);
        let third = three.reserve_request(LARGEST).await.expect("what was given back");
        assert_eq!(metrics.request_bytes.get(), 2 * LARGEST as i64);
        assert!(three.has_response_capacity(), "answers have the other half");
        drop((second, third));
        assert_eq!(metrics.request_bytes.get(), 0);
    }

    #[tokio::test]
    async fn an_answer_waits_until_others_of_the_server_are_taken() {
        let metrics = CallMetrics::register(&mut Registry::default());
        let server = Arc::new(Buffers::new(2 * CONNECTION_ANSWER_BYTES_MAX, &metrics));
        let [one, two] = callers(&server);
        let held = one.reserve_response(CONNECTION_ANSWER_BYTES_MAX).await;
        let mut waiting = std::pin::pin!(two.reserve_response(1));
        assert!(poll!(waiting.as_mut()).is_pending());
        drop(held);
        assert!(poll!(waiting.as_mut()).is_ready());
    }
}
