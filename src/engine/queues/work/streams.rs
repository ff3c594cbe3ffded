//! Support for work streams: leases from several queues as they arrive, and the session of the stream.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use tokio_util::sync::CancellationToken;

use crate::caller_quota::{CallerId, QuotaPermit};
use crate::queues::calls::lease_batch::LeaseBatch;
use crate::queues::calls::replayed_dequeues::LOST_ANSWER_PAUSE_MIN;
use crate::queues::error::QueueError;
use crate::queues::error::limited_resource::LimitedResource;
use crate::queues::sessions::{HeartbeatOutcome, SessionService};
use crate::queues::state::context::QueueContext;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::state::waiters::{FreeCredit, WaiterSlot};
use crate::queues::work::WorkService;
use crate::queues::work::dequeue::{DequeueRequest, WhenBlocked};
use tallystone_domain::limits::{
    DEQUEUE_ROUNDS_MAX, LEASE_MAX, LEASE_MIN, LOST_ANSWER_PAUSE_MAX, STREAM_REPEATS_MAX, WORK_WALK_PAUSE,
};
use tallystone_domain::queue::command::{Completeness, Refusal};
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::invalid_command::InvalidCommandPart;
use tallystone_domain::queue::messages::key_syntax::queue_of_lease;
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::SessionCall;
use tallystone_domain::queue::{QueueId, QueueName};

/// The arguments of a stream's lease request.
#[derive(Clone, Debug)]
pub struct StreamLeaseRequest {
    /// How many messages at most, 1 to 100.
    pub max: usize,
    pub lease: Option<Duration>,
    /// The filter that the messages must match.
    pub filter: Filter,
    pub call: Option<SessionCall>,
    /// How many more leases the stream may get, also while it waits.
    pub credit: FreeCredit,
}

/// The session of a stream; keeps the session alive until dropped.
pub struct StreamSession {
    context: Arc<QueueContext>,
    id: SessionId,
    lease: Duration,
    end_token: CancellationToken,
    /// The last call made, the last whose leases were sent, and the last whose leases the connection has accepted.
    last_call: u64,
    last_sent_call: Option<u64>,
    last_received_call: Option<u64>,
    /// When the shards last got a heartbeat.
    last_heartbeat_at: Duration,
    /// Whether leases were sent and not confirmed that may expire before the worker's next heartbeat.
    has_short_lease: bool,
}

