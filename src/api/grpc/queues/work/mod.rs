//! The Work stream serves one worker: it receives credit and settlements, and sends leases and results.
//!
//! A task per stream produces one response at a time, after the connection has accepted the previous one. So a worker
//! that does not read gets no more responses and does not delay other workers; its leases expire. When the worker
//! half-closes the stream, its unsettled leases are released. When the connection breaks, those that it has accepted
//! expire, and the others are released. A draining server grants no leases but accepts settlements until all leases of
//! the stream have ended.
//!
//! In a session, the stream replaces the heartbeat while its connection is up and accepts data. A lease is bound to the
//! session once the connection has accepted it. Pings detect dead connections.

mod unsettled_leases;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt, Stream, StreamExt};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::errors::{self, ApiError};
use crate::grpc::queues::{decode, encode, to_status};
use crate::time;
use tallystone_domain::Reason;
use tallystone_domain::access::CallRights;
use tallystone_domain::call_limit::CallClass;
use tallystone_domain::limits::{WORK_CREDIT_MAX, WORK_LEASES_AT_ONCE_MAX, WORK_QUEUES_MAX};
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_engine::call_limiter::StreamPlaces;
use tallystone_engine::caller_quota::QuotaPermit;
use tallystone_engine::queues::{
    CancelNotice, FreeCredit, HeartbeatOutcome, LeaseBatch, QueueError, Queues, SettleRequest, StreamLeaseRequest,
    StreamSession,
};
use tallystone_proto::queue::v1 as wire;
use unsettled_leases::{SentLease, UnsettledLeases};

type DequeueFuture = Pin<Box<dyn Future<Output = Result<LeaseBatch, QueueError>> + Send>>;
type HeartbeatFuture = Pin<Box<dyn Future<Output = Result<HeartbeatOutcome, QueueError>> + Send>>;

/// The response stream of a worker. It occupies a quota permit while it is open.
pub fn response_stream<S>(
    queues: Queues,
    (rights, places): (CallRights, StreamPlaces),
    permit: QuotaPermit,
    requests: S,
    drain: CancellationToken,
) -> BoxStream<'static, Result<wire::WorkResponse, Status>>
where
    S: Stream<Item = Result<wire::WorkRequest, Status>> + Send + Unpin + 'static,
{
    let (responses, taken) = mpsc::channel(1);
    let worker = WorkerStream {
        cancels: queues.cancel_notices(),
        queues: queues.clone(),
        rights,
        places,
        requests,
        drain,
        names: Vec::new(),
        lease: None,
        filter: Filter::default(),
        session: None,
        credit: FreeCredit::default(),
        unsettled: UnsettledLeases::default(),
        dequeuing: None,
        dequeued: None,
        heartbeat: None,
        draining: false,
        _permit: permit,
    };
    let accepted = AcceptedResponses::default();
    queues.work.run_in_background(worker.run(responses, accepted.clone()));
    ReceiverStream::new(taken).inspect(move |_| accepted.count()).boxed()
}

struct WorkerStream<S> {
    queues: Queues,
    rights: CallRights,
    places: StreamPlaces,
    requests: S,
    drain: CancellationToken,
    cancels: broadcast::Receiver<CancelNotice>,
    /// The queues of the stream in round-robin order, next one first; empty before the first request.
    names: Vec<QueueName>,
    lease: Option<Duration>,
    filter: Filter,
    session: Option<StreamSession>,
    credit: FreeCredit,
    /// The leases that were sent and not settled.
    unsettled: UnsettledLeases,
    dequeuing: Option<DequeueFuture>,
    /// The result of a dequeue that ended while the connection did not accept responses.
    dequeued: Option<Result<LeaseBatch, QueueError>>,
    heartbeat: Option<HeartbeatFuture>,
    draining: bool,
    _permit: QuotaPermit,
}

/// Counts the responses that the connection of a stream has accepted.
#[derive(Clone, Default)]
struct AcceptedResponses(Arc<AtomicU64>);

