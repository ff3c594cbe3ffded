//! Work: a stream that serves one worker. Credit and settlements in, leases and answers out.
//!
//! The stream makes its next message only when the connection takes it, so a worker that does not read gets no more
//! leases. When the worker ends its side, what it still holds is released; when the connection breaks, leases end by
//! themselves. While the server drains nothing is leased any more, but settlements are taken until all leases have ended.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, Stream, StreamExt};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::api::errors::{self, Refusal};
use crate::api::grpc::queues::{decode, encode};
use crate::api::time;
use crate::domain::Reason;
use crate::domain::limits::{DEQUEUE_WAIT_MAX, WORK_CREDIT_MAX, WORK_LEASES_AT_ONCE_MAX};
use crate::domain::queue::QueueName;
use crate::domain::queue::command::Verb;
use crate::domain::queue::message::MessageKey;
use crate::engine::queues::{Ask, Blocked, CancelNews, Dequeued, QueueError, Queues, SentSettlement};
use crate::proto::queue::v1 as wire;

type Dequeuing = Pin<Box<dyn Future<Output = Result<Dequeued, QueueError>> + Send>>;

/// The answers to a worker.
pub fn answers<S>(
    queues: Queues,
    requests: S,
    drain: CancellationToken,
) -> BoxStream<'static, Result<wire::WorkResponse, Status>>
where
    S: Stream<Item = Result<wire::WorkRequest, Status>> + Send + Unpin + 'static,
{
    let worker = Worker {
        cancels: queues.cancel_news(),
        queues,
        requests,
        drain,
        queue: None,
        lease: None,
        credit: 0,
        held: HashMap::new(),
        dequeuing: None,
        draining: false,
        ended: false,
    };
    stream::unfold(worker, |mut worker| async move { worker.next().await.map(|answer| (answer, worker)) }).boxed()
}

struct Worker<S> {
    queues: Queues,
    requests: S,
    drain: CancellationToken,
    cancels: broadcast::Receiver<CancelNews>,
    queue: Option<QueueName>,
    lease: Option<Duration>,
    credit: u32,
    /// The leases that were sent and not settled, with their tokens.
    held: HashMap<MessageKey, String>,
    dequeuing: Option<Dequeuing>,
    draining: bool,
    ended: bool,
}

/// What happens next.
enum Event {
    Drain,
    Request(Option<Result<wire::WorkRequest, Status>>),
    Found(Result<Dequeued, QueueError>),
    Canceled(MessageKey),
    Nothing,
}

impl<S: Stream<Item = Result<wire::WorkRequest, Status>> + Send + Unpin> Worker<S> {
    /// The next answer; after an error or the end of the requests, nothing.
    async fn next(&mut self) -> Option<Result<wire::WorkResponse, Status>> {
        while !self.ended {
            match self.step().await {
                Ok(Some(answer)) => return Some(Ok(answer)),
                Ok(None) => {}
                Err(status) => {
                    self.ended = true;
                    return Some(Err(status));
                }
            }
        }
        None
    }

    async fn step(&mut self) -> Result<Option<wire::WorkResponse>, Status> {
        if self.draining && self.held.is_empty() {
            return Err(Refusal::new(Reason::ShuttingDown, "the server is stopping and gives no more leases").into());
        }
        self.begin_dequeue();
        match self.event().await {
            Event::Drain => {
                (self.draining, self.dequeuing) = (true, None);
                Ok(None)
            }
            Event::Request(Some(request)) => self.take_in(request.map_err(errors::with_reason)?).await.map(Some),
            Event::Request(None) => {
                self.ended = true;
                self.dequeuing = None;
                self.release_held().await;
                Ok(None)
            }
            Event::Found(found) => self.hand_out(found),
            Event::Canceled(key) => Ok(self.held.get(&key).map(|token| wire::WorkResponse {
                cancel_requests: vec![token.clone()],
                ..wire::WorkResponse::default()
            })),
            Event::Nothing => Ok(None),
        }
    }

    fn begin_dequeue(&mut self) {
        let Some(name) = self.queue.clone() else { return };
        if self.dequeuing.is_some() || self.credit == 0 || self.draining {
            return;
        }
        let ask = Ask {
            max: WORK_LEASES_AT_ONCE_MAX.min(self.credit as usize),
            lease: self.lease,
            wait: DEQUEUE_WAIT_MAX,
            blocked: Blocked::Wait,
            ..Ask::default()
        };
        let queues = self.queues.clone();
        self.dequeuing = Some(async move { queues.dequeue(&name, ask).await }.boxed());
    }