impl WorkService {
    /// Runs work that ends by itself in a background task; the task is joined when the server stops.
    pub fn run_in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.context.start_once(work);
    }

    /// Takes a quota permit for a work stream, to hold while the stream is open.
    pub fn place_for_stream(&self, caller: &CallerId) -> Result<QuotaPermit, QueueError> {
        self.streams.take(caller).map_err(|why| QueueError::LimitReached { of: LimitedResource::WorkStream, why })
    }

    /// The queue that a lease token names, if it is served.
    pub fn queue_of_token(&self, token: &str) -> Option<QueueName> {
        let queue = self.context.by_id(QueueId(queue_of_lease(token)?))?;
        Some(queue.record.load().spec.name.clone())
    }

    /// Attaches a stream to a session.
    pub async fn join_session(&self, id: SessionId) -> Result<StreamSession, QueueError> {
        if let Some(directory) = self.context.session_directory() {
            self.sessions.reserve_calls(directory, id).await?;
        }
        let now = self.context.elapsed();
        let admitted = self.context.sessions.admit(id, 0, 1, now)?;
        let shared = Arc::clone(&self.context);
        let (lease, over) = (admitted.lease, admitted.end_token);
        Ok(StreamSession {
            context: shared,
            id,
            lease,
            end_token: over,
            last_call: 0,
            last_sent_call: None,
            last_received_call: None,
            last_heartbeat_at: now,
            has_short_lease: false,
        })
    }

    /// Leases messages of the first of these queues that has some, waiting until one has. A blocked queue counts as
    /// empty. Returns none when no more leases are granted.
    pub async fn next_leases(&self, names: &[QueueName], ask: StreamLeaseRequest) -> Result<LeaseBatch, QueueError> {
        if ask.lease.is_some_and(|lease| !(LEASE_MIN..=LEASE_MAX).contains(&lease)) {
            return Err(InvalidCommandPart::Lease.into());
        }
        let StreamLeaseRequest { max, lease, filter, mut call, credit } = ask;
        let ask = DequeueRequest { max, lease, filter, blocked: WhenBlocked::Wait, ..DequeueRequest::default() };
        let queues = names.iter().map(|name| self.context.queue(name)).collect::<Result<Vec<_>, _>>()?;
        let filter = Arc::new(ask.filter.clone());
        let mut places: Vec<WaiterSlot<'_>> = Vec::with_capacity(queues.len());
        places.extend(queues.iter().map(|queue| queue.waiters.enter(Arc::clone(&filter), Some(&credit))));
        let mut rounds = 0;
        // Those that were woken before look first.
        let mut is_first: Vec<bool> = places.iter().map(|place| !place.is_behind).collect();
        loop {
            let looked: Vec<u64> = places.iter().map(WaiterSlot::begin_look).collect();
            let mut unfinished = false;
            for (queue, _) in queues.iter().zip(&is_first).filter(|(_, is_first)| **is_first) {
                let found = self.lease_for_stream(queue, &ask, &mut call).await?;
                if found.has_leases() {
                    return Ok(found);
                }
                unfinished |= found.completeness != Completeness::Complete;
            }
            if unfinished {
                // A bound cut the look short; a filter without an index is searched at a limited rate.
                rounds += 1;
                if rounds % DEQUEUE_ROUNDS_MAX == 0 {
                    self.context.sleep(WORK_WALK_PAUSE).await;
                }
                continue;
            }
            let have_looked = places.iter().zip(looked).zip(&is_first).filter(|(_, is_first)| **is_first);
            have_looked.for_each(|((place, looked), _)| place.sleep_after_look(looked));
            is_first.fill(true);
            if !self.any_woken(&places).await {
                return Ok(LeaseBatch::new(&self.context, &queues[0], call.map(|call| call.id)));
            }
            for name in names {
                self.context.queue(name)?;
            }
        }
    }

    /// Leases the available messages of a queue as the next call of a stream. Only the server can repeat such a call.
    /// It does so if the answer of the store was lost, and takes another number if the call is too old for a shard.
    async fn lease_for_stream(
        &self,
        queue: &Arc<ServedQueue>,
        ask: &DequeueRequest,
        call: &mut Option<SessionCall>,
    ) -> Result<LeaseBatch, QueueError> {
        let (mut pause, mut repeats) = (LOST_ANSWER_PAUSE_MIN, 0);
        loop {
            match (self.lease_or_recall(queue, ask, *call).await, call.as_mut()) {
                (Ok(found), _) => return Ok(found),
                (Err(error), _) if repeats == STREAM_REPEATS_MAX => return Err(error),
                (Err(QueueError::Refused(Refusal::SequenceTooOld)), Some(call)) => {
                    // Another stream of the session was faster. Nothing was leased by this attempt.
                    if let Some(directory) = self.context.session_directory() {
                        self.sessions.reserve_calls(directory, call.id).await?;
                    }
                    (call.sequence, call.attempt) = (self.context.sessions.next_call(call.id), 1);
                }
                (Err(error), Some(call)) if self.context.answers_may_be_lost && error.is_unknown() => {
                    self.context.sleep(pause).await;
                    pause = (pause * 2).min(LOST_ANSWER_PAUSE_MAX);
                    call.attempt += 1;
                }
                (Err(error), _) => return Err(error),
            }
            repeats += 1;
        }
    }

    /// The leases of an earlier attempt of a call, or new ones if there was none.
    async fn lease_or_recall(
        &self,
        queue: &Arc<ServedQueue>,
        ask: &DequeueRequest,
        call: Option<SessionCall>,
    ) -> Result<LeaseBatch, QueueError> {
        if let Some(repeat) = call.filter(|call| call.attempt > 1)
            && let Some(again) = self.sessions.recall(queue, repeat).await?
        {
            return Ok(again.of_call(call));
        }
        let mut found = LeaseBatch::new(&self.context, queue, call.map(|call| call.id));
        self.lease_from_shards(queue, ask, call, &mut found).await?;
        Ok(found.of_call(call))
    }

    /// Waits for the wake-up of any waiter; false when no more leases are granted.
    async fn any_woken(&self, places: &[WaiterSlot<'_>]) -> bool {
        let woken = select_all(places.iter().map(|place| Box::pin(place.wait_until_woken())));
        tokio::select! {
            biased;
            _ = woken => true,
            () = self.context.drain.cancelled() => false,
        }
    }
}

impl StreamSession {
    /// The next dequeue as a call of the session. It confirms the leases that the connection has accepted.
    pub fn next_call(&mut self) -> SessionCall {
        self.last_call = self.context.sessions.next_call(self.id);
        let lease = Some(self.lease);
        SessionCall {
            id: self.id,
            lease,
            sequence: self.last_call,
            attempt: 1,
            received_up_to: self.last_received_call,
        }
    }

    /// Records that the leases of a call are being sent; `shortest` is the shortest own duration of a lease.
    pub fn sent(&mut self, call: Option<u64>, shortest: Duration) {
        self.last_sent_call = call.or(Some(self.last_call));
        self.has_short_lease |= shortest < self.lease;
    }

    /// Records that the connection has accepted everything sent; returns whether to send a heartbeat to the shards at
    /// once.
    pub fn taken(&mut self) -> bool {
        self.last_received_call = self.last_sent_call;
        std::mem::take(&mut self.has_short_lease)
    }

    /// Waits until the session has ended; returns the refusal for it.
    pub async fn wait_for_end(&self) -> QueueError {
        self.end_token.cancelled().await;
        let refused = self.renew_session().err();
        refused.unwrap_or_else(|| Refusal::SessionNotFound.into())
    }

    /// Renews the session on a call of the worker.
    pub fn renew_session(&self) -> Result<(), QueueError> {
        self.context.sessions.renew(self.id, self.context.elapsed())?;
        Ok(())
    }

    /// Waits until the next heartbeat to the shards is due.
    pub async fn wait_until_heartbeat_due(&self) {
        let due = self.last_heartbeat_at + self.lease / 4;
        self.context.sleep(due.saturating_sub(self.context.elapsed())).await;
    }

    /// Sends a heartbeat to the shards.
    pub fn send_heartbeat(
        &mut self,
        sessions: Arc<SessionService>,
    ) -> impl Future<Output = Result<HeartbeatOutcome, QueueError>> + Send + use<> {
        self.last_heartbeat_at = self.context.elapsed();
        let (id, taken) = (self.id, self.last_received_call);
        async move { sessions.heartbeat_of_stream(id, taken).await }
    }
}

impl Drop for StreamSession {
    fn drop(&mut self) {
        self.context.sessions.release_call(self.id, self.context.elapsed());
    }
}
