//! What a work stream needs beside the calls: leases of several queues as they come, and a session that it speaks for.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use tokio_util::sync::CancellationToken;

use crate::domain::limits::{DEQUEUE_ROUNDS_MAX, LEASE_MAX, LEASE_MIN, WORK_WALK_PAUSE};
use crate::domain::queue::command::{Completeness, Invalid, Refusal};
use crate::domain::queue::filter::Filter;
use crate::domain::queue::session::{SessionCall, SessionId};
use crate::domain::queue::text::queue_of_lease;
use crate::domain::queue::{QueueId, QueueName};
use crate::engine::queues::Queues;
use crate::engine::queues::core::Shared;
use crate::engine::queues::dequeue::{Ask, Blocked, Dequeued};
use crate::engine::queues::error::{QueueError, Slot};
use crate::engine::queues::sessions::Beat;
use crate::engine::queues::waiters::Place;
use crate::engine::shares::{CallerId, Share};

/// What a stream asks for.
#[derive(Clone, Debug)]
pub struct StreamAsk {
    /// How many messages at most, 1 to 100.
    pub max: usize,
    /// The lease.
    pub lease: Option<Duration>,
    /// What the messages must have.
    pub filter: Filter,
    /// The call of its session that this is.
    pub call: Option<SessionCall>,
}

/// A session that a stream speaks for; it is known until this is dropped.
pub struct StreamSession {
    shared: Arc<Shared>,
    id: SessionId,
    lease: Duration,
    over: CancellationToken,
    /// The last call that was made, the last whose leases were sent, and the last whose leases the connection has taken.
    made: u64,
    sent: Option<u64>,
    taken: Option<u64>,
    /// When the shards were last told that it lives.
    beaten: Duration,
    /// Whether leases that may end before the worker's next heartbeat were sent and not confirmed.
    is_short: bool,
}

impl Queues {
    /// Runs work that ends by itself beside the calls; it is joined when the server stops.
    pub fn run_beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.shared.driver.start_once(work);
    }

    /// Takes a place for a work stream, which it holds as long as it is open.
    pub fn place_for_stream(&self, caller: &CallerId) -> Result<Share, QueueError> {
        self.shared.streams.take(caller).map_err(|why| QueueError::NoRoom { of: Slot::WorkStream, why })
    }

    /// The queue that a lease token names, if it is served.
    pub fn queue_of_token(&self, token: &str) -> Option<QueueName> {
        let queue = self.shared.by_id(QueueId(queue_of_lease(token)?))?;
        Some(queue.record.load().spec.name.clone())
    }

    /// Lets a stream speak for a session.
    pub fn join_session(&self, id: SessionId) -> Result<StreamSession, QueueError> {
        let now = self.shared.clock.elapsed();
        let admitted = self.shared.sessions.admit(id, 0, 1, now)?;
        let shared = Arc::clone(&self.shared);
        let (lease, over) = (admitted.lease, admitted.over);
        Ok(StreamSession { shared, id, lease, over, made: 0, sent: None, taken: None, beaten: now, is_short: false })
    }

    /// Leases messages of the first of these queues that has some, and waits until one has. While a queue is blocked it
    /// counts as empty. Answers none when no lease is given any more.
    pub async fn next_leases(&self, names: &[QueueName], ask: StreamAsk) -> Result<Dequeued, QueueError> {
        if ask.lease.is_some_and(|lease| !(LEASE_MIN..=LEASE_MAX).contains(&lease)) {
            return Err(Invalid::Lease.into());
        }
        let StreamAsk { max, lease, filter, call } = ask;
        let ask = Ask { max, lease, filter, blocked: Blocked::Wait, ..Ask::default() };
        let queues = names.iter().map(|name| self.shared.queue(name)).collect::<Result<Vec<_>, _>>()?;
        let filter = Arc::new(ask.filter.clone());
        let places: Vec<Place<'_>> = queues.iter().map(|queue| queue.waiters.enter(Arc::clone(&filter))).collect();
        let mut rounds = 0;
        loop {
            let looked: Vec<u64> = places.iter().map(Place::look).collect();
            let mut unfinished = false;
            for queue in &queues {
                let mut found = self.nothing(queue, call.map(|call| call.id));
                self.gather(queue, &ask, call, &mut found).await?;
                if found.has_some() {
                    return Ok(found);
                }
                unfinished |= found.completeness != Completeness::Complete;
            }
            if unfinished {
                // A bound left something over; what has no index is looked for at a measured pace.
                rounds += 1;
                if rounds % DEQUEUE_ROUNDS_MAX == 0 {
                    self.shared.clock.sleep(WORK_WALK_PAUSE).await;
                }
                continue;
            }
            places.iter().zip(looked).for_each(|(place, looked)| place.rest(looked));
            if !self.any_woken(&places).await {
                return Ok(self.nothing(&queues[0], call.map(|call| call.id)));
            }
            for name in names {
                self.shared.queue(name)?;
            }
        }
    }

    /// Waits until one is woken; says no when no lease is given any more.
    async fn any_woken(&self, places: &[Place<'_>]) -> bool {
        let woken = select_all(places.iter().map(|place| Box::pin(place.woken())));
        tokio::select! {
            biased;
            _ = woken => true,
            () = self.shared.drain.cancelled() => false,
        }
    }
}

impl StreamSession {
    /// The next dequeue as a call of the session. It says what the connection has taken.
    pub fn next_call(&mut self) -> SessionCall {
        self.made = self.shared.sessions.next_call(self.id);
        let lease = Some(self.lease);
        SessionCall { id: self.id, lease, sequence: self.made, attempt: 1, received_up_to: self.taken }
    }

    /// Notes that the leases of the last call are sent now, and how long the shortest lasts by itself.
    pub fn sent(&mut self, shortest: Duration) {
        self.sent = Some(self.made);
        self.is_short |= shortest < self.lease;
    }

    /// Notes that the connection has taken all that was sent; says whether the shards should hear of it at once.
    pub fn taken(&mut self) -> bool {
        self.taken = self.sent;
        std::mem::take(&mut self.is_short)
    }

    /// Waits until the session has ended; answers how that is refused.
    pub async fn over(&self) -> QueueError {
        self.over.cancelled().await;
        let refused = self.hear().err();
        refused.unwrap_or_else(|| Refusal::SessionNotFound.into())
    }

    /// Hears the worker.
    pub fn hear(&self) -> Result<(), QueueError> {
        self.shared.sessions.hear(self.id, self.shared.clock.elapsed())?;
        Ok(())
    }

    /// Waits until the shards should be told again that the session lives.
    pub async fn until_beat(&self) {
        let due = self.beaten + self.lease / 4;
        self.shared.clock.sleep(due.saturating_sub(self.shared.clock.elapsed())).await;
    }

    /// Tells the shards.
    pub fn beat(&mut self, queues: Queues) -> impl Future<Output = Result<Beat, QueueError>> + Send + use<> {
        self.beaten = self.shared.clock.elapsed();
        let (id, taken) = (self.id, self.taken);
        async move { queues.heartbeat(id, taken).await }
    }
}

impl Drop for StreamSession {
    fn drop(&mut self) {
        self.shared.sessions.let_go(self.id, self.shared.clock.elapsed());
    }
}