    async fn event(&mut self) -> Event {
        let Self { requests, drain, cancels, dequeuing, draining, .. } = self;
        let found = async {
            match dequeuing {
                Some(dequeuing) => dequeuing.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = drain.cancelled(), if !*draining => Event::Drain,
            request = requests.next() => Event::Request(request),
            found = found => Event::Found(found),
            news = cancels.recv() => match news {
                Ok(news) if Some(&news.queue) == self.queue.as_ref() => Event::Canceled(news.key),
                // What was missed is told at the next extension.
                Ok(_) | Err(_) => Event::Nothing,
            },
        }
    }

    fn hand_out(&mut self, found: Result<Dequeued, QueueError>) -> Result<Option<wire::WorkResponse>, Status> {
        self.dequeuing = None;
        let found = match found {
            Ok(found) => found,
            Err(QueueError::ShuttingDown) => {
                self.draining = true;
                return Ok(None);
            }
            Err(error) => return Err(Refusal::from(error).into()),
        };
        let queue = found.queue();
        let mut leases = Vec::new();
        for given in found.take() {
            let key = given.lease.token.key;
            let lease = encode::lease(queue, given);
            self.held.insert(key, lease.lease_token.clone());
            leases.push(lease);
        }
        self.credit = self.credit.saturating_sub(u32::try_from(leases.len()).unwrap_or(u32::MAX));
        Ok((!leases.is_empty()).then(|| wire::WorkResponse { leases, ..wire::WorkResponse::default() }))
    }

    /// Takes in what the worker says; answers its settlements and extensions.
    async fn take_in(&mut self, request: wire::WorkRequest) -> Result<wire::WorkResponse, Status> {
        let refused = |error: QueueError| Status::from(Refusal::from(error));
        let name = match (&self.queue, request.queue.as_str()) {
            (Some(known), sent) if sent.is_empty() || sent == known.as_str() => known.clone(),
            (Some(_), _) => {
                let what = "a stream serves one queue; open another stream for another queue";
                return Err(Refusal::new(Reason::InvalidArgument, what).at("queue").into());
            }
            (None, sent) => {
                let name = decode::queue(sent).map_err(refused)?;
                self.queues.served(&name).map_err(refused)?;
                self.lease = decode::duration("lease_duration", request.lease_duration).map_err(refused)?;
                self.queue = Some(name.clone());
                name
            }
        };
        let credit = u32::try_from(request.credit).ok().map(|credit| credit.saturating_add(self.credit));
        let Some(credit) = credit.filter(|credit| *credit <= WORK_CREDIT_MAX) else {
            let what = format!("credit must be 0 or more, and {WORK_CREDIT_MAX} at most may be outstanding");
            return Err(Refusal::new(Reason::InvalidRange, what).at("credit").into());
        };
        self.credit = credit;
        let results = self.settle(&name, request.settlements).await?;
        let mut extended = Vec::with_capacity(request.extensions.len());
        for extension in request.extensions {
            extended.push(self.extend(&name, extension).await);
        }
        Ok(wire::WorkResponse { leases: Vec::new(), results, extended, cancel_requests: Vec::new() })
    }

    async fn settle(
        &mut self,
        name: &QueueName,
        sent: Vec<wire::Settlement>,
    ) -> Result<Vec<wire::SettleResult>, Status> {
        let tokens: Vec<String> = sent.iter().map(|item| item.lease_token.clone()).collect();
        let sent = sent.into_iter().map(decode::settlement).collect();
        let answers = self.queues.settle_all(name, sent).await.map_err(|error| Status::from(Refusal::from(error)))?;
        for (token, answer) in tokens.iter().zip(&answers) {
            let lost = matches!(answer, Err(error) if error.reason() == Reason::LeaseLost);
            if answer.is_ok() || lost {
                self.held.retain(|_, held| held != token);
            }
        }
        Ok(tokens.into_iter().zip(answers).map(|(token, answer)| encode::settle_result(token, answer)).collect())
    }

    async fn extend(&mut self, name: &QueueName, sent: wire::ExtendLeaseRequest) -> wire::ExtendResult {
        let lease_token = sent.lease_token;
        let answer = match decode::duration("lease_duration", sent.lease_duration) {
            Ok(lease) => self.queues.extend(name, &lease_token, lease).await,
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
                    self.held.retain(|_, held| *held != lease_token);
                }
                wire::ExtendResult { lease_token, error: Some(encode::item_error(error)), ..Default::default() }
            }
        }
    }

    /// Gives back what the worker still holds; what cannot be released ends by itself.
    async fn release_held(&mut self) {
        let Some(name) = &self.queue else { return };
        let release = |token| Ok(SentSettlement { token, verb: Verb::Release, delay: None, error: None });
        let sent = self.held.drain().map(|(_, token)| release(token)).collect();
        let _ = self.queues.settle_all(name, sent).await;
    }
}