impl AcceptedResponses {
    fn count(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    fn counted(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The next event of a stream.
enum WorkerStreamEvent {
    Drain,
    Request(Option<Result<wire::WorkRequest, Status>>),
    DequeueDone(Result<LeaseBatch, QueueError>),
    HeartbeatDue,
    HeartbeatDone(Result<HeartbeatOutcome, QueueError>),
    Canceled(CancelNotice),
    SessionOver(QueueError),
    Nothing,
}

/// The next step of the stream.
enum WorkerStreamStep {
    Answer(wire::WorkResponse),
    NoResponse,
    End,
}

impl<S: Stream<Item = Result<wire::WorkRequest, Status>> + Send + Unpin> WorkerStream<S> {
    /// Runs until the worker, the connection, the server or an error ends it.
    async fn run(mut self, responses: mpsc::Sender<Result<wire::WorkResponse, Status>>, accepted: AcceptedResponses) {
        let (mut sent, mut last_leases) = (0, 0);
        loop {
            let room = tokio::select! {
                biased;
                room = responses.reserve() => room,
                never = self.finish_dequeue() => match never {},
            };
            let Ok(room) = room else { break };
            // The channel has capacity 1 and is empty, so the connection has accepted all previous responses.
            if let Some(session) = &mut self.session
                && session.taken()
            {
                self.heartbeat = Some(session.send_heartbeat(Arc::clone(&self.queues.sessions)).boxed());
            }
            let answer = tokio::select! {
                biased;
                () = responses.closed() => break,
                answer = self.answer() => answer,
            };
            match answer {
                Ok(Some(answer)) => {
                    (sent, last_leases) = (sent + 1, answer.leases.len());
                    room.send(Ok(answer));
                }
                Ok(None) => return,
                Err(status) => return room.send(Err(status)),
            }
        }
        // The worker has not seen the leases of a response that the connection did not accept. A session may come back
        // for them.
        if accepted.counted() < sent && self.session.is_none() {
            let unseen = self.unsettled.take_newest(last_leases);
            release(&self.queues, unseen).await;
        }
    }

    /// Waits for the next response; `None` after the request stream has ended.
    async fn answer(&mut self) -> Result<Option<wire::WorkResponse>, Status> {
        loop {
            match self.step().await? {
                WorkerStreamStep::Answer(answer) => return Ok(Some(answer)),
                WorkerStreamStep::NoResponse => {}
                WorkerStreamStep::End => return Ok(None),
            }
        }
    }

    async fn step(&mut self) -> Result<WorkerStreamStep, Status> {
        if self.draining && self.unsettled.is_empty() && self.dequeued.is_none() {
            return Err(ApiError::new(Reason::ShuttingDown, "the server is stopping and issues no more leases").into());
        }
        self.begin_dequeue();
        match self.event().await {
            WorkerStreamEvent::Drain => {
                (self.draining, self.dequeuing) = (true, None);
                Ok(WorkerStreamStep::NoResponse)
            }
            WorkerStreamEvent::Request(Some(request)) => {
                self.handle_request(request.map_err(errors::with_reason)?).await.map(WorkerStreamStep::Answer)
            }
            WorkerStreamEvent::Request(None) => {
                (self.dequeuing, self.dequeued) = (None, None);
                let unsettled = self.unsettled.take_all();
                release(&self.queues, unsettled).await;
                Ok(WorkerStreamStep::End)
            }
            WorkerStreamEvent::DequeueDone(found) => self.send_leases(found),
            WorkerStreamEvent::HeartbeatDue => self.start_heartbeat(),
            WorkerStreamEvent::HeartbeatDone(heartbeat_result) => self.finish_heartbeat(heartbeat_result),
            WorkerStreamEvent::SessionOver(error) => Err(to_status(error)),
            WorkerStreamEvent::Canceled(notice) => Ok(self.canceled(&notice)),
            WorkerStreamEvent::Nothing => Ok(WorkerStreamStep::NoResponse),
        }
    }

    fn begin_dequeue(&mut self) {
        let credit = self.credit.leases();
        let is_busy = self.dequeuing.is_some() || self.dequeued.is_some();
        if self.names.is_empty() || is_busy || credit == 0 || self.draining {
            return;
        }
        let ask = StreamLeaseRequest {
            max: WORK_LEASES_AT_ONCE_MAX.min(credit as usize),
            lease: self.lease,
            filter: self.filter.clone(),
            call: self.session.as_mut().map(StreamSession::next_call),
            credit: self.credit.clone(),
        };
        let (work, names) = (Arc::clone(&self.queues.work), self.names.clone());
        self.dequeuing = Some(async move { work.next_leases(&names, ask).await }.boxed());
    }

    /// Goes on with the dequeue while the connection accepts no response. It may have been woken for a message, and no
    /// other worker is woken for that before it has looked. Never ends.
    async fn finish_dequeue(&mut self) -> Infallible {
        if let Some(dequeuing) = &mut self.dequeuing {
            self.dequeued = Some(dequeuing.await);
            self.dequeuing = None;
        }
        std::future::pending().await
    }

    async fn event(&mut self) -> WorkerStreamEvent {
        let Self { requests, drain, cancels, dequeuing, dequeued, heartbeat, draining, names, session, .. } = self;
        let has_heartbeat = heartbeat.is_some();
        let found = async {
            match (dequeued.take(), dequeuing) {
                (Some(dequeued), _) => dequeued,
                (None, Some(dequeuing)) => dequeuing.await,
                (None, None) => std::future::pending().await,
            }
        };
        let heartbeat_result = async {
            match heartbeat {
                Some(heartbeat) => heartbeat.await,
                None => std::future::pending().await,
            }
        };
        let session = session.as_ref();
        let over = async {
            match session {
                Some(session) => session.wait_for_end().await,
                None => std::future::pending().await,
            }
        };
        let due = async {
            match session {
                Some(session) => session.wait_until_heartbeat_due().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            error = over => WorkerStreamEvent::SessionOver(error),
            () = drain.cancelled(), if !*draining => WorkerStreamEvent::Drain,
            request = requests.next() => WorkerStreamEvent::Request(request),
            found = found => WorkerStreamEvent::DequeueDone(found),
            heartbeat_result = heartbeat_result => WorkerStreamEvent::HeartbeatDone(heartbeat_result),
            () = due, if !has_heartbeat => WorkerStreamEvent::HeartbeatDue,
            notice = cancels.recv() => match notice {
                Ok(notice) if names.contains(&notice.queue) => WorkerStreamEvent::Canceled(notice),
                // The next extension or heartbeat reports missed notices.
                Ok(_) | Err(_) => WorkerStreamEvent::Nothing,
            },
        }
    }

    fn send_leases(&mut self, found: Result<LeaseBatch, QueueError>) -> Result<WorkerStreamStep, Status> {
        self.dequeuing = None;
        let found = match found {
            Ok(found) => found,
            Err(QueueError::ShuttingDown) => {
                self.draining = true;
                return Ok(WorkerStreamStep::NoResponse);
            }
            Err(error) => return Err(ApiError::from(error).into()),
        };
        let queue = found.queue();
        // Round robin: the other queues are tried first next time.
        if let Some(at) = self.names.iter().position(|name| *name == queue.1) {
            self.names.rotate_left(at + 1);
        }
        let call = found.call();
        let (mut leases, given) = (Vec::new(), found.take());
        if let Some((session, shortest)) =
            self.session.as_mut().zip(given.iter().map(|given| given.lease.expires_in).min())
        {
            session.sent(call, shortest);
        }
        for given in given {
            let key = given.lease.token.key;
            let lease = encode::lease(&queue, given);
            self.unsettled.add(SentLease { queue: queue.clone(), key, token: lease.lease_token.clone() });
            leases.push(lease);
        }
        let sent = u32::try_from(leases.len()).unwrap_or(u32::MAX);
        self.credit.set(self.credit.leases().saturating_sub(sent));
        let answer = wire::WorkResponse { leases, ..wire::WorkResponse::default() };
        Ok(if answer.leases.is_empty() { WorkerStreamStep::NoResponse } else { WorkerStreamStep::Answer(answer) })
    }

    /// Renews the session in its shards.
    fn start_heartbeat(&mut self) -> Result<WorkerStreamStep, Status> {
        if let Some(session) = &mut self.session {
            session.renew_session().map_err(to_status)?;
            self.heartbeat = Some(session.send_heartbeat(Arc::clone(&self.queues.sessions)).boxed());
        }
        Ok(WorkerStreamStep::NoResponse)
    }

    fn finish_heartbeat(
        &mut self,
        heartbeat_result: Result<HeartbeatOutcome, QueueError>,
    ) -> Result<WorkerStreamStep, Status> {
        self.heartbeat = None;
        match heartbeat_result {
            Ok(HeartbeatOutcome { cancel_requests, .. }) if cancel_requests.is_empty() => {
                Ok(WorkerStreamStep::NoResponse)
            }
            Ok(HeartbeatOutcome { cancel_requests, .. }) => {
                Ok(WorkerStreamStep::Answer(wire::WorkResponse { cancel_requests, ..wire::WorkResponse::default() }))
            }
            Err(error) if error.is_of_session() => Err(ApiError::from(error).into()),
            // The next heartbeat is the retry.
            Err(_) => Ok(WorkerStreamStep::NoResponse),
        }
    }

    fn canceled(&self, notice: &CancelNotice) -> WorkerStreamStep {
        let id = self.queues.catalog.get(&notice.queue).map(|queue| queue.id);
        let token = id.ok().and_then(|id| self.unsettled.token_of(id, notice.key));
        token.map_or(WorkerStreamStep::NoResponse, |token| {
            WorkerStreamStep::Answer(wire::WorkResponse {
                cancel_requests: vec![token.to_owned()],
                ..Default::default()
            })
        })
    }

    /// Handles a request of the worker: settles and extends leases.
    async fn handle_request(&mut self, request: wire::WorkRequest) -> Result<wire::WorkResponse, Status> {
        if self.names.is_empty() {
            self.begin(&request).await.map_err(to_status)?;
        } else {
            self.check_same(&request)?;
        }
        if let Some(session) = &mut self.session {
            session.renew_session().map_err(to_status)?;
        }
        let credit = u32::try_from(request.credit).ok().map(|credit| credit.saturating_add(self.credit.leases()));
        let Some(credit) = credit.filter(|credit| *credit <= WORK_CREDIT_MAX) else {
            let what = format!("credit must be 0 or more, and at most {WORK_CREDIT_MAX} may be outstanding");
            return Err(ApiError::new(Reason::InvalidRange, what).at("credit").into());
        };
        if request.settlements.len().max(request.extensions.len()) > WORK_CREDIT_MAX as usize {
            let what = format!("one message carries at most {WORK_CREDIT_MAX} settlements and as many extensions");
            return Err(ApiError::new(Reason::InvalidBatchSize, what).at("settlements").into());
        }
        self.credit.set(credit);
        let _place = self.places.take(CallClass::Settle);
        let results = self.settle(request.settlements).await;
        let mut extended = Vec::with_capacity(request.extensions.len());
        for extension in request.extensions {
            extended.push(self.extend(extension).await);
        }
        Ok(wire::WorkResponse { leases: Vec::new(), results, extended, cancel_requests: Vec::new() })
    }

    /// Applies the stream settings of the first request.
    async fn begin(&mut self, request: &wire::WorkRequest) -> Result<(), ApiError> {
        let mut names: Vec<QueueName> = Vec::new();
        let sent = request.queues.iter().chain((!request.queue.is_empty()).then_some(&request.queue));
        for sent in sent {
            let name = decode::queue(&self.rights, sent)?.into_inner();
            self.queues.served(&name).await?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() {
            decode::queue(&self.rights, "")?;
        }
        if names.len() > WORK_QUEUES_MAX {
            return Err(decode::too_many_queues(names.len()).into());
        }
        self.lease = decode::duration("lease_duration", request.lease_duration)?;
        self.filter = decode::filter(&request.filter)?;
        if !request.session_id.is_empty() {
            let id = self.queues.sessions.session_of(&request.session_id, self.rights.owner())?;
            self.session = Some(self.queues.work.join_session(id).await?);
        }
        self.names = names;
        Ok(())
    }

    fn check_same(&self, request: &wire::WorkRequest) -> Result<(), Status> {
        let is_same = (request.queue.is_empty() || self.names.iter().any(|name| name.as_str() == request.queue))
            && request.queues.is_empty()
            && request.filter.is_empty()
            && request.session_id.is_empty();
        if is_same {
            return Ok(());
        }
        let what =
            "queues, filter and session are fixed by the first message of a stream; open another stream to change them";
        Err(ApiError::new(Reason::InvalidArgument, what).at("queue").into())
    }

    /// The queue named in a lease token if the stream serves it, else the first queue of the stream.
    fn queue_of(&self, token: &str) -> &QueueName {
        if let [only] = &self.names[..] {
            return only;
        }
        let named = self.queues.work.queue_of_token(token);
        let served = named.and_then(|name| self.names.iter().find(|served| **served == name));
        served.unwrap_or(&self.names[0])
    }

    async fn settle(&mut self, sent: Vec<wire::Settlement>) -> Vec<wire::SettleResult> {
        let mut results = vec![wire::SettleResult::default(); sent.len()];
        let mut by_queue: BTreeMap<QueueName, Vec<(usize, wire::Settlement)>> = BTreeMap::new();
        for (index, item) in sent.into_iter().enumerate() {
            by_queue.entry(self.queue_of(&item.lease_token).clone()).or_default().push((index, item));
        }
        for (name, items) in by_queue {
            let tokens: Vec<_> = items.iter().map(|(index, item)| (*index, item.lease_token.clone())).collect();
            let items = items.into_iter().map(|(_, item)| decode::settlement(item)).collect();
            let answers = self.queues.work.settle_each(&name, items).await;
            for ((index, token), answer) in tokens.into_iter().zip(answers) {
                let is_over = match &answer {
                    Ok(handled) => !handled.is_active(),
                    Err(error) => error.reason() == Reason::LeaseLost,
                };
                if is_over {
                    self.unsettled.remove(&token);
                }
                results[index] = encode::settle_result(token, answer);
            }
        }
        results
    }

    async fn extend(&mut self, sent: wire::ExtendLeaseRequest) -> wire::ExtendResult {
        let lease_token = sent.lease_token;
        let name = self.queue_of(&lease_token).clone();
        let answer = match decode::duration("lease_duration", sent.lease_duration) {
            Ok(lease) => self.queues.work.extend(&name, &lease_token, lease).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(extended) => wire::ExtendResult {
                lease_token,
                lease_expires_in: Some(time::write_duration(extended.expires_in)),
                cancel_requested: extended.cancel_requested,
                error: None,
            },
            Err(error) => {
                if error.reason() == Reason::LeaseLost {
                    self.unsettled.remove(&lease_token);
                }
                wire::ExtendResult { lease_token, error: Some(encode::item_error(error)), ..Default::default() }
            }
        }
    }
}

/// Releases leases. One that cannot be released expires.
async fn release(queues: &Queues, leases: Vec<SentLease>) {
    let release = |sent: SentLease| {
        let item = SettleRequest { token: sent.token, verb: SettleAction::Release, delay: None, error: None };
        async move { queues.work.settle(&sent.queue.1, item).await }
    };
    let _ = futures_util::future::join_all(leases.into_iter().map(release)).await;
}
